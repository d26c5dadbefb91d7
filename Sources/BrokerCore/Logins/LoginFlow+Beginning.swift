import CredentialStore
import Cryptography
package import ExternalText
import JSON
package import OAuth

/// The first part of the standard login: until the browser is sent to the login service.
extension LoginFlow {
    /// Prepares a login: state, verifier and addresses, which are stored before the caller gets them.
    /// - Throws: `too_many_requests` where the tenant has as many pending logins as it may have.
    package func begin(_ parameters: Parameters, of known: Tenant) async throws(BrokerError) -> Begun {
        let tenant = try await discovery.completed(known, isForStranger: parameters.reconnection != nil)
        let configuration = tenant.configuration
        try Self.checkShape(ofCustomParameters: parameters.customParameters)
        let (redirectURI, callback) = try redirect(parameters.redirectURI, of: tenant)
        if let returnTo = parameters.returnTo, !configuration.allowsReturn(to: returnTo) {
            throw BrokerError(
                .illegalArgument,
                "The return_to does not have the origin and path of one of the tenant's allowed_return_uris.")
        }
        for name in parameters.customParameters.keys.sorted()
        where RequestShape.reservedForCallers.contains(name.lowercased)
            || name == AskedGrant.audienceName && parameters.wish?.audience != nil
        {
            throw BrokerError(
                .illegalArgument, "A custom parameter bears the name of a parameter of the protocol.")
        }
        var server = try await serverWithLoginPage(of: tenant)
        let app = try Self.otherApp(parameters, of: configuration)
        // Another app brings the response, and it knows no issuer.
        if app != nil { server.announcesIssuerInResponses = false }
        if let wish = parameters.wish {
            let id = CredentialsID(tenant: tenant.name, storageKey: parameters.storageKey)
            let held = wish.isUpgrade ? try await vault.credentials(id) : nil
            server.asked = try wish.asked(of: configuration, at: server, beside: held)
        }
        try server.makeProofKey(for: configuration)

        let state: String
        let pkce: PKCE
        let loginID: String
        let binding: SecretBytes
        var nonce: String?
        var deviceKey: DeviceKey?
        do {
            state = Base64URL.encode(try SecureRandom.bytes(32)) + (parameters.stateSuffix.map { "." + $0.text } ?? "")
            pkce = try PKCE()
            loginID = Base64URL.encode(try SecureRandom.bytes(16))
            binding = SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
            if configuration.bindsDeviceKeys { deviceKey = try DeviceKey.generate(isBound: true) }
            // A code that another app brings belongs to no authorization request, so that its ID token has no nonce.
            if app == nil { nonce = try Self.nonce(for: configuration.client, at: server) }
        } catch {
            throw Self.noRandomness
        }
        let request = AuthorizationRequest(
            redirectURI: redirectURI.text, state: state, codeChallenge: pkce.codeChallenge, nonce: nonce,
            language: parameters.language?.text, email: parameters.email?.text,
            customParameters: parameters.customParameters, keyThumbprint: server.keyThumbprint)
        let loginURI =
            app.map {
                AppToAppRequest(
                    clientID: configuration.client.clientID, redirectURI: redirectURI,
                    codeChallenge: WireText(pkce.codeChallenge), state: WireText(state)
                ).link(to: $0)
            } ?? request.uri(for: configuration.client, at: server)
        let mustStartHere = configuration.browserBinding == .required
        let login = PendingLogin(
            id: loginID, tenant: tenant.name, storageKey: parameters.storageKey,
            tenantTitle: configuration.displayName ?? tenant.name.description,
            providerTitle: configuration.providerTitle(at: server), callback: callback,
            expires: time.now.advanced(by: PendingLogin.validity),
            secrets: .init(
                redirectURI: redirectURI.text, returnTo: parameters.returnTo?.text,
                configuration: configuration.withoutListedURIs, server: server, loginURI: loginURI,
                codeVerifier: pkce.codeVerifier, nonce: nonce.map { WireText($0) }, binding: binding,
                deviceKey: deviceKey),
            isBound: mustStartHere, endedSession: parameters.reconnection?.end)
        let record = try Self.firstRecord(of: login, state: WireText(state))
        if let source = parameters.reconnection?.source {
            try await admit(login, from: source)
        } else {
            try await quota.admit(tenant.name)
        }
        // The record keeps all parameters: the start address pushes them anew each time, since a pushed request is good once.
        var given: (uri: String, lifetime: Duration?) = (loginURI, nil)
        if !mustStartHere, app == nil, parameters.reconnection == nil {
            given = try await endpoint.pushing(loginURI, for: configuration.client, of: tenant.name, at: server)
        }
        do throws(StoreError) {
            try await vault.commit([.require(RecordID(.tenant, tenant.name)), .insert(record)])
        } catch .conflict {
            throw BrokerError(.notFound, "There is no tenant of that name.")
        } catch {
            throw BrokerError(error)
        }
        log.info("login_begun", LogField.credentials(login.credentialsID) + [.provider(configuration.preset)])
        let startURI = "\(publicBaseURL)/login/start/\(tenant.name)/\(loginID)"
        return Begun(
            loginID: loginID, loginURI: mustStartHere ? startURI : given.uri, startURI: startURI,
            expiresIn: min(given.lifetime ?? PendingLogin.validity, PendingLogin.validity))
    }

