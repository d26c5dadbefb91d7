internal import Cryptography
internal import ExternalText
package import HTTPSClient
internal import JOSE
package import JSON
package import OAuth
internal import Reactor

extension TenantConfiguration {
    /// Reads the body of `PUT /tenants/{tenant}`.
    /// - Parameters:
    ///   - rules: which addresses the configuration may name.
    ///   - isStored: whether an earlier build has stored the configuration. Then an `issuer` that would never be asked is no
    ///     fault, nor is an address of apps that this build would not take. It may bear the profile that it uses.
    ///   - profile: the operator's profile of the name in `provider`; nil where there is none, and a shipped one is meant.
    package init(
        _ json: JSONValue, rules: TargetPolicy, isStored: Bool = false, profile: ProviderPreset? = nil
    ) throws(BrokerError) {
        var reader = ObjectReader(json)
        let preset = profile ?? (isStored ? Self.storedProfile(&reader) : nil) ?? Self.preset(&reader)
        if profile != nil || preset.document != nil { _ = reader.string("provider") }
        let clientID =
            preset.hasLogins && !preset.findsServerByResource
            ? reader.requiredString("client_id", limit: 512)
            : reader.string("client_id", limit: 512)
        let clientOfNone: WireText = preset.hasLogins ? "" : Self.staticClient
        let proof = Self.clientProof(&reader)
        let uniqueKey = reader.string("client_unique_key", limit: 512)
        let scopes = reader.strings("scopes", atMost: ScopeSet.most, check: Self.scopeFault)
        self.init(
            preset: preset,
            client: ClientConfiguration(
                clientID: clientID ?? clientOfNone, clientSecret: proof.secret, clientUniqueKey: uniqueKey,
                scopes: scopes.map { ScopeSet($0) ?? .empty } ?? preset.defaultScopes, material: proof.material))
        if preset.findsServerByResource {
            (hasOwnClient, hasOwnScopes) = (clientID != nil, !client.scopes.isEmpty)
        }

        loginServiceBaseURI = Self.providerURI(&reader, "login_service_base_uri", rules, isBase: true)
        authServiceBaseURI = Self.providerURI(&reader, "auth_service_base_uri", rules, isBase: true)
        if preset.loginServiceBaseURI == nil, loginServiceBaseURI != nil {
            reader.note("login_service_base_uri", "is not used with this provider")
        }
        if preset.authServiceBaseURI == nil, authServiceBaseURI != nil {
            reader.note("auth_service_base_uri", "is not used with this provider")
        }
        certificatePinning = reader.bool("certificate_pinning")
        // An empty list would silently pin nothing.
        pinnedCertificates = reader.strings("pinned_certificates", allowsEmpty: false, atMost: 32) {
            (try? PinSet(parsing: [$0.text])) == nil ? "must be sha256/ and the base64 of 32 bytes" : nil
        }?.map(\.text)
        if certificatePinning == true, effectivePins.isEmpty {
            reader.note("certificate_pinning", "needs pinned_certificates with this provider")
        }
        parameters = Self.parameters(&reader, of: preset)
        let faultsBefore = reader.faultCount
        issuer = Self.providerURI(&reader, "issuer", rules, isBase: true)
        endpoints =
            reader.object("endpoints") { reader in
                var endpoints = Endpoints()
                endpoints.authorization = Self.providerURI(&reader, "authorization", rules)
                endpoints.token = Self.providerURI(&reader, "token", rules)
                endpoints.refresh = Self.providerURI(&reader, "refresh", rules)
                endpoints.deviceAuthorization = Self.providerURI(&reader, "device_authorization", rules)
                endpoints.revocation = Self.providerURI(&reader, "revocation", rules)
                endpoints.jwks = Self.providerURI(&reader, "jwks", rules)
                endpoints.userInfo = Self.providerURI(&reader, "userinfo", rules)
                for (name, path) in Self.accountEndpoints {
                    endpoints[keyPath: path] = Self.providerURI(&reader, WireText(name), rules)
                    if endpoints[keyPath: path] != nil, preset.accounts == nil {
                        reader.note(WireText(name), "is not used with this provider")
                    }
                }
                endpoints.pushedAuthorization = Self.providerURI(&reader, "pushed_authorization_request", rules)
                endpoints.challenge = Self.providerURI(&reader, "challenge", rules)
                if endpoints.challenge != nil, preset.appToApp == nil {
                    reader.note("challenge", "is not used with this provider")
                }
                return endpoints
            } ?? Endpoints()
        var hasUnusableAddresses = reader.faultCount > faultsBefore
        previousIssuers = Self.providerURIs(&reader, "previous_issuers", rules, isBase: true)
        previousTokenEndpoints = Self.providerURIs(&reader, "previous_token_endpoints", rules)
        if issuer != nil, !isStored, usesPresetAddresses {
            // Otherwise the client secret would be sent to the preset's provider, and not to the issuer.
            reader.note(
                "issuer",
                "is not where the provider \(preset.name) is looked for: with an issuer say \"provider\": \"oidc\", or "
                    + "name endpoints.authorization and endpoints.token, too")
        }
        for missing in missingParameters {
            hasUnusableAddresses = true
            if isStored { continue }
            reader.note(
                "parameters", member: missing,
                "is required with this provider: " + preset.parameters[missing]!.description)
        }
        if configuredServer == nil, effectiveIssuer == nil, !hasUnusableAddresses, preset.hasLogins,
            !preset.findsServerByResource
        {
            reader.note(
                "issuer", "is required with this provider, unless endpoints.authorization and endpoints.token are given"
            )
        }
        clientAuthentication = reader.choice(
            "token_endpoint_auth_method", ProviderPreset.ClientAuthentication.self)
        repeatsClientID = reader.bool("client_id_in_body")
        requests.assertionAudience = reader.choice("client_assertion_audience", AssertionAudience.self)
        allowedRedirectURIs =
            reader.strings(
                "allowed_redirect_uris", check: isStored ? RedirectURI.fault : RedirectURI.registrationFault)?
            .map(\.text) ?? []
        allowedReturnURIs =
            reader.strings("allowed_return_uris") {
                Self.returnURIFault($0) ?? (isStored ? nil : RedirectURI.registrationFault($0))
            }?.map(\.text) ?? []
        browserBinding = reader.choice("browser_binding", BrowserBinding.self) ?? .whenStartedHere
        callbackURI = reader.choice("callback_uri", CallbackURI.self) ?? .shared
        displayName = Self.displayName(&reader)
        sessionEndingAnswers = reader.objects("session_ending_answers", atMost: 32) { RefusalPattern(&$0) } ?? []
        refreshLeadTime = reader.integer("refresh_lead_time", in: 0...86_400).map { .seconds($0) }
        defaultLifetime = TokenLifetime(&reader, "default_lifetime")
        reuseGrace = reader.integer("reuse_grace", in: 0...86_400).map { .seconds($0) }
        rotation = reader.choice("rotation", TokenRotation.self)
        accessTokenAfterRefresh = reader.choice("access_token_after_refresh", AccessTokenAfterRefresh.self)
        proactiveRefresh = reader.integer("proactive_refresh", in: 60...86_400).map { .seconds($0) }
        clientCredentials = reader.choice("client_credentials", ClientCredentials.self)
        requestHeaders = Self.requestHeaders(&reader)
        requests.pkce = reader.choice("pkce", PKCEUse.self)
        requests.authorizeParameters = RequestShape.parameters(&reader, "authorize_parameters")
        requests.tokenParameters = RequestShape.parameters(&reader, "token_parameters")
        requests.refreshParameters = RequestShape.parameters(&reader, "refresh_parameters")
        readRequests(&reader)
        requests.userScopes =
            reader.strings("user_scopes", atMost: ScopeSet.most, check: Self.scopeFault)
            .flatMap { ScopeSet($0) } ?? .empty
        if !requests.userScopes.isEmpty, preset.shape.userScopeParameter == nil {
            reader.note("user_scopes", "is not used with this provider, which has one kind of scopes: use scopes")
        }
        tokenUse = reader.choice("token_use", AnswerShape.TokenUse.self)
        if !isStored { checkTokenUse(&reader) }
        refreshTokenLifetime = reader.integer("refresh_token_lifetime", in: TokenLifetime.seconds).map { .seconds($0) }
        consentLifetime = reader.integer("consent_lifetime", in: TokenLifetime.seconds).map { .seconds($0) }
        readPushingAndKeys(&reader, isStored: isStored)
        readLife(&reader) { Self.providerURI(&$0, "endpoint", rules) }
        retry = Self.retry(&reader)
        wave = reader.object("wave") { WaveSettings(&$0) } ?? WaveSettings()
        tokenVerification = reader.object("token_verification") { reader in
            TokenVerification(
                accessToken: reader.object("access_token") { TokenVerification.Expectations(&$0) },
                refreshToken: reader.object("refresh_token") { TokenVerification.Expectations(&$0) },
                jwks: Self.providerURI(&reader, "jwks", rules))
        }
        trustedAudiences = reader.strings("trusted_audiences", atMost: 100) {
            (1...2048).contains($0.count) ? nil : "must have 1 to 2048 bytes"
        }
        if let verification = effectiveTokenVerification, verification.verifiesTokens, configuredKeys == nil,
            configuredServer != nil, !hasUnusableAddresses
        {
            reader.note(
                "token_verification",
                "needs the address of the provider's keys: name it in its jwks or in endpoints.jwks")
        }
        if preset.findsServerByResource { readResource(&reader, rules, stored: isStored ? json : nil) }
        appToApp = reader.object("app2app") { Self.appToApp(&$0, rules) }
        if provesDeviceKeys, bindsTokens { reader.note("dpop", "is not used together with app2app") }
        if appToApp != nil, preset.appToApp == nil { reader.note("app2app", "is not used with this provider") }
        if bindsDeviceKeys || appToApp?.bindsKeysLater == true, configuredServer != nil,
            challengeEndpoint(issuer: effectiveIssuer) == nil, !hasUnusableAddresses
        {
            reader.note("app2app", "needs endpoints.challenge, or the issuer")
        }
        try reader.finish()
    }

