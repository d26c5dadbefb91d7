internal import ExternalText
public import FoundationEssentials
internal import JSON

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
            let addresses: [(WireText, URL?)] = [
                ("authorization", authorization), ("token", token), ("device_authorization", deviceAuthorization),
                ("revocation", revocation), ("jwks", jwks), ("userinfo", userInfo), ("challenge", challenge),
            ]
            var members: [WireText: JSONValue] = [:]
            for (name, address) in addresses {
                members[name] = address.map { .string(WireText($0.absoluteString)) }
            }
            return members
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
            var members: [WireText: JSONValue] = ["status": .integer(Int64(status))]
            members["error"] = error.map { .string(WireText($0)) }
            return members
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
                var members: [WireText: JSONValue] = [:]
                members["tries"] = tries.map { .integer(Int64($0)) }
                if let firstPause {
                    members["first_pause_ms"] = .integer(try firstPause.wholeMilliseconds("firstPause"))
                }
                members["factor"] = factor.map { .number($0) }
                if let longestPause {
                    members["longest_pause_ms"] = .integer(try longestPause.wholeMilliseconds("longestPause"))
                }
                members["rate_limit_retries"] = rateLimitRetries.map { .integer(Int64($0)) }
                members["follow_retry_after"] = followsRetryAfter.map { .bool($0) }
                return members
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
                    var members: [WireText: JSONValue] = [:]
                    members["issuer"] = issuer.map { .string(WireText($0)) }
                    members["audience"] = audience.map { .string(WireText($0)) }
                    members["scope"] = scope.map { .string(WireText($0)) }
                    members["algorithms"] = algorithms.map { .array($0.map { .string(WireText($0)) }) }
                    if let leeway { members["leeway"] = .integer(try leeway.wholeSeconds("leeway")) }
                    return members
                }
            }
        }

        var members: [WireText: JSONValue] {
            get throws(AuthError) {
                var members: [WireText: JSONValue] = [:]
                if let accessToken { members["access_token"] = .object(try accessToken.members) }
                if let refreshToken { members["refresh_token"] = .object(try refreshToken.members) }
                members["jwks"] = jwks.map { .string(WireText($0.absoluteString)) }
                return members
            }
        }
    }
}

extension Duration {
    /// - Throws: `illegalArgument` for a duration that has a fraction of a second.
    func wholeSeconds(_ name: String) throws(AuthError) -> Int64 {
        let (seconds, attoseconds) = components
        guard attoseconds == 0 else {
            throw AuthError(.illegalArgument, message: "\(name) must be a whole number of seconds.")
        }
        return seconds
    }

    /// - Throws: `illegalArgument` for a duration that has a fraction of a millisecond, or is longer than any that is allowed.
    func wholeMilliseconds(_ name: String) throws(AuthError) -> Int64 {
        let (seconds, attoseconds) = components
        guard attoseconds.isMultiple(of: 1_000_000_000_000_000), seconds.magnitude < 1_000_000 else {
            throw AuthError(.illegalArgument, message: "\(name) must be a whole number of milliseconds.")
        }
        return seconds * 1000 + attoseconds / 1_000_000_000_000_000
    }
}
