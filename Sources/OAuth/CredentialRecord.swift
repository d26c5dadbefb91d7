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
    /// SHA-256 of the refresh token that was exchanged for what is held. Told where the store has gone back of late: a
    /// replica knows by it whether a login or a logout that the store has lost comes after. Nil otherwise.
    package var exchanged: [UInt8]?

    package init(
        held: HeldCredentials?, ended: [UInt8]? = nil, session: EndedSession? = nil, renewed: Timestamp? = nil
    ) {
        self.held = held
        self.ended = ended
        self.session = session
        self.renewed = renewed
    }

    /// Whether both say the same, one with and one without `exchanged`.
    package func isSame(as other: CredentialRecord) -> Bool {
        var other = other
        other.exchanged = exchanged
        return self == other
    }
}
