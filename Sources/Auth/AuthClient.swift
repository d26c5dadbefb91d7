import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
public import FoundationEssentials
import JSON
import OAuth
import Synchronization

/// Logs a user in and keeps the user's credentials: the `Auth` role of TIDAL's Auth design.
///
/// One instance manages one set of credentials: those under the `credentialsStorageKey` of its configuration. Creating
/// an instance only keeps the parameters. The first call opens the environment and reads what was stored before. If the
/// parameters differ from those with which the stored credentials were obtained, the next `getCredentials` moves the
/// credentials to the new parameters.
///
/// Instances with the same storage key in the same store share its credentials, even from several processes. Give them
/// equal configurations: each call applies the configuration of its instance, and different configurations would move
/// the credentials back and forth.
///
/// Any task may use an instance. Only `logout` and the provider end a user's session. Cancelling a task ends its wait
/// for the provider with `retryableError`; the requested operation may complete all the same.
///
/// Every operation can throw `illegalArgument` for a configuration that cannot be used, `storageUnavailable` and
/// `storageUnusable`, in addition to the errors that its own documentation lists.
public final class AuthClient: Sendable {
    let configuration: AuthConfiguration
    let environment: AuthEnvironment
    let deviceKeys: (any DeviceKeyStore)?
    let state = Mutex(State())

    struct State {
        /// Event listeners that are being started. An operation waits for them, so that `bus` reports its changes.
        var openings: [UInt64: Task<Listener?, Never>] = [:]
        var lastOpening: UInt64 = 0
        /// The handle of the device login that `finalizeDeviceLogin` waits for.
        var deviceLogin: SecretBytes?
        /// The streams of refresh events, which also get the events that only this process knows of.
        var refreshEvents: [UInt64: AsyncStream<OAuthClientRefreshEvent>.Continuation] = [:]
    }

    /// Keeps the parameters; opens nothing.
    /// - Parameters:
    ///   - configuration: each call checks it.
    ///   - environment: the environment that the instances of a process share.
    ///   - deviceKeys: where the keys of biometric logins are. Nil, the default, means that the instance has no biometric
    ///     logins.
    public init(
        _ configuration: AuthConfiguration, in environment: AuthEnvironment, deviceKeys: (any DeviceKeyStore)? = nil
    ) {
        self.deviceKeys = deviceKeys
        self.configuration = configuration
        self.environment = environment
    }

    /// The `CredentialsProvider` role of this instance, for code that needs credentials and does not log users in.
    public var credentialsProvider: any CredentialsProvider { self }

    /// The `OAuthClient` role of this instance, for a provider whose access tokens and refresh tokens are JWTs. It shares
    /// the stored credentials with the other roles.
    public var oAuthClient: any OAuthClient { OAuthRole(auth: self) }

    /// A stream of notices that a token is about to expire, from now on. `AuthConfiguration.proactiveRefresh` renews such
    /// tokens without a notice, unless the renewal fails.
    ///
    /// A notice comes 5 minutes before the token expires, once for each token over all processes that share the store.
    /// Each call creates a separate stream, which ends like `bus` and buffers as many messages.
    public var expirations: AsyncStream<CredentialsExpiringMessage> {
        stream { piece, listener in
            guard piece.kinds.contains(.credentialsExpiring), let stored = await self.stored(for: listener),
                let held = stored.record.held
            else { return [] }
            return [CredentialsExpiringMessage(credentials: Credentials(held, version: stored.heldVersion))]
        }
    }

    // MARK: Standard login

