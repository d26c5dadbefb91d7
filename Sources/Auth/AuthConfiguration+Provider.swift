import ExternalText
public import FoundationEssentials
import JSON

extension AuthConfiguration {
    /// Addresses of a provider. A member that is nil means the address of the kind of provider, or of the issuer's
    /// metadata.
    public struct Endpoints: Sendable, Equatable {
        /// The authorization endpoint (RFC 6749 §3.1).
        public var authorization: URL?
        /// The token endpoint (RFC 6749 §3.2).
        public var token: URL?
        /// The device authorization endpoint (RFC 8628 §3.1).
        public var deviceAuthorization: URL?
        /// The revocation endpoint (RFC 7009 §2).
        public var revocation: URL?
        /// The provider's JWK set (RFC 7517 §5).
        public var jwks: URL?
        /// The userinfo endpoint (OpenID Connect Core §5.3). It is asked after each login, and a login whose ID token names
        /// another user fails. Nil, the default, means that it is not asked.
        public var userInfo: URL?
        /// The endpoint that issues challenges for device keys. Nil means `/oauth2/challenge` below the issuer.
        public var challenge: URL?

        /// Sets the addresses.
        public init(
            authorization: URL? = nil, token: URL? = nil, deviceAuthorization: URL? = nil, revocation: URL? = nil,
            jwks: URL? = nil, userInfo: URL? = nil, challenge: URL? = nil
        ) {
            self.userInfo = userInfo
            self.challenge = challenge
            self.authorization = authorization
            self.token = token
            self.deviceAuthorization = deviceAuthorization
            self.revocation = revocation
            self.jwks = jwks
        }

        var members: [WireText: JSONValue] {
            [
                "authorization": JSONValue.address(authorization), "token": .address(token),
                "device_authorization": .address(deviceAuthorization), "revocation": .address(revocation),
                "jwks": .address(jwks), "userinfo": .address(userInfo), "challenge": .address(challenge),
            ].compactMapValues(\.self)
        }
    }

    /// How a client authenticates at the token endpoint (RFC 7591 §2).
    public enum ClientAuthentication: String, Sendable, CaseIterable {
        /// By HTTP Basic with the client secret.
        case clientSecretBasic = "client_secret_basic"
        /// By the client secret in the form.
        case clientSecretPost = "client_secret_post"
        /// A public client, which sends only its identifier.
        case none
    }

    /// What becomes of a refresh token that was used.
    public enum Rotation: String, Sendable, CaseIterable {
        /// Each refresh brings another one, and the one before is spent. A call whose answer was lost is repeated within
        /// `AuthConfiguration.reuseGrace`.
        case always
        /// A refresh may bring another one. Calls are repeated as with `always`.
        case sometimes
        /// It is valid until its session ends. Calls are repeated as `AuthConfiguration.retry` says, whatever time that takes.
        case never
    }

    /// What becomes of an access token when a refresh has brought another one.
    public enum AccessTokenAfterRefresh: String, Sendable, CaseIterable {
        /// It is valid until its own end.
        case lives
        /// The provider ends it at the refresh, or when the new one is first used. So a token is refreshed ten seconds before its
        /// end, or when an API has refused it or a refresh is forced; `AuthConfiguration.refreshLeadTime`,
        /// `AuthConfiguration.proactiveRefresh` and a longer lifetime that a caller wants are no reason before.
        case ends
    }

    /// An answer to a refresh with which a provider ends a user's session.
    public struct SessionEndingAnswer: Sendable, Equatable {
        /// The status: 400 to 499, but not 408 and 429.
        public var status: Int
        /// The `error` of the answer, 1 to 64 letters, digits and `. _ : -`. Nil means an answer without one.
        public var error: String?

        /// Sets the members.
        public init(status: Int, error: String?) {
            self.status = status
            self.error = error
        }

        var members: [WireText: JSONValue] {
            ["status": JSONValue.integer(Int64(status)), "error": .text(error)].compactMapValues(\.self)
        }
    }

    /// How requests to the provider are repeated. A member that is nil, the default, means what the kind of provider says. The
    /// waits between the first try and the last one must not be longer than 30 s in all.
    public struct Retry: Sendable, Equatable {
        /// How often a request is sent at most: 2 to 10 times. Nil means 6.
        public var tries: Int?
        /// The wait before the second try: 100 ms to 10 s, whole milliseconds. Nil means 500 ms.
        public var firstPause: Duration?
        /// How much longer each wait is than the one before it: 1 to 10 times. Nil means 2.
        public var factor: Double?
        /// The longest of these waits: 100 ms to 30 s, whole milliseconds. Nil means 8 s.
        public var longestPause: Duration?
        /// How often a request that is answered 429 is sent again within one call, after the wait that the provider asks for: 0 to
        /// 5 times, with waits of 30 s in all. Nil means that a refresh is not sent again, and a code exchange as often as
        /// after another failure.
        public var rateLimitRetries: Int?
        /// Whether the provider's `Retry-After` counts. Nil means true.
        public var followsRetryAfter: Bool?

        /// Sets the members. They are checked by the calls that use them.
        public init(
            tries: Int? = nil, firstPause: Duration? = nil, factor: Double? = nil, longestPause: Duration? = nil,
            rateLimitRetries: Int? = nil, followsRetryAfter: Bool? = nil
        ) {
            self.tries = tries
            self.firstPause = firstPause
            self.factor = factor
            self.longestPause = longestPause
            self.rateLimitRetries = rateLimitRetries
            self.followsRetryAfter = followsRetryAfter
        }

