import CredentialStore
import Cryptography
package import ExternalText
package import OAuth
import Reactor

/// An app's login, which its browser carries until it comes back from the provider: nothing is stored before. See `CarriedLogin`.
extension LoginFlow {
    /// Where a browser goes that has brought an app's authorization request, and the cookie without which the login cannot be
    /// finished.
    package struct Authorized: Sendable {
        package let loginURI: String
        package let cookie: Cookie
    }

    /// Begins an app's login in the browser that asks. Stores nothing.
    /// - Throws: `illegal_argument` for a login that is too long for a cookie or for its record.
    package func authorize(
        _ parameters: AppParameters, of known: Tenant
    ) async throws(BrokerError) -> Authorized {
        let tenant = try await discovery.completed(known, isForStranger: true)
        let client = tenant.configuration.client
        let (redirectURI, callback) = try redirect(nil, of: tenant)
        var server = try await serverWithLoginPage(of: tenant)
        try server.makeProofKey(for: tenant.configuration)
        let expires = time.now.advanced(by: PendingLogin.validity)
        let (state, pkce, nonce): (String, PKCE, String?)
        do {
            state = try CarriedLogin.state(until: expires, vault)
            (pkce, nonce) = (try PKCE(), try Self.nonce(for: client, at: server))
        } catch {
            throw Self.noRandomness
        }
        let carried = CarriedLogin(
            parameters, redirectURI: redirectURI.text, callback: callback, expires: expires,
            codeVerifier: pkce.codeVerifier, nonce: nonce.map { WireText($0) },
            registration: CarriedLogin.registration(of: tenant.configuration, at: server), proofKey: server.proofKey)
        let cookie = try cookie(for: carried, WireText(state))
        let app = carried.login(of: parameters.client)
        // So that the user does not log in for a record that cannot be made.
        let login = try login(of: carried, app, WireText(state), cookie.value, tenant, server)
        _ = try Self.firstRecord(of: login, state: WireText(state))
        log.info(
            "login_begun", LogField.credentials(login.credentialsID) + [.provider(tenant.configuration.preset)])
        let request = AuthorizationRequest(
            redirectURI: redirectURI.text, state: state, codeChallenge: pkce.codeChallenge, nonce: nonce,
            language: parameters.language?.text, email: parameters.email?.text, customParameters: [:],
            keyThumbprint: server.keyThumbprint)
        let uri = try await pushed(request.uri(for: client, at: server), of: tenant, at: server)
        return Authorized(loginURI: uri, cookie: cookie)
    }

    /// Where the browser goes that has brought an app's authorization request. It needs no key, so the calls that such browsers cause
    /// at a tenant's provider are limited: beyond that, a request that need not be pushed goes with the browser.
    /// - Throws: as `TokenEndpoint.pushing`; `retryable_error` beyond the limit.
    private func pushed(
        _ uri: String, of tenant: Tenant, at server: AuthorizationServer
    ) async throws(BrokerError) -> String {
        guard let push = server.pushedAuthorization else { return uri }
        if case .refused(let wait) = strangersPushes.take(tenant.name, now: time.monotonic) {
            if !push.isRequired { return uri }
            throw BrokerError(
                .retryableError, "Too many logins begin at present.",
                retryAfter: max(1, Int((wait.milliseconds + 999) / 1000)))
        }
        return try await endpoint.pushing(uri, for: tenant.configuration.client, of: tenant.name, at: server).uri
    }

    /// How many requests that browsers without a key bring are pushed, for each tenant.
    static let strangersPushRate = Rate(perSecond: 20, burst: 100)

    /// The longest cookies of logins that a browser keeps together, in bytes: two of the longest ones. Proxies accept a line of 8
    /// KB, and the browser has other cookies, too.
    private static let longestCookies = 7168
    /// Longer than the cookies of logins that are stored, which are not to be given up.
    private static let shortCookie = 64