    /// The record of a login that nothing has happened to yet.
    /// - Throws: where it would be too long.
    static func firstRecord(of login: PendingLogin, state: WireText) throws(BrokerError) -> OpenRecord {
        let record = login.record(version: 1, stateDigest: SHA256.digest(Array(state.utf8)))
        guard let configuration = login.secrets?.configuration else { return record }
        let reserve = configuration.browserBinding == .confirm ? PendingLogin.confirmationReserve : 0
        let longest = PendingLogin.longest(for: configuration.client) - reserve
        guard record.content.count <= longest else {
            throw BrokerError(
                .illegalArgument,
                "The login takes more than \(longest) bytes. Shorten the redirect_uri, the return_to or the custom parameters, or "
                    + "in the configuration the client_secret or the addresses."
            )
        }
        return record
    }

    /// The tenant's provider.
    /// - Throws: for a provider without a login page, too.
    func serverWithLoginPage(of tenant: Tenant) async throws(BrokerError) -> AuthorizationServer {
        guard tenant.configuration.preset.hasLogins else {
            throw BrokerError.withoutLogins(tenant.configuration.preset)
        }
        let server = try await servers.server(for: tenant)
        guard server.preset.accounts == nil else {
            throw BrokerError(
                .illegalConfiguration,
                "This provider has no login page. Create an account by policy=create_if_needed, or activate one by "
                    + "POST /credentials/activate.")
        }
        return server
    }

    /// The nonce of a request; nil where no ID token is asked for, unless the profile or the tenant decides.
    static func nonce(
        for client: ClientConfiguration, at server: AuthorizationServer
    ) throws(CryptographyError) -> String? {
        let isSent =
            server.shape.nonce.map { $0 == .on }
            ?? (server.asked?.scopes ?? client.scopes).values.contains("openid")
        return isSent ? Base64URL.encode(try SecureRandom.bytes(32)) : nil
    }

    static let noRandomness = BrokerError(.internalError, "The system's random source failed.")

    /// The address of the app at which a login begins; nil for the provider's page.
    private static func otherApp(
        _ parameters: Parameters, of configuration: TenantConfiguration
    ) throws(BrokerError) -> String? {
        guard let given = parameters.authorizationEndpoint else { return nil }
        let listed = configuration.appToApp?.authorizationEndpoints ?? []
        guard let endpoint = listed.first(where: { WireText($0) == given }) else {
            throw BrokerError(
                .illegalArgument,
                "The authorization_endpoint is not one of the authorization_endpoints of the tenant's app2app.")
        }
        if parameters.wish != nil {
            throw BrokerError(
                .illegalArgument,
                "Another app takes no scopes, resource and audience: leave them out, or leave app2app out.")
        }
        if parameters.language != nil || parameters.email != nil || !parameters.customParameters.isEmpty {
            throw BrokerError(
                .illegalArgument, "Another app takes no login_config: leave it out, or leave app2app out.")
        }
        return endpoint
    }

    /// The broker's own redirect URI, which a tenant registers at its provider.
    package func redirectURI(of tenant: Tenant) -> String {
        tenant.configuration.callbackURI.address(below: publicBaseURL, of: tenant.name)
    }

    /// The redirect URI of a login, and which callback that is.
    func redirect(
        _ given: WireText?, of tenant: Tenant
    ) throws(BrokerError) -> (uri: WireText, callback: PendingLogin.Callback) {
        let configuration = tenant.configuration
        let own = redirectURI(of: tenant)
        let callback: PendingLogin.Callback = configuration.callbackURI == .shared ? .shared : .perTenant
        // RFC 9700 §2.1: exact comparison.
        guard let given, given != WireText(own) else { return (WireText(own), callback) }
        let shared = TenantConfiguration.CallbackURI.shared.address(below: publicBaseURL, of: tenant.name)
        let isOtherCallback = given == WireText(shared) || given.starts(with: WireText(shared + "/"))
        guard !isOtherCallback,
            configuration.allowedRedirectURIs.contains(where: { WireText($0) == given })
        else {
            throw BrokerError(
                .illegalArgument, "The redirect_uri is not one of the tenant's allowed_redirect_uris.")
        }
        switch configuration.browserBinding {
        case .whenStartedHere, .off: return (given, .own)
        // Only the broker's own callback can ask the user, or see the cookie of the browser.
        case .confirm, .required:
            throw BrokerError(
                .illegalArgument,
                "With browser_binding \(configuration.browserBinding.rawValue), logins end at the broker's own callback: leave "
                    + "the redirect_uri out.")
        }
    }

