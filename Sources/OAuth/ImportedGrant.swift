package import Cryptography

/// What is known of the grant that an import has brought a set of credentials from. It stays with what renewals make of the set, so
/// that the same line, read again, is known although its refresh token was exchanged since.
///
/// An object, since few sets have any.
package final class ImportedGrant: Sendable, Equatable {
    /// SHA-256 of the line's refresh token, or of its access token where it has no other, 32 octets.
    package let digest: [UInt8]
    /// When the provider granted it, as the line says; nil where the line does not.
    package let granted: Timestamp?

    package init(digest: [UInt8], granted: Timestamp?) {
        self.digest = digest
        self.granted = granted
    }

    /// - Parameter token: the line's refresh token, or its access token where it has no other.
    package convenience init(of token: SecretBytes, granted: Timestamp?) {
        self.init(digest: token.withRevealed { SHA256.digest($0) }, granted: granted)
    }

    package static func == (left: ImportedGrant, right: ImportedGrant) -> Bool {
        left.digest == right.digest && left.granted == right.granted
    }
}

/// What an import finds under a storage key.
package enum ImportStanding: Sendable, Equatable {
    /// Nothing that the line must not replace.
    case free
    /// The line's grant, or what was made of it.
    case same
    /// The set of a user who is logged in.
    case taken
    /// A set whose grant came later than the line's.
    case newer
    /// The line's refresh token is known to be refused.
    case refused

    /// - Parameters:
    ///   - record: what is stored.
    ///   - held: what the line brings.
    ///   - grant: the line's grant.
    package init(of record: CredentialRecord, to held: HeldCredentials, _ grant: ImportedGrant, now: Timestamp) {
        let sets = [record.granted, record.held].compactMap(\.self)
        if !record.isOver, sets.contains(where: { $0.isOf(grant, broughtAs: held) }) {
            self = .same
        } else if !record.isOver, let live = sets.first(where: { $0.isLoggedIn(at: now) }) {
            let known = live.imported.map(\.granted) ?? live.loggedInSince
            self = if let known, let granted = grant.granted, granted < known { .newer } else { .taken }
        } else {
            self = record.ended != nil && record.ended == held.refreshTokenDigest ? .refused : .free
        }
    }
}

extension HeldCredentials {
    /// Whether this set is what an import of that grant has stored, or what renewals have made of it.
    fileprivate func isOf(_ grant: ImportedGrant, broughtAs held: HeldCredentials) -> Bool {
        guard level == held.level else { return false }
        if imported?.digest == grant.digest { return true }
        if let brought = held.refreshToken { return refreshToken == brought }
        return accessToken == held.accessToken
    }
}

extension HeldCredentials {
    /// What is kept of an imported set that is not served: above all its refresh token, which the next renewal presents. No caller
    /// gets anything of it before, and what an answer says of the user counts only once it is verified.
    /// - Parameter now: when the access token ends for callers.
    package func unserved(at now: Timestamp) -> HeldCredentials {
        var set = self
        set.accessToken = SecretBytes([])
        set.expires = now
        set.identity = UserIdentity()
        set.proof = TokenProof()
        return set
    }
}
