import Auth
import BrokerCore
import BrokerTesting
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import Testing

/// Tests the library as a program uses it, against the development provider.
@Suite struct `Auth as a library` {
    private static let clientID = "the-app"

    /// A provider, a browser, and an environment for the provider.
    private struct Fixture {
        let provider: RunningProvider
        let browser: BrokerClient
        let environment: AuthEnvironment

        func auth(
            _ storageKey: String = "main", scopes: Set<String> = ["r_usr"], secret: String? = nil,
            in environment: AuthEnvironment? = nil
        ) -> AuthClient {
            AuthClient(
                AuthConfiguration(
                    credentialsStorageKey: storageKey, clientID: clientID, scopes: scopes, clientSecret: secret,
                    tidalLoginServiceBaseURI: URL(string: provider.baseURL),
                    tidalAuthServiceBaseURI: URL(string: provider.baseURL + "/v1"), certificatePinning: false),
                in: environment ?? self.environment)
        }

        /// Opens the login page and submits its form. Returns the query of the redirect.
        func decide(_ loginURI: URL, _ decision: String = "approve") async throws -> String {
            let page = try await browser.call(.get, loginURI.absoluteString, key: nil)
            let form = try #require(ProviderForm(html: page.text))
            let answer = try await browser.call(
                .post, provider.baseURL + form.action, key: nil,
                body: form.submission([.init("user", "alice"), .init("decision", decision)]),
                fields: ["Content-Type": "application/x-www-form-urlencoded"])
            let location = try #require(answer.fields["Location"]?.text)
            return String(try #require(location.split(separator: "?", maxSplits: 1).last))
        }

        func logIn(_ auth: AuthClient) async throws {
            let uri = try await auth.initializeLogin(redirectURI: URL(string: "my-app://callback")!)
            try await auth.finalizeLogin(loginResponseQuery: try await decide(uri))
        }

        /// Approves the login, as the user does on another device.
        func approve(_ login: DeviceAuthorizationResponse) async throws {
            let approved = try await browser.call(
                .post, provider.baseURL + "/link", key: nil,
                body: FormEncoding.encode([
                    .init("user_code", login.userCode), .init("user", "alice"), .init("decision", "approve"),
                ]), fields: ["Content-Type": "application/x-www-form-urlencoded"])
            #expect(approved.status == 200)
        }

        func requests(_ grant: String) -> Int {
            provider.provider.requests.count { $0.grant == grant }
        }
    }

    private func run(
        secret: String? = nil, storage: AuthEnvironment.Storage = .memory, _ body: (Fixture) async throws -> Void
    ) async throws {
        let provider = try RunningProvider(
            ProviderConfiguration(
                profile: .tidal,
                clients: [ProviderClient(Self.clientID, secret: secret, scopes: ["r_usr", "w_usr"])]))
        let browser = try BrokerClient(port: 1)
        let environment = AuthEnvironment(storage: storage, allowsInsecureProviders: true)
        let result: Result<Void, any Error>
        do {
            result = .success(
                try await body(Fixture(provider: provider, browser: browser, environment: environment)))
        } catch {
            result = .failure(error)
        }
        await environment.close()
        await browser.close()
        await provider.close()
        try result.get()
    }

    @Test func `credentials without an expiry are stored and returned without an expiry`() async throws {
        try await run { fixture async throws in
            func auth(_ lifetime: AuthConfiguration.TokenLifetime?) -> AuthClient {
                AuthClient(
                    AuthConfiguration(
                        credentialsStorageKey: "lasting", clientID: Self.clientID,
                        tidalLoginServiceBaseURI: URL(string: fixture.provider.baseURL),
                        tidalAuthServiceBaseURI: URL(string: fixture.provider.baseURL + "/v1"),
                        certificatePinning: false, defaultLifetime: lifetime), in: fixture.environment)
            }
            let lasting = auth(.never)
            let given = Credentials(clientID: Self.clientID, token: "t-1")
            try await lasting.setCredentials(given, refreshToken: "r-1")
            let credentials = try await lasting.getCredentials()
            #expect(credentials.token == "t-1")
            #expect(credentials.expires == nil)
            #expect(try await lasting.isUserLoggedIn())
            try await auth(.seconds(7200)).setCredentials(given, refreshToken: "r-1")
            let expires = try #require(try await auth(.seconds(7200)).getCredentials().expires)
            #expect(abs(expires.timeIntervalSinceNow - 7200) < 60)
            await #expect(throws: AuthError.self) { try await auth(.seconds(0)).logout() }
        }
    }

