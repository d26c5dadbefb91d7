package import ExternalText
package import JOSE
import JSON

/// How the signed tokens of a provider are verified before they are believed: by a profile, or by one tenant, whose members
/// replace the profile's one by one.
package struct TokenVerification: Sendable, Equatable {
    /// What one kind of token must say. A member that is nil expects nothing, unless its documentation says otherwise.
    package struct Expectations: Sendable, Equatable {
        /// `iss`; nil means the provider's issuer, where that is known.
        package var issuer: WireText?
        /// An element of `aud`.
        package var audience: WireText?
        /// Scopes that `scope` must have.
        package var scopes: ScopeSet?
        /// The algorithms that are permitted; nil permits all that are supported.
        package var algorithms: Set<SignatureAlgorithm>?
        /// How far the clocks of the provider and of this process may differ, 0 to 300 s; nil means `usualLeeway`.
        package var leeway: Duration?

        /// What a profile or a tenant says.
        static func members<Context>() -> [Member<Expectations, Context>] {
            [
                .optional("issuer", \.issuer, .text()),
                .optional("audience", \.audience, .text()),
                .optional("scope", \.scopes, scopes()),
                .optional("algorithms", \.algorithms, algorithms()),
                .optional("leeway", \.leeway, .seconds(in: TokenVerification.leewaySeconds)),
            ]
        }

        private static func scopes<Context>() -> MemberRule<ScopeSet, Context> {
            MemberRule { reader, name, _ in
                let rule = "must be scopes of visible ASCII without quote and backslash, with one space between them"
                return reader.value(name, rule: rule) { ScopeSet($0.split(at: " ")) }
            } write: {
                $1.string($0.description)
            }
        }

        private static func algorithms<Context>() -> MemberRule<Set<SignatureAlgorithm>, Context> {
            MemberRule { reader, name, _ in
                let names = SignatureAlgorithm.names
                let texts = reader.strings(name, allowsEmpty: false, atMost: names.count) { text in
                    SignatureAlgorithm(named: text) == nil ? "must be one of " + names.joined(separator: ", ") : nil
                }
                return texts.map { Set($0.compactMap { SignatureAlgorithm(named: $0) }) }
            } write: { algorithms, json in
                json.array { json in for name in algorithms.map(\.rawValue).sorted() { json.string(name) } }
            }
        }

        /// These expectations, with the members of `other` in place of those that it has.
        func replaced(by other: Expectations) -> Expectations {
            Expectations(
                issuer: other.issuer ?? issuer, audience: other.audience ?? audience, scopes: other.scopes ?? scopes,
                algorithms: other.algorithms ?? algorithms, leeway: other.leeway ?? leeway)
        }

        /// What a token of a provider with that issuer must say.
        package func claims(of issuer: String?) -> TokenExpectations {
            TokenExpectations(
                issuer: self.issuer ?? issuer.map { WireText($0) }, audience: audience,
                scopes: Set((scopes?.values ?? []).map { WireText($0) }),
                leeway: leeway ?? TokenVerification.usualLeeway)
        }

        /// What the token's header must say.
        package var policy: JWSPolicy {
            JWSPolicy(algorithms: algorithms ?? Set(SignatureAlgorithm.allCases))
        }
    }

    /// The tolerance for clocks where none is configured, also for ID tokens: 60 s.
    package static let usualLeeway: Duration = .seconds(60)

    /// The range of a configured tolerance, in seconds.
    package static let leewaySeconds: ClosedRange<Int64> =
        TokenExpectations.leeways.lowerBound.components
        .seconds...TokenExpectations.leeways.upperBound.components.seconds

    /// Whether any token of a grant is verified.
    package var verifiesTokens: Bool { accessToken != nil || refreshToken != nil }

    /// Nil where access tokens are not verified.
    package var accessToken: Expectations?
    /// Nil where refresh tokens are not verified.
    package var refreshToken: Expectations?
    /// The address of the provider's JWK set; nil means that of its endpoints or its metadata.
    package var jwks: String?
    /// Whether the provider's issuer is the base URI of its auth service, where no other is known.
    package var issuesAsBase = false
    /// Whether the access token and the refresh token of a grant, where both are verified, must have the same `sub`.
    package var namesOneUser = false

    package init() {}

    /// What a profile and a tenant both say.
    package static func members<Context>() -> [Member<TokenVerification, Context>] {
        [
            .optional("access_token", \.accessToken, .object(Expectations(), Expectations.members())),
            .optional("refresh_token", \.refreshToken, .object(Expectations(), Expectations.members())),
        ]
    }

    private static let profileMembers: [Member<TokenVerification, Void>] =
        members() + [
            .always("issues_as_base", \.issuesAsBase, .flag), .always("names_one_user", \.namesOneUser, .flag),
        ]

    /// Reads what a profile says.
    init(profile reader: inout ObjectReader) {
        self.init()
        Self.profileMembers.read(&reader, into: &self, ())
    }

    /// This verification, with the members of `other` in place of those that it has.
    package func replaced(by other: TokenVerification?) -> TokenVerification {
        guard let other else { return self }
        var verification = self
        verification.accessToken = Self.merged(accessToken, other.accessToken)
        verification.refreshToken = Self.merged(refreshToken, other.refreshToken)
        verification.jwks = other.jwks ?? jwks
        return verification
    }

    private static func merged(_ own: Expectations?, _ other: Expectations?) -> Expectations? {
        guard let own, let other else { return other ?? own }
        return own.replaced(by: other)
    }
}
