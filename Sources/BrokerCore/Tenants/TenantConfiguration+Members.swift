import Cryptography
import ExternalText
import HTTPSClient
import JSON
import OAuth
import Reactor

/// The members of a tenant beside its provider and its client: each is read, checked and written by its line here, in this order.
/// `init(_:rules:isStored:profile:)` checks what concerns several members.
///
/// Earlier builds refuse a record with a member that they do not know, so a default is not written.
extension TenantConfiguration {
    static let members: [Member<TenantConfiguration, Reading>] = pinMembers + addressMembers + otherMembers

    /// The bases of the preset's addresses, and the provider's certificates.
    static let pinMembers: [Member<TenantConfiguration, Reading>] = [
        .optional("login_service_base_uri", \.loginServiceBaseURI, .address(isBase: true)),
        .optional("auth_service_base_uri", \.authServiceBaseURI, .address(isBase: true)),
        .optional("certificate_pinning", \.certificatePinning, .flag),
        // An empty list would silently pin nothing.
        .optional(
            "pinned_certificates", \.pinnedCertificates,
            .texts(allowsEmpty: false, atMost: 32) { pin, _ in
                (try? PinSet(parsing: [pin.text])) == nil ? "must be sha256/ and the base64 of 32 bytes" : nil
            }),
    ]

    /// Where the provider is.
    static let addressMembers: [Member<TenantConfiguration, Reading>] = [
        .optional("issuer", \.issuer, .address(isBase: true)),
        .unlessUsual("endpoints", \.endpoints, .object(Endpoints(), Endpoints.members), usual: Endpoints()),
    ]

    /// All others.
    static let otherMembers: [Member<TenantConfiguration, Reading>] =
        authenticationMembers + loginMembers + tokenMembers + parameterMembers + requestMembers + lifeMembers
        + protocolMembers

    /// How the client authenticates, and which ID tokens are for it. A client that the broker has made has a method of its own, which
    /// is written with it.
    private static let authenticationMembers: [Member<TenantConfiguration, Reading>] = [
        .optional("token_endpoint_auth_method", \.clientAuthentication, .choice, writtenIf: { $0.hasOwnClient }),
        .optional("client_id_in_body", \.repeatsClientID, .flag),
        .optional("client_assertion_audience", \.requests.assertionAudience, .choice),
        .optional(
            "trusted_audiences", \.trustedAudiences,
            .texts(atMost: 100) { text, _ in (1...2048).contains(text.count) ? nil : "must have 1 to 2048 bytes" }),
    ]

    /// Logins in browsers, and earlier addresses of the provider.
    private static let loginMembers: [Member<TenantConfiguration, Reading>] = [
        .always(
            "allowed_redirect_uris", \.allowedRedirectURIs,
            .texts { $1.isStored ? RedirectURI.fault($0) : RedirectURI.registrationFault($0) }),
        .always(
            "allowed_return_uris", \.allowedReturnURIs,
            .texts { returnURIFault($0) ?? ($1.isStored ? nil : RedirectURI.registrationFault($0)) }),
        .always("browser_binding", \.browserBinding, .choice),
        .unlessUsual("previous_issuers", \.previousIssuers, .addresses(areBases: true), usual: []),
        .unlessUsual("previous_token_endpoints", \.previousTokenEndpoints, .addresses(), usual: []),
        .unlessUsual("callback_uri", \.callbackURI, .choice, usual: .shared),
        .optional("display_name", \.displayName, .text { text, _ in displayNameFault(text) }),
    ]

    /// What becomes of tokens, and how they are verified.
    private static let tokenMembers: [Member<TenantConfiguration, Reading>] = [
        .unlessUsual("session_ending_answers", \.sessionEndingAnswers, .refusals, usual: []),
        .optional("refresh_lead_time", \.refreshLeadTime, .seconds(in: 0...86_400)),
        .optional("default_lifetime", \.defaultLifetime, .lifetime),
        .optional("reuse_grace", \.reuseGrace, .seconds(in: 0...86_400)),
        .optional("rotation", \.rotation, .choice),
        .optional("access_token_after_refresh", \.accessTokenAfterRefresh, .choice),
        .optional("proactive_refresh", \.proactiveRefresh, .seconds(in: 60...86_400)),
        .optional(
            "token_verification", \.tokenVerification,
            .object(
                TokenVerification(), TokenVerification.members() + [.optional("jwks", \.jwks, .address())])),
    ]

    /// What requests have beside what the profile says.
    private static let parameterMembers: [Member<TenantConfiguration, Reading>] = [
        .unlessUsual("parameters", \.parameters, .map { $0.stringMap($1) }, usual: [:]),
        .optional("pkce", \.requests.pkce, .choice),
        .unlessUsual(
            "authorize_parameters", \.requests.authorizeParameters, .map { RequestShape.parameters(&$0, $1) },
            usual: [:]),
        .unlessUsual(
            "token_parameters", \.requests.tokenParameters, .map { RequestShape.parameters(&$0, $1) }, usual: [:]),
        .unlessUsual(
            "refresh_parameters", \.requests.refreshParameters, .map { RequestShape.parameters(&$0, $1) }, usual: [:]),
        .unlessUsual("user_scopes", \.requests.userScopes, .scopes, usual: .empty),
    ]

    /// How requests are made.
    private static let requestMembers: [Member<TenantConfiguration, Reading>] = [
        outboundProxyMember, resourceMember,
        .optional("audience", \.requests.audience, .text(limit: AskedGrant.longestIdentifier)),
        .optional("nonce", \.requests.nonce, .choice),
        .optional("omit_empty", \.requests.omitsEmpty, .flag),
        .optional("repeat_scope", \.requests.repeatsScopes, .flag),
        .optional("revocation", \.requests.revocation, .revocation),
    ]

