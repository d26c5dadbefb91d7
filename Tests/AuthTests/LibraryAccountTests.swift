import Auth
import AuthTesting
import DevelopmentProvider
import FoundationEssentials
import HTTPCodec
import Testing

/// Accounts of DuckDuckGo's Auth, with the library, at the development provider.
@Suite(.timeLimit(.minutes(1))) struct `Accounts with the library` {
    private func run(
        _ body: (DevelopmentProvider, any OAuthClient) async throws -> Void
    ) async throws {
        let running = try RunningProvider(.duckduckgo)
        let environment = running.environment()
        let client = AuthClient(running.configuration(), in: environment).oAuthClient
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(running.provider, client))
        } catch {
            result = .failure(error)
        }
        await environment.close()
        await running.close()
        try result.get()
    }

    // D17
    @Test func `an account is created once where nothing is stored`() async throws {
        try await run { provider, client async throws in
            let created = try await client.getTokens(policy: .createIfNeeded)
            #expect(created.decodedAccessToken.scope == "privacypro")
            #expect(created.decodedRefreshToken.subject == created.decodedAccessToken.subject)
            #expect(try await client.getTokens(policy: .createIfNeeded) == created)
            #expect(try await client.currentTokenContainer() == created)
            for endpoint in [Endpoint.authorize, .createAccount, .token] {
                #expect(provider.counters.requests(endpoint) == 1)
            }
        }
    }

    // D18
    @Test(arguments: [Endpoint.authorize, .createAccount, .token])
    func `a refusal on the way to an account is passed on`(endpoint: Endpoint) async throws {
        try await run { provider, client async throws in
            provider.script(
                Fault(endpoint, status: .badRequest, body: Array(#"{"error": "invalid_request"}"#.utf8)))
            let error = await #expect(throws: OAuthClientError.self) {
                try await client.getTokens(policy: .createIfNeeded)
            }
            guard case .serviceError(let service)? = error else { return #expect(Bool(false), "\(error as Any)") }
            #expect(service.code == .unexpectedError && service.providerErrorCode == "invalid_request")
            #expect(try await !client.isUserAuthenticated)
        }
    }

    @Test func `a platform's signature activates its account`() async throws {
        try await run { provider, client async throws in
            provider.setAccount("ada", to: .active)
            let activated = try await client.activate(withPlatformSignature: "ada")
            #expect(try await client.currentTokenContainer() == activated)
            #expect(provider.counters.requests(Endpoint.login) == 1)
            try await client.logout()
            #expect(provider.counters.requests(Endpoint.logout) == 1)
            #expect(try await !client.isUserAuthenticated)
        }
    }

    @Test(arguments: [0, 65_537])
    func `a signature out of its range is an illegal argument`(length: Int) async throws {
        try await run { provider, client async throws in
            let error = await #expect(throws: OAuthClientError.self) {
                try await client.activate(withPlatformSignature: String(repeating: "s", count: length))
            }
            guard case .serviceError(let service)? = error else { return #expect(Bool(false), "\(error as Any)") }
            #expect(service.code == .illegalArgument)
            #expect(provider.counters.requests(Endpoint.authorize) == 0)
        }
    }

    @Test func `a signature of no account is its own error`() async throws {
        try await run { provider, client async throws in
            provider.setAccount("ada", to: .removed)
            await #expect(throws: OAuthClientError.unknownAccount) {
                try await client.activate(withPlatformSignature: "ada")
            }
        }
    }

    /// The provider's `error_code`, and the name that the caller gets.
    private static let statuses: [(Int, OAuthClientError.TokenStatus)] = [
        (0, .invalid), (1, .expired), (2, .reused), (3, .loggedOut), (4, .fraudDetected),
    ]

    // D10
    @Test(arguments: statuses)
    func `a refused refresh token says why`(number: Int, status: OAuthClientError.TokenStatus) async throws {
        try await run { provider, client async throws in
            _ = try await client.getTokens(policy: .createIfNeeded)
            provider.script(
                Fault(
                    .token, grant: .refreshToken, status: .badRequest,
                    body: Array(#"{"error": "invalid_token_request", "error_code": \#(number)}"#.utf8)))
            let error = await #expect(throws: OAuthClientError.self) {
                try await client.getTokens(policy: .localForceRefresh)
            }
            guard case .invalidTokenRequest(let told, let underlying)? = error else {
                return #expect(Bool(false), "\(error as Any)")
            }
            #expect(told == status && underlying.providerErrorCode == status.rawValue)
            #expect(try await !client.isUserAuthenticated)
        }
    }

    // D14
    @Test func `an account that is gone is its own error`() async throws {
        try await run { provider, client async throws in
            _ = try await client.getTokens(policy: .createIfNeeded)
            provider.script(
                Fault(
                    .token, grant: .refreshToken, status: .badRequest,
                    body: Array(#"{"error": "unknown_account"}"#.utf8)))
            await #expect(throws: OAuthClientError.unknownAccount) {
                try await client.getTokens(policy: .localForceRefresh)
            }
            await #expect(throws: OAuthClientError.missingTokenContainer) {
                try await client.getTokens(policy: .localForceRefresh)
            }
        }
    }
}
