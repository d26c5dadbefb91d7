import ExternalText
import Reactor

/// The contents of its tables and of its responses.
extension TokenIssuer {
    struct AuthorizationCode: Sendable {
        let clientID: String
        let redirectURI: String
        /// Whether the authorization request contained the redirect URI. The token request must then contain it too
        /// (RFC 6749 §4.1.3).
        let redirectURIWasSent: Bool
        let challenge: String?
        let scope: [String]
        let user: ProviderUser
        /// For the ID token (OpenID Connect Core §3.1.2.1).
        let nonce: String?
        /// The scopes of the tokens of the other kind; empty for none.
        var userScope: [String] = []
        /// The thumbprint of the key that it is bound to (RFC 9449 §10); nil for none.
        var keyThumbprint: String?
        /// When the user logged in.
        let issuedAt: Int64
        var expiresAt: Int64
        /// The token family that redeeming the code opened; nil until then.
        var family: Int?
    }

    /// The content of a successful token response.
    struct Grant: Sendable {
        let client: ProviderClient
        let accessToken: String
        let lifetime: Duration
        let refreshToken: String?
        let scope: [String]
        let user: ProviderUser?
        /// Nil when `openid` is not among the scopes or the profile has no ID tokens.
        var idToken: String?
        /// Nil where the login has asked for one kind of scopes only, and for other grants.
        var userTokens: UserTokens?
    }

    struct Events: Sendable, Equatable {
        var codesIssued = 0
        var tokensIssued = 0
        var rotations = 0
        var graceReplays = 0
        var reuseDetections = 0
        var codeReuses = 0
        var familiesRevoked = 0
    }
}

/// Scopes and times.
extension TokenIssuer {
    /// The scopes of a `scope` parameter without repetitions; nil for a malformed text (RFC 6749 §3.3).
    static func scopes(_ text: WireText) -> [String]? {
        var known: Set<WireText> = []
        var scopes: [String] = []
        for part in text.utf8.split(separator: UInt8(ascii: " ")) {
            guard part.allSatisfy({ $0 > 0x20 && $0 < 0x7f && $0 != 0x22 && $0 != 0x5c }) else { return nil }
            let token = WireText(part)
            if known.insert(token).inserted { scopes.append(token.text) }
        }
        return scopes
    }

    /// The scopes that `client` gets for `requested`.
    static func scope(_ requested: [String]?, of client: ProviderClient) throws(OAuthError) -> [String] {
        try scope(requested, within: client.scopes)
    }

    static func scope(_ requested: [String]?, within allowed: [String]?) throws(OAuthError) -> [String] {
        guard let requested, !requested.isEmpty else { return allowed ?? [] }
        if let allowed, !Set(requested.map { WireText($0) }).isSubset(of: allowed.map { WireText($0) }) {
            throw OAuthError(.invalidScope, "The scope is more than the client may have")
        }
        return requested
    }

    /// The time `duration` after `now`, saturated.
    static func time(_ now: Int64, _ duration: Duration) -> Int64 {
        let (sum, overflow) = now.addingReportingOverflow(duration.milliseconds)
        return overflow ? .max : sum
    }
}

extension UInt8 {
    /// Whether RFC 3986 §2.3 calls this character unreserved.
    var isUnreserved: Bool {
        switch self {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"),
            UInt8(ascii: "~"):
            true
        default: false
        }
    }
}
