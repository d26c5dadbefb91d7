internal import BrokerCore
internal import CredentialStore
internal import Cryptography
public import FoundationEssentials
internal import JSON
internal import OAuth
internal import Synchronization

/// Logs a user in and keeps their credentials: the `Auth` role of TIDAL's Auth design.
///
/// One instance stands for one set of credentials: those under its `credentialsStorageKey`. Making one does nothing but
/// keep the parameters; the first call opens the environment and takes up what was stored before. Where the parameters
/// differ from those that the stored credentials were obtained with, the next `getCredentials` carries them over.
///
/// Safe to use from any task. A user is logged out by `logout` and by the provider's word, by nothing else.
public final class Auth: Sendable {
    private let configuration: AuthConfiguration
    private let environment: AuthEnvironment
    private let state = Mutex(State())

    private struct State {
        /// Listeners that are about to begin: what is done from now on must not escape them.
        var openings: [UInt64: Task<Listener?, Never>] = [:]
        var lastOpening: UInt64 = 0
        /// The device login that `finalizeDeviceLogin` waits for.
        var deviceLogin: SecretBytes?
    }

    /// - Parameters:
    ///   - configuration: checked by the first call that needs it, which throws `illegalArgument` if it is no use.
    ///   - environment: shared by the instances of a process.
    public init(_ configuration: AuthConfiguration, in environment: AuthEnvironment) {
        self.configuration = configuration
        self.environment = environment
    }

    /// The other role of this instance: for all the places that need credentials and have no part in logging in.
    public var credentialsProvider: any CredentialsProvider { self }

    // MARK: Standard login

    /// Prepares a login (authorization code with PKCE).
    ///
    /// - Parameters:
    ///   - redirectURI: where the login service sends the user afterwards. It must be registered there.
    ///   - loginConfig: nil for the login service's defaults.
    /// - Returns: the address to show to the user. Good for ten minutes and for one login.
    /// - Throws: `illegalArgument`, `storageUnavailable`; with a provider that is found by its issuer also
    ///   `networkError`, `retryableError`, `illegalConfiguration`.
    public func initializeLogin(redirectURI: URL, loginConfig: LoginConfig? = nil) async throws(AuthError) -> URL {
        let redirectURI = redirectURI.absoluteString
        let uri = try await run { opened, tenant throws(BrokerError) in
            // The provider knows which addresses are the client's; here there is no second list of them.
            var configuration = tenant.configuration
            configuration.allowedRedirectURIs = [redirectURI]
            let begun = try await opened.broker.logins.begin(
                .init(
                    storageKey: .default, redirectURI: redirectURI, returnTo: nil, language: loginConfig?.language,
                    email: loginConfig?.email, customParameters: loginConfig?.customParameters ?? [:]),
                of: Tenant(name: tenant.name, version: tenant.version, configuration: configuration))
            return begun.loginURI
        }
        guard let url = URL(string: uri) else { throw .illegalArgument("The login service's address is not a URL.") }
        return url
    }

    /// Finishes a login: exchanges the code for tokens and stores them.
    ///
    /// - Parameter loginResponseQuery: the query of the address that the login service sent the user to, untouched,
    ///   with or without its question mark.
    /// - Throws: `authorizationError` where the user did not log in; `unexpectedError` where the provider refuses the
    ///   code; `illegalArgument` for a response that belongs to no login under way.
    public func finalizeLogin(loginResponseQuery: String) async throws(AuthError) {
        let query = loginResponseQuery.hasPrefix("?") ? String(loginResponseQuery.dropFirst()) : loginResponseQuery
        let response: AuthorizationResponse
        do throws(AuthorizationResponse.Fault) {
            response = try AuthorizationResponse(query: query)
        } catch {
            throw .illegalArgument("The response's query is not well-formed.")
        }
        try await run { opened, tenant throws(BrokerError) in
            let ended = try await opened.broker.logins.finish(response, by: .caller(tenant.name, storageKeys: nil))
            _ = try ended.result.get()
        }
    }

    // MARK: Device login

