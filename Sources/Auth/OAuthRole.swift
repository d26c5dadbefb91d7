import BrokerCore
import Cryptography
import ExternalText
import JSON
import OAuth
import Synchronization

/// The `OAuthClient` role of an `AuthClient`.
struct OAuthRole: OAuthClient {
    let auth: AuthClient

    var tokenExpiryBufferInterval: Duration { auth.configuration.tokenExpiryBufferInterval }

    // MARK: Tokens

    func getTokens(policy: AuthTokensCachePolicy) async throws(OAuthClientError) -> TokenContainer {
        let buffer = tokenExpiryBufferInterval
        guard (0...86_400).contains(buffer.components.seconds) else {
            throw .serviceError(
                AuthError(.illegalArgument, message: "tokenExpiryBufferInterval must be from 0 to 86400 seconds."))
        }
        let query = CredentialsQuery(policy: policy.core, minimumLifetime: buffer, lowestLevel: .user)
        do throws(OAuthClientError) {
            let outcome = try await run {
                opened, tenant throws(BrokerError) -> Result<HeldCredentials?, OAuthClientError> in
                let id = auth.id(of: tenant)
                let before = try await opened.broker.credentials.lastKnown(id)
                do throws(BrokerError) {
                    let answer = try await opened.broker.credentials.credentials(id, of: tenant, query, patience: nil)
                    let record = answer.snapshot.record
                    return record.isOver ? .failure(Self.reason(before.record, record)) : .success(record.held)
                } catch {
                    guard [.levelNotAvailable, .missingTokenContainer].contains(error.code) else { throw error }
                    let now = try await opened.broker.credentials.lastKnown(id)
                    return .failure(Self.reason(before.record, now.record))
                }
            }
            return try Self.container(try outcome.get())
        } catch {
            // No refresh has begun, so that the store has no events of it.
            if policy == .localForceRefresh, error == .missingTokenContainer { reportMissingTokens(error) }
            throw error
        }
    }

    /// Why there are no tokens. The caller of the refresh that has ended a session learns that; later callers find that
    /// nothing is stored.
    private static func reason(_ before: CredentialRecord, _ now: CredentialRecord) -> OAuthClientError {
        guard before.held?.level == .user, now.held?.level != .user || now.isOver, let session = now.session else {
            return .missingTokenContainer
        }
        switch session.cause {
        case .logout: return .missingTokenContainer
        case .revoked:
            let message = "The provider does not accept the refresh token any more."
            return .invalidTokenRequest(status: nil, underlying: AuthError(.invalidTokenRequest, message: message))
        case .expired: return .unauthenticated
        }
    }

    /// - Throws: `missingTokenContainer`, `internalError`.
    private static func container(_ held: HeldCredentials?) throws(OAuthClientError) -> TokenContainer {
        guard let held, held.level == .user else { throw .missingTokenContainer }
        guard let refreshToken = held.refreshToken else {
            throw .internalError("The provider has granted no refresh token.")
        }
        do throws(TokenClaimsError) {
            return try TokenContainer(
                unverifiedAccessToken: held.accessToken.revealedText, refreshToken: refreshToken.revealedText)
        } catch {
            throw OAuthClientError(error)
        }
    }

    func currentTokenContainer() async throws(OAuthClientError) -> TokenContainer? {
        do throws(OAuthClientError) {
            return try await getTokens(policy: .local)
        } catch .missingTokenContainer {
            return nil
        }
    }

    var isUserAuthenticated: Bool {
        get async throws(OAuthClientError) {
            try await run { opened, tenant throws(BrokerError) in
                let record = try await opened.broker.credentials.lastKnown(auth.id(of: tenant)).record
                return !record.isOver && record.held?.level == .user
            }
        }
    }

    func setCurrentTokenContainer(_ tokenContainer: TokenContainer?) async throws(OAuthClientError) {
        guard let tokenContainer else { return try await removeLocalAccount() }
        try await adopt(tokenContainer: tokenContainer)
    }

    func adopt(tokenContainer: TokenContainer) async throws(OAuthClientError) {
        let access: JWTAccessToken
        do throws(TokenClaimsError) {
            access = try JWTAccessToken(unverified: tokenContainer.accessToken)
            _ = try JWTRefreshToken(unverified: tokenContainer.refreshToken)
        } catch {
            throw OAuthClientError(error)
        }
        let credentials = Credentials(
            clientID: auth.configuration.clientID, clientUniqueKey: auth.configuration.clientUniqueKey,
            expires: access.expiresAt, token: tokenContainer.accessToken)
        do throws(AuthError) {
            try await auth.setCredentials(credentials, refreshToken: tokenContainer.refreshToken)
        } catch {
            throw OAuthClientError(error)
        }
    }