    @Test func `a login stores a user's credentials, and a logout deletes them`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            #expect(try await !auth.isUserLoggedIn())
            #expect(try await auth.getCredentials().level == .basic)
            try await fixture.logIn(auth)
            #expect(try await auth.isUserLoggedIn())
            let credentials = try await auth.credentialsProvider.getCredentials()
            #expect(credentials.level == .user)
            #expect(credentials.clientID == Self.clientID)
            #expect(credentials.requestedScopes == ["r_usr"])
            #expect(credentials.grantedScopes == ["r_usr"])
            #expect(credentials.userID != nil)
            #expect(try #require(credentials.expires) > Date())
            #expect(credentials.token?.isEmpty == false)
            #expect(try await auth.getCredentials() == credentials)
            try await auth.logout()
            #expect(try await !auth.isUserLoggedIn())
            let left = try await auth.getCredentials()
            #expect(left.level == .basic && left.token == nil)
        }
    }

    /// Other processes that use the database must find the right expiry, even if this machine's clock is wrong.
    @Test(arguments: [Duration.seconds(7200), .seconds(-7200)])
    func `a token expires by the database's clock`(lead: Duration) async throws {
        let postgres = try await PostgresServer.shared.value
        let environment = AuthEnvironment(
            storage: .postgres(url: try await postgres.connectionToNewSchema(), masterKeys: BrokerHarness.masterKeys),
            allowsInsecureProviders: true, time: MachineTime(SystemTime(), ahead: lead))
        try await run { fixture async throws in
            fixture.provider.provider.configure { $0.accessTokenLifetime = .seconds(3600) }
            let auth = fixture.auth(in: environment)
            let before = Date()
            try await fixture.logIn(auth)
            let expires = try #require(try await auth.getCredentials().expires)
            #expect((before.addingTimeInterval(3598)...Date().addingTimeInterval(3601)).contains(expires))
        }
        await environment.close()
    }

    @Test func `a device login waits for the user`() async throws {
        try await run { fixture async throws in
            fixture.provider.provider.configure { $0.deviceInterval = .seconds(1) }
            let auth = fixture.auth()
            let login = try await auth.initializeDeviceLogin()
            #expect(login.verificationURI.hasPrefix(fixture.provider.baseURL))
            async let ended: Void = auth.finalizeDeviceLogin()
            try await fixture.approve(login)
            try await ended
            #expect(try await auth.getCredentials().level == .user)
        }
    }

    @Test(.timeLimit(.minutes(1)), arguments: [false, true])
    func `closing the environment ends a wait for a device login that is being polled`(inFiles: Bool) async throws {
        let directory = StoreFixtureDirectory()
        try await run(storage: inFiles ? .directory(directory.path) : .memory) { fixture async throws in
            fixture.provider.provider.configure { $0.deviceInterval = .seconds(1) }
            let auth = fixture.auth()
            _ = try await auth.initializeDeviceLogin()
            let waiting = Task { try await auth.finalizeDeviceLogin() }
            // The wait has begun before the first poll.
            try await fixture.provider.provider.waitForRequests(1, at: .token, grant: .deviceCode)
            await fixture.environment.close(within: .seconds(5))
            await #expect(throws: AuthError.self) { try await waiting.value }
        }
    }

    @Test func `a refusal by the user is an authorization error, without a token request`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            let uri = try await auth.initializeLogin(redirectURI: URL(string: "my-app://callback")!)
            let query = try await fixture.decide(uri, "deny")
            let error = await #expect(throws: AuthError.self) {
                try await auth.finalizeLogin(loginResponseQuery: query)
            }
            #expect(error?.code == .authorizationError)
            #expect(error?.providerErrorCode == "access_denied")
            #expect(fixture.requests("authorization_code") == 0)
        }
    }

    // D28
    @Test func `a refused token is refreshed once for all complaints about it`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            try await fixture.logIn(auth)
            let refused = try await auth.getCredentials()
            #expect(try await auth.getCredentials(apiErrorSubStatus: "4005", refused: refused) == refused)
            let renewed = try await auth.getCredentials(apiErrorSubStatus: "11003", refused: refused)
            #expect(renewed.token != refused.token)
            for _ in 0..<3 {
                #expect(try await auth.getCredentials(apiErrorSubStatus: "11003", refused: refused) == renewed)
            }
            #expect(fixture.requests("refresh_token") == 1)
        }
    }

    @Test func `stored credentials move to another configuration, also in another run`() async throws {
        let directory = StoreFixtureDirectory()
        try await run(storage: .directory(directory.path)) { fixture async throws in
            try await fixture.logIn(fixture.auth())
            await fixture.environment.close()
            let next = AuthEnvironment(storage: .directory(directory.path), allowsInsecureProviders: true)
            let auth = fixture.auth(scopes: ["r_usr", "w_usr"], in: next)
            #expect(try await auth.isUserLoggedIn())
            let credentials = try await auth.getCredentials()
            #expect(credentials.level == .user)
            #expect(credentials.requestedScopes == ["r_usr", "w_usr"])
            #expect(fixture.requests("update_client") == 1)
            #expect(try await fixture.auth("another", in: next).getCredentials().level == .basic)
            await next.close()
        }
    }

    @Test func `a directory in use is an error, and can be opened later`() async throws {
        let directory = StoreFixtureDirectory()
        try await run(storage: .directory(directory.path)) { fixture async throws in
            #expect(try await !fixture.auth().isUserLoggedIn())
            let second = AuthEnvironment(storage: .directory(directory.path), allowsInsecureProviders: true)
            let auth = fixture.auth(in: second)
            let error = await #expect(throws: AuthError.self) { try await auth.isUserLoggedIn() }
            #expect(error?.code == .storageUnusable)
            await fixture.environment.close()
            #expect(try await !auth.isUserLoggedIn())
            await second.close()
        }
    }

    @Test func `without a user the client's own credentials are returned`() async throws {
        try await run(secret: "s3cret") { fixture async throws in
            #expect(try await fixture.auth(secret: "s3cret").getCredentials().level == .client)
            let error = await #expect(throws: AuthError.self) {
                try await fixture.auth("other", secret: "wrong").getCredentials()
            }
            #expect(error?.code == .illegalConfiguration)
            // A program that uses the library has a configuration, and no tenants.
            #expect(error?.message.contains("Check the configured client_id, client_secret") == true)
            #expect(error?.message.contains("tenant") == false)
        }
    }

    @Test func `imported credentials must match the configuration`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            try await auth.setCredentials(
                Credentials(
                    clientID: Self.clientID, userID: "7", expires: Date(timeIntervalSinceNow: 600), token: "t-1"),
                refreshToken: nil)
            let stored = try await auth.getCredentials()
            #expect(stored.token == "t-1" && stored.userID == "7" && stored.level == .user)
            for wrong in [
                Credentials(clientID: "another", token: "t-2"),
                Credentials(clientID: Self.clientID, clientUniqueKey: "k", token: "t-2"),
                Credentials(clientID: Self.clientID, grantedScopes: ["w_usr"], token: "t-2"),
            ] {
                let error = await #expect(throws: AuthError.self) {
                    try await auth.setCredentials(wrong, refreshToken: nil)
                }
                #expect(error?.code == .illegalArgument)
            }
            #expect(try await auth.getCredentials() == stored)
        }
    }
}