    /// Begins a login on another device (RFC 8628). The provider is asked for its end from now on, whether
    /// `finalizeDeviceLogin` is called or not. A device login that this instance began before is given up.
    public func initializeDeviceLogin() async throws(AuthError) -> DeviceAuthorizationResponse {
        let begun = try await run { opened, tenant throws(BrokerError) in
            let begun = try await opened.broker.deviceLogins.begin(.default, of: tenant)
            let earlier = self.state.withLock { state in
                defer { state.deviceLogin = begun.handle }
                return state.deviceLogin
            }
            if let earlier {
                _ = try await opened.broker.deviceLogins.cancel(
                    earlier, for: .init(tenant: tenant.name, storageKeys: nil))
            }
            return begun
        }
        return DeviceAuthorizationResponse(
            deviceCode: begun.handle.revealedText, userCode: begun.userCode, verificationURI: begun.verificationURI,
            verificationURIComplete: begun.verificationURIComplete, expiresIn: begun.expiresIn,
            interval: begun.interval)
    }

    /// Waits until the device login has ended. Cancelling the task ends the wait, not the login.
    /// - Throws: `authorizationError` where the user refused, `tokenResponseError` where the login came to nothing or
    ///   its time ran out, `illegalArgument` without a login to wait for.
    public func finalizeDeviceLogin() async throws(AuthError) {
        guard let handle = state.withLock({ $0.deviceLogin }) else {
            throw .illegalArgument("Call initializeDeviceLogin first.")
        }
        let ended = try await run { opened, tenant throws(BrokerError) -> LoginProgress in
            while true {
                let progress = try await opened.broker.deviceLogins.progress(
                    handle, for: .init(tenant: tenant.name, storageKeys: nil), wait: .seconds(60))
                guard let progress else {
                    throw BrokerError(.illegalArgument, "The device login was given up for another one.")
                }
                if progress != .pending { return progress }
                if Task.isCancelled { throw BrokerError(.retryableError, "The wait was cancelled.", retryAfter: 1) }
                // Nobody is kept waiting then, so that asking again would never pause.
                if self.environment.isClosed {
                    throw BrokerError(.retryableError, "The environment was closed.", retryAfter: 1)
                }
            }
        }
        state.withLock { if $0.deviceLogin == handle { $0.deviceLogin = nil } }
        switch ended {
        case .completed, .pending: return
        case .expired: throw .tokenResponseError("The time for the login ran out.", errorCode: "expired_token")
        case .failed(let code): throw AuthError(BrokerError(code, "The device login did not succeed."))
        }
    }

    // MARK: Credentials from elsewhere, and none

    /// Stores credentials that were obtained elsewhere, in place of what is stored.
    /// - Throws: `illegalArgument` where the client, its unique key or the scopes are not this configuration's.
    public func setCredentials(_ credentials: Credentials, refreshToken: String?) async throws(AuthError) {
        var members: [String: JSONValue] = [
            "level": .string(credentials.level.rawValue), "client_id": .string(credentials.clientID),
        ]
        if !credentials.requestedScopes.isEmpty {
            members["requested_scopes"] = .array(credentials.requestedScopes.sorted().map { .string($0) })
        }
        members["client_unique_key"] = credentials.clientUniqueKey.map { .string($0) }
        members["granted_scopes"] = credentials.grantedScopes.map { .array($0.sorted().map { .string($0) }) }
        members["user_id"] = credentials.userID.map { .string($0) }
        members["expires"] = credentials.expires.map { date in
            .string(Timestamp(milliseconds: Int64(date.timeIntervalSince1970 * 1000)).description)
        }
        members["token"] = credentials.token.map { .string($0) }
        let given = JSONValue.object(members)
        try await run { opened, tenant throws(BrokerError) in
            var reader = ObjectReader(given)
            let credentials = GivenCredentials(&reader)
            try reader.finish()
            let held = try credentials.held(
                refreshToken: refreshToken.map(SecretBytes.init(utf8:)), for: tenant, now: opened.broker.time.now)
            _ = try await opened.broker.credentials.set(self.id(of: tenant), to: held)
        }
    }

    /// Purges the stored credentials, the client's own among them. Local: the provider is not told.
    public func logout() async throws(AuthError) {
        try await run { opened, tenant throws(BrokerError) in
            _ = try await opened.broker.credentials.purge(self.id(of: tenant))
        }
    }

    // MARK: The way in

    /// Runs `body` with what is open, and with this configuration as it stands in the store.
    private func run<R: Sendable>(
        _ body: (AuthEnvironment.Opened, Tenant) async throws(BrokerError) -> R
    ) async throws(AuthError) -> R {
        for (number, opening) in state.withLock({ $0.openings }) {
            _ = await opening.value
            state.withLock { _ = $0.openings.removeValue(forKey: number) }
        }
        return try await runAtOnce(body)
    }

