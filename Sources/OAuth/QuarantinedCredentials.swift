/// What the provider ended, kept aside so that an operator can put it back: the content of a record of its own.
package struct QuarantinedCredentials: Sendable, Equatable {
    package var credentials: HeldCredentials
    /// When they are thrown away.
    package var until: Timestamp
    /// When the session ended, and why; nil where an earlier build wrote the record.
    package var session: EndedSession?

    package init(credentials: HeldCredentials, until: Timestamp, session: EndedSession? = nil) {
        self.credentials = credentials
        self.until = until
        self.session = session
    }
}
