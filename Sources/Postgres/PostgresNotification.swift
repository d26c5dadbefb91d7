/// A notification that another session sent by NOTIFY.
package struct PostgresNotification: Sendable, Equatable {
    package let channel: String
    /// Fewer than 8000 octets.
    package let payload: String
}
