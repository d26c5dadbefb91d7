/// A user who has logged in.
package struct ProviderUser: Sendable, Equatable, Hashable {
    package let id: Int64
    package let name: String

    /// The user with this name. The number is derived from the name.
    package init(_ name: String) {
        self.name = name
        id = Secrets.userID(name)
    }

    /// The name, when it is an email address.
    var email: String? { name.utf8.contains(UInt8(ascii: "@")) ? name : nil }
}

/// A login and all tokens from it: a token family (RFC 9700 §4.14.2).
package struct Family: Sendable, Equatable {
    package enum Origin: String, Sendable {
        case authorizationCode = "authorization_code"
        case deviceCode = "device_code"
        /// A biometric key logged the user in.
        case biometric
        /// The control interface opened the session.
        case control
    }

    package enum RevocationCause: String, Sendable {
        /// A refresh token was used after its successor had been presented or after its grace period.
        case refreshTokenReuse = "refresh_token_reuse"
        /// An authorization code was redeemed twice (RFC 6749 §4.1.2).
        case codeReuse = "code_reuse"
        /// The client called the revocation endpoint.
        case client
        /// The client called the logout endpoint.
        case logout
        /// The session of an authorization request was used for a second login.
        case sessionReuse = "session_reuse"
        /// The biometric key that the session was begun with began another one.
        case biometricLogin = "biometric_login"
        /// The control interface revoked the session.
        case control
    }

    package struct Revocation: Sendable, Equatable {
        package let at: Int64
        package let cause: RevocationCause
    }

    package let id: Int
    package let user: ProviderUser
    package let clientID: String
    package let origin: Origin
    /// Milliseconds since 1970, like every time in this file.
    package let createdAt: Int64
    package internal(set) var revocation: Revocation?
    package internal(set) var reusesDetectedAt: [Int64] = []
    /// The number of refresh tokens that were issued, which is the generation of the newest one.
    package internal(set) var lastGeneration = 0
    /// The digests of the refresh tokens, oldest first.
    var refreshTokens: [String] = []
    /// The thumbprint of the key to which its refresh tokens are bound; nil for none.
    var keyThumbprint: String?
    /// The digests of the access tokens that the next refresh ends.
    var endingAccessTokens: [String] = []
}

/// A refresh token of a family, as the ledger shows it.
package struct RefreshTokenRecord: Sendable, Equatable {
    /// The SHA-256 digest of the token, in hexadecimal.
    package let digest: String
    package let family: Int
    /// The first refresh token of a family has the generation 1.
    package let generation: Int
    /// The generation of the token that was exchanged for this one; nil for the first.
    package let predecessor: Int?
    package let clientID: String
    package let scope: [String]
    package let issuedAt: Int64
    package internal(set) var expiresAt: Int64?
    package internal(set) var presentations = 0
    /// The times at which the token was presented, at most the newest `maximumPresentations`.
    package internal(set) var presentedAt: [Int64] = []
    /// When its first successor was issued.
    package internal(set) var supersededAt: Int64?
    /// Whether a successor has been presented, which ends the grace period.
    package internal(set) var isConfirmed = false
    var predecessorDigest: String?
    /// The digests of the access tokens that were issued for it, at most the newest `maximumAccessTokens`, where a replay ends
    /// them; otherwise empty.
    var accessTokens: [String] = []

    static let maximumPresentations = 1000
    static let maximumAccessTokens = 16

    mutating func present(at now: Int64) {
        presentations += 1
        presentedAt.append(now)
        if presentedAt.count > Self.maximumPresentations { presentedAt.removeFirst() }
    }
}

/// The result of a use of a refresh token, for the log.
package struct RefreshTrace: Sendable, Equatable {
    package enum Outcome: String, Sendable {
        case kept
        case rotated
        /// The old token was used within its grace period.
        case graceReplay = "grace_replay"
        case reused
        case revoked
        case expired
        case unknown
        case otherClient = "other_client"
        /// The token was valid, but another part of the request was not.
        case refused
    }

    package var outcome: Outcome
    package var family: Int?
    package var presentedGeneration: Int?
    package var issuedGeneration: Int?
}

/// The content of an access token, as a resource server would learn it (RFC 7662 §2.2).
package struct AccessTokenRecord: Sendable, Equatable {
    package let clientID: String
    package let user: ProviderUser?
    package let scope: [String]
    package let family: Int?
    package let issuedAt: Int64
    package internal(set) var expiresAt: Int64
}

extension Family.RevocationCause {
    /// Why a refresh token of a family is refused that was revoked for this cause.
    var tokenStatus: TokenStatus {
        switch self {
        case .refreshTokenReuse: .reused
        case .codeReuse, .sessionReuse: .fraudDetected
        case .logout: .loggedOut
        case .client, .control, .biometricLogin: .invalid
        }
    }
}