    /// Reads the resource whose authorization server is found by it, and what was found.
    /// - Parameter stored: a sealed record; nil for a body of `PUT /tenants/{tenant}`, which has nothing that was found.
    private mutating func readResource(_ reader: inout ObjectReader, _ rules: TargetPolicy, stored: JSONValue?) {
        if requests.resources.count == 1 {
            protectedResource = requests.resources[0].text
            if let fault = Self.providerURIFault(requests.resources[0], rules, isBase: false) {
                reader.note("resource", fault)
            }
        } else if requests.resources.isEmpty {
            reader.note("resource", "is required with this provider: the address of the server")
        } else {
            reader.note("resource", "must be one address with this provider")
        }
        if issuer != nil || endpoints.authorization != nil || endpoints.token != nil {
            reader.note(
                issuer != nil ? "issuer" : "endpoints",
                "is not used with this provider, whose addresses are found by the resource: leave it out, or say "
                    + "\"provider\": \"oidc\"")
        }
        if !hasOwnClient {
            if client.isConfidential {
                reader.note("client_id", "is required beside what the client shows the provider")
            }
            if clientAuthentication != nil {
                reader.note("token_endpoint_auth_method", "needs the client_id that it is for")
            }
        }
        guard let stored else { return }
        let earlier = reader.any(EarlierFinding.memberName)?.array ?? []
        earlierFindings = earlier.compactMap(EarlierFinding.init(stored:))
        guard let found = stored["found"] else { return }
        reader.passOver("found")
        guard let known = FoundAuthorization(stored: found) else {
            reader.note("found", "cannot be read")
            return
        }
        self = finding(known)
    }