    func decode(
        accessToken: String, refreshToken: String, refreshID: String?
    ) async throws(OAuthClientError) -> TokenContainer {
        func report(_ event: (String) -> OAuthClientRefreshEvent) {
            if let refreshID { send(event(refreshID)) }
        }
        report { .tokenRefreshFetchingJWKS(refreshID: $0) }
        try await run { opened, tenant throws(BrokerError) in
            let (configuration, verifier) = (tenant.configuration, opened.broker.providers.verifier)
            let server = try await opened.broker.providers.servers.server(for: tenant)
            for (token, kind) in [(accessToken, GrantVerifier.Kind.access), (refreshToken, .refresh)] {
                do throws(GrantVerifier.Failure) {
                    _ = try await verifier.verified(
                        SecretBytes(utf8: token), kind, of: configuration, at: server)
                } catch {
                    switch error {
                    case .refused(let reason), .unavailable(let reason): throw reason
                    }
                }
                if kind == .access {
                    // The keys that have verified one token are there for the other one.
                    report { .tokenRefreshFetchedJWKS(refreshID: $0) }
                    report { .tokenRefreshVerifyingAccessToken(refreshID: $0) }
                    report { .tokenRefreshVerifyingRefreshToken(refreshID: $0) }
                }
            }
        }
        do throws(TokenClaimsError) {
            return try TokenContainer(unverifiedAccessToken: accessToken, refreshToken: refreshToken)
        } catch {
            throw OAuthClientError(error)
        }
    }

    // MARK: Accounts

    func activate(withPlatformSignature signature: String) async throws(OAuthClientError) -> TokenContainer {
        guard (1...Self.longestSignature).contains(signature.utf8.count) else {
            throw .serviceError(
                AuthError(.illegalArgument, message: "The signature must have 1 to \(Self.longestSignature) bytes."))
        }
        let activated = try await run { opened, tenant throws(BrokerError) in
            try await opened.broker.accounts.activate(
                auth.id(of: tenant), of: tenant, platformSignature: SecretBytes(utf8: signature), source: nil)
        }
        return try Self.container(activated.held)
    }

    /// In bytes.
    private static let longestSignature = 65_536

    func logout() async throws(OAuthClientError) {
        try await run { opened, tenant throws(BrokerError) in
            _ = try await opened.broker.revocations.logOut(
                auth.id(of: tenant), of: tenant, by: opened.broker.writer)
        }
    }

    func removeLocalAccount() async throws(OAuthClientError) {
        do throws(AuthError) {
            try await auth.logout()
        } catch {
            throw OAuthClientError(error)
        }
    }

    // MARK: Events

    var refreshEvents: AsyncStream<OAuthClientRefreshEvent> {
        let (stream, continuation) = AsyncStream.makeStream(
            of: OAuthClientRefreshEvent.self, bufferingPolicy: .bufferingNewest(1000))
        let number = auth.state.withLock { state in
            state.lastOpening += 1
            state.refreshEvents[state.lastOpening] = continuation
            return state.lastOpening
        }
        auth.feed(continuation) { piece, _ in
            piece.events.compactMap { OAuthClientRefreshEvent($0.kind, $0.data) }
        } ended: { [auth] in
            auth.state.withLock { _ = $0.refreshEvents.removeValue(forKey: number) }
        }
        return stream
    }

    /// Reports an event that only this process knows of.
    private func send(_ event: OAuthClientRefreshEvent) {
        for continuation in auth.state.withLock({ Array($0.refreshEvents.values) }) { continuation.yield(event) }
    }

    private func reportMissingTokens(_ error: OAuthClientError) {
        let refreshID = RefreshID().text
        send(.tokenRefreshStarted(refreshID: refreshID))
        send(.tokenRefreshFailed(refreshID: refreshID, error: error))
    }

    // MARK: Access to the environment

    private func run<R: Sendable>(
        _ body: (AuthEnvironment.Opened, Tenant) async throws(BrokerError) -> R
    ) async throws(OAuthClientError) -> R {
        do throws(AuthError) {
            return try await auth.run(body)
        } catch {
            throw OAuthClientError(error)
        }
    }
}

extension AuthTokensCachePolicy {
    fileprivate var core: CredentialsQuery.Policy {
        switch self {
        case .local: .local
        case .localValid: .localValid
        case .localForceRefresh: .localForceRefresh
        case .createIfNeeded: .createIfNeeded
        }
    }
}

extension OAuthClientRefreshEvent {
    /// Nil for events that are not about a refresh.
    fileprivate init?(_ kind: BrokerEvent.Kind, _ data: JSONValue) {
        guard let refreshID = data["refresh_id"]?.string?.text else { return nil }
        switch kind {
        case .refreshStarted: self = .tokenRefreshStarted(refreshID: refreshID)
        case .refreshRefreshingAccessToken: self = .tokenRefreshRefreshingAccessToken(refreshID: refreshID)
        case .refreshRefreshedAccessToken: self = .tokenRefreshRefreshedAccessToken(refreshID: refreshID)
        case .refreshFetchingKeys: self = .tokenRefreshFetchingJWKS(refreshID: refreshID)
        case .refreshFetchedKeys: self = .tokenRefreshFetchedJWKS(refreshID: refreshID)
        case .refreshVerifyingAccessToken: self = .tokenRefreshVerifyingAccessToken(refreshID: refreshID)
        case .refreshVerifyingRefreshToken: self = .tokenRefreshVerifyingRefreshToken(refreshID: refreshID)
        case .refreshSavingTokens: self = .tokenRefreshSavingTokens(refreshID: refreshID)
        case .refreshSucceeded: self = .tokenRefreshSucceeded(refreshID: refreshID)
        case .refreshFailed:
            let code = data["error"]?.string.flatMap { BrokerError.Code($0) } ?? .internalError
            let error = BrokerError(
                code, "The refresh has failed.", errorCode: data["error_code"]?.string?.text)
            self = .tokenRefreshFailed(refreshID: refreshID, error: OAuthClientError(AuthError(error)))
        default: return nil
        }
    }
}
