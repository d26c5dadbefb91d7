/// What the provider ended, kept aside so that an operator can put it back: the content of a record of its own.
package struct QuarantinedCredentials: Sendable, Equatable {
    package var credentials: HeldCredentials
    /// When they are thrown away.
    package var until: Timestamp

    package init(credentials: HeldCredentials, until: Timestamp) {
        self.credentials = credentials
        self.until = until
    }
}