    /// Begins a login (authorization code with PKCE).
    ///
    /// - Parameters:
    ///   - redirectURI: the address to which the login service sends the user afterwards. It must be registered there.
    ///   - loginConfig: nil means the login service's defaults.
    /// - Returns: the address that the user must open. It is valid for ten minutes and for one login.
    /// - Throws: `illegalArgument` for an address or a parameter that cannot be used. For a provider that is configured
    ///   by its issuer also `networkError`, `retryableError`, `illegalConfiguration`, `providerUntrusted`.
    public func initializeLogin(redirectURI: URL, loginConfig: LoginConfig? = nil) async throws(AuthError) -> URL {
        let redirectURI = redirectURI.absoluteString
        let customParameters = Dictionary(
            uniqueKeysWithValues: (loginConfig?.customParameters ?? [:]).map { (WireText($0), WireText($1)) })
        let uri = try await run { opened, tenant throws(BrokerError) in
            // The provider has the list of the client's redirect addresses, so a second list here has no use.
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
        guard let url = URL(string: uri) else {
            throw AuthError(.illegalArgument, message: "The login service's address is not a URL.")
        }
        return url
    }

    /// Completes a login: exchanges the code for tokens and stores them.
    ///
    /// - Parameter loginResponseQuery: the unchanged query of the address to which the login service sent the user,
    ///   with or without its question mark.
    /// - Throws: `authorizationError` if the user did not log in; `illegalArgument` for a response that belongs to no
    ///   pending login; `unexpectedError` if the provider refuses the code; `tokenResponseError`; `networkError`;
    ///   `retryableError` if the provider answered six requests with 5xx; `providerUntrusted`. A response can be used
    ///   once: after a failure, begin another login.
    public func finalizeLogin(loginResponseQuery: String) async throws(AuthError) {
        let response: AuthorizationResponse
        do throws(AuthorizationResponse.Fault) {
            response = try AuthorizationResponse(query: WireText(loginResponseQuery))
        } catch {
            throw AuthError(.illegalArgument, message: "The response's query is not well-formed.")
        }
        try await run { opened, tenant throws(BrokerError) in
            let ended = try await opened.broker.logins.finalize(response, of: tenant.name, storageKeys: nil)
            _ = try ended.result.get()
        }
    }

    // MARK: Device login

    /// Begins a login on another device (RFC 8628). From now on the provider is polled for the result, whether or not
    /// `finalizeDeviceLogin` is called. An earlier device login of this instance is cancelled.
    /// - Throws: `unexpectedError` or `illegalConfiguration` if the provider refuses or has no device login;
    ///   `tokenResponseError`; `networkError`; `retryableError` if the provider answered six requests with 5xx;
    ///   `providerUntrusted`.
    public func initializeDeviceLogin() async throws(AuthError) -> DeviceAuthorizationResponse {
        let begun = try await run { opened, tenant throws(BrokerError) in
            let begun = try await opened.broker.deviceLogins.begin(.default, of: tenant)
            let earlier = self.state.withLock { state in
                defer { state.deviceLogin = begun.handle }
                return state.deviceLogin
            }
            // If the store does not take the end of the earlier one, that login goes on until its time runs out.
            if let earlier {
                _ = try? await opened.broker.deviceLogins.cancel(
                    earlier, for: .init(tenant: tenant, storageKeys: nil))
            }
            return begun
        }
        return DeviceAuthorizationResponse(
            deviceCode: begun.handle.revealedText, userCode: begun.userCode, verificationURI: begun.verificationURI,
            verificationURIComplete: begun.verificationURIComplete, expiresIn: begun.expiresIn,
            interval: begun.interval)
    }

    /// Waits until the device login has ended, at the latest when its time runs out. Cancelling the task ends the wait
    /// and not the login: another call can wait for it again.
    /// - Throws: `authorizationError` if the user refused; `tokenResponseError` if the provider ended the login for
    ///   another reason or its time ran out; `illegalArgument` if no device login was begun; `retryableError` if the
    ///   task was cancelled.
    public func finalizeDeviceLogin() async throws(AuthError) {
        guard let handle = state.withLock({ $0.deviceLogin }) else {
            throw AuthError(.illegalArgument, message: "Call initializeDeviceLogin first.")
        }
        let ended = try await run { opened, tenant throws(BrokerError) -> LoginProgress in
            repeat {
                let progress = try await opened.broker.deviceLogins.progress(
                    handle, for: .init(tenant: tenant, storageKeys: nil), wait: .seconds(60))
                guard let progress else {
                    throw BrokerError(.illegalArgument, "A later device login has replaced this one.")
                }
                if progress != .pending { return progress }
            } while !Task.isCancelled && !self.environment.isClosed
            return .pending
        }
        if ended == .pending {
            if environment.isClosed { throw AuthEnvironment.closed }
            throw AuthError(.retryableError, message: "The wait was cancelled.", retryAfter: .zero)
        }
        state.withLock { if $0.deviceLogin == handle { $0.deviceLogin = nil } }
        switch ended {
        case .completed, .pending: return
        case .expired:
            throw AuthError(
                .tokenResponseError, message: "The time for the login ran out.", providerErrorCode: "expired_token")
        case .failed(let failure): throw AuthError(failure.error)
        }
    }

    // MARK: Imported credentials, and logout

    /// Stores credentials that were obtained elsewhere and replaces the stored ones.
    /// - Parameters:
    ///   - credentials: must have the level `user` or `client` and a token.
    ///   - refreshToken: nil if there is none; a user is then logged in until the token expires.
    /// - Throws: `illegalArgument` if the client, its unique key or the scopes differ from the configuration, or if a
    ///   value cannot be used; with `AuthConfiguration.tokenVerification` also if a token is not believed, and `networkError`
    ///   if the provider's keys do not answer.
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
            else { throw AuthError(.illegalArgument, message: "expires must be a time before the year 10000.") }
            members["expires"] = .string(WireText(Timestamp(seconds: seconds).description))
        }
        members["token"] = credentials.token.map { .string(WireText($0)) }
        let given = JSONValue.object(members)
        try await run { opened, tenant throws(BrokerError) in
            var reader = ObjectReader(given)
            let credentials = GivenCredentials(&reader, for: tenant.configuration)
            try reader.finish()
            let brought = try credentials.held(
                refreshToken: refreshToken.map(SecretBytes.init(utf8:)), for: tenant,
                of: opened.broker.providers.servers.acceptedProviders(of: tenant).present, now: opened.broker.time.now)
            let held = try await opened.broker.providers.adopt(brought, of: tenant)
            _ = try await opened.broker.writer.set(self.id(of: tenant), to: held)
        }
    }

    /// Deletes the stored credentials, including the client's own. Does nothing if none are stored. The provider is not
    /// informed; `OAuthClient.logout` informs it. A refresh that is running cannot restore the deleted credentials.
    public func logout() async throws(AuthError) {
        try await run { opened, tenant throws(BrokerError) in
            _ = try await opened.broker.writer.purge(self.id(of: tenant))
        }
    }
}