    /// The names of the cookies of earlier logins that a browser gives up for a new one, the oldest ones first.
    /// - Parameter kept: the browser's cookies, in the order in which it sends them: RFC 6265 §5.4, the earlier first.
    package func givenUp(for new: Cookie, of kept: [(name: WireText, value: WireText)]) -> [String] {
        let prefix = WireText(PendingLogin.cookiePrefix(isSecure: isSecure))
        func size(_ name: WireText, _ count: Int) -> Int { name.count + count + 3 }
        var carried = kept.filter { cookie in
            cookie.value.count > Self.shortCookie && cookie.name.starts(with: prefix)
                && Base64URL.decode(WireText(cookie.name.utf8.dropFirst(prefix.count)).text)?.count == 16
        }[...]
        var total = carried.reduce(size(WireText(new.name), new.value.count)) { $0 + size($1.name, $1.value.count) }
        var names: [String] = []
        while total > Self.longestCookies, let oldest = carried.popFirst() {
            total -= size(oldest.name, oldest.value.count)
            names.append(oldest.name.text)
        }
        return names
    }

    /// The name of the cookie of a login that has ended.
    package func cookieName(of loginID: String) -> String { PendingLogin.cookieName(of: loginID, isSecure: isSecure) }

    private func cookie(for carried: CarriedLogin, _ state: WireText) throws(BrokerError) -> Cookie {
        let value: SecretBytes
        do {
            value = try carried.sealed(for: state, vault)
        } catch {
            throw Self.noRandomness
        }
        let excess = value.count - CarriedLogin.longestCookie
        if excess > 0 {
            // Four bytes of the cookie hold three.
            throw BrokerError(
                .illegalArgument,
                "The login does not fit into a cookie: shorten the state or the redirect_uri by \((excess * 3 + 3) / 4) bytes."
            )
        }
        return Cookie(name: cookieName(of: CarriedLogin.id(ofState: state)), value: value)
    }

    // MARK: The callback

    /// Whether a state is one of a login that a browser may carry still.
    func isCarried(_ state: WireText) -> Bool {
        CarriedLogin.end(ofState: state, vault).map { $0 > time.now } ?? false
    }

    /// Opens the login that the browser carries for a state of which the store has none. Stores nothing.
    /// - Returns: the login, and the record that it is to have.
    /// - Throws: `forbidden` for another browser, `gone` where the login is over.
    func opened(_ state: WireText, from browser: Browser) async throws(BrokerError) -> Found {
        guard isCarried(state) else { throw Self.unknown }
        guard let cookie = browser.cookies[WireText(cookieName(of: CarriedLogin.id(ofState: state)))],
            let carried = CarriedLogin(opening: cookie, for: state, vault)
        else { throw Self.otherBrowser }
        guard carried.expires > time.now, let tenant = try await tenants.currentTenant(carried.tenant) else {
            throw Self.unknown
        }
        var server = try await serverWithLoginPage(of: tenant)
        server.proofKey = carried.proofKey
        guard carried.registration == CarriedLogin.registration(of: tenant.configuration, at: server) else {
            throw BrokerError.response(.otherRegistration)
        }
        guard let app = try await clients.client(WireText(carried.clientID)).flatMap({ carried.login(for: $0) }) else {
            throw BrokerError.response(.otherApp)
        }
        let login = try login(of: carried, app, state, SecretBytes(utf8: cookie.text), tenant, server)
        return (login.record(version: 1, stateDigest: SHA256.digest(Array(state.utf8))), login)
    }

    /// Stores a login that its browser has carried.
    /// - Returns: false where another request has stored it, or its tenant is gone.
    func insert(_ found: Found, from browser: Browser) async throws(BrokerError) -> Bool {
        do throws(BrokerError) {
            try await admit(found.login, from: browser.source)
        } catch {
            throw BrokerError(.retryableError, error.detail, retryAfter: error.retryAfter)
        }
        do throws(StoreError) {
            try await vault.commit([.require(RecordID(.tenant, found.login.tenant)), .insert(found.record)])
            return true
        } catch .conflict {
            return false
        } catch {
            log.storeFailed(error)
            throw BrokerError(error)
        }
    }

