/// The record under a storage key. A record without credentials is called empty; it keeps the version increasing.
package struct CredentialRecord: Sendable, Equatable {
    /// The set that was granted last. It may not be verified yet, so it is never served: `held` is.
    package var granted: HeldCredentials?
    /// What is known of a set that is not verified yet; nil where `granted` may be served.
    package var waiting: WaitingVerification?
    /// SHA-256 of the refresh token whose refusal ended the previous session; nil after a login and after a logout. A
    /// replica that has exchanged this token meanwhile learns from it that the session continues.
    package var ended: [UInt8]?
    /// The user's session that has ended. Nil while a session exists, when there was none, after a logout, and when an
    /// earlier build ended the session. Beside it, `held` is the client's, or what is left of the session (`isOver`).
    package var session: EndedSession?
    /// When a renewal granted the access token of `held`; nil when a login granted it or an earlier build wrote the record.
    package var renewed: Timestamp?
    /// SHA-256 of the refresh token that was exchanged for `held`. Only set after the store has lost commits: it shows
    /// a replica whether a login or a logout that the store has lost came later. Nil otherwise.
    package var exchanged: [UInt8]?

    /// The version under which `held` was stored, where the record was written again since without another set for callers;
    /// nil where that is the record's own version. `CredentialsRecords.prepare` names it in each record whose set waits.
    package var heldSince: Int64?

    /// Whether a login has brought `granted` without a refresh token and has kept the one of the set before. A renewal that was
    /// under way then has spent that token, and its successor takes the token's place.
    package var keepsRefreshToken = false

    /// SHA-256 of the refresh token whose refusal ended the session before the login that has brought `granted` without a refresh
    /// token; nil elsewhere. A replica that has exchanged this token meanwhile has a successor, which takes the missing token's place.
    package var endedBefore: [UInt8]?

    /// The set that may be served: the one granted last, or the one before it while that waits for its verification.
    package var held: HeldCredentials? {
        guard let waiting else { return granted }
        return waiting.earlier
    }

    /// Whether the user's session has ended while its access token lives: `held` has that token, without a refresh token.
    package var isOver: Bool { session != nil && held?.level == .user }

    /// Whether the two records have one refresh token, so that a renewal of the other one spends this one's. False where the set
    /// of one of them waits for its verification.
    package func mayBeSpent(with other: CredentialRecord) -> Bool {
        guard waiting == nil, other.waiting == nil, let token = granted?.refreshToken else { return false }
        return token == other.granted?.refreshToken
    }

    /// A record of a set that may be served.
    package init(
        held: HeldCredentials?, ended: [UInt8]? = nil, session: EndedSession? = nil, renewed: Timestamp? = nil
    ) {
        granted = held
        self.ended = ended
        self.session = session
        self.renewed = renewed
    }

    /// The same record with `granted` not verified yet.
    /// - Parameter version: the version under which the set before was stored, which may be served meanwhile.
    package func waiting(for verification: WaitingVerification, since version: Int64) -> CredentialRecord {
        var record = self
        record.waiting = verification
        record.heldSince = verification.earlier == nil ? nil : version
        return record
    }

    /// The same record, whose set waits, with a renewed set in place of the one before it. If callers get another token by it, or
    /// another expiry, `heldSince` is nil until the record is stored.
    /// - Parameter spent: the digest of the refresh token that was exchanged for the renewed set's. If the login was granted that
    ///   token, too, its set gets the successor.
    package func waiting(over earlier: HeldCredentials?, spent: [UInt8]?) -> CredentialRecord {
        guard let waiting else { return self }
        var record = self
        if let spent, granted?.refreshTokenDigest == spent {
            record.granted?.refreshToken = earlier?.refreshToken
            record.granted?.refreshableFrom = earlier?.refreshableFrom
        }
        record.waiting = WaitingVerification(
            origin: waiting.origin, replacing: earlier, idToken: waiting.idToken, nonce: waiting.nonce,
            login: waiting.login, granted: waiting.granted)
        if earlier?.accessToken != waiting.earlier?.accessToken || earlier?.expires != waiting.earlier?.expires {
            record.heldSince = nil
        }
        return record
    }

    /// The same record with a set that may be served in place of the one that waits.
    package func settled(to held: HeldCredentials?) -> CredentialRecord {
        var record = self
        record.keepsRefreshToken = false
        (record.granted, record.waiting, record.heldSince) = (held, nil, nil)
        return record
    }

    /// Whether the two records are equal except for `exchanged`.
    package func isSame(as other: CredentialRecord) -> Bool {
        var other = other
        other.exchanged = exchanged
        return self == other
    }
}
