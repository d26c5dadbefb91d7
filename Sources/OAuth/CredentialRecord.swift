/// What is kept under a storage key. With nothing held it is a tombstone: it keeps the version rising.
package struct CredentialRecord: Sendable, Equatable {
    package var held: HeldCredentials?
    /// SHA-256 of the refresh token whose refusal ended the session before; nil after a login and after an explicit
    /// logout. Whoever has exchanged that very token meanwhile knows by it that the session goes on.
    package var ended: [UInt8]?

    package init(held: HeldCredentials?, ended: [UInt8]? = nil) {
        self.held = held
        self.ended = ended
    }
}
