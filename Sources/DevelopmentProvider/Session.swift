/// Who logged in.
package struct ProviderUser: Sendable, Equatable, Hashable {
    package let id: Int64
    package let name: String

    /// The user of that name; the number follows from the name.
    package init(_ name: String) {
        self.name = name
        id = Secrets.userID(name)
    }
}

/// A login and everything that came from it: a token family (RFC 9700 §4.14.2).
package struct Family: Sendable, Equatable {
    package enum Origin: String, Sendable {
        case authorizationCode = "authorization_code"
        case deviceCode = "device_code"
        /// The control interface.
        case control
    }

    package enum RevocationCause: String, Sendable {
        /// A refresh token was used again after its successor, or after its grace period.
        case refreshTokenReuse = "refresh_token_reuse"
        /// An authorization code was redeemed twice (RFC 6749 §4.1.2).
        case codeReuse = "code_reuse"
        /// The revocation endpoint.
        case client
        /// The control interface.
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
    /// Milliseconds since 1970, as every time here.
    package let createdAt: Int64
    package internal(set) var revocation: Revocation?
    package internal(set) var reusesDetectedAt: [Int64] = []
    /// How many refresh tokens were issued; the newest one's generation.
    package internal(set) var lastGeneration = 0
    /// Digests of the refresh tokens, oldest first.
    var refreshTokens: [String] = []
}

/// One refresh token of a family, as the ledger tells of it.
package struct RefreshTokenRecord: Sendable, Equatable {
    /// SHA-256 of the token, in hexadecimal.
    package let digest: String
    package let family: Int
    /// Counts from 1 in each family.
    package let generation: Int
    /// The generation that was presented to get this one; nil for the first.
    package let predecessor: Int?
    package let clientID: String
    package let scope: [String]
    package let issuedAt: Int64
    package internal(set) var expiresAt: Int64?
    package internal(set) var presentations = 0
    /// When it was presented: the newest ones, as many as `maximumPresentations`.
    package internal(set) var presentedAt: [Int64] = []
    /// When its first successor was issued.
    package internal(set) var supersededAt: Int64?
    /// Whether a successor was presented, which ends the grace period.
    package internal(set) var isConfirmed = false
    var predecessorDigest: String?

    static let maximumPresentations = 1000

    mutating func present(at now: Int64) {
        presentations += 1
        presentedAt.append(now)
        if presentedAt.count > Self.maximumPresentations { presentedAt.removeFirst() }
    }
}

/// What the use of a refresh token came to, for the log.
package struct RefreshTrace: Sendable, Equatable {
    package enum Outcome: String, Sendable {
        case kept
        case rotated
        /// The predecessor, within its grace period.
        case graceReplay = "grace_replay"
        case reused
        case revoked
        case expired
        case unknown
        case otherClient = "other_client"
        /// The token was good and the rest of the request was not.
        case refused
    }

    package var outcome: Outcome
    package var family: Int?
    package var presentedGeneration: Int?
    package var issuedGeneration: Int?
}

/// What an access token stands for, as a resource server would learn (RFC 7662 §2.2).
package struct AccessTokenRecord: Sendable, Equatable {
    package let clientID: String
    package let user: ProviderUser?
    package let scope: [String]
    package let family: Int?
    package let issuedAt: Int64
    package internal(set) var expiresAt: Int64
}