        var members: [WireText: JSONValue] {
            get throws(AuthError) {
                let members: [WireText: JSONValue?] = [
                    "tries": .integer(tries),
                    "first_pause_ms": try .milliseconds(firstPause, named: "firstPause"),
                    "factor": factor.map { .number($0) },
                    "longest_pause_ms": try .milliseconds(longestPause, named: "longestPause"),
                    "rate_limit_retries": .integer(rateLimitRetries),
                    "follow_retry_after": .flag(followsRetryAfter),
                ]
                return members.compactMapValues(\.self)
            }
        }
    }

    /// How signed tokens are verified: by their signature, their times, and what else is expected of them.
    public struct TokenVerification: Sendable, Equatable {
        /// Nil, the default, means that access tokens are not verified.
        public var accessToken: Expectations?
        /// Nil, the default, means that refresh tokens are not verified.
        public var refreshToken: Expectations?
        /// The address of the provider's JWK set. Nil, the default, means that of `Endpoints.jwks` or of the issuer's
        /// metadata.
        public var jwks: URL?

        /// Sets the expectations.
        public init(accessToken: Expectations? = nil, refreshToken: Expectations? = nil, jwks: URL? = nil) {
            self.accessToken = accessToken
            self.refreshToken = refreshToken
            self.jwks = jwks
        }

        /// What a token must say. `exp` must be there and must not have passed.
        public struct Expectations: Sendable, Equatable {
            /// The `iss`. Nil, the default, means the configured issuer if there is one, and any issuer otherwise.
            public var issuer: String?
            /// An element of `aud`. Nil, the default, means any.
            public var audience: String?
            /// Scopes that `scope` must have, with one space between them. Nil, the default, means any.
            public var scope: String?
            /// The algorithms of the signature that are permitted, of ES256, ES384, RS256, PS256 and EdDSA. Nil, the
            /// default, permits all of these.
            public var algorithms: [String]?
            /// How far the clocks of the provider and of this process may differ: 0 to 300 s, whole seconds. Nil, the
            /// default, means 60 s.
            public var leeway: Duration?

            /// Sets the expectations.
            public init(
                issuer: String? = nil, audience: String? = nil, scope: String? = nil, algorithms: [String]? = nil,
                leeway: Duration? = nil
            ) {
                self.issuer = issuer
                self.audience = audience
                self.scope = scope
                self.algorithms = algorithms
                self.leeway = leeway
            }

            var members: [WireText: JSONValue] {
                get throws(AuthError) {
                    let members: [WireText: JSONValue?] = [
                        "issuer": .text(issuer), "audience": .text(audience), "scope": .text(scope),
                        "algorithms": algorithms.map { .texts($0) }, "leeway": try .seconds(leeway, named: "leeway"),
                    ]
                    return members.compactMapValues(\.self)
                }
            }
        }

        var members: [WireText: JSONValue] {
            get throws(AuthError) {
                let members: [WireText: JSONValue?] = [
                    "access_token": .object(try accessToken?.members),
                    "refresh_token": .object(try refreshToken?.members), "jwks": .address(jwks),
                ]
                return members.compactMapValues(\.self)
            }
        }
    }
}

/// The library's values as those of a tenant's members. Nil stays nil, and is left out.
extension JSONValue {
    static func text(_ text: String?) -> JSONValue? { text.map { .string(WireText($0)) } }
    static func texts(_ texts: some Sequence<String>) -> JSONValue { .array(texts.map { .string(WireText($0)) }) }
    static func flag(_ flag: Bool?) -> JSONValue? { flag.map { .bool($0) } }
    static func integer(_ number: Int?) -> JSONValue? { number.map { .integer(Int64($0)) } }
    static func choice<T: RawRepresentable<String>>(_ choice: T?) -> JSONValue? { text(choice?.rawValue) }
    static func address(_ address: URL?) -> JSONValue? { text(address?.absoluteString) }
    static func object(_ members: [WireText: JSONValue]?) -> JSONValue? { members.map { .object($0) } }

    static func objectUnlessEmpty(_ members: [WireText: JSONValue]) -> JSONValue? {
        members.isEmpty ? nil : .object(members)
    }

    static func addressesUnlessEmpty(_ addresses: [URL]) -> JSONValue? {
        addresses.isEmpty ? nil : .texts(addresses.map(\.absoluteString))
    }

    static func mapUnlessEmpty(_ texts: some Sequence<(key: String, value: String)>) -> JSONValue? {
        let members = texts.map { (WireText($0.key), JSONValue.string(WireText($0.value))) }
        return objectUnlessEmpty(Dictionary(uniqueKeysWithValues: members))
    }

    /// - Throws: `illegalArgument` for a duration that has a fraction of a second.
    static func seconds(_ duration: Duration?, named name: String) throws(AuthError) -> JSONValue? {
        guard let (seconds, attoseconds) = duration?.components else { return nil }
        guard attoseconds == 0 else {
            throw AuthError(.illegalArgument, message: "\(name) must be a whole number of seconds.")
        }
        return .integer(seconds)
    }

    /// - Throws: `illegalArgument` for a duration that has a fraction of a millisecond, or is longer than any that is allowed.
    static func milliseconds(_ duration: Duration?, named name: String) throws(AuthError) -> JSONValue? {
        guard let (seconds, attoseconds) = duration?.components else { return nil }
        guard attoseconds.isMultiple(of: 1_000_000_000_000_000), seconds.magnitude < 1_000_000 else {
            throw AuthError(.illegalArgument, message: "\(name) must be a whole number of milliseconds.")
        }
        return .integer(seconds * 1000 + attoseconds / 1_000_000_000_000_000)
    }
}