extension `Auth as a library` {
    @Test func `the bus reports every change in order, and nothing else`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            var messages = auth.credentialsProvider.bus.makeAsyncIterator()
            // A change right after the stream was created must not be missed.
            try await auth.setCredentials(Credentials(clientID: "the-app", token: "t-1"), refreshToken: "r-1")
            // Each message is read before the next change, because a message has the credentials at the time it is sent.
            #expect(await messages.next()?.credentials == (try await auth.getCredentials()))
            try await auth.logout()
            #expect(await messages.next()?.credentials.level == .basic)
            try await auth.logout()
            try await fixture.logIn(auth)
            let first = try await auth.getCredentials()
            #expect(await messages.next()?.credentials == first)
            let renewed = try await auth.getCredentials(apiErrorSubStatus: "11003", refused: first)
            #expect(await messages.next()?.credentials == renewed)
        }
    }

    @Test func `the bus ends with its environment`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            let bus = auth.bus
            #expect(try await !auth.isUserLoggedIn())
            await fixture.environment.close()
            for await message in bus { Issue.record("there was no change: \(message)") }
            for await message in auth.bus { Issue.record("the environment is closed: \(message)") }
        }
    }
}

extension `Auth as a library` {
    @Test func `instances of one storage key share its credentials`() async throws {
        try await run { fixture async throws in
            let (first, second) = (fixture.auth(), fixture.auth())
            try await fixture.logIn(first)
            let credentials = try await first.getCredentials()
            #expect(try await second.getCredentials() == credentials)
            let renewed = try await second.getCredentials(apiErrorSubStatus: "11003", refused: credentials)
            #expect(try await first.getCredentials(apiErrorSubStatus: "11003", refused: credentials) == renewed)
            #expect(fixture.requests("refresh_token") == 1)
            try await second.logout()
            #expect(try await !first.isUserLoggedIn())
        }
    }