    /// The client of a tenant whose keys do not come by OAuth, and that names none.
    private static let staticClient: WireText = "static"

    /// What is wrong with a scope; nil for one that can be sent.
    static func scopeFault(_ text: WireText) -> String? {
        ScopeSet([text]) == nil ? "must be one scope: visible ASCII without space, quote or backslash" : nil
    }

    private static func parameters(
        _ reader: inout ObjectReader, of preset: ProviderPreset
    ) -> [WireText: WireText] {
        let parameters = reader.stringMap("parameters") ?? [:]
        for (name, value) in parameters.sorted(by: { $0.key < $1.key }) {
            if preset.parameters[name] == nil {
                reader.note("parameters", member: name, "is not a parameter of the provider \(preset.name)")
            } else if let fault = AddressTemplate.fault(value) {
                reader.note("parameters", member: name, fault)
            }
        }
        return parameters
    }

    /// The parameters that the preset's addresses lack, sorted; none where the tenant has the addresses.
    var missingParameters: [WireText] {
        if endpoints.authorization != nil, endpoints.token != nil || issuer != nil { return [] }
        return preset.parameters.filter { $0.value.usual == nil && parameters[$0.key] == nil }.keys.sorted()
    }

    private static func retry(_ reader: inout ObjectReader) -> RetrySettings {
        let faultsBefore = reader.faultCount
        let settings = reader.object("retry") { reader in
            var settings = RetrySettings()
            settings.tries = reader.integer("tries", in: RetrySettings.triesRange).map { Int($0) }
            settings.firstPause = reader.integer("first_pause_ms", in: RetrySettings.firstPauseMilliseconds)
                .map { .milliseconds($0) }
            settings.factor = reader.number("factor", in: RetrySettings.factorRange)
            settings.longestPause = reader.integer("longest_pause_ms", in: RetrySettings.longestPauseMilliseconds)
                .map { .milliseconds($0) }
            settings.rateLimitRetries = reader.integer("rate_limit_retries", in: RetrySettings.rateLimitRetriesRange)
                .map { Int($0) }
            settings.followsRetryAfter = reader.bool("follow_retry_after")
            return settings
        }
        guard let settings, reader.faultCount == faultsBefore else { return RetrySettings() }
        let schedule = BackoffSchedule(settings)
        if schedule.longestPause < schedule.firstPause {
            reader.note("retry", "must not have a longest_pause_ms that is less than first_pause_ms")
        } else if schedule.total > BackoffSchedule.longestWait {
            reader.note(
                "retry",
                "must not wait longer than \(BackoffSchedule.longestWait.milliseconds) ms between the first try and the last "
                    + "one; these settings wait \(schedule.total.milliseconds) ms")
        }
        return settings
    }

