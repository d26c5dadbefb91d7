/// A secret that the embedded store makes for itself on its first start, in a file of its own beside the records
/// (mode 0600), when the configuration has none. The raw value is the file's name.
package enum StoreSecret: String, Sendable, CaseIterable {
    case masterKeys = "master.keys"
    case adminKey = "admin.key"
}
