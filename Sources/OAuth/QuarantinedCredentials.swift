/// Credentials of a session that the provider ended, kept in a record of their own so that an operator can restore
/// them. Also the content of the record of what an import has put aside.
package struct QuarantinedCredentials: Sendable, Equatable {
    package var credentials: HeldCredentials
    /// When they are deleted.
    package var until: Timestamp
    /// When and why the session ended; nil when an earlier build wrote the record, and for what an import has put aside.
    package var session: EndedSession?

    package init(credentials: HeldCredentials, until: Timestamp, session: EndedSession? = nil) {
        self.credentials = credentials
        self.until = until
        self.session = session
    }
}
