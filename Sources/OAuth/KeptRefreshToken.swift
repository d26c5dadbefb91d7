package import Cryptography

/// What a login keeps of the credentials that it replaces.
///
/// Some providers give a refresh token at the first consent only, so that the answer to a later login has none. The one that is
/// stored is good for as long as its user does not end it.
extension HeldCredentials {
    /// Why credentials without a refresh token do not keep the stored one.
    package enum NotKept: Sendable, Equatable {
        /// One of the two users is not known.
        case unknownUser
        case otherUser
        /// Another `client_id` has obtained the refresh token, which belongs to that client (RFC 6749 §6).
        case otherClient
        /// Another provider has granted the refresh token, so that it is not to be sent to this one.
        case otherProvider
        /// They are no login's: a caller has set them as they are.
        case set
    }

    /// What becomes of the stored refresh token.
    package enum Keeping: Sendable, Equatable {
        /// There is none to keep, or the login has brought its own.
        case none
        /// The credentials of the login with that refresh token.
        case kept(HeldCredentials)
        case dropped(NotKept)
    }

    /// What becomes of the refresh token of the credentials that these credentials of a login replace.
    /// - Parameters:
    ///   - earlier: nil for none.
    ///   - providers: whose refresh tokens may be sent to the provider of this login.
    package func keepingRefreshToken(of earlier: HeldCredentials?, at providers: AcceptedProviders) -> Keeping {
        guard level == .user, refreshToken == nil, let earlier, earlier.level == .user, earlier.refreshToken != nil
        else { return .none }
        guard earlier.obtainedWith.clientID == obtainedWith.clientID else { return .dropped(.otherClient) }
        guard providers.difference(from: earlier.grantedBy) == nil else { return .dropped(.otherProvider) }
        guard isKnownToBeSameUser(as: earlier) else {
            return .dropped(earlier.isOfOtherUser(than: self) ? .otherUser : .unknownUser)
        }
        return .kept(havingRefreshToken(of: earlier))
    }

    /// These credentials with the refresh token of others, and what belongs to it: from when it may be presented, whether it was
    /// verified, what its grant was asked for, the device key that the provider has bound to its session, and the key that proves
    /// its refreshes.
    package func havingRefreshToken(of other: HeldCredentials) -> HeldCredentials {
        var credentials = self
        credentials.refreshToken = other.refreshToken
        credentials.refreshableFrom = other.refreshableFrom
        credentials.proof.refreshToken = other.proof.refreshToken
        credentials.deviceKey = other.deviceKey
        credentials.proofKey = .joining(credentials.proofKey, refreshes: other.proofKey)
        credentials.imported = other.imported
        credentials.asked = other.asked
        credentials.terms = GrantTerms(login: terms, keepingRefreshTokenOf: other.terms)
        return credentials
    }

    /// These credentials with the refresh token that a provider has given in exchange for theirs.
    /// - Parameter time: before which it must not be presented; nil for none.
    package func renewing(refreshToken successor: SecretBytes, usableFrom time: Timestamp?) -> HeldCredentials {
        var credentials = self
        credentials.refreshToken = successor
        credentials.refreshableFrom = time
        credentials.proof.refreshToken = false
        return credentials
    }

    /// Whether these credentials, which nothing uses, may be of one grant with others, so that their revocation would end those, too.
    /// A provider may grant the refresh token of an earlier login again. And the revocation of an access token may end the grant's
    /// refresh token (RFC 7009 §2.1).
    package func mayShareGrant(with other: HeldCredentials?) -> Bool {
        guard let other, let held = other.refreshToken else { return false }
        guard refreshToken == nil else { return refreshToken == held }
        return obtainedWith.clientID == other.obtainedWith.clientID && !other.isOfOtherUser(than: self)
            && !isOfOtherUser(than: other)
    }

    /// Whether the grant of these credentials, which nothing uses, may be one with that of stored ones. A grant without a refresh token
    /// of its own may also be that of another storage key of the user.
    package func mayBeShared(with stored: HeldCredentials?...) -> Bool {
        refreshToken == nil || stored.contains { mayShareGrant(with: $0) }
    }

    /// Whether a renewal of these credentials, which ended after a login had replaced them, brought a refresh token for that
    /// login's credentials: they have none or have kept the one that was exchanged, and neither a logout nor another user came
    /// between.
    /// - Parameters:
    ///   - login: the credentials of the login.
    ///   - spent: the digest of the refresh token that was exchanged.
    ///   - endedBefore: the digest of the refresh token whose refusal ended the session before the login; nil for none.
    package func continues(
        in login: HeldCredentials, spent: [UInt8], endedBefore: [UInt8]?, at providers: AcceptedProviders
    ) -> Bool {
        guard loggedInSince == login.loggedInSince || endedBefore == spent,
            login.refreshToken == nil || login.refreshTokenDigest == spent
        else {
            return false
        }
        var bare = login
        bare.refreshToken = nil
        if case .kept = bare.keepingRefreshToken(of: self, at: providers) { return true }
        return false
    }
}