    /// How long what the provider grants lives, and what keeps it alive.
    private static let lifeMembers: [Member<TenantConfiguration, Reading>] = [
        .optional("token_use", \.tokenUse, .choice),
        .optional("refresh_token_lifetime", \.refreshTokenLifetime, .seconds(in: TokenLifetime.seconds)),
        .optional("consent_lifetime", \.consentLifetime, .seconds(in: TokenLifetime.seconds)),
        .unlessUsual("wave", \.wave, .object(WaveSettings(), WaveSettings.members), usual: WaveSettings()),
        .optional("idle_expiry", \.idleExpiry, .seconds(in: TokenLifetime.seconds)),
        .optional("no_refresh_while_valid", \.refusesEarlyRefresh, .flag),
        .optional("refresh", \.refresh, .template(endpoint: .address())),
        .optional("exchange_for_long_lived", \.exchange, .template(endpoint: .address())),
    ]

    /// Further protocols, and how requests are sent.
    private static let protocolMembers: [Member<TenantConfiguration, Reading>] = [
        .optional("pushed_authorization_requests", \.pushedAuthorization, .choice),
        .optional("dpop", \.provesKeys, .flag),
        .optional("app2app", \.appToApp, .object(AppToApp(), AppToApp.members)),
        .optional("client_credentials", \.clientCredentials, .choice),
        .unlessUsual(
            "retry", \.retry, .object(RetrySettings(), RetrySettings.members(), check: retryFault),
            usual: RetrySettings()),
        .unlessUsual("request_headers", \.requestHeaders, .headers, usual: .none),
    ]

    /// The proxy's user and password are for the sealed record only.
    private static let outboundProxyMember = Member<TenantConfiguration, Reading>("outbound_proxy") { reader, root, _ in
        root.outboundProxy = reader.value(
            "outbound_proxy",
            rule: "must be http://host:port, with user:password@ before the host where the proxy wants it"
        ) { text in
            guard text.starts(with: "http://"), (try? OutboundProxy(parsing: text.text)) != nil else { return nil }
            return SecretBytes(utf8: text.text)
        }
    } write: { root, json, revealingSecret in
        guard let text = root.outboundProxy?.revealedText else { return }
        json.memberIfPresent(
            "outbound_proxy", revealingSecret ? text : (try? OutboundProxy(parsing: text))?.shownAddress)
    }

    /// Where the server is found by the resource, a login replaces `requests.resources` by what it has found: the resource that the
    /// tenant has named is written.
    private static let resourceMember = Member<TenantConfiguration, Reading>("resource") { reader, root, _ in
        root.requests.resources = AskedGrant.resources(&reader)
    } write: { root, json, _ in
        let resources = root.protectedResource.map { [$0] } ?? root.requests.resources.map(\.text)
        if !resources.isEmpty { json.member("resource", resources) }
    }

    private static func retryFault(_ settings: RetrySettings) -> String? {
        let schedule = BackoffSchedule(settings)
        if schedule.longestPause < schedule.firstPause {
            return "must not have a longest_pause_ms that is less than first_pause_ms"
        }
        if schedule.total <= BackoffSchedule.longestWait { return nil }
        return
            "must not wait longer than \(BackoffSchedule.longestWait.milliseconds) ms between the first try and the last "
            + "one; these settings wait \(schedule.total.milliseconds) ms"
    }

    private static func displayNameFault(_ text: WireText) -> String? {
        let scalars = text.text.unicodeScalars
        if scalars.count > 100 { return "must not be longer than 100 characters" }
        if scalars.contains(where: \.changesWhatIsShown) { return "must not contain control characters" }
        return text.utf8.allSatisfy { $0 == UInt8(ascii: " ") } ? "must not be blank" : nil
    }

    /// A redirect URI may have an application's own scheme. It is compared as text and never called.
    private static func returnURIFault(_ text: WireText) -> String? {
        URLTarget(text.text) == nil
            ? refusedPortFault(text) ?? "must be an absolute http or https URL without user information and fragment"
            : nil
    }
}

extension TenantConfiguration.Endpoints {
    /// The members that only a provider with accounts of its own has.
    static let accountMembers: [(name: WireText, path: any WritableKeyPath<Self, String?> & Sendable)] = [
        ("account_creation", \.accountCreation), ("activation", \.activation), ("logout", \.logout),
    ]

    static let members: [Member<Self, TenantConfiguration.Reading>] =
        [
            .optional("authorization", \.authorization, .address()),
            .optional("token", \.token, .address()),
            .optional("refresh", \.refresh, .address()),
            .optional("device_authorization", \.deviceAuthorization, .address()),
            .optional("revocation", \.revocation, .address()),
            .optional("jwks", \.jwks, .address()),
            .optional("userinfo", \.userInfo, .address()),
        ] + accountMembers.map { .optional($0.name, $0.path, .address()) } + [
            .optional("challenge", \.challenge, .address()),
            .optional("pushed_authorization_request", \.pushedAuthorization, .address()),
        ]
}

extension TenantConfiguration.AppToApp {
    static let members: [Member<Self, TenantConfiguration.Reading>] = [
        .always("enabled", \.isEnabled, .flag),
        .always("insecure_device_key_binding", \.bindsKeysLater, .flag),
        .always("authorization_endpoints", \.authorizationEndpoints, .addresses()),
    ]
}
