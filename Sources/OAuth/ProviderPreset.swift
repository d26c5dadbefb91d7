package import ExternalText
import JOSE
import JSON
import Synchronization

/// How a provider differs from others. The differences are data, so that code need not compare provider names.
///
/// A profile is a JSON document, whose members and defaults `Sources/CResources/profiles/schema.json` describes. Immutable: two
/// profiles are equal where they are the same object, or where operators have put them as the same document.
package final class ProviderPreset: Sendable {
    /// How a client authenticates at the token endpoint (RFC 7591 §2).
    package enum ClientAuthentication: String, Sendable, CaseIterable {
        case clientSecretBasic = "client_secret_basic"
        case clientSecretPost = "client_secret_post"
        /// The secret is sent as a bearer token.
        case clientSecretBearer = "client_secret_bearer"
        /// A JWT that the client's private key signs (RFC 7523 §2.2).
        case privateKeyJWT = "private_key_jwt"
        /// A JWT that the secret signs, by HS256.
        case clientSecretJWT = "client_secret_jwt"
        /// A JWT that the platform writes to a file. For the provider it is `private_key_jwt`.
        case clientAssertionFile = "client_assertion_file"
        /// The client's certificate in TLS (RFC 8705 §2).
        case tlsClientAuth = "tls_client_auth"
        /// A public client, which sends only its identifier, in the form.
        case none
    }

    /// The value of `provider` in a tenant's configuration.
    package let name: String
    /// The name of the provider for people; nil when a tenant's addresses decide which provider it is.
    package let title: String?
    /// What a tenant of the provider has to know and to bring.
    package let guide: Guide
    /// The parts of addresses that a tenant brings, by name.
    package let parameters: [WireText: AddressParameter]
    package let issuer: AddressTemplate?
    /// Whether the authorization server is found from the tenant's `resource` (RFC 9728), and the client is made there where
    /// the tenant brings none.
    package let findsServerByResource: Bool
    package let loginServiceBaseURI: String?
    package let authServiceBaseURI: String?
    /// Nil where the tenant or the provider's metadata must name the endpoint, or where the provider has no such endpoint.
    package let endpoints: Endpoints
    /// `sha256/…` digests, of which the verified chain must contain at least one; empty when the provider publishes
    /// none.
    package let pinnedCertificates: [String]
    /// How a token request is sent.
    package let tokenRequestFormat: TokenRequestFormat
    /// GET only with the parameters in the query.
    package let tokenRequestMethod: TokenRequestMethod
    /// What requests have beside what the RFCs say.
    package let shape: RequestShape
    /// How answers are read.
    package let answers: AnswerShape
    /// The names of the parameters that a token request begins with, in their order; the other parameters follow.
    package let parameterOrder: [WireText]
    /// The longest that a token request takes; nil for the limit of the broker's configuration, which also holds where
    /// it is longer.
    package let tokenRequestLimit: Duration?
    /// The scopes of a tenant that names none.
    package let defaultScopes: ScopeSet
    /// The levels of credentials that are served. A provider without the lower levels has a user's credentials or
    /// none.
    package let levels: Set<CredentialsLevel>
    /// Whether the provider grants client credentials.
    package let grantsClientCredentials: Bool
    /// How accounts are created and activated without a login page; nil when the provider has no such accounts.
    package let accounts: AccountRules?
    /// The method when neither the tenant nor the provider's metadata names one.
    package let clientAuthentication: ClientAuthentication
    /// Whether that method is used wherever the metadata names it, and not the first one that they name.
    package let prefersOwnAuthentication: Bool
    /// Whether the identifier of a client that authenticates by HTTP Basic is in the form, too.
    package let repeatsClientID: Bool
    /// The query parameter for the language of the login page; nil when the provider has none, and the language is then
    /// not sent.
    package let languageParameter: String?
    /// The query parameter for the email address to fill in; nil when the provider has none, and the address is then
    /// not sent.
    package let emailParameter: String?
    /// Whether the authorization request, the code exchange, the device poll and the upgrade contain
    /// `client_unique_key`.
    package let sendsClientUniqueKey: Bool
    /// Whether a request for client credentials contains the configured scopes.
    package let scopesClientCredentials: Bool
    /// The lifetime of a token whose response has no lifetime and which is not a JWT; nil where it is not known.
    package let defaultLifetime: TokenLifetime?
    /// Whether the `exp` of a token that is a JWT overrides the lifetime that the response names.
    package let prefersTokenExpiry: Bool
    /// The `grant_type` that moves a session to another client registration; nil when the provider has none.
    package let upgradeGrant: String?
    /// The responses to a refresh that end the session.
    package let sessionEndingAnswers: [RefusalPattern]
    /// The `error` values of a refused refresh that end the session whatever the status that bears them, 2xx or 4xx. Empty
    /// when the provider's rules name the statuses.
    package let sessionEndingErrors: [String]
    /// The `error` values that callers get by name: those of `sessionEndingAnswers`, and at account creation and
    /// activation `unknownAccount`.
    package let namedRefusals: [WireText: NamedRefusal]
    /// The names of the numbers that the provider sends as `error_code`.
    package let refusalDetails: [Int64: String]
    /// The `error` values of a refused refresh that are about the client's registration and therefore affect all its
    /// users at once. Empty when such a response ends the session by the provider's rules.
    package let configurationErrors: [String]
    /// How long before the access token's expiry a refresh is due. Positive when the refresh token expires together
    /// with the access token. Nil when no refresh is due before the caller's `min_ttl`.
    package let refreshLeadTime: Duration?
    /// The responses to a revocation which say that the provider does not know the token, so that nothing is left to
    /// revoke. By RFC 7009 §2.2 that is 200; some providers send these.
    package let unknownTokenAnswers: [RefusalPattern]
    /// For how long after its first use the provider accepts a refresh token again and grants tokens for it; nil when
    /// that is not known.
    package let reuseGrace: Duration?
    /// Whether the end of a session ends its access token, too. Otherwise callers have that token until its own end, unless
    /// an API has refused it.
    package let endsTokenWithSession: Bool
    /// The provider's own form of a refresh; nil for that of RFC 6749.
    package let refresh: RequestTemplate?
    /// How the token of a login is exchanged for one that lives longer; nil for not at all.
    package let exchange: RequestTemplate?
    /// How old a grant must be before it is refreshed; nil where there is no such rule.
    package let earliestRefreshAfter: Duration?
    /// Whether the provider refuses a refresh while the access token is valid.
    package let refusesEarlyRefresh: Bool
    /// What becomes of a refresh token that was used.
    package let rotation: TokenRotation
    /// What becomes of an access token when a refresh has brought another one.
    package let accessTokenAfterRefresh: AccessTokenAfterRefresh
    /// When the grants of the provider end, whatever a broker does.
    package let lives: GrantLives
    /// How signed access tokens and refresh tokens are verified; nil when they are taken as opaque.
    package let tokenVerification: TokenVerification?
    /// When the parameters of authorization requests are pushed; nil where the profile leaves that to the metadata.
    package let pushedAuthorization: PushedAuthorizationUse?
    /// Whether each login gets a key, by which its tokens are bound (RFC 9449).
    package let provesKeys: Bool
    /// How an app lets another app of the same device in; nil when the provider has no such grant.
    package let appToApp: AppToAppRules?
    /// The place of this profile's name in `inUse`; `Int.max` where there was no room.
    package let number: Int
    /// The document of a profile that an operator has put, as JSON with its members in order; nil for a shipped one.
    package let document: [UInt8]?

    /// Reads a profile, and notes what is wrong with it. The profile is not to be used where the reader has a fault.
    /// - Parameter document: that of an operator's profile.
    package init(_ reader: inout ObjectReader, document: [UInt8]? = nil) {
        self.document = document
        name = reader.requiredString("name", limit: 63)?.text ?? ""
        title = reader.string("title", limit: 100)?.text
        guide = Guide(&reader)
        parameters = AddressParameter.read(&reader)
        issuer = Self.template(&reader, "issuer")
        findsServerByResource = reader.bool("resource_discovery") ?? false
        let bases = reader.object("base_uris") { reader in
            (login: reader.string("login_service")?.text, auth: reader.string("auth_service")?.text)
        }
        (loginServiceBaseURI, authServiceBaseURI) = (bases?.login, bases?.auth)
        endpoints = reader.object("endpoints") { Endpoints(&$0) } ?? Endpoints()
        pinnedCertificates = Self.texts(&reader, "pinned_certificates")
        tokenRequestFormat = reader.choice("request_format", TokenRequestFormat.self) ?? .form
        let method = reader.choice("token_method", TokenRequestMethod.self)
        if method == .get, tokenRequestFormat != .query {
            reader.note("token_method", "must be POST with this request_format")
        }
        tokenRequestMethod = method ?? (tokenRequestFormat == .query ? .get : .post)
        shape = RequestShape(&reader)
        answers = AnswerShape(&reader)
        parameterOrder = reader.strings("parameter_order") ?? []
        tokenRequestLimit = Self.seconds(&reader, "token_request_limit", in: 1...Self.longestTokenRequestSeconds)
        defaultScopes = reader.strings("scopes").flatMap { ScopeSet($0) } ?? .empty
        levels = Self.levels(&reader)
        grantsClientCredentials = reader.choice("client_credentials", Switch.self) != .off
        accounts = reader.object("accounts") { AccountRules(&$0) }
        clientAuthentication =
            reader.choice("token_endpoint_auth_method", ClientAuthentication.self) ?? .clientSecretBasic
        prefersOwnAuthentication = reader.bool("prefers_own_auth_method") ?? false
        repeatsClientID = reader.bool("client_id_in_body") ?? true
        languageParameter = reader.string("language_parameter")?.text
        emailParameter = reader.string("email_parameter")?.text
        sendsClientUniqueKey = reader.bool("client_unique_key") ?? false
        scopesClientCredentials = reader.bool("client_credentials_scope") ?? true
        defaultLifetime = TokenLifetime(&reader, "default_lifetime")
        prefersTokenExpiry = reader.bool("expiry_of_token") ?? false
        upgradeGrant = reader.string("upgrade_grant")?.text
        sessionEndingAnswers =
            Self.refusals(&reader, "session_ending_answers", [(400, "invalid_grant"), (401, "invalid_grant")])
        sessionEndingErrors = reader.strings("session_ending_errors")?.map(\.text) ?? ["invalid_grant"]
        let named = reader.stringMap("named_refusals") ?? [:]
        namedRefusals = named.compactMapValues { NamedRefusal($0) }
        let details = reader.stringMap("refusal_details") ?? [:]
        refusalDetails = Dictionary(
            details.compactMap { name, text in Int64(name.text).map { ($0, text.text) } }, uniquingKeysWith: { $1 })
        // RFC 6749 §5.2: faults of the client or its registration.
        configurationErrors =
            reader.strings("configuration_errors")?.map(\.text)
            ?? ["invalid_client", "unauthorized_client", "unsupported_grant_type"]
        refreshLeadTime = Self.seconds(&reader, "refresh_lead_time", in: 0...86_400)
        unknownTokenAnswers = Self.refusals(&reader, "unknown_token_answers", [(400, "invalid_token")])
        reuseGrace = Self.seconds(&reader, "reuse_grace", in: 0...86_400)
        endsTokenWithSession = reader.bool("ends_token_with_session") ?? false
        rotation = reader.choice("rotation", TokenRotation.self) ?? .sometimes
        accessTokenAfterRefresh = reader.choice("access_token_after_refresh", AccessTokenAfterRefresh.self) ?? .lives
        lives = GrantLives(&reader)
        refresh = reader.object("refresh") { RequestTemplate(&$0) { Self.template(&$0, "endpoint") } }
        exchange = reader.object("exchange_for_long_lived") {
            RequestTemplate(&$0) { Self.template(&$0, "endpoint") }
        }
        earliestRefreshAfter = Self.seconds(&reader, "earliest_refresh_after", in: TokenLifetime.seconds)
        refusesEarlyRefresh = reader.bool("no_refresh_while_valid") ?? false
        tokenVerification = reader.object("token_verification") { TokenVerification(profile: &$0) }
        pushedAuthorization = reader.choice("pushed_authorization_requests", PushedAuthorizationUse.self)
        provesKeys = reader.bool("dpop") ?? false
        appToApp = reader.object("app2app") { AppToAppRules(&$0) }
        // The names of documents that are refused are not kept.
        let isUsable = reader.faultCount == 0
        number = Self.used.withLock { [name] used in
            if let known = used.firstIndex(of: name) { return known }
            if !isUsable || used.count == Self.mostUsed { return .max }
            used.append(name)
            return used.count - 1
        }
    }

    /// The profile of a tenant that names none.
    package static let tidal = shipped("tidal")

    /// A profile that the program has for certain.
    package static func shipped(_ name: WireText) -> ProviderPreset {
        guard let profile = ShippedProfiles.named(name) else { preconditionFailure("there is no profile \(name.text)") }
        return profile
    }

    package static func named(_ name: WireText) -> ProviderPreset? { ShippedProfiles.named(name) }

    private static let used = Mutex<[String]>([])

    /// Operators can put and delete profiles of many names.
    private static let mostUsed = 1024

    /// The names of the profiles that this process has read, in the order in which tenants first used them. It only grows, up to
    /// `mostUsed`.
    package static var inUse: [String] { used.withLock { $0 } }

    /// The most that `token_request_limit` may say, in seconds.
    private static let longestTokenRequestSeconds: Int64 = 20
    /// Whether users log in at the provider. False for keys that do not come by OAuth, which callers bring.
    package var hasLogins: Bool { guide.required.contains("client_id") || findsServerByResource }

    /// The longest that any profile lets a token request take.
    package static let longestTokenRequest: Duration = .seconds(longestTokenRequestSeconds)
}

extension ProviderPreset: Equatable {
    package static func == (left: ProviderPreset, right: ProviderPreset) -> Bool {
        left === right || left.document != nil && left.document == right.document
    }
}
