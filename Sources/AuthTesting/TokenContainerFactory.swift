public import Auth
import Cryptography
import ExternalText
public import FoundationEssentials
import JOSE
import JSON

/// Makes token containers in every state of expiry, signed with a key of its own (ES256), and the JWK set with which they
/// are verified.
public struct TokenContainerFactory: Sendable {
    /// A state of the tokens of a container.
    public enum State: Sendable, CaseIterable {
        /// The access token has 4 hours left, the refresh token 30 days.
        case valid
        /// The access token has 25 s left, which is within the usual buffer of 45 s.
        case accessTokenExpiresSoon
        /// The access token expired an hour ago; the refresh token has 30 days left.
        case accessTokenExpired
        /// Both have expired, an hour ago and a minute ago.
        case bothTokensExpired
        /// The access token has 4 hours left, and the refresh token expired a minute ago.
        case refreshTokenExpired
    }

    /// The `iss` of the tokens.
    public let issuer: String
    /// The time that the states refer to.
    public let now: Date
    private let signer: TokenSigner
    private let key: PrivateJSONWebKey

    /// Makes a key.
    /// - Parameters:
    ///   - issuer: the `iss` of the tokens.
    ///   - now: the time that the states refer to: that of the `ManualClock`, or the present time.
    public init(issuer: String = "https://provider.example", now: Date = Date()) {
        self.issuer = issuer
        self.now = now
        do {
            key = PrivateJSONWebKey(try .generate(.elliptic(.p256)), keyID: "test", algorithm: .es256)
            signer = try TokenSigner(key, algorithm: .es256)
        } catch {
            preconditionFailure("OpenSSL makes no key: \(error)")
        }
    }

    /// A copy for another time, with the same key.
    public func at(_ now: Date) -> TokenContainerFactory { TokenContainerFactory(self, now) }

    private init(_ other: TokenContainerFactory, _ now: Date) {
        (issuer, key, signer) = (other.issuer, other.key, other.signer)
        self.now = now
    }

    /// The provider's JWK set, for `ScriptedTransport.answer(at:with:)`.
    public var keySet: String { String(decoding: JSONWebKeySet([key.publicJWK]).json, as: UTF8.self) }

    /// A container whose tokens differ from those of every other call.
    /// - Parameters:
    ///   - state: default `valid`.
    ///   - subject: the user.
    ///   - scope: the `scope` of the access token; another one than the expected one makes a container that is refused.
    ///   - refreshScope: the same for the refresh token.
    ///   - email: the user's email address; default none.
    ///   - entitlements: default none.
    public func container(
        _ state: State = .valid, subject: String = "8c5e3f0a", scope: String = "privacypro",
        refreshScope: String = "refresh", email: String? = nil, entitlements: [Entitlement] = []
    ) -> TokenContainer {
        let (access, refresh) = times(of: state)
        let grant = UUID().uuidString.lowercased()
        let accessClaims = JWTAccessToken(
            TokenClaims(
                issuer: issuer, audience: ["PrivacyPro"], subject: subject, identifier: "1:" + grant,
                issuedAt: access.issued, expiresAt: access.expires, scope: scope, api: "v2"),
            email: email, entitlements: entitlements)
        let refreshClaims = JWTRefreshToken(
            TokenClaims(
                issuer: issuer, audience: ["Auth"], subject: subject, identifier: "1:" + grant,
                issuedAt: refresh.issued, expiresAt: refresh.expires, scope: refreshScope, api: "v2"))
        return TokenContainer(
            accessToken: sign(accessClaims), refreshToken: sign(refreshClaims), decodedAccessToken: accessClaims,
            decodedRefreshToken: refreshClaims)
    }

    /// When a token was issued and when it expires, in whole seconds.
    private typealias Life = (issued: Date, expires: Date)

    private func times(of state: State) -> (access: Life, refresh: Life) {
        let now = Date(timeIntervalSince1970: now.timeIntervalSince1970.rounded(.down))
        func life(_ seconds: Double, left: Double) -> Life {
            (now.addingTimeInterval(left - seconds), now.addingTimeInterval(left))
        }
        let (hours, days) = (14_400.0, 2_592_000.0)
        return switch state {
        case .valid: (life(hours, left: hours), life(days, left: days))
        case .accessTokenExpiresSoon: (life(hours, left: 25), life(days, left: days - hours))
        case .accessTokenExpired: (life(hours, left: -3600), life(days, left: days - hours - 3600))
        case .bothTokensExpired: (life(hours, left: -3600), life(days, left: -60))
        case .refreshTokenExpired: (life(hours, left: hours), life(days, left: -60))
        }
    }

    private func sign(_ claims: some Encodable) -> String {
        do {
            return try signer.sign(Array(try JSONEncoder().encode(claims)), type: "JWT").text
        } catch {
            preconditionFailure("the claims cannot be signed: \(error)")
        }
    }
}
