/// Whether what this process knows of a record is newer than what the store shows, so that the store has lost it. One rule for each
/// kind of record: values only, no clock and no store.
///
/// Versions rise with time, so of two records the one with the lower version was written first. But a replica that stores a record
/// again gives it a new, higher version: alice logs out at 9:00 in version 7, the store goes back to version 5, and another replica
/// stores version 6 again as version 8. So credentials and sessions are compared by their tokens as well.
enum Newness {
    // MARK: Credentials

    /// Credentials that this process knows.
    struct Credentials {
        let version: Int64
        /// Whether a login or a logout made them.
        let isAct: Bool
        /// The digests of the tokens that they have replaced.
        let replaced: [[UInt8]]
    }

    /// Credentials that the store shows.
    struct StoredCredentials {
        /// 0 where it has no record.
        let version: Int64
        /// See `CredentialRecord.tokenDigest`.
        var token: [UInt8]?
        /// The digest of the token that was exchanged for them, or whose refusal has ended them.
        var spent: [UInt8]?
    }

    /// - Parameter mayBeRestored: whether another replica may have stored again what the store shows.
    static func isNewer(_ known: Credentials, than stored: StoredCredentials, mayBeRestored: Bool) -> Bool {
        if stored.version < known.version { return true }
        guard stored.version > known.version, mayBeRestored else { return false }
        if let token = stored.token, known.replaced.contains(token) { return true }
        // The store lost a login or a logout, and then took the result of a renewal that had begun before it.
        return known.isAct && stored.spent.map(known.replaced.contains) ?? false
    }

    // MARK: Sessions of apps

    /// A session in one of its versions.
    struct Session {
        /// How many refresh tokens came before its own.
        let generation: UInt32
        let version: Int64
    }

    /// Each refresh of a session makes the next generation, so the later one is newer, whichever version it was stored again under.
    /// - Parameter stored: nil where the store has no such session.
    static func isNewer(_ known: Session, than stored: Session?) -> Bool {
        guard let stored else { return true }
        return known.generation == stored.generation
            ? known.version > stored.version : known.generation > stored.generation
    }

    // MARK: Logins, codes and settings

    /// A record that is stored again keeps its version, so a change that came after it has a higher one and stays.
    ///
    /// What an earlier process stored, and this one read of in the journal, is not missed where the store has no such record: while
    /// no process followed the store, another one may have removed it.
    /// - Parameter stored: the version that the store shows; nil for none.
    static func isNewer(_ known: RecentCommits.Known, than stored: Int64?) -> Bool {
        guard let stored else { return !known.isRemoved && !known.isTakenUp }
        return known.isRemoved ? stored <= known.version : stored < known.version
    }
}