    @Test(.timeLimit(.minutes(1)))
    func `cancelling a wait for a device login does not end the login`() async throws {
        try await run { fixture async throws in
            fixture.provider.provider.configure { $0.deviceInterval = .seconds(1) }
            let auth = fixture.auth()
            let login = try await auth.initializeDeviceLogin()
            let wait = Task { try await auth.finalizeDeviceLogin() }
            wait.cancel()
            let error = await #expect(throws: AuthError.self) { try await wait.value }
            #expect(error?.code == .retryableError)
            try await fixture.approve(login)
            try await auth.finalizeDeviceLogin()
            #expect(try await auth.isUserLoggedIn())
        }
    }

    @Test(.timeLimit(.minutes(1)))
    func `closing the environment ends the wait for a device login`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            _ = try await auth.initializeDeviceLogin()
            let wait = Task { try await auth.finalizeDeviceLogin() }
            async let again: Void = fixture.environment.close()
            await fixture.environment.close()
            await again
            let error = await #expect(throws: AuthError.self) { try await wait.value }
            #expect(error?.code == .storageUnusable)
            #expect(error?.message == "This environment was closed.")
        }
    }

    @Test(.timeLimit(.minutes(1)))
    func `calls during the closing of an environment all end`() async throws {
        let directory = StoreFixtureDirectory()
        try await run(storage: .directory(directory.path)) { fixture async throws in
            let auth = fixture.auth()
            try await fixture.logIn(auth)
            let callers = (0..<8).map { caller in
                Task {
                    var refused = try? await auth.getCredentials()
                    // These calls renew, so that each of them uses the provider and the store.
                    while let current = refused {
                        refused = try? await auth.getCredentials(apiErrorSubStatus: "11003", refused: current)
                        if caller == 0, refused != nil { _ = try? await auth.isUserLoggedIn() }
                    }
                }
            }
            await fixture.environment.close()
            for caller in callers { await caller.value }
            let error = await #expect(throws: AuthError.self) { try await auth.getCredentials() }
            #expect(error?.code == .storageUnusable)
            #expect(error?.message == "This environment was closed.")
            // The credentials that were granted last are stored.
            let next = AuthEnvironment(storage: .directory(directory.path), allowsInsecureProviders: true)
            let later = fixture.auth(in: next)
            let stored = try await later.getCredentials()
            #expect(try await later.getCredentials(apiErrorSubStatus: "11003", refused: stored).level == .user)
            await next.close()
        }
    }

    @Test func `the bus reports a logout with the credentials that getCredentials then returns`() async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            try await fixture.logIn(auth)
            var messages = auth.bus.makeAsyncIterator()
            try await auth.logout()
            let left = try await auth.getCredentials()
            #expect(await messages.next() == CredentialsUpdatedMessage(credentials: left, cause: .logout))
        }
    }

    @Test(arguments: [
        Credentials(level: .basic, clientID: clientID, token: nil),
        Credentials(clientID: clientID, token: nil),
        Credentials(clientID: clientID, token: "two words"),
        Credentials(clientID: clientID, expires: Date(timeIntervalSince1970: 253_402_300_800), token: "t-1"),
        Credentials(clientID: clientID, expires: Date(timeIntervalSince1970: -253_402_300_800), token: "t-1"),
        Credentials(clientID: clientID, expires: Date(timeIntervalSince1970: 1e300), token: "t-1"),
        Credentials(clientID: clientID, expires: Date(timeIntervalSince1970: .nan), token: "t-1"),
    ])
    func `credentials that cannot be stored are an illegal argument`(credentials: Credentials) async throws {
        try await run { fixture async throws in
            let auth = fixture.auth()
            let error = await #expect(throws: AuthError.self) {
                try await auth.setCredentials(credentials, refreshToken: nil)
            }
            #expect(error?.code == .illegalArgument)
            #expect(try await auth.getCredentials().level == .basic)
        }
    }
}