    private func runAtOnce<R: Sendable>(
        _ body: (AuthEnvironment.Opened, Tenant) async throws(BrokerError) -> R
    ) async throws(AuthError) -> R {
        let configuration = try configuration.checked(allowsInsecureProviders: environment.allowsInsecureProviders)
        let opened = try await environment.opened()
        do throws(BrokerError) {
            return try await body(opened, try await tenant(configuration, opened))
        } catch {
            throw AuthError(error)
        }
    }

    private func tenant(
        _ configuration: TenantConfiguration, _ opened: AuthEnvironment.Opened
    ) async throws(BrokerError) -> Tenant {
        let tenants = opened.broker.tenants
        if let tenant = try await tenants.tenant(name), tenant.configuration == configuration { return tenant }
        return try await tenants.put(name, configuration).tenant
    }

    /// A storage key may be any text, a tenant's name may not: its digest stands for it.
    private var name: TenantName {
        let digest = SHA256.digest(Array(configuration.credentialsStorageKey.utf8))
        guard let name = TenantName("k" + Hex.encode(Array(digest.prefix(24)))) else {
            preconditionFailure("hexadecimal digits are a tenant's name")
        }
        return name
    }

    private func id(of tenant: Tenant) -> CredentialsID {
        CredentialsID(tenant: tenant.name, storageKey: .default)
    }
}

// MARK: - The CredentialsProvider role

extension Auth: CredentialsProvider {
    public func getCredentials(
        apiErrorSubStatus: String?, refused: Credentials?
    ) async throws(AuthError) -> Credentials {
        var query = CredentialsQuery()
        query.refusedByAPI = apiErrorSubStatus.map(APISubStatus.forcesRefresh) ?? false
        if query.refusedByAPI { query.renewedPast = refused?.version }
        return try await run { [query] opened, tenant throws(BrokerError) in
            let answer = try await opened.broker.credentials.credentials(
                self.id(of: tenant), of: tenant, query, patience: nil)
            guard answer.level != .basic, let held = answer.snapshot.record.held else {
                return Credentials(basic: answer.tenant.configuration.client, version: answer.snapshot.version)
            }
            return Credentials(held, version: answer.snapshot.version)
        }
    }

    public func isUserLoggedIn() async throws(AuthError) -> Bool {
        try await run { opened, tenant throws(BrokerError) in
            let held = try await opened.broker.credentials.stored(self.id(of: tenant)).record.held
            return held?.isLoggedIn(at: opened.broker.time.now) ?? false
        }
    }

    public var bus: AsyncStream<CredentialsUpdatedMessage> {
        let (stream, continuation) = AsyncStream.makeStream(
            of: CredentialsUpdatedMessage.self, bufferingPolicy: .bufferingNewest(1000))
        let opening = Task { await self.beginListening() }
        state.withLock { state in
            state.lastOpening += 1
            state.openings[state.lastOpening] = opening
        }
        let task = Task {
            if let listener = await opening.value { await self.tell(continuation, listener) }
            continuation.finish()
        }
        continuation.onTermination = { _ in task.cancel() }
        return stream
    }

    fileprivate struct Listener: Sendable {
        let events: EventListener
        let opened: AuthEnvironment.Opened
        let tenant: Tenant
    }

    private func beginListening() async -> Listener? {
        try? await runAtOnce { opened, tenant throws(BrokerError) in
            Listener(
                events: try await opened.broker.events.listener(
                    .init(tenant: tenant.name, storageKeys: nil), after: nil),
                opened: opened, tenant: tenant)
        }
    }

    private func tell(
        _ continuation: AsyncStream<CredentialsUpdatedMessage>.Continuation, _ listener: Listener
    ) async {
        await listener.events.run(
            while: { true },
            send: { piece in
                for kind in piece.kinds {
                    switch kind {
                    case .credentialsUpdated:
                        // A change that is over by now is told by the word of what ended it.
                        let stored = try? await listener.opened.broker.credentials.stored(self.id(of: listener.tenant))
                        guard let stored, let held = stored.record.held else { continue }
                        continuation.yield(.init(credentials: Credentials(held, version: stored.version)))
                    case .credentialsDeauthorized:
                        let client = listener.tenant.configuration.client
                        continuation.yield(.init(credentials: Credentials(basic: client, version: 0)))
                    default: continue
                    }
                }
                return true
            })
    }
}
