/// What NOTIFY told.
package struct PostgresNotification: Sendable, Equatable {
    package let channel: String
    /// Fewer than 8000 octets.
    package let payload: String
}
