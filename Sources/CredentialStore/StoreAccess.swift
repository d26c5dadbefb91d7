/// The kind of a call of the store.
package enum StoreAccess: String, CaseIterable, Sendable {
    case read
    case write
}
