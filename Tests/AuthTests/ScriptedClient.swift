import Auth
import AuthTesting
import FoundationEssentials
import Testing

/// A client whose provider is a script and signs its tokens, with a clock that the test moves.
struct ScriptedClient {
    static let issuer = "https://provider.example"
    static let keys = issuer + "/keys"

    let clock = ManualClock(Date(timeIntervalSince1970: 1_800_000_000))
    let transport = ScriptedTransport()
    let environment: AuthEnvironment
    let auth: AuthClient
    let client: any OAuthClient
    private let configuration: AuthConfiguration
    private let factory: TokenContainerFactory

    /// Makes tokens at the clock's present time.
    var tokens: TokenContainerFactory { factory.at(clock.date) }

    static let configuration: AuthConfiguration = {
        var configuration = AuthConfiguration(
            credentialsStorageKey: "main", clientID: "the-app", scopes: ["privacypro"], provider: "oidc")
        configuration.endpoints = .init(
            authorization: URL(string: issuer + "/authorize"), token: URL(string: issuer + "/token"),
            revocation: URL(string: issuer + "/revoke"), jwks: URL(string: keys))
        configuration.clientAuthentication = AuthConfiguration.ClientAuthentication.none
        configuration.tokenVerification = .init(
            accessToken: .init(issuer: issuer, audience: "PrivacyPro", scope: "privacypro"),
            refreshToken: .init(issuer: issuer, audience: "Auth", scope: "refresh"))
        return configuration
    }()

    private init(_ change: (inout AuthConfiguration) -> Void) {
        var configuration = Self.configuration
        change(&configuration)
        self.configuration = configuration
        environment = .scripted(transport, clock: clock)
        auth = AuthClient(configuration, in: environment)
        client = auth.oAuthClient
        factory = TokenContainerFactory(issuer: Self.issuer, now: clock.date)
        transport.answer(at: Self.keys, with: .json(200, factory.keySet))
    }

    /// Runs a test. The provider must have got no request that the test did not foresee.
    static func run(
        _ change: (inout AuthConfiguration) -> Void = { _ in }, _ body: (ScriptedClient) async throws -> Void
    ) async throws {
        let scripted = ScriptedClient(change)
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(scripted))
        } catch {
            result = .failure(error)
        }
        await scripted.environment.close(within: .zero)
        try result.get()
        #expect(scripted.transport.unforeseenRequests == 0)
        #expect(scripted.transport.remainingAnswers == 0)
    }

    /// A client of the same credentials with another configuration, as after an update of the program.
    func reconfigured(_ change: (inout AuthConfiguration) -> Void) -> any OAuthClient {
        var configuration = configuration
        change(&configuration)
        return AuthClient(configuration, in: environment).oAuthClient
    }

    /// Stores tokens, and returns them.
    @discardableResult
    func adopt(_ state: TokenContainerFactory.State = .valid) async throws -> TokenContainer {
        let container = tokens.container(state)
        try await client.adopt(tokenContainer: container)
        return container
    }

    /// Stores tokens, and lets the time pass until the access token has expired.
    @discardableResult
    func adoptExpired() async throws -> TokenContainer {
        let container = try await adopt()
        clock.advance(by: .seconds(14_500))
        return container
    }

    var grants: [String?] { transport.requests.map { $0.parameter("grant_type") } }

    /// Runs `body` while the time passes in steps of 5 s, the pause of the library's work in the background.
    func whileTimePasses<R: Sendable>(_ body: @escaping @Sendable () async throws -> R) async throws -> R {
        let clock = clock
        return try await withThrowingTaskGroup(of: R?.self) { group in
            group.addTask {
                while !Task.isCancelled {
                    await clock.waitForSleep(of: .seconds(5))
                    clock.advance(by: .seconds(5))
                }
                return nil
            }
            group.addTask { try await body() }
            defer { group.cancelAll() }
            guard let result = try await group.next() ?? nil else { throw CancellationError() }
            return result
        }
    }
}
