internal import BrokerCore
internal import CredentialStore
internal import Cryptography
internal import ExternalText
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
/// Instances with one storage key in one store share its credentials, also from several processes. Give them one
/// configuration: each call puts its instance's in force, and different ones would carry the credentials back and forth.
///
/// Safe to use from any task. A user is logged out by `logout` and by the provider's word, by nothing else. A task that
/// is cancelled stops waiting for the provider, with `retryableError`; what it asked for may be done all the same.
///
/// Besides what is said at each, every operation throws `illegalArgument` for a configuration that is no use,
/// `storageUnavailable` and `storageUnusable`.
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
    ///   - configuration: checked by each call.
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
    /// - Throws: `illegalArgument` for an address or a parameter that cannot be used; with a provider that is found by
    ///   its issuer also `networkError`, `retryableError`, `illegalConfiguration`, `providerUntrusted`.
    public func initializeLogin(redirectURI: URL, loginConfig: LoginConfig? = nil) async throws(AuthError) -> URL {
        let redirectURI = redirectURI.absoluteString
        let customParameters = Dictionary(
            uniqueKeysWithValues: (loginConfig?.customParameters ?? [:]).map { (WireText($0), WireText($1)) })
        let uri = try await run { opened, tenant throws(BrokerError) in
            // The provider knows which addresses are the client's; here there is no second list of them.
            var configuration = tenant.configuration
            configuration.allowedRedirectURIs = [redirectURI]
            let begun = try await opened.broker.logins.begin(
                .init(
                    storageKey: .default, redirectURI: WireText(redirectURI), returnTo: nil,
                    language: loginConfig?.language.map { WireText($0) },
                    email: loginConfig?.email.map { WireText($0) }, customParameters: customParameters),
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
    /// - Throws: `authorizationError` where the user did not log in; `illegalArgument` for a response that belongs to no
    ///   login under way; `unexpectedError` where the provider refuses the code, `tokenResponseError`, `networkError`,
    ///   `retryableError` after six requests that it answered with 5xx, `providerUntrusted`. A response is good for one
    ///   attempt: after a failure begin another login.
    public func finalizeLogin(loginResponseQuery: String) async throws(AuthError) {
        let response: AuthorizationResponse
        do throws(AuthorizationResponse.Fault) {
            response = try AuthorizationResponse(query: WireText(loginResponseQuery))
        } catch {
            throw .illegalArgument("The response's query is not well-formed.")
        }
        try await run { opened, tenant throws(BrokerError) in
            let ended = try await opened.broker.logins.finish(response, of: tenant.name, storageKeys: nil)
            _ = try ended.result.get()
        }
    }

    // MARK: Device login

    /// Begins a login on another device (RFC 8628). The provider is asked for its end from now on, whether
    /// `finalizeDeviceLogin` is called or not. A device login that this instance began before is given up.
    /// - Throws: `unexpectedError` or `illegalConfiguration` where the provider refuses or has no device login,
    ///   `tokenResponseError`, `networkError`, `retryableError` after six requests that it answered with 5xx,
    ///   `providerUntrusted`.
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

    /// Waits until the device login has ended, which is when its time runs out at the latest. Cancelling the task ends
    /// the wait, not the login: it can be waited for again.
    /// - Throws: `authorizationError` where the user refused, `tokenResponseError` where the login came to nothing or
    ///   its time ran out, `illegalArgument` without a login to wait for.
    public func finalizeDeviceLogin() async throws(AuthError) {
        guard let handle = state.withLock({ $0.deviceLogin }) else {
            throw .illegalArgument("Call initializeDeviceLogin first.")
        }
        let ended = try await run { opened, tenant throws(BrokerError) -> LoginProgress in
            repeat {
                let progress = try await opened.broker.deviceLogins.progress(
                    handle, for: .init(tenant: tenant.name, storageKeys: nil), wait: .seconds(60))
                guard let progress else {
                    throw BrokerError(.illegalArgument, "The device login was given up for another one.")
                }
                if progress != .pending { return progress }
            } while !Task.isCancelled && !self.environment.isClosed
            return .pending
        }
        if ended == .pending {
            if environment.isClosed { throw AuthEnvironment.closed }
            throw .retryableError("The wait was cancelled.", errorCode: nil, retryAfter: .zero)
        }
        state.withLock { if $0.deviceLogin == handle { $0.deviceLogin = nil } }
        switch ended {
        case .completed, .pending: return
        case .expired: throw .tokenResponseError("The time for the login ran out.", errorCode: "expired_token")
        case .failed(let failure): throw AuthError(failure.error)
        }
    }

    // MARK: Credentials from elsewhere, and none

    /// Stores credentials that were obtained elsewhere, in place of what is stored.
    /// - Parameters:
    ///   - credentials: of level `user` or `client`, with a token.
    ///   - refreshToken: nil where there is none; then a user is logged in until the token expires.
    /// - Throws: `illegalArgument` where the client, its unique key or the scopes are not this configuration's, or a
    ///   value cannot be used.
    public func setCredentials(_ credentials: Credentials, refreshToken: String?) async throws(AuthError) {
        var members: [WireText: JSONValue] = [
            "level": .string(WireText(credentials.level.rawValue)),
            "client_id": .string(WireText(credentials.clientID)),
        ]
        if !credentials.requestedScopes.isEmpty {
            members["requested_scopes"] = .array(credentials.requestedScopes.map { .string(WireText($0)) })
        }
        members["client_unique_key"] = credentials.clientUniqueKey.map { .string(WireText($0)) }
        members["granted_scopes"] = credentials.grantedScopes.map { .array($0.map { .string(WireText($0)) }) }
        members["user_id"] = credentials.userID.map { .string(WireText($0)) }
        if let expires = credentials.expires {
            // A date may be further away than 64 bits can count.
            guard let seconds = Int64(exactly: expires.timeIntervalSince1970.rounded(.down)),
                abs(seconds) <= Timestamp.latest.seconds
            else { throw .illegalArgument("expires must be a time before the year 10000.") }
            members["expires"] = .string(WireText(Timestamp(seconds: seconds).description))
        }
        members["token"] = credentials.token.map { .string(WireText($0)) }
        let given = JSONValue.object(members)
        try await run { opened, tenant throws(BrokerError) in
            var reader = ObjectReader(given)
            let credentials = GivenCredentials(&reader)
            try reader.finish()
            let held = try credentials.held(
                refreshToken: refreshToken.map(SecretBytes.init(utf8:)), for: tenant,
                of: opened.broker.credentials.providers(of: tenant).present, now: opened.broker.time.now)
            _ = try await opened.broker.credentials.set(self.id(of: tenant), to: held)
        }
    }

    /// Purges the stored credentials, the client's own among them; does nothing where there are none. Local: the
    /// provider is not told. A refresh under way cannot bring the user back.
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
        let configuration = try configuration.checked(for: environment.providerTargets)
        let opened = try await environment.enter()
        defer { environment.leave() }
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
        query.refusedByAPI = apiErrorSubStatus.map { APISubStatus.forcesRefresh(WireText($0)) } ?? false
        if query.refusedByAPI { query.renewedPast = refused?.version }
        return try await run { [query] opened, tenant throws(BrokerError) in
            let answer = try await opened.broker.credentials.credentials(
                self.id(of: tenant), of: tenant, query, patience: nil)
            guard answer.level != .basic, let held = answer.snapshot.record.held else {
                return Credentials(basic: answer.tenant.configuration.client)
            }
            return Credentials(held, version: answer.snapshot.version)
        }
    }

    public func isUserLoggedIn() async throws(AuthError) -> Bool {
        try await run { opened, tenant throws(BrokerError) in
            let held = try await opened.broker.credentials.lastKnown(self.id(of: tenant)).record.held
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
            if let listener = await opening.value {
                await self.tell(continuation, listener)
                self.environment.leave()
            }
            continuation.finish()
        }
        continuation.onTermination = { _ in task.cancel() }
        return stream
    }

    /// Whoever has one is to leave the environment in the end.
    fileprivate struct Listener: Sendable {
        let events: EventListener
        let opened: AuthEnvironment.Opened
        let tenant: Tenant
    }

    private func beginListening() async -> Listener? {
        guard (try? await environment.enter()) != nil else { return nil }
        let listener = try? await runAtOnce { opened, tenant throws(BrokerError) in
            Listener(
                events: try await opened.broker.events.listener(
                    .init(tenant: tenant.name, storageKeys: nil), after: nil),
                opened: opened, tenant: tenant)
        }
        if listener == nil { environment.leave() }
        return listener
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
                        guard let stored = await self.stored(listener), let held = stored.record.held else { continue }
                        continuation.yield(.init(credentials: Credentials(held, version: stored.version)))
                    case .credentialsDeauthorized:
                        let client = listener.tenant.configuration.client
                        continuation.yield(.init(credentials: Credentials(basic: client)))
                    default: continue
                    }
                }
                return true
            })
    }

    /// What is stored. A store that is away is asked until it answers; nil where the record does not open.
    private func stored(_ listener: Listener) async -> CredentialsSnapshot? {
        let broker = listener.opened.broker
        while true {
            do throws(BrokerError) {
                return try await broker.credentials.stored(id(of: listener.tenant))
            } catch {
                guard error.code == .storageUnavailable, !environment.isClosed else { return nil }
            }
            do {
                try await broker.time.sleep(for: .seconds(1))
            } catch {
                return nil
            }
        }
    }
}
