import CredentialStore
import Cryptography
package import ExternalText
import HTTPSClient
import JSON
package import OAuth
import Reactor

/// The standard login (TIDAL's Auth design, "Standard Login"; RFC 6749 §4.1 with RFC 7636 and RFC 9207).
package final class LoginFlow: Sendable {
    let vault: Vault
    let servers: ProviderServers
    let tenants: TenantDirectory
    let discovery: ResourceDiscovery
    let clients: AppClientDirectory
    private let logins: LoginRecords
    /// The URL at which browsers reach the broker, without a slash at its end. It is the issuer of apps' tokens, too.
    package let publicBaseURL: String
    let time: any Time
    let log: Log
    let redemption: LoginRedemption
    let endpoint: TokenEndpoint
    let strangersPushes = TokenBuckets<TenantName>(strangersPushRate, capacity: 1024)
    private let endings: LoginEndings
    let quota: PendingLoginQuota
    let strangers: StrangersLogins

    struct Options: Sendable {
        /// The URL at which browsers reach the broker, without a slash at its end.
        let publicBaseURL: String
        /// How many logins of a tenant may be pending at once; nil for any number.
        let limit: Int?
        /// How many logins that browsers without a key have brought back to this process for the apps of a tenant may be
        /// without success; nil for any number.
        let strangersLimit: Int?
    }

    init(
        vault: Vault, tenants: TenantDirectory, clients: AppClientDirectory, providers: ProviderAccess,
        discovery: ResourceDiscovery, intake: GrantIntake, revocations: RevocationJob, bus: EventBus, options: Options,
        instruments: Instruments
    ) {
        (time, log) = (instruments.time, instruments.log)
        quota = PendingLoginQuota(.login, .pendingLogins, limit: options.limit, vault: vault, time: time)
        strangers = StrangersLogins(limit: options.strangersLimit, time: time, metrics: instruments.metrics)
        self.vault = vault
        self.tenants = tenants
        self.clients = clients
        self.discovery = discovery
        servers = providers.servers
        endpoint = providers.endpoint
        logins = LoginRecords(vault: vault, bus: bus, memory: intake.records.memory, time: time)
        publicBaseURL = options.publicBaseURL
        endings = LoginEndings(.login, vault: vault, records: intake.records, bus: bus, time: time)
        redemption = LoginRedemption(
            vault: vault, endpoint: providers.endpoint, moves: providers.moves, intake: intake,
            revocations: revocations, logins: logins, endings: endings, instruments: instruments)
        intake.setLoginEnding(of: .login) { [vault, time, endings] id, login, refusal throws(StoreError) in
            let record = RecordID(.login, id.tenant, key: login)
            return try await LoginRedemption.end(of: record, id, refusal: refusal, in: vault, at: time.now) {
                endings.signal(record)
            }
        }
    }

    package var isSecure: Bool { WireText(publicBaseURL).starts(with: "https://") }

    /// The URL of one of the broker's paths, for browsers.
    /// - Parameter path: begins with a slash.
    package func publicURI(path: String) -> String { publicBaseURL + path }

    /// Whether the value of an `Origin` field is the origin of the broker's own pages (RFC 6454 §7).
    package func isOwnOrigin(_ origin: WireText) -> Bool {
        guard let own = URLTarget(publicBaseURL)?.origin else {
            return origin == WireText(publicBaseURL)
        }
        return URLTarget(origin.text)?.origin == own
    }

    /// Whether the login of this response needs a cookie. False for an unknown login.
    package func isBound(_ response: AuthorizationResponse) async throws(BrokerError) -> Bool {
        guard let state = response.state else { return false }
        return try await find(state: state)?.login.isBound ?? isCarried(state)
    }

    /// Finalizes a login for a caller of its tenant: uses the state, redeems the code, stores the credentials.
    ///
    /// Once the use of the state has begun, everything goes on even if the caller stops waiting.
    /// - Parameter storageKeys: the storage keys that the caller may log in; nil for all.
    /// - Throws: why the login cannot be finished. The state stays usable, unless it is unknown, expired or used already.
    package func finalize(
        _ response: AuthorizationResponse, of tenant: TenantName, storageKeys: StorageKeyLimit?
    ) async throws(BrokerError) -> Ended {
        while true {
            let (record, login) = try await find(response)
            // A login of another tenant is answered like one that does not exist.
            guard login.tenant == tenant else { throw Self.unknown }
            if let storageKeys, !storageKeys.includes(login.storageKey) {
                throw BrokerError.forbidden(
                    login.storageKey, "The API key is not valid for this login's storage key.")
            }
            let secrets = try usableSecrets(of: login, with: response)
            try check(response, secrets.server)
            if login.isBound { throw Self.otherBrowser }
            if secrets.configuration.browserBinding == .confirm { throw Self.needsBrowser }
            if let ended = try await redemption.redeem(login, record, secrets, try Self.grant(in: response, secrets)) {
                return ended
            }
        }
    }

    /// Finalizes a login for the browser that comes back from the login service, or keeps the code until the user has
    /// confirmed the login.
    ///
    /// Once the use of the state has begun, everything goes on even if the browser leaves.
    /// - Throws: as `finalize`.
    package func receive(
        _ response: AuthorizationResponse, from browser: Browser
    ) async throws(BrokerError) -> Received {
        while true {
            guard let state = response.state else { throw Self.stateless }
            let stored = try await find(state: state)
            let found = if let stored { stored } else { try await opened(state, from: browser) }
            let (record, login) = found
            if login.expires <= time.now { throw Self.unknown }
            guard browser.callback.fits(login) else { throw BrokerError.response(.otherCallback) }
            let secrets = try usableSecrets(of: login, with: response)
            try check(response, secrets.server)
            try checkBrowser(browser.cookies, login, secrets)
            let grant = try Self.grant(in: response, secrets)
            let asks = secrets.configuration.browserBinding == .confirm
            if asks, case .success(let code) = grant { try Self.checkKeepable(code, for: browser) }
            // A response that does not get so far stores nothing.
            if stored == nil, try await !insert(found, from: browser) { continue }
            if asks, case .success(let code) = grant {
                if let cookie = try await keep(code, for: browser, login, record, secrets) {
                    return .mustConfirm(login.description, cookie)
                }
            } else if let ended = try await redemption.redeem(login, record, secrets, grant) {
                noteEnd(ended)
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

    /// Redeems the code that a browser has brought before, or ends the login, as the user has decided.
    /// - Throws: why the login cannot be finished. If another browser than the one that brought the code asks, the code is kept.
    package func confirm(
        tenant: TenantName, loginID: String, cookies: [WireText: WireText], isConfirmed: Bool
    ) async throws(BrokerError) -> Ended {
        while true {
            let (record, login) = try await find(tenant, loginID)
            var secrets = try usableSecrets(of: login)
            let confirmation = try confirmation(of: login, secrets, cookies)
            secrets.callbackFacts = confirmation.facts
            if let app = login.app { try await requirePresent(app, of: tenant) }
            let grant: Result<SecretBytes, BrokerError> =
                isConfirmed
                ? .success(confirmation.code)
                : .failure(BrokerError(.authorizationError, "The user has cancelled the login."))
            if let ended = try await redemption.redeem(login, record, secrets, grant) {
                noteEnd(ended)
                return ended
            }
        }
    }

    /// - Throws: `gone` where the app was removed, or ends its logins elsewhere now, while the user was asked.
    private func requirePresent(_ app: AppLogin, of tenant: TenantName) async throws(BrokerError) {
        let client = try await clients.client(WireText(app.clientID), of: tenant)
        guard client?.redirectURI(WireText(app.redirectURI)) == app.redirectURI else {
            throw BrokerError.response(.otherApp)
        }
    }

    /// A login that a browser has finished is none that strangers have made up.
    private func noteEnd(_ ended: Ended) {
        guard case .success = ended.result else { return }
        strangers.succeeded(WireText(ended.loginID), of: ended.credentialsID.tenant)
    }

    /// The code that waits for the user of this browser.
    private func confirmation(
        of login: PendingLogin, _ secrets: PendingLogin.Secrets, _ cookies: [WireText: WireText]
    ) throws(BrokerError) -> PendingLogin.Confirmation {
        try checkBrowser(cookies, login, secrets)
        guard let confirmation = secrets.confirmation,
            Self.isSet(login.confirmationCookieName(isSecure: isSecure), to: confirmation.cookie, in: cookies)
        else { throw Self.otherBrowser }
        return confirmation
    }

    /// - Throws: for a code that cannot be kept until its user has confirmed the login.
    private static func checkKeepable(_ code: SecretBytes, for browser: Browser) throws(BrokerError) {
        guard browser.canConfirm else { throw needsBrowser }
        guard code.count <= PendingLogin.longestKeptCode else {
            throw BrokerError(
                .invalidRequest, "The response's code is longer than \(PendingLogin.longestKeptCode) bytes.")
        }
    }

    /// Keeps a code for the browser that has brought it, in place of an earlier code.
    /// - Returns: the cookie by which the browser is recognized; nil where the login was changed meanwhile.
    private func keep(
        _ code: SecretBytes, for browser: Browser, _ login: PendingLogin, _ record: OpenRecord,
        _ secrets: PendingLogin.Secrets
    ) async throws(BrokerError) -> Cookie? {
        let name = login.confirmationCookieName(isSecure: isSecure)
        if let kept = secrets.confirmation, kept.code == code, Self.isSet(name, to: kept.cookie, in: browser.cookies) {
            return Cookie(name: name, value: kept.cookie)
        }
        let count = (secrets.confirmation?.count ?? 0) + 1
        guard count <= PendingLogin.mostKeptCodes else {
            throw BrokerError(.gone, "This login was brought back with too many codes. Begin another one.")
        }
        let cookie = Cookie(name: name, value: try Self.secret())
        var waiting = login
        waiting.secrets?.confirmation = .init(
            cookie: cookie.value, code: code, count: count, facts: secrets.callbackFacts)
        let kept = waiting.record(replacing: record)
        guard kept.content.count <= PendingLogin.longest(for: secrets.configuration.client) else {
            throw BrokerError(.invalidRequest, "The response's code is too long to be kept until it is confirmed.")
        }
        do throws(StoreError) {
            try await logins.replace(kept, version: record.version, telling: [], retrying: LoginRedemption.storeRetries)
        } catch .conflict {
            return nil
        } catch {
            throw BrokerError(error)
        }
        return cookie
    }

    /// The code of a response, or the failure that it reports.
    private static func grant(
        in response: AuthorizationResponse, _ secrets: PendingLogin.Secrets
    ) throws(BrokerError) -> Result<SecretBytes, BrokerError> {
        switch response.outcome(codeNamed: secrets.server.shape.codeName) {
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

    private func usableSecrets(of login: PendingLogin) throws(BrokerError) -> PendingLogin.Secrets {
        if login.expires <= time.now { throw Self.unknown }
        guard login.status == .pending, let secrets = login.secrets else { throw Self.used }
        return secrets
    }

    /// The same with the facts of the callback.
    private func usableSecrets(
        of login: PendingLogin, with response: AuthorizationResponse
    ) throws(BrokerError) -> PendingLogin.Secrets {
        var secrets = try usableSecrets(of: login)
        secrets.callbackFacts = response.facts(by: secrets.server.preset.answers)
        return secrets
    }

    /// RFC 9207 §2.4: the issuer is compared octet by octet. It must not be missing where the provider announces it, and it is
    /// refused where there is no issuer to compare it with.
    private func check(_ response: AuthorizationResponse, _ server: AuthorizationServer) throws(BrokerError) {
        var fault: BrokerError.ResponseFault?
        switch (response.issuer, server.issuer) {
        case (nil, nil): break
        case (_?, nil): fault = .unexpectedIssuer
        case (let issuer?, let expected?): if issuer != WireText(expected) { fault = .otherIssuer }
        case (nil, _?): if server.announcesIssuerInResponses { fault = .noIssuer }
        }
        guard let fault else { return }
        if case .error(let code) = response.outcome { throw .response(fault, reported: code) }
        throw .response(fault)
    }

    private func checkBrowser(
        _ cookies: [WireText: WireText], _ login: PendingLogin, _ secrets: PendingLogin.Secrets
    ) throws(BrokerError) {
        guard login.isBound else { return }
        guard let cookie = cookies[WireText(login.cookieName(isSecure: isSecure))], secrets.isBound(to: cookie) else {
            throw Self.otherBrowser
        }
    }

    private func find(_ response: AuthorizationResponse) async throws(BrokerError) -> Found {
        guard let state = response.state else { throw Self.stateless }
        guard let found = try await find(state: state) else { throw Self.unknown }
        return found
    }

    /// The record of a login, and what it says.
    typealias Found = (record: OpenRecord, login: PendingLogin)

    func find(_ tenant: TenantName, _ loginID: String) async throws(BrokerError) -> Found {
        let found: Found?
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

    private func find(state: WireText) async throws(BrokerError) -> Found? {
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

    // MARK: Progress

    /// The description, for pages, of the login of a response; nil where the login is unknown.
    package func description(of response: AuthorizationResponse) async -> LoginDescription? {
        guard let state = response.state, let found = try? await find(state: state) else { return nil }
        return found.login.description
    }

    /// The progress of a login, for its page. Needs no API key, since only the login's browser and its caller know the
    /// identifier.
    /// - Throws: `gone` for an unknown login.
    package func outcome(
        tenant: TenantName, loginID: String
    ) async throws(BrokerError) -> (login: LoginDescription, progress: LoginProgress) {
        let (_, login) = try await find(tenant, loginID)
        let isOver = login.status == .pending && login.end <= time.now
        return (login.description, isOver ? .expired : login.status)
    }

    /// The progress of a login; waits for its end for `wait` at most. Nil for a login that is unknown or not the caller's.
    package func progress(
        tenant: TenantName, loginID: String, storageKeys: StorageKeyLimit?, wait: Duration
    ) async throws(BrokerError) -> LoginProgress? {
        try await endings.progress(of: RecordID(.login, tenant, key: loginID), within: wait) {
            record throws(StoreError) in
            let login = try PendingLogin(record)
            if let storageKeys, !storageKeys.includes(login.storageKey) { return nil }
            return LoginEndings.Seen(progress: login.status, end: login.end, credentials: login.credentialsID)
        }
    }

    /// From now on, callers that wait for a login get an answer at once.
    func beginDraining() {
        endings.beginDraining()
    }

    /// Suspends until no code is being redeemed.
    package func finish() async {
        await redemption.finish()
        await quota.finish()
    }

    /// Cancels the redemptions in flight; see `CredentialsRenewer.cancelAll`.
    /// - Returns: how many redemptions were in flight.
    package func cancelAll() -> Int {
        redemption.cancelAll()
    }

    /// 256 random bits as text.
    static func secret() throws(BrokerError) -> SecretBytes {
        do {
            return SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
        } catch {
            throw noRandomness
        }
    }

    /// Whether the browser has a cookie of that name with that value. Takes the same time for every wrong value.
    static func isSet(_ name: String, to value: SecretBytes, in cookies: [WireText: WireText]) -> Bool {
        cookies[WireText(name)].map { SecretBytes(utf8: $0.text) == value } ?? false
    }

    private static let stateless = BrokerError(.invalidRequest, "The response has no state.")
    static let unknown = BrokerError(
        .gone, "The login is unknown or has expired. Begin another one.")
    static let used = BrokerError(
        .conflict, "The login was finished already. Begin another one.")
    static let otherBrowser = BrokerError(
        .forbidden, "This login was started in another browser. Begin again in the browser that started it.")
    private static let needsBrowser = BrokerError(
        .forbidden,
        "The tenant has its users confirm each login on a page of the broker's: a browser must finish this login.")
}