    /// Counts a login as one of strangers. Where there are too many, some of them may have succeeded at other replicas.
    /// - Throws: `too_many_requests` where the tenant or the address has as many as it may have.
    func admit(_ login: PendingLogin, from source: NetworkSource) async throws(BrokerError) {
        let (id, tenant) = (WireText(login.id), login.tenant)
        if strangers.admit(id, of: tenant, from: source) { return }
        for other in strangers.sample(of: tenant) {
            do throws(BrokerError) {
                if try await find(tenant, other.text).login.status == .completed {
                    strangers.succeeded(other, of: tenant)
                }
            } catch {
                guard error.code == .gone else { break }
            }
        }
        guard strangers.admit(id, of: tenant, from: source) else { throw strangers.refusal() }
    }

    private func login(
        of carried: CarriedLogin, _ app: AppLogin, _ state: WireText, _ cookie: SecretBytes, _ tenant: Tenant,
        _ server: AuthorizationServer
    ) throws(BrokerError) -> PendingLogin {
        var configuration = tenant.configuration.withoutListedURIs
        configuration.browserBinding = PendingLogin.binding(of: configuration, app)
        var deviceKey: DeviceKey?
        do {
            if configuration.bindsDeviceKeys { deviceKey = try DeviceKey.generate(isBound: true) }
        } catch {
            throw Self.noRandomness
        }
        return PendingLogin(
            id: CarriedLogin.id(ofState: state), tenant: tenant.name,
            storageKey: carried.storageKey ?? AppLogin.unknownUser, app: app,
            tenantTitle: configuration.displayName ?? tenant.name.description,
            providerTitle: configuration.providerTitle(at: server), callback: carried.callback,
            expires: carried.expires,
            secrets: .init(
                redirectURI: carried.redirectURI, returnTo: nil, configuration: configuration, server: server,
                loginURI: nil, codeVerifier: carried.codeVerifier, nonce: carried.nonce,
                binding: CarriedLogin.digest(of: WireText(cookie.revealedText)), deviceKey: deviceKey),
            isBound: true, isStarted: true)
    }

    // MARK: A second answer

    /// How long a browser waits for the end of its login that an earlier request of its brings about.
    private static let longestWait: Duration = .seconds(20)

    /// Where the app gets the outcome of its login, for the browser that has finished it and asks again: its user has pressed the
    /// button twice, or has loaded the page again before the answer came. The cookie goes with the first answer, so that a
    /// browser that has seen it gets no second one. Waits for the end.
    /// - Returns: nil for another browser, where the app has used its code already, and where the store does not tell.
    package func appReturn(
        _ tenant: TenantName, _ loginID: String, cookies: [WireText: WireText]
    ) async -> AppLogin.Return? {
        do throws(BrokerError) {
            let begun = try await find(tenant, loginID).login
            guard let cookie = cookies[WireText(cookieName(of: loginID))], let app = begun.app,
                begun.finisher == CarriedLogin.digest(of: cookie)
            else { return nil }
            switch try await progress(tenant: tenant, loginID: loginID, storageKeys: nil, wait: Self.longestWait) {
            case .pending?, .expired?, nil: return nil
            case .failed(let failure)?: return AppLogin.Return(login: app, .failure(failure.error))
            case .completed?: break
            }
            guard let code = try await find(tenant, loginID).login.appCode else { return nil }
            return try await isUnused(code, of: tenant) ? AppLogin.Return(login: app, .success(code)) : nil
        } catch {
            // The page of the login's end says what became of it.
            return nil
        }
    }

    private func isUnused(_ code: SecretBytes, of tenant: TenantName) async throws(BrokerError) -> Bool {
        do throws(StoreError) {
            let id = AppCode.recordID(tenant, code: WireText(code.revealedText).utf8.span)
            guard let issued = try await vault.read(id).map({ record throws(StoreError) in try AppCode(record) }) else {
                return false
            }
            return issued.session == nil && issued.expires > time.now
        } catch {
            log.storeFailed(error)
            throw BrokerError(error)
        }
    }
}
