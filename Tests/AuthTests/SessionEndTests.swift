import Auth
import AuthTesting
import FoundationEssentials
import Testing

/// Tests what a program learns of the end of a session.
@Suite struct `The end of a session` {
    private struct Fixture {
        let provider: RunningProvider
        let auth: AuthClient

        @discardableResult
        func logIn() async throws -> Credentials {
            let redirectURI = try #require(URL(string: "my-app://callback"))
            let page = try await auth.initializeLogin(redirectURI: redirectURI)
            let query = try #require(await provider.answer(page, as: "ada"))
            try await auth.finalizeLogin(loginResponseQuery: query)
            return try await auth.getCredentials(level: .user)
        }
    }

    private func run(_ body: (Fixture) async throws -> Void) async throws {
        let provider = try RunningProvider()
        let environment = provider.environment()
        let result: Result<Void, any Error>
        do {
            result = .success(
                try await body(Fixture(provider: provider, auth: AuthClient(provider.configuration(), in: environment)))
            )
        } catch {
            result = .failure(error)
        }
        await environment.close()
        await provider.close()
        try result.get()
    }

    private func refusal(_ body: () async throws -> Credentials) async -> AuthError? {
        await #expect(throws: AuthError.self) { _ = try await body() }
    }

    @Test func `without a login there is no user, and no session has ended`() async throws {
        try await run { fixture async throws in
            let error = await refusal { try await fixture.auth.getCredentials(level: .user) }
            #expect(error?.code == .missingTokenContainer)
            #expect(error?.sessionEnd == nil)
            #expect(try await fixture.auth.getCredentials(level: .basic).level == .basic)
        }
    }

    @Test func `the caller of the refresh that finds a session ended learns why, and so does each later one`()
        async throws
    {
        try await run { fixture async throws in
            let auth = fixture.auth
            let credentials = try await fixture.logIn()
            #expect(try await auth.getCredentials(level: .client) == credentials)
            fixture.provider.endSessions(of: "ada")
            let errors = [
                await refusal {
                    try await auth.getCredentials(level: .user, apiErrorSubStatus: "11003", refused: credentials)
                },
                await refusal { try await auth.getCredentials(level: .user) },
                await refusal { try await auth.getCredentials(level: .client) },
            ]
            for error in errors {
                #expect(error?.code == .missingTokenContainer)
                #expect(error?.sessionEnd?.cause == .revoked)
                #expect(error?.message.hasSuffix("The provider has ended the user's session.") == true)
                #expect(abs(error?.sessionEnd?.time.timeIntervalSinceNow ?? .infinity) < 60)
            }
            #expect(try await auth.getCredentials().level == .basic)
            // Another login begins another session.
            #expect(try await fixture.logIn().level == .user)
        }
    }

    @Test func `messages say what has changed credentials, and that a session has ended`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth
            var updates = auth.bus.makeAsyncIterator()
            var ends = auth.sessionEnds.makeAsyncIterator()
            let credentials = try await fixture.logIn()
            #expect(await updates.next() == CredentialsUpdatedMessage(credentials: credentials, cause: .login))
            let renewed = try await auth.getCredentials(apiErrorSubStatus: "11003", refused: credentials)
            #expect(await updates.next() == CredentialsUpdatedMessage(credentials: renewed, cause: .refresh))
            fixture.provider.endSessions(of: "ada")
            _ = try await auth.getCredentials(apiErrorSubStatus: "11003", refused: renewed)
            let revoked = await updates.next()
            #expect(revoked?.credentials.level == .basic && revoked?.cause == .revoked)
            let end = await ends.next()
            #expect(end?.end.cause == .revoked && end?.end.reason == nil)
            #expect(end?.userID == credentials.userID)
            try await fixture.logIn()
            #expect(await updates.next()?.cause == .login)
            try await auth.logout()
            #expect(await updates.next()?.cause == .logout)
            #expect(await ends.next()?.end.cause == .logout)
            // After a logout no session is missing.
            #expect(await refusal { try await auth.getCredentials(level: .user) }?.sessionEnd == nil)
        }
    }

    @Test func `a session without a refresh token ends by the expiry of its token`() async throws {
        let (clock, transport) = (ManualClock(), ScriptedTransport())
        let environment = AuthEnvironment.scripted(transport, clock: clock)
        var configuration = AuthConfiguration(credentialsStorageKey: "main", clientID: "the-app", provider: "oidc")
        configuration.endpoints = .init(
            authorization: URL(string: "https://provider.example/authorize"),
            token: URL(string: "https://provider.example/token"))
        configuration.clientAuthentication = AuthConfiguration.ClientAuthentication.none
        let auth = AuthClient(configuration, in: environment)
        let expires = clock.date.addingTimeInterval(3600)
        try await auth.setCredentials(
            Credentials(clientID: "the-app", expires: expires, token: "t-1"), refreshToken: nil)
        #expect(try await auth.getCredentials(level: .user).token == "t-1")
        clock.advance(by: .seconds(3601))
        let error = await refusal { try await auth.getCredentials(level: .user) }
        #expect(error?.code == .missingTokenContainer)
        #expect(error?.sessionEnd?.cause == .expired)
        await environment.close(within: .zero)
        #expect(transport.unforeseenRequests == 0)
    }

    /// A provider of credentials of a program that knows nothing of levels.
    private struct Fixed: CredentialsProvider {
        let credentials: Credentials

        func getCredentials(apiErrorSubStatus: String?, refused: Credentials?) async throws(AuthError) -> Credentials {
            credentials
        }

        func isUserLoggedIn() async throws(AuthError) -> Bool { credentials.level == .user }

        var bus: AsyncStream<CredentialsUpdatedMessage> { AsyncStream { $0.finish() } }
    }

    @Test(arguments: CredentialsLevel.allCases, CredentialsLevel.allCases)
    func `a provider of the program's own gives no lower level either`(
        stored: CredentialsLevel, wanted: CredentialsLevel
    ) async throws {
        let fixed = Fixed(credentials: Credentials(level: stored, clientID: "the-app", token: "t-1"))
        let found = try? await fixed.getCredentials(level: wanted)
        #expect((found != nil) == (stored >= wanted))
    }
}