    private static func appToApp(_ reader: inout ObjectReader, _ rules: TargetPolicy) -> AppToApp {
        var appToApp = AppToApp()
        appToApp.isEnabled = reader.bool("enabled") ?? false
        appToApp.bindsKeysLater = reader.bool("insecure_device_key_binding") ?? false
        appToApp.authorizationEndpoints = providerURIs(&reader, "authorization_endpoints", rules)
        return appToApp
    }

    /// The members of `endpoints` that only a provider with accounts of its own has.
    static var accountEndpoints: [(name: String, path: WritableKeyPath<Endpoints, String?>)] {
        [("account_creation", \.accountCreation), ("activation", \.activation), ("logout", \.logout)]
    }

    private static func requestHeaders(_ reader: inout ObjectReader) -> RequestHeaders {
        let fields = reader.stringMap("request_headers", atMost: RequestHeaders.most) ?? [:]
        var names: Set<WireText> = []
        for (name, value) in fields.sorted(by: { $0.key < $1.key }) {
            if let fault = RequestHeaders.fault(name, value) {
                reader.note("request_headers", member: name, fault)
            } else if !names.insert(name.lowercased).inserted {
                reader.note(
                    "request_headers", member: name, "has the name of another field, which differs by case only")
            }
        }
        return RequestHeaders(fields)
    }

    private static func displayName(_ reader: inout ObjectReader) -> String? {
        guard let text = reader.string("display_name")?.text else { return nil }
        if text.unicodeScalars.count > 100 {
            reader.note("display_name", "must not be longer than 100 characters")
        } else if text.unicodeScalars.contains(where: \.changesWhatIsShown) {
            reader.note("display_name", "must not contain control characters")
        } else if text.utf8.allSatisfy({ $0 == UInt8(ascii: " ") }) {
            reader.note("display_name", "must not be blank")
        }
        return text
    }

