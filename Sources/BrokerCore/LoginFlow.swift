package import CredentialStore
package import Cryptography
package import ExternalText
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
        package let loginID: String
        package let credentialsID: CredentialsID
        package let returnTo: String?
        package let result: Result<HeldCredentials, BrokerError>
    }

    /// What finishes a login.
    package enum Finisher: Sendable {
        /// A browser, with the values of its cookies by name.
        case browser(cookies: [WireText: WireText])
        /// A caller of the tenant's, allowed to log in these storage keys (nil: all).
        case caller(TenantName, storageKeys: [StorageKey]?)
    }

    private let vault: Vault
    private let servers: ProviderServers
    private let endpoint: TokenEndpoint
    private let credentials: CredentialsProvider
    private let logins: LoginRecords
    private let publicBaseURL: String
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let attempts: SingleFlight<RefreshID, Attempt>
    private let endings: LoginEndings

    /// How often a store that is away is asked again, with 0.2, 0.4, 0.8, 1.6 and 3.2 seconds in between: somebody
    /// waits, and a code grows old meanwhile.
    private static let storeRetries = 5

    /// - Parameter publicBaseURL: without a slash at its end.
    package init(
        vault: Vault, servers: ProviderServers, endpoint: TokenEndpoint, credentials: CredentialsProvider,
        bus: EventBus, publicBaseURL: String, time: any Time, metrics: Metrics, log: Log
    ) {
        self.vault = vault
        self.servers = servers
        self.endpoint = endpoint
        attempts = SingleFlight(on: endpoint.executor)
        self.credentials = credentials
        logins = LoginRecords(vault: vault, bus: bus, time: time)
        self.publicBaseURL = publicBaseURL
        self.time = time
        self.metrics = metrics
        self.log = log
        endings = LoginEndings(.login, vault: vault, bus: bus, time: time)
    }

    package var isSecure: Bool { WireText(publicBaseURL).starts(with: "https://") }

    package var callbackURI: String { publicBaseURL + "/login/callback" }

    // MARK: The first leg

    /// Prepares a login: state, verifier and addresses, stored before they are handed out.
    package func begin(_ parameters: Parameters, of tenant: Tenant) async throws(BrokerError) -> Begun {
        let configuration = tenant.configuration
        let redirectURI = parameters.redirectURI ?? WireText(callbackURI)
        // RFC 9700 §2.1: exactly the same.
        guard
            ([callbackURI] + configuration.allowedRedirectURIs).contains(where: { WireText($0) == redirectURI })
        else {
            throw BrokerError(
                .illegalArgument, "The redirect_uri is not one of the tenant's allowed_redirect_uris.")
        }
        if let returnTo = parameters.returnTo, !configuration.allowsReturn(to: returnTo) {
            throw BrokerError(
                .illegalArgument,
                "The return_to does not have the origin and path of one of the tenant's allowed_return_uris.")
        }
        for name in parameters.customParameters.keys.sorted()
        where name.isEmpty || AuthorizationRequest.reservedNames.contains(name.lowercased) {
            throw BrokerError(
                .illegalArgument, "A custom parameter bears the name of a parameter of the protocol, or none.")
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
            id: loginID, tenant: tenant.name, storageKey: parameters.storageKey, redirectURI: redirectURI.text,
            returnTo: parameters.returnTo?.text, configuration: configuration, server: server,
            expires: time.now.advanced(by: PendingLogin.validity),
            secrets: .init(loginURI: loginURI, codeVerifier: pkce.codeVerifier, binding: binding),
            isBound: mustStartHere)
        let digest = SHA256.digest(Array(state.utf8))
        do throws(StoreError) {
            try await vault.commit([
                .require(RecordID(.tenant, tenant.name)), .insert(login.record(version: 1, stateDigest: digest)),
            ])
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

    package struct Started: Sendable {
        package let loginURI: String
        /// Name and value of the cookie to set; nil where browsers are not bound.
        package let cookie: (name: String, value: SecretBytes)?
    }

    /// A browser opened the start address: from now on the login is finished by a browser that holds the cookie.
    package func start(tenant: TenantName, loginID: String) async throws(BrokerError) -> Started {
        let outcome: Result<Started, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                try await self.bind(RecordID(.login, tenant, key: loginID))
            }
        } catch {
            throw BrokerError(error)
        }
        return try outcome.get()
    }

    private func bind(_ id: RecordID) async throws(StoreError) -> Result<Started, BrokerError> {
        guard let record = try await vault.read(id) else { return .failure(Self.unknown) }
        var login = try PendingLogin(record)
        if login.expires <= time.now { return .failure(Self.unknown) }
        guard login.status == .pending, let secrets = login.secrets else { return .failure(Self.used) }
        if login.configuration.browserBinding == .off {
            return .success(Started(loginURI: secrets.loginURI, cookie: nil))
        }
        if !login.isBound {
            login.isBound = true
            try await vault.commit([.replace(login.record(replacing: record), version: record.version)])
        }
        let name = login.cookieName(isSecure: isSecure)
        return .success(Started(loginURI: secrets.loginURI, cookie: (name, secrets.binding)))
    }

    // MARK: The second leg

    /// Whether the login that this response belongs to wants to see a cookie. False for unknown ones.
    package func isBound(_ response: AuthorizationResponse) async throws(BrokerError) -> Bool {
        guard let state = response.state, let found = try await find(state: state) else { return false }
        return found.login.isBound
    }

    /// Finishes a login: uses the state, redeems the code, stores the credentials.
    ///
    /// From the moment when the state is being used, everything goes on without the caller.
    /// - Throws: what keeps the login from being finished at all; the state stays usable then, except where it is
    ///   unknown, over or used already.
    package func finish(
        _ response: AuthorizationResponse, by finisher: Finisher
    ) async throws(BrokerError) -> Ended {
        guard let state = response.state else {
            throw BrokerError(.invalidRequest, "The response has no state.")
        }
        while true {
            guard let (record, login) = try await find(state: state) else { throw Self.unknown }
            let secrets = try usableSecrets(of: login, for: finisher)
            try check(response.issuer, login.server)
            try checkBrowser(finisher, login, secrets)
            let id = RefreshID()
            let run = await attempts.run(id, within: nil) {
                await self.take(login, record, secrets, response.outcome, as: id)
            }
            switch run?.value {
            case .ended(let ended)?: return ended
            case .failed(let error)?: throw error
            case .overtaken?: continue
            case nil: throw BrokerError(.retryableError, "The request ended before the login did.", retryAfter: 1)
            }
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

    private func usableSecrets(
        of login: PendingLogin, for finisher: Finisher
    ) throws(BrokerError) -> PendingLogin.Secrets {
        if case .caller(let tenant, let storageKeys) = finisher {
            // Another tenant's login is as unknown as one that never was.
            guard login.tenant == tenant else { throw Self.unknown }
            if let storageKeys, !storageKeys.contains(login.storageKey) {
                throw BrokerError(.forbidden, "The API key is not valid for this login's storage key.")
            }
        }
        if login.expires <= time.now { throw Self.unknown }
        guard login.status == .pending, let secrets = login.secrets else { throw Self.used }
        return secrets
    }

    /// Marks the state as used, then does what the response asks for.
    private func take(
        _ login: PendingLogin, _ record: OpenRecord, _ secrets: PendingLogin.Secrets,
        _ outcome: AuthorizationResponse.Outcome, as id: RefreshID
    ) async -> Attempt {
        var used = login
        used.secrets = nil
        used.attempt = id.text
        let response: Result<SecretBytes, BrokerError>
        switch outcome {
        case .incomplete:
            return .failed(BrokerError(.invalidRequest, "The response has neither a code nor an error."))
        case .code(let code):
            response = .success(SecretBytes(utf8: code.text))
        case .error(let errorCode):
            let error = BrokerError(
                .authorizationError, "The login service reports that the login did not succeed.",
                errorCode: errorCode)
            response = .failure(error)
            used.status = .failed(error.code)
        }
        let usedRecord = used.record(replacing: record)
        do throws(StoreError) {
            try await logins.replace(
                usedRecord, version: record.version, telling: failure(of: used, response), retries: Self.storeRetries)
        } catch .conflict {
            return .overtaken
        } catch {
            log.error("store_failed", LogField.credentials(login.credentialsID) + [.store(error)])
            return .failed(BrokerError(error))
        }
        switch response {
        case .success(let code):
            return .ended(await redeem(code, used, usedRecord, verifier: secrets.codeVerifier, as: id))
        case .failure(let error):
            return .ended(end(used, .failure(error)))
        }
    }

    private func redeem(
        _ code: SecretBytes, _ login: PendingLogin, _ record: OpenRecord, verifier: SecretBytes, as id: RefreshID
    ) async -> Ended {
        let client = login.configuration.client
        do throws(BrokerError) {
            let response: TokenResponse
            do throws(TokenEndpoint.Failure) {
                response = try await endpoint.request(
                    .authorizationCode(code: code, redirectURI: login.redirectURI, codeVerifier: verifier),
                    for: client, at: login.server, as: id)
            } catch {
                throw error.reason
            }
            let held = HeldCredentials(
                granted: response, level: .user, to: client,
                defaultLifetime: login.server.preset.defaultLifetime, now: time.now)
            try await store(held, of: login, over: record)
            return end(login, .success(held))
        } catch {
            await markFailed(login, record, error)
            return end(login, .failure(error))
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
        let stored = try await credentials.settle(login: held, by: .login, for: login.credentialsID) {
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

    private func end(_ login: PendingLogin, _ result: Result<HeldCredentials, BrokerError>) -> Ended {
        report(login, result)
        return Ended(
            loginID: login.id, credentialsID: login.credentialsID, returnTo: login.returnTo, result: result)
    }

    /// Writes down why the login failed. If the store cannot take it, the login is told as expired in due time, which
    /// is true as well.
    private func markFailed(_ login: PendingLogin, _ record: OpenRecord, _ error: BrokerError) async {
        var failed = login
        failed.status = .failed(error.code)
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

    private func report(_ login: PendingLogin, _ result: Result<HeldCredentials, BrokerError>) {
        let fields = LogField.credentials(login.credentialsID) + [.provider(login.configuration.preset)]
        switch result {
        case .success:
            metrics.loginEnded(.standard, "completed")
            log.info("login_completed", fields)
        case .failure(let error):
            metrics.loginEnded(.standard, error.code.rawValue)
            log.warning("login_failed", fields + [.code(error.code)])
        }
        endings.signal(login.recordID)
    }

    /// RFC 9207 §2.4: compared octet by octet; one that the provider announces may not be missing.
    private func check(_ issuer: WireText?, _ server: AuthorizationServer) throws(BrokerError) {
        guard let expected = server.issuer else { return }
        if let issuer {
            if issuer == WireText(expected) { return }
            throw BrokerError(.invalidRequest, "The response comes from another issuer than the login was begun with.")
        }
        if server.announcesIssuerInResponses {
            throw BrokerError(.invalidRequest, "The response has no iss, which this provider always sends.")
        }
    }

    private func checkBrowser(
        _ finisher: Finisher, _ login: PendingLogin, _ secrets: PendingLogin.Secrets
    ) throws(BrokerError) {
        guard login.isBound else { return }
        if case .browser(let cookies) = finisher,
            let value = cookies[WireText(login.cookieName(isSecure: isSecure))],
            SecretBytes(utf8: value.text) == secrets.binding
        {
            return
        }
        throw BrokerError(
            .forbidden, "This login was started in another browser. Open this page in the browser that began it.")
    }

    private func find(state: WireText) async throws(BrokerError) -> (record: OpenRecord, login: PendingLogin)? {
        do throws(StoreError) {
            guard let record = try await vault.find(.login, lookup: SHA256.digest(Array(state.utf8))) else {
                return nil
            }
            return (record, try PendingLogin(record))
        } catch {
            if case .damaged = error { log.error("store_failed", [.store(error)]) }
            throw BrokerError(error)
        }
    }

    // MARK: Asking

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
    package func beginDraining() {
        endings.beginDraining()
    }

    /// Suspends until no code is being redeemed.
    package func idle() async {
        await attempts.idle()
    }

    /// Has the redemptions in flight wait for nothing any more; see `CredentialsProvider.cutShort`.
    /// - Returns: how many there are.
    package func cutShort() -> Int {
        defer { attempts.cancelAll() }
        return attempts.count
    }

    private static let unknown = BrokerError(
        .gone, "The login is unknown or has expired. Begin another one.")
    private static let used = BrokerError(
        .conflict, "The login was finished already. Begin another one.")
}
