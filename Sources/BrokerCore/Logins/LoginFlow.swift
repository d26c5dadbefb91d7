internal import CredentialStore
package import Cryptography
package import ExternalText
internal import HTTPSClient
internal import JSON
package import OAuth
internal import Reactor

/// The standard login (TIDAL's Auth design, "Standard Login"; RFC 6749 §4.1 with RFC 7636 and RFC 9207).
package final class LoginFlow: Sendable {
    package struct Parameters: Sendable {
        package var storageKey: StorageKey
        package var redirectURI: WireText?
        package var returnTo: WireText?
        package var language: WireText?
        package var email: WireText?
        package var customParameters: [WireText: WireText]

        package init(
            storageKey: StorageKey, redirectURI: WireText?, returnTo: WireText?, language: WireText?,
            email: WireText?, customParameters: [WireText: WireText]
        ) {
            self.storageKey = storageKey
            self.redirectURI = redirectURI
            self.returnTo = returnTo
            self.language = language
            self.email = email
            self.customParameters = customParameters
        }
    }

    package struct Begun: Sendable {
        package let loginID: String
        package let loginURI: String
        package let startURI: String
        package let expiresIn: Duration
    }

    /// A login's outcome as its page, its redirect or its caller is told.
    package struct Ended: Sendable {
        package let login: LoginDescription
        package var loginID: String { login.loginID }
        package let credentialsID: CredentialsID
        package let returnTo: String?
        package let result: Result<HeldCredentials, BrokerError>
    }

    /// The address at which a browser brought a response.
    package enum Callback: Sendable {
        case shared
        /// The one of a tenant; nil where the path has no tenant's name.
        case tenant(TenantName?)

        fileprivate func fits(_ login: PendingLogin) -> Bool {
            switch (self, login.callback) {
            case (.shared, .shared): true
            case (.tenant(let name), .perTenant): name == login.tenant
            default: false
            }
        }
    }

    /// A browser that comes back from the login service.
    package struct Browser: Sendable {
        /// The values of its cookies by name.
        package var cookies: [WireText: WireText]
        package var callback: Callback
        /// Whether it can show a page and send the page's form.
        package var canConfirm: Bool

        package init(cookies: [WireText: WireText], callback: Callback, canConfirm: Bool) {
            self.cookies = cookies
            self.callback = callback
            self.canConfirm = canConfirm
        }
    }

    /// The name and the value of a cookie to set.
    package struct Cookie: Sendable {
        package let name: String
        package let value: SecretBytes
    }

    /// What became of a response that a browser brought.
    package enum Received: Sendable {
        case ended(Ended)
        /// The code is kept until the user confirms the login in the browser that gets the cookie.
        case mustConfirm(LoginDescription, Cookie)
    }

    private let vault: Vault
    private let servers: ProviderServers
    private let endpoint: TokenEndpoint
    private let writer: CredentialsWriter
    private let logins: LoginRecords
    private let publicBaseURL: String
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let attempts: SingleFlight<RefreshID, Attempt>
    private let endings: LoginEndings
    private let quota: PendingLoginQuota

    /// How often a store that is away is asked again, with 0.2, 0.4, 0.8, 1.6 and 3.2 seconds in between: somebody
    /// waits, and a code grows old meanwhile.
    private static let storeRetries = 5

    /// - Parameters:
    ///   - publicBaseURL: without a slash at its end.
    ///   - limit: how many logins of a tenant may be pending at once; nil for any number.
    init(
        vault: Vault, providers: ProviderAccess, writer: CredentialsWriter, bus: EventBus, publicBaseURL: String,
        limit: Int?,
        instruments: Instruments
    ) {
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        quota = PendingLoginQuota(.login, .pendingLogins, limit: limit, vault: vault, time: time)
        self.vault = vault
        servers = providers.servers
        endpoint = providers.endpoint
        attempts = SingleFlight(on: endpoint.executor)
        self.writer = writer
        logins = LoginRecords(vault: vault, bus: bus, time: time)
        self.publicBaseURL = publicBaseURL
        endings = LoginEndings(.login, vault: vault, bus: bus, time: time)
    }

    package var isSecure: Bool { WireText(publicBaseURL).starts(with: "https://") }

    private var callbackURI: String { publicBaseURL + "/login/callback" }

    /// The address of a path of the broker's, as browsers reach it.
    /// - Parameter path: begins with a slash.
    package func publicURI(path: String) -> String { publicBaseURL + path }

    /// Whether the value of an `Origin` field is the origin of the broker's own pages (RFC 6454 §7).
    package func isOwnOrigin(_ origin: WireText) -> Bool {
        guard let own = URLTarget(publicBaseURL)?.origin else {
            return origin == WireText(publicBaseURL)
        }
        return URLTarget(origin.text)?.origin == own
    }

    // MARK: The first leg

    /// Prepares a login: state, verifier and addresses, stored before they are handed out.
    /// - Throws: `too_many_requests` where the tenant has as many pending logins as it may have.
    package func begin(_ parameters: Parameters, of tenant: Tenant) async throws(BrokerError) -> Begun {
        let configuration = tenant.configuration
        try Self.checkShape(ofCustomParameters: parameters.customParameters)
        let (redirectURI, callback) = try redirect(parameters.redirectURI, of: tenant)
        if let returnTo = parameters.returnTo, !configuration.allowsReturn(to: returnTo) {
            throw BrokerError(
                .illegalArgument,
                "The return_to does not have the origin and path of one of the tenant's allowed_return_uris.")
        }
        for name in parameters.customParameters.keys.sorted()
        where AuthorizationRequest.reservedNames.contains(name.lowercased) {
            throw BrokerError(
                .illegalArgument, "A custom parameter bears the name of a parameter of the protocol.")
        }
        let server = try await servers.server(for: tenant)

        let state: String
        let pkce: PKCE
        let loginID: String
        let binding: SecretBytes
        do {
            state = Base64URL.encode(try SecureRandom.bytes(32))
            pkce = try PKCE()
            loginID = Base64URL.encode(try SecureRandom.bytes(16))
            binding = SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
        let request = AuthorizationRequest(
            redirectURI: redirectURI.text, state: state, codeChallenge: pkce.codeChallenge,
            language: parameters.language?.text, email: parameters.email?.text,
            customParameters: parameters.customParameters)
        let loginURI = request.uri(for: configuration.client, at: server)
        let mustStartHere = configuration.browserBinding == .required
        let login = PendingLogin(
            id: loginID, tenant: tenant.name, storageKey: parameters.storageKey,
            tenantTitle: configuration.displayName ?? tenant.name.description,
            providerTitle: configuration.providerTitle(at: server), callback: callback,
            expires: time.now.advanced(by: PendingLogin.validity),
            secrets: .init(
                redirectURI: redirectURI.text, returnTo: parameters.returnTo?.text,
                configuration: configuration.withoutListedURIs, server: server, loginURI: loginURI,
                codeVerifier: pkce.codeVerifier, binding: binding),
            isBound: mustStartHere)
        let record = login.record(version: 1, stateDigest: SHA256.digest(Array(state.utf8)))
        let reserve = configuration.browserBinding == .confirm ? PendingLogin.confirmationReserve : 0
        guard record.content.count <= PendingLogin.longest - reserve else {
            throw BrokerError(
                .illegalArgument,
                "The login takes more than \(PendingLogin.longest - reserve) bytes. Shorten the redirect_uri, the return_to or the "
                    + "custom parameters, or in the configuration the scopes, the client_secret or the addresses."
            )
        }
        try await quota.admit(tenant.name)
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
            loginID: loginID, loginURI: mustStartHere ? startURI : loginURI, startURI: startURI,
            expiresIn: PendingLogin.validity)
    }

    /// The redirect URI of a login, and which of the callbacks that is.
    private func redirect(
        _ given: WireText?, of tenant: Tenant
    ) throws(BrokerError) -> (uri: WireText, callback: PendingLogin.Callback) {
        let configuration = tenant.configuration
        let (callback, own): (PendingLogin.Callback, String) =
            switch configuration.callbackURI {
            case .shared: (.shared, callbackURI)
            case .perTenant: (.perTenant, "\(callbackURI)/\(tenant.name)")
            }
        // RFC 9700 §2.1: exactly the same.
        guard let given, given != WireText(own) else { return (WireText(own), callback) }
        let isOtherCallback = given == WireText(callbackURI) || given.starts(with: WireText(callbackURI + "/"))
        guard !isOtherCallback,
            configuration.allowedRedirectURIs.contains(where: { WireText($0) == given })
        else {
            throw BrokerError(
                .illegalArgument, "The redirect_uri is not one of the tenant's allowed_redirect_uris.")
        }
        if configuration.browserBinding == .confirm {
            throw BrokerError(
                .illegalArgument,
                "With browser_binding confirm, logins end at the broker's own callback: leave the redirect_uri out.")
        }
        return (given, .own)
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
        /// On to the login service. No cookie where browsers are not bound.
        case goOn(loginURI: String, Cookie?)
        /// Another browser has opened the address before: the user decides whether this one takes its place.
        case mustConfirm(LoginDescription)
    }

    /// A browser opened the start address. The first one gets the cookie without which the login cannot be finished.
    /// - Parameters:
    ///   - cookies: the values of the browser's cookies by name.
    ///   - takesOver: the user has confirmed that this browser takes the place of the one before. The cookie gets a new
    ///     value, so that the browser before cannot finish the login.
    package func start(
        tenant: TenantName, loginID: String, cookies: [WireText: WireText], takesOver: Bool
    ) async throws(BrokerError) -> Start {
        let newBinding = try Self.secret()
        let outcome: Result<Start, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                try await self.bind(
                    RecordID(.login, tenant, key: loginID), cookies, takingOverWith: takesOver ? newBinding : nil)
            }
        } catch {
            throw BrokerError(error)
        }
        return try outcome.get()
    }

    private func bind(
        _ id: RecordID, _ cookies: [WireText: WireText], takingOverWith newBinding: SecretBytes?
    ) async throws(StoreError) -> Result<Start, BrokerError> {
        guard let record = try await vault.read(id) else { return .failure(Self.unknown) }
        var login = try PendingLogin(record)
        if login.expires <= time.now { return .failure(Self.unknown) }
        guard login.status == .pending, var secrets = login.secrets else { return .failure(Self.used) }
        if secrets.configuration.browserBinding == .off {
            return .success(.goOn(loginURI: secrets.loginURI, nil))
        }
        let name = login.cookieName(isSecure: isSecure)
        let isHolder = login.isStarted && Self.isSet(name, to: secrets.binding, in: cookies)
        if !isHolder {
            if login.isStarted {
                guard let newBinding else { return .success(.mustConfirm(login.description)) }
                secrets.binding = newBinding
            }
            // A code that another browser has brought is not for this one to confirm.
            secrets.confirmation = nil
            login.secrets = secrets
            login.isBound = true
            login.isStarted = true
            try await vault.commit([.replace(login.record(replacing: record), version: record.version)])
        }
        return .success(.goOn(loginURI: secrets.loginURI, Cookie(name: name, value: secrets.binding)))
    }

    /// 256 random bits as text.
    private static func secret() throws(BrokerError) -> SecretBytes {
        do {
            return SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
    }

    /// Whether the browser holds the cookie of that name with that value. Takes the same time for every wrong value.
    private static func isSet(_ name: String, to value: SecretBytes, in cookies: [WireText: WireText]) -> Bool {
        cookies[WireText(name)].map { SecretBytes(utf8: $0.text) == value } ?? false
    }

    // MARK: The second leg

    /// Whether the login that this response belongs to wants to see a cookie. False for unknown ones.
    package func isBound(_ response: AuthorizationResponse) async throws(BrokerError) -> Bool {
        guard let state = response.state, let found = try await find(state: state) else { return false }
        return found.login.isBound
    }

    /// Finishes a login for a caller of its tenant: uses the state, redeems the code, stores the credentials.
    ///
    /// From the moment when the state is being used, everything goes on without the caller.
    /// - Parameter storageKeys: those that the caller may log in; nil for all.
    /// - Throws: what keeps the login from being finished at all; the state stays usable then, except where it is
    ///   unknown, over or used already.
    package func finish(
        _ response: AuthorizationResponse, of tenant: TenantName, storageKeys: [StorageKey]?
    ) async throws(BrokerError) -> Ended {
        while true {
            let (record, login) = try await find(response)
            // Another tenant's login is as unknown as one that never was.
            guard login.tenant == tenant else { throw Self.unknown }
            if let storageKeys, !storageKeys.contains(login.storageKey) {
                throw BrokerError(.forbidden, "The API key is not valid for this login's storage key.")
            }
            let secrets = try usableSecrets(of: login)
            try check(response.issuer, secrets.server)
            if login.isBound { throw Self.otherBrowser }
            if secrets.configuration.browserBinding == .confirm { throw Self.needsBrowser }
            if let ended = try await attempt(login, record, secrets, try Self.grant(in: response)) { return ended }
        }
    }

    /// Finishes a login for the browser that comes back from the login service, or keeps the code until the user has
    /// confirmed the login.
    ///
    /// From the moment when the state is being used, everything goes on without the browser.
    /// - Throws: as `finish`.
    package func receive(
        _ response: AuthorizationResponse, from browser: Browser
    ) async throws(BrokerError) -> Received {
        while true {
            let (record, login) = try await find(response)
            if login.expires <= time.now { throw Self.unknown }
            guard browser.callback.fits(login) else {
                throw BrokerError(
                    .invalidRequest, "The response came to another callback than the login was begun with.")
            }
            let secrets = try usableSecrets(of: login)
            try check(response.issuer, secrets.server)
            try checkBrowser(browser.cookies, login, secrets)
            let grant = try Self.grant(in: response)
            if secrets.configuration.browserBinding == .confirm, case .success(let code) = grant {
                guard browser.canConfirm else { throw Self.needsBrowser }
                if let cookie = try await keep(code, for: browser, login, record, secrets) {
                    return .mustConfirm(login.description, cookie)
                }
            } else if let ended = try await attempt(login, record, secrets, grant) {
                return .ended(ended)
            }
        }
    }

    /// The login that a browser is asked to confirm.
    /// - Throws: as `confirm`.
    package func confirmation(
        tenant: TenantName, loginID: String, cookies: [WireText: WireText]
    ) async throws(BrokerError) -> LoginDescription {
        let (_, login) = try await find(tenant, loginID)
        _ = try confirmation(of: login, try usableSecrets(of: login), cookies)
        return login.description
    }

    /// Redeems the code that a browser has brought before, or gives the login up: what its user decided.
    /// - Throws: what keeps the login from being finished at all. The code stays where another browser than the one
    ///   that brought it asks.
    package func confirm(
        tenant: TenantName, loginID: String, cookies: [WireText: WireText], isConfirmed: Bool
    ) async throws(BrokerError) -> Ended {
        while true {
            let (record, login) = try await find(tenant, loginID)
            let secrets = try usableSecrets(of: login)
            let confirmation = try confirmation(of: login, secrets, cookies)
            let grant: Result<SecretBytes, BrokerError> =
                isConfirmed
                ? .success(confirmation.code)
                : .failure(BrokerError(.authorizationError, "The user has cancelled the login."))
            if let ended = try await attempt(login, record, secrets, grant) { return ended }
        }
    }

    /// The code that waits for this browser's user.
    private func confirmation(
        of login: PendingLogin, _ secrets: PendingLogin.Secrets, _ cookies: [WireText: WireText]
    ) throws(BrokerError) -> PendingLogin.Confirmation {
        try checkBrowser(cookies, login, secrets)
        guard let confirmation = secrets.confirmation,
            Self.isSet(login.confirmationCookieName(isSecure: isSecure), to: confirmation.cookie, in: cookies)
        else { throw Self.otherBrowser }
        return confirmation
    }

    /// Keeps a code for the browser that brought it, in the place of one that was brought before.
    /// - Returns: the cookie by which the browser is known again; nil where the login was written meanwhile.
    private func keep(
        _ code: SecretBytes, for browser: Browser, _ login: PendingLogin, _ record: OpenRecord,
        _ secrets: PendingLogin.Secrets
    ) async throws(BrokerError) -> Cookie? {
        let name = login.confirmationCookieName(isSecure: isSecure)
        if let kept = secrets.confirmation, kept.code == code, Self.isSet(name, to: kept.cookie, in: browser.cookies) {
            return Cookie(name: name, value: kept.cookie)
        }
        guard code.count <= PendingLogin.longestKeptCode else {
            throw BrokerError(
                .invalidRequest, "The response's code is longer than \(PendingLogin.longestKeptCode) bytes.")
        }
        let cookie = Cookie(name: name, value: try Self.secret())
        var waiting = login
        waiting.secrets?.confirmation = .init(cookie: cookie.value, code: code)
        let kept = waiting.record(replacing: record)
        guard kept.content.count <= PendingLogin.longest else {
            throw BrokerError(.invalidRequest, "The response's code is too long to be kept until it is confirmed.")
        }
        do throws(StoreError) {
            try await logins.replace(kept, version: record.version, telling: [], retries: Self.storeRetries)
        } catch .conflict {
            return nil
        } catch {
            throw BrokerError(error)
        }
        return cookie
    }

    /// Uses a login's state, and redeems the code where there is one.
    /// - Returns: nil where the login was written meanwhile; the next look tells by what.
    private func attempt(
        _ login: PendingLogin, _ record: OpenRecord, _ secrets: PendingLogin.Secrets,
        _ grant: Result<SecretBytes, BrokerError>
    ) async throws(BrokerError) -> Ended? {
        let id = RefreshID()
        let run = await attempts.run(id, within: nil) {
            await self.take(login, record, secrets, grant, as: id)
        }
        switch run?.value {
        case .ended(let ended)?: return ended
        case .failed(let error)?: throw error
        case .overtaken?: return nil
        case nil: throw BrokerError(.retryableError, "The request ended before the login did.", retryAfter: 1)
        }
    }

    /// The code of a response, or the failure that it reports.
    private static func grant(
        in response: AuthorizationResponse
    ) throws(BrokerError) -> Result<SecretBytes, BrokerError> {
        switch response.outcome {
        case .incomplete:
            throw BrokerError(.invalidRequest, "The response has neither a code nor an error.")
        case .code(let code):
            return .success(SecretBytes(utf8: code.text))
        case .error(let errorCode):
            return .failure(
                BrokerError(
                    .authorizationError,
                    "The login service reports that the login did not succeed.".followed(
                        by: RefusalAdvice.sentence(ofLoginError: errorCode)),
                    errorCode: errorCode))
        }
    }

    /// What an attempt to use a state came to.
    private enum Attempt: Sendable {
        case ended(Ended)
        /// The state could not be used.
        case failed(BrokerError)
        /// Another callback took the state, or a start bound the login: the next look tells which.
        case overtaken
    }

    private func usableSecrets(of login: PendingLogin) throws(BrokerError) -> PendingLogin.Secrets {
        if login.expires <= time.now { throw Self.unknown }
        guard login.status == .pending, let secrets = login.secrets else { throw Self.used }
        return secrets
    }

    /// Marks the state as used, then does what the response asks for.
    private func take(
        _ login: PendingLogin, _ record: OpenRecord, _ secrets: PendingLogin.Secrets,
        _ grant: Result<SecretBytes, BrokerError>, as id: RefreshID
    ) async -> Attempt {
        var used = login
        used.secrets = nil
        used.attempt = id.text
        if case .failure(let error) = grant { used.status = .failed(LoginFailure(error)) }
        let usedRecord = used.record(replacing: record)
        do throws(StoreError) {
            try await logins.replace(
                usedRecord, version: record.version, telling: failure(of: used, grant), retries: Self.storeRetries)
        } catch .conflict {
            return .overtaken
        } catch {
            log.storeFailed(error, LogField.credentials(login.credentialsID))
            return .failed(BrokerError(error))
        }
        switch grant {
        case .success(let code):
            return .ended(await redeem(code, used, usedRecord, secrets, as: id))
        case .failure(let error):
            return .ended(end(used, secrets, .failure(error)))
        }
    }

    private func redeem(
        _ code: SecretBytes, _ login: PendingLogin, _ record: OpenRecord, _ secrets: PendingLogin.Secrets,
        as id: RefreshID
    ) async -> Ended {
        let client = secrets.configuration.client
        do throws(BrokerError) {
            let response = try await endpoint.redeem(
                .authorizationCode(code: code, redirectURI: secrets.redirectURI, codeVerifier: secrets.codeVerifier),
                for: client, of: login.tenant, at: secrets.server, as: id)
            let held = HeldCredentials(
                granted: response, level: .user, to: client, by: secrets.server, now: time.now)
            try await store(held, of: login, over: record)
            return end(login, secrets, .success(held))
        } catch {
            await markFailed(login, record, error)
            return end(login, secrets, .failure(error))
        }
    }

    /// Stores the credentials and the login's completion, both or none.
    private func store(
        _ held: HeldCredentials, of login: PendingLogin, over record: OpenRecord
    ) async throws(BrokerError) {
        var completed = login
        completed.status = .completed
        let completedRecord = completed.record(replacing: record)
        var (isFirst, hasArrived) = (true, false)
        let told = BrokerEvent.loginCompleted(login.credentialsID, .standard, loginID: login.id, at: time.now)
        let stored = try await writer.settle(login: held, by: .login, for: login.credentialsID) {
            () async throws(StoreError) in
            let completion: [VaultChange] = [.replace(completedRecord, version: record.version)]
            // Nobody but us has reason to write a login whose state is used: that need not be looked at first.
            if isFirst {
                isFirst = false
                return (completion, [told])
            }
            let standing = try await self.vault.read(login.recordID)
            if standing?.version == record.version { return (completion, [told]) }
            // Where an earlier try arrived although its answer did not, the credentials may have been renewed since.
            hasArrived = standing?.content == completedRecord.content
            return nil
        }
        guard stored != nil || hasArrived else {
            throw BrokerError(.gone, "The tenant was deleted before the login ended.")
        }
    }

    private func end(
        _ login: PendingLogin, _ secrets: PendingLogin.Secrets, _ result: Result<HeldCredentials, BrokerError>
    ) -> Ended {
        report(login, secrets.configuration.preset, result)
        return Ended(
            login: login.description, credentialsID: login.credentialsID, returnTo: secrets.returnTo, result: result)
    }

    /// Writes down why the login failed. If the store cannot take it, the login is told as expired in due time, which
    /// is true as well.
    private func markFailed(_ login: PendingLogin, _ record: OpenRecord, _ error: BrokerError) async {
        var failed = login
        failed.status = .failed(LoginFailure(error))
        do throws(StoreError) {
            try await logins.replace(
                failed.record(replacing: record), version: record.version,
                telling: failure(of: login, Result<SecretBytes, BrokerError>.failure(error)),
                retries: Self.storeRetries)
        } catch {
            log.warning("login_outcome_not_stored", LogField.credentials(login.credentialsID) + [.store(error)])
        }
    }

    /// The entry that tells of a login's failure; none for a success.
    private func failure<Success>(
        of login: PendingLogin, _ result: Result<Success, BrokerError>
    ) -> [VaultChange] {
        guard case .failure(let error) = result else { return [] }
        let (id, now) = (login.credentialsID, time.now)
        return [
            BrokerEvent.entry(
                [.loginFailed(id, .standard, loginID: login.id, error, at: now)], of: id, at: now)
        ]
    }

    private func report(
        _ login: PendingLogin, _ preset: ProviderPreset, _ result: Result<HeldCredentials, BrokerError>
    ) {
        let fields = LogField.credentials(login.credentialsID) + [.provider(preset)]
        switch result {
        case .success:
            metrics.loginEnded(.standard, "completed")
            log.info("login_completed", fields)
        case .failure(let error):
            metrics.loginEnded(.standard, error.code.rawValue)
            log.warning("login_failed", fields + LogField.reason(of: error))
        }
        endings.signal(login.recordID)
    }

    /// RFC 9207 §2.4: compared octet by octet; one that the provider announces may not be missing, and one that there is
    /// nothing to compare with is refused.
    private func check(_ issuer: WireText?, _ server: AuthorizationServer) throws(BrokerError) {
        guard let expected = server.issuer else {
            if issuer == nil { return }
            throw BrokerError(
                .invalidRequest,
                "The response has an iss, and no issuer is configured to compare it with: configure the issuer."
            )
        }
        if let issuer {
            if issuer == WireText(expected) { return }
            throw BrokerError(.invalidRequest, "The response comes from another issuer than the login was begun with.")
        }
        if server.announcesIssuerInResponses {
            throw BrokerError(.invalidRequest, "The response has no iss, which this provider always sends.")
        }
    }

    private func checkBrowser(
        _ cookies: [WireText: WireText], _ login: PendingLogin, _ secrets: PendingLogin.Secrets
    ) throws(BrokerError) {
        guard login.isBound else { return }
        let name = login.cookieName(isSecure: isSecure)
        guard Self.isSet(name, to: secrets.binding, in: cookies) else { throw Self.otherBrowser }
    }

    private func find(
        _ response: AuthorizationResponse
    ) async throws(BrokerError) -> (record: OpenRecord, login: PendingLogin) {
        guard let state = response.state else {
            throw BrokerError(.invalidRequest, "The response has no state.")
        }
        guard let found = try await find(state: state) else { throw Self.unknown }
        return found
    }

    private func find(
        _ tenant: TenantName, _ loginID: String
    ) async throws(BrokerError) -> (record: OpenRecord, login: PendingLogin) {
        let found: (OpenRecord, PendingLogin)?
        do throws(StoreError) {
            found =
                if let record = try await vault.read(RecordID(.login, tenant, key: loginID)) {
                    (record, try PendingLogin(record))
                } else {
                    nil
                }
        } catch {
            log.storeFailed(error)
            throw BrokerError(error)
        }
        guard let found else { throw Self.unknown }
        return found
    }

    private func find(state: WireText) async throws(BrokerError) -> (record: OpenRecord, login: PendingLogin)? {
        do throws(StoreError) {
            guard let record = try await vault.find(.login, lookup: SHA256.digest(Array(state.utf8))) else {
                return nil
            }
            return (record, try PendingLogin(record))
        } catch {
            log.storeFailed(error)
            throw BrokerError(error)
        }
    }

    // MARK: Asking

    /// What pages say of the login that a response belongs to; nil where none is known.
    package func description(of response: AuthorizationResponse) async -> LoginDescription? {
        guard let state = response.state, let found = try? await find(state: state) else { return nil }
        return found.login.description
    }

    /// How far a login is, for the page that its browser is shown. Needs no key: the login's identifier names nothing
    /// else.
    /// - Throws: `gone` for a login that is unknown.
    package func outcome(
        tenant: TenantName, loginID: String
    ) async throws(BrokerError) -> (login: LoginDescription, progress: LoginProgress) {
        let (_, login) = try await find(tenant, loginID)
        let isOver = login.status == .pending && login.end <= time.now
        return (login.description, isOver ? .expired : login.status)
    }

    /// How far a login is; waits for its end for at most `wait`. Nil for one that is unknown or not the caller's.
    package func progress(
        tenant: TenantName, loginID: String, storageKeys: [StorageKey]?, wait: Duration
    ) async throws(BrokerError) -> LoginProgress? {
        try await endings.progress(of: RecordID(.login, tenant, key: loginID), within: wait) {
            record throws(StoreError) in
            let login = try PendingLogin(record)
            if let storageKeys, !storageKeys.contains(login.storageKey) { return nil }
            return (login.status, login.end)
        }
    }

    /// Nobody is kept waiting for a login from now on.
    func beginDraining() {
        endings.beginDraining()
    }

    /// Suspends until no code is being redeemed.
    package func finish() async {
        await attempts.finish()
        await quota.finish()
    }

    /// Has the redemptions in flight wait for nothing any more; see `CredentialsRenewer.cancelAll`.
    /// - Returns: how many there are.
    package func cancelAll() -> Int {
        defer { attempts.cancelAll() }
        return attempts.count
    }

    private static let unknown = BrokerError(
        .gone, "The login is unknown or has expired. Begin another one.")
    private static let used = BrokerError(
        .conflict, "The login was finished already. Begin another one.")
    private static let otherBrowser = BrokerError(
        .forbidden, "This login was started in another browser. Begin again in the browser that started it.")
    private static let needsBrowser = BrokerError(
        .forbidden,
        "The tenant has its users confirm each login on a page of the broker's: a browser must finish this login.")
}