// MARK: - The CredentialsProvider role

extension AuthClient: CredentialsProvider {
    public func getCredentials(
        apiErrorSubStatus: String?, refused: Credentials?
    ) async throws(AuthError) -> Credentials {
        try await getCredentials(level: .basic, apiErrorSubStatus: apiErrorSubStatus, refused: refused)
    }

    public func getCredentials(
        level: CredentialsLevel, apiErrorSubStatus: String?, refused: Credentials?
    ) async throws(AuthError) -> Credentials {
        var query = CredentialsQuery(lowestLevel: level.core)
        query.refusedByAPI = apiErrorSubStatus.map { APISubStatus.forcesRefresh(WireText($0)) } ?? false
        if query.refusedByAPI { query.renewedPast = refused?.version }
        return try await run { [query] opened, tenant throws(BrokerError) in
            let answer = try await opened.broker.credentials.credentials(
                self.id(of: tenant), of: tenant, query, patience: nil)
            guard answer.level != .basic, let held = answer.snapshot.record.held else {
                return Credentials(basic: answer.tenant.configuration.client)
            }
            return Credentials(held, version: answer.snapshot.heldVersion)
        }
    }

    public func isUserLoggedIn() async throws(AuthError) -> Bool {
        try await run { opened, tenant throws(BrokerError) in
            let record = try await opened.broker.credentials.lastKnown(self.id(of: tenant)).record
            return !record.isOver && record.held?.isLoggedIn(at: opened.broker.time.now) ?? false
        }
    }

    public var bus: AsyncStream<CredentialsUpdatedMessage> {
        stream { piece, listener in
            var messages: [CredentialsUpdatedMessage] = []
            for event in piece.events {
                let cause = event.data["cause"]?.string.map { CredentialsUpdatedMessage.Cause(rawValue: $0.text) }
                switch event.kind {
                case .credentialsUpdated:
                    // A change that later changes have replaced is skipped: the later event reports the state.
                    guard let stored = await self.stored(for: listener), let held = stored.record.held else { continue }
                    messages.append(.init(credentials: Credentials(held, version: stored.heldVersion), cause: cause))
                case .credentialsDeauthorized:
                    let client = listener.tenant.configuration.client
                    messages.append(.init(credentials: Credentials(basic: client), cause: cause))
                default: continue
                }
            }
            return messages
        }
    }
}
