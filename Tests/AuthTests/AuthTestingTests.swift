import Auth
import AuthTesting
import BrokerTesting
import FoundationEssentials
import Testing

/// The product for tests, used as a program's tests use it.
@Suite(.timeLimit(.minutes(1))) struct `Doubles for programs that use the library` {
    private let now = Date(timeIntervalSince1970: 1_800_000_000)

    @Test func `a factory's container is in the state that was asked for`() {
        let factory = TokenContainerFactory(now: now)
        let expected: [TokenContainerFactory.State: (access: Double, refresh: Double)] = [
            .valid: (14_400, 2_592_000), .accessTokenExpiresSoon: (25, 2_577_600),
            .accessTokenExpired: (-3600, 2_574_000), .bothTokensExpired: (-3600, -60),
            .refreshTokenExpired: (14_400, -60),
        ]
        for state in TokenContainerFactory.State.allCases {
            let container = factory.container(state)
            #expect(container.decodedAccessToken.expiresAt.timeIntervalSince(now) == expected[state]?.access)
            #expect(container.decodedRefreshToken.expiresAt.timeIntervalSince(now) == expected[state]?.refresh)
            #expect(container != factory.container(state))
        }
    }

    @Test(arguments: [RunningProvider.Kind.tidal, .oidc])
    func `a provider in the process logs users in without a browser`(kind: RunningProvider.Kind) async throws {
        let provider = try RunningProvider(kind)
        let environment = provider.environment()
        let auth = AuthClient(provider.configuration(), in: environment)
        let login = try await auth.initializeLogin(redirectURI: URL(string: "my-app://callback")!)
        let query = try #require(await provider.answer(login, as: "ada"))
        try await auth.finalizeLogin(loginResponseQuery: query)
        let credentials = try await auth.getCredentials()
        #expect(credentials.level == .user && provider.tokenRequests == 1)
        provider.expireAccessTokens()
        let renewed = try await auth.getCredentials(apiErrorSubStatus: "11003", refused: credentials)
        #expect(renewed.token != credentials.token)
        provider.endSessions(of: "ada")
        let left = try await auth.getCredentials(apiErrorSubStatus: "11003", refused: renewed)
        #expect(left.level == .basic)
        let refused = try await auth.initializeLogin(redirectURI: URL(string: "my-app://callback")!)
        let refusal = try #require(await provider.answer(refused, as: nil))
        let error = await #expect(throws: AuthError.self) { try await auth.finalizeLogin(loginResponseQuery: refusal) }
        #expect(error?.code == .authorizationError)
        #expect(await provider.answer(URL(string: "https://other.example/authorize?x=1")!, as: "ada") == nil)
        await environment.close()
        await provider.close()
    }

    @Test func `a device login is answered without a browser`() async throws {
        let provider = try RunningProvider()
        let environment = provider.environment()
        let auth = AuthClient(provider.configuration(), in: environment)
        let login = try await auth.initializeDeviceLogin()
        #expect(await provider.answer(login, as: "ada"))
        try await auth.finalizeDeviceLogin()
        #expect(try await auth.isUserLoggedIn())
        #expect(await !provider.answer(login, as: "ada"))
        await environment.close()
        await provider.close()
    }

    @Test func `a script gives its answers in order and records the requests`() async throws {
        let (clock, transport) = (ManualClock(now), ScriptedTransport())
        let environment = AuthEnvironment.scripted(transport, clock: clock)
        let auth = AuthClient(
            AuthConfiguration(
                credentialsStorageKey: "main", clientID: "the-app", tidalLoginServiceBaseURI: URL(string: "http://a"),
                tidalAuthServiceBaseURI: URL(string: "http://b"), certificatePinning: false), in: environment)
        try await auth.setCredentials(Credentials(clientID: "the-app", token: "t-1"), refreshToken: "r-1")
        let tokens = TokenContainerFactory(now: now).container()
        transport.enqueue(.tokens(tokens, lifetime: 100))
        #expect(try await auth.getCredentials(apiErrorSubStatus: "11003").token == tokens.accessToken)
        clock.advance(by: .seconds(100))
        // A request that failed is repeated after a pause, which the test lets pass.
        let others = TokenContainerFactory(now: clock.date).container()
        transport.enqueue(.internalServerError)
        transport.answerAlways(
            .decided { $0.parameter("refresh_token") == tokens.refreshToken ? .tokens(others) : .unauthorized })
        async let found = auth.getCredentials()
        await clock.waitForSleep(of: .milliseconds(500))
        clock.advance(by: .milliseconds(500))
        #expect(try await found.token == others.accessToken)
        #expect(transport.requests.count == 3 && transport.unforeseenRequests == 0)
        #expect(transport.requests[0].method == "POST" && transport.requests[0].url == "http://b/oauth2/token")
        #expect(transport.requests[0].parameters.first?.name == "grant_type")
        await environment.close(within: .zero)
    }

    @Test func `a clock stands still until it is moved`() async throws {
        let clock = ManualClock(now)
        #expect(clock.date == now)
        clock.advance(by: .milliseconds(1500))
        #expect(clock.date == now.addingTimeInterval(1.5))
        clock.advance(by: .seconds(-5))
        #expect(clock.date == now.addingTimeInterval(1.5))
    }
}
