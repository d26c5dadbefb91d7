/// What is kept under a storage key. With nothing held it is a tombstone: it keeps the version rising.
package struct CredentialRecord: Sendable, Equatable {
    package var held: HeldCredentials?
    /// SHA-256 of the refresh token whose refusal ended the session before; nil after a login and after an explicit
    /// logout. Whoever has exchanged that very token meanwhile knows by it that the session goes on.
    package var ended: [UInt8]?
    /// The user's session that is over; nil while one lasts, where there was none, after a logout, and where an earlier build
    /// ended it.
    package var session: EndedSession?
    /// When a renewal granted what is held; nil where a login did, and where an earlier build wrote the record.
    package var renewed: Timestamp?

    package init(
        held: HeldCredentials?, ended: [UInt8]? = nil, session: EndedSession? = nil, renewed: Timestamp? = nil
    ) {
        self.held = held
        self.ended = ended
        self.session = session
        self.renewed = renewed
    }
}
