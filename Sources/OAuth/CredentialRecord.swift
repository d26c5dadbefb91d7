/// The record under a storage key. A record without credentials is a tombstone: it keeps the version increasing.
package struct CredentialRecord: Sendable, Equatable {
    package var held: HeldCredentials?
    /// SHA-256 of the refresh token whose refusal ended the previous session; nil after a login and after a logout. A
    /// replica that has exchanged this token meanwhile learns from it that the session continues.
    package var ended: [UInt8]?
    /// The user's session that has ended. Nil while a session exists, when there was none, after a logout, and when an
    /// earlier build ended the session.
    package var session: EndedSession?
    /// When a renewal granted `held`; nil when a login granted it or an earlier build wrote the record.
    package var renewed: Timestamp?
    /// SHA-256 of the refresh token that was exchanged for `held`. Only set after the store has lost commits: it shows
    /// a replica whether a login or a logout that the store has lost came later. Nil otherwise.
    package var exchanged: [UInt8]?

    package init(
        held: HeldCredentials?, ended: [UInt8]? = nil, session: EndedSession? = nil, renewed: Timestamp? = nil
    ) {
        self.held = held
        self.ended = ended
        self.session = session
        self.renewed = renewed
    }

    /// Whether the two records are equal except for `exchanged`.
    package func isSame(as other: CredentialRecord) -> Bool {
        var other = other
        other.exchanged = exchanged
        return self == other
    }
}