    private static func checkShape(ofCustomParameters parameters: [WireText: WireText]) throws(BrokerError) {
        let pointer = "/login_config/custom_parameters"
        var faults = parameters.keys.filter { !AuthorizationRequest.isCustomParameterName($0) }
            .sorted()
            .map {
                BrokerError.Fault(
                    "\(pointer)/\(JSONValue.pointerToken($0))", "must have a name of 1 to 64 letters, digits, _ and -")
            }
        let length = parameters.reduce(0) { $0 + $1.key.count + $1.value.count }
        if length > AuthorizationRequest.customParametersLimit {
            faults.append(
                .init(
                    pointer,
                    "must not have more than \(AuthorizationRequest.customParametersLimit) bytes of names and values"))
        }
        guard let first = faults.first else { return }
        throw BrokerError(
            .invalidRequest,
            faults.count == 1
                ? "\(first.pointer) \(first.detail)."
                : "The custom parameters have \(faults.count) faults; see errors.",
            faults: faults)
    }

    /// What a browser that opens the start address of a login does next.
    package enum Start: Sendable {
        /// The browser goes on to the login service. The cookie is nil where browsers are not bound.
        case goOn(loginURI: String, Cookie?)
        /// Another browser has opened the address before: the user decides whether this browser replaces it.
        case mustConfirm(LoginDescription)
    }

    /// A browser has opened the start address. The first browser gets the cookie without which the login cannot be finished.
    /// - Parameters:
    ///   - cookies: the values of the browser's cookies by name.
    ///   - takesOver: whether the user has confirmed that this browser replaces the earlier one. The cookie then gets a new
    ///     value, so that the earlier browser cannot finish the login.
    package func start(
        tenant: TenantName, loginID: String, cookies: [WireText: WireText], takesOver: Bool
    ) async throws(BrokerError) -> Start {
        let newBinding = try Self.secret()
        let outcome: Result<Bound, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                try await self.bind(
                    RecordID(.login, tenant, key: loginID), cookies, takingOverWith: takesOver ? newBinding : nil)
            }
        } catch {
            throw BrokerError(error)
        }
        let bound = try outcome.get()
        guard case .goOn(let loginURI, let cookie) = bound.start, let secrets = bound.secrets else {
            return bound.start
        }
        do throws(BrokerError) {
            let uri = try await endpoint.pushing(
                loginURI, for: secrets.configuration.client, of: tenant, at: secrets.server
            ).uri
            return .goOn(loginURI: uri, cookie)
        } catch {
            throw Self.failure(error)
        }
    }

    /// What a browser does next, and the login that it goes on with; nil where it does not go on.
    private struct Bound {
        let start: Start
        var secrets: PendingLogin.Secrets?
    }

    private func bind(
        _ id: RecordID, _ cookies: [WireText: WireText], takingOverWith newBinding: SecretBytes?
    ) async throws(StoreError) -> Result<Bound, BrokerError> {
        guard let record = try await vault.read(id) else { return .failure(Self.unknown) }
        var login = try PendingLogin(record)
        if login.expires <= time.now { return .failure(Self.unknown) }
        guard login.status == .pending, var secrets = login.secrets else { return .failure(Self.used) }
        guard let loginURI = secrets.loginURI else { return .failure(Self.unknown) }
        if secrets.configuration.browserBinding == .off {
            return .success(Bound(start: .goOn(loginURI: loginURI, nil), secrets: secrets))
        }
        let name = login.cookieName(isSecure: isSecure)
        let isHolder = login.isStarted && Self.isSet(name, to: secrets.binding, in: cookies)
        if !isHolder {
            if login.isStarted {
                guard let newBinding else { return .success(Bound(start: .mustConfirm(login.description))) }
                secrets.binding = newBinding
            }
            // This browser must not confirm a code that another browser has brought.
            secrets.confirmation = nil
            login.secrets = secrets
            login.isBound = true
            login.isStarted = true
            try await vault.commit([.replace(login.record(replacing: record), version: record.version)])
        }
        let cookie = Cookie(name: name, value: secrets.binding)
        return .success(Bound(start: .goOn(loginURI: loginURI, cookie), secrets: secrets))
    }
}