    private static func preset(_ reader: inout ObjectReader) -> ProviderPreset {
        guard let name = reader.string("provider") else { return .tidal }
        if let preset = ProviderPreset.named(name) { return preset }
        reader.note(
            "provider",
            "must be one of " + ShippedProfiles.names.joined(separator: ", ")
                + ", or a profile that this broker was given: GET /providers lists all")
        return .tidal
    }

    /// An address that the broker itself will call or send a browser to.
    /// - Parameter isBase: whether paths are appended to it, so that it must not have a query. An issuer must not have one
    ///   either (RFC 8414 §2).
    private static func providerURI(
        _ reader: inout ObjectReader, _ name: WireText, _ rules: TargetPolicy, isBase: Bool = false
    ) -> String? {
        guard let text = reader.string(name, limit: providerURILimit) else { return nil }
        if let fault = providerURIFault(text, rules, isBase: isBase) {
            reader.note(name, fault)
            return nil
        }
        return text.text
    }

    /// Earlier addresses of a provider.
    private static func providerURIs(
        _ reader: inout ObjectReader, _ name: WireText, _ rules: TargetPolicy, isBase: Bool = false
    ) -> [String] {
        let texts = reader.strings(name, atMost: 10) { text in
            text.count > providerURILimit
                ? "must not be longer than \(providerURILimit) bytes" : providerURIFault(text, rules, isBase: isBase)
        }
        return texts?.map(\.text) ?? []
    }

    /// In bytes.
    private static let providerURILimit = 2048

    private static func providerURIFault(_ text: WireText, _ rules: TargetPolicy, isBase: Bool) -> String? {
        guard let url = URLTarget(text.text) else {
            return portFault(text)
                ?? "must be an absolute \(rules.allowsHTTP ? "http or https" : "https") URL without user information and "
                + "fragment"
        }
        if url.scheme == .http, !rules.allowsHTTP {
            return "must be an https URL"
                + (LocalNames.isLoopback(url.host)
                    ? "; an http one of this machine takes TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true, for development only"
                    : "")
        }
        return isBase && text.contains("?") ? "must not have a query" : nil
    }

    private static func portFault(_ text: WireText) -> String? {
        URLTarget.refusedPort(of: text.text).map {
            "must not have the port \($0): of the ports below 1024 only 80 and 443 are called"
        }
    }

    /// A redirect URI may have an application's own scheme. It is compared as text and never called.
    private static func returnURIFault(_ text: WireText) -> String? {
        URLTarget(text.text) == nil
            ? portFault(text) ?? "must be an absolute http or https URL without user information and fragment" : nil
    }

    /// The content of the sealed record.
    package var encoded: [UInt8] {
        JSONWriter.object { encode(to: &$0, revealingSecret: true) }
    }

    /// Reads a sealed record.
    package init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes) else { return nil }
        self.init(stored: json)
    }

    /// Reads the content of a sealed record. The present rules for addresses do not apply to what an earlier build accepted.
    ///
    /// A member or a value that this build does not know makes the record unreadable on purpose: it may protect a login, as
    /// `"browser_binding": "confirm"` does.
    init?(stored json: JSONValue) {
        guard let configuration = try? TenantConfiguration(json, rules: .everything, isStored: true) else {
            return nil
        }
        self = configuration
    }

    /// Whether a login may send the browser back to `uri`: its origin and path are listed, with any query.
    func allowsReturn(to uri: WireText) -> Bool {
        guard let wanted = URLTarget(uri.text) else { return false }
        return allowedReturnURIs.contains { listed in
            guard let listed = URLTarget(listed) else { return false }
            return listed.origin == wanted.origin && listed.path == wanted.path
        }
    }
}

extension URLTarget {
    /// The path without the query.
    var path: WireText { WireText(pathAndQuery).split(at: "?", limit: 2)[0] }
}
