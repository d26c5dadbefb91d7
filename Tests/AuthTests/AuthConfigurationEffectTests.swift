import Auth
import AuthTesting
import BrokerTesting
import FoundationEssentials
import HTTPCodec
import Testing

/// Each parameter of a configuration has an effect.
@Suite(.timeLimit(.minutes(1))) struct `Effects of a configuration` {
    @Test(arguments: [
        (nil, true, false), (["sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="], true, true),
        (["sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="], false, false),
    ])
    func `requests are pinned to the named keys`(pins: [String]?, isOn: Bool, isPinned: Bool) async throws {
        try await ScriptedClient.run {
            $0.pinnedCertificates = pins
            $0.certificatePinning = isOn
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.tokens(scripted.tokens.container()))
            _ = try await scripted.client.getTokens(policy: .localForceRefresh)
            #expect(scripted.transport.seen.map(\.isPinned) == [isPinned])
        }
    }

    @Test func `requests have the named header fields, and others are refused`() async throws {
        try await ScriptedClient.run {
            $0.requestHeaders = ["X-Partner": "acme", "User-Agent": "acme/2"]
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.tokens(scripted.tokens.container()))
            _ = try await scripted.client.getTokens(policy: .localForceRefresh)
            let fields = try #require(scripted.transport.seen.first?.fields)
            #expect(fields.values("X-Partner") == ["acme"])
            #expect(fields.values("User-Agent") == ["acme/2"])
        }
        try await ScriptedClient.run {
            $0.requestHeaders = ["Authorization": "Basic eA=="]
        } _: { scripted async throws in
            await #expect(throws: OAuthClientError.self) { try await scripted.adopt() }
        }
    }

    @Test func `requests are repeated as often as is said`() async throws {
        try await ScriptedClient.run {
            $0.retry = .init(tries: 2, firstPause: .milliseconds(100), rateLimitRetries: 0, followsRetryAfter: false)
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.refusal("unavailable", status: 503), .refusal("unavailable", status: 503))
            let client = scripted.client
            let failing = Task { try await client.getTokens(policy: .localForceRefresh) }
            await scripted.clock.waitForSleep(of: .milliseconds(100))
            scripted.clock.advance(by: .milliseconds(100))
            await #expect(throws: OAuthClientError.self) { try await failing.value }
            #expect(scripted.transport.requests.count == 2)
        }
    }

    @Test(arguments: [
        AuthConfiguration.Retry(tries: 1), .init(tries: 11), .init(firstPause: .microseconds(100_500)),
        .init(factor: 0.5), .init(longestPause: .seconds(Int64.max)), .init(rateLimitRetries: 6), .init(tries: 8),
    ])
    func `settings of retries that do not fit are refused`(retry: AuthConfiguration.Retry) async throws {
        try await ScriptedClient.run {
            $0.retry = retry
        } _: { scripted async throws in
            await #expect(throws: OAuthClientError.self) { try await scripted.adopt() }
        }
    }

    @Test func `requests go to the named endpoints`() async throws {
        try await ScriptedClient.run {
            $0.endpoints.token = URL(string: "https://tokens.example/grant")
            $0.endpoints.authorization = URL(string: "https://login.example/begin")
            $0.endpoints.deviceAuthorization = URL(string: "https://login.example/device")
            $0.endpoints.revocation = URL(string: "https://tokens.example/end")
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.tokens(scripted.tokens.container()), .ok, .refusal("unauthorized_client"))
            _ = try await scripted.client.getTokens(policy: .localForceRefresh)
            try await scripted.client.logout()
            await #expect(throws: AuthError.self) { try await scripted.auth.initializeDeviceLogin() }
            #expect(
                scripted.transport.requests.map(\.url) == [
                    "https://tokens.example/grant", "https://tokens.example/end", "https://login.example/device",
                ])
            let login = try await scripted.auth.initializeLogin(redirectURI: URL(string: "my-app:/callback")!)
            #expect(login.absoluteString.hasPrefix("https://login.example/begin?"))
            #expect(scripted.transport.requestsAtAddresses.allSatisfy { $0.url == ScriptedClient.keys })
            #expect(!scripted.transport.requestsAtAddresses.isEmpty)
        }
    }

    /// The user whom the userinfo endpoint names, nil where no endpoint is named; the user of the ID token is `ada`.
    @Test(arguments: [(nil, true), ("ada", true), ("eve", false)])
    func `the named userinfo endpoint is asked after a login`(user: String?, succeeds: Bool) async throws {
        let address = "https://provider.example/userinfo"
        try await ScriptedClient.run {
            // The audience of the signed tokens that the test has.
            $0.clientID = "PrivacyPro"
            $0.issuer = URL(string: ScriptedClient.issuer)
            $0.endpoints.userInfo = user.flatMap { _ in URL(string: address) }
        } _: { scripted async throws in
            if let user { scripted.transport.answer(at: address, with: .json(200, #"{"sub": "\#(user)"}"#)) }
            let granted = scripted.tokens.container(subject: "ada")
            scripted.transport.enqueue(
                .json(
                    200,
                    #"{"access_token": "\#(granted.accessToken)", "refresh_token": "\#(granted.refreshToken)", "#
                        + #""token_type": "Bearer", "expires_in": 14400, "id_token": "\#(granted.accessToken)"}"#))
            let login = try await scripted.auth.initializeLogin(redirectURI: URL(string: "my-app:/callback")!)
            let items = try #require(URLComponents(string: login.absoluteString)?.queryItems)
            let state = try #require(items.last { $0.name == "state" }?.value)
            do throws(AuthError) {
                try await scripted.auth.finalizeLogin(loginResponseQuery: "code=c-1&state=\(state)")
                #expect(succeeds)
            } catch {
                #expect(!succeeds)
            }
            #expect(try await scripted.client.isUserAuthenticated == succeeds)
            #expect(scripted.transport.requestsAtAddresses.filter { $0.url == address }.count == (user == nil ? 0 : 1))
        }
    }

    @Test(arguments: AuthConfiguration.ClientAuthentication.allCases)
    func `the client authenticates as configured`(method: AuthConfiguration.ClientAuthentication) async throws {
        try await ScriptedClient.run {
            $0.clientSecret = "s3cret"
            $0.clientAuthentication = method
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.tokens(scripted.tokens.container()))
            _ = try await scripted.client.getTokens(policy: .localForceRefresh)
            let request = scripted.transport.requests[0]
            let basic = "Basic " + Data("the-app:s3cret".utf8).base64EncodedString()
            #expect(request.field("Authorization") == (method == .clientSecretBasic ? basic : nil))
            #expect(request.parameter("client_secret") == (method == .clientSecretPost ? "s3cret" : nil))
        }
    }

    @Test(arguments: [true, false])
    func `a client secret is used for a token of the client's own unless that is off`(isOn: Bool) async throws {
        try await ScriptedClient.run {
            $0.clientSecret = "s3cret"
            $0.clientAuthentication = .clientSecretPost
            $0.clientCredentials = isOn
            // The client's token is no JWT.
            $0.tokenVerification = nil
        } _: { scripted async throws in
            if isOn {
                scripted.transport.enqueue(
                    .json(200, #"{"access_token": "c1", "token_type": "Bearer", "expires_in": 3600}"#))
            }
            let credentials = try await scripted.auth.getCredentials()
            #expect(credentials.level == (isOn ? .client : .basic))
            #expect(credentials.token == (isOn ? "c1" : nil))
            #expect(scripted.grants == (isOn ? ["client_credentials"] : []))
        }
    }

    private static let oldToken = "https://provider.example/token"

    /// The former addresses that the configuration of a provider that has moved names, and whether the stored refresh token is
    /// presented at the new address.
    private static let formerAddresses: [([String], [String], Bool)] = [
        ([], [], false), ([ScriptedClient.issuer], [], true), (["https://other.example"], [], false),
        (["https://other.example", ScriptedClient.issuer], [], true), ([], [oldToken], true),
        ([], ["https://other.example/token"], false), ([oldToken], [ScriptedClient.issuer], false),
    ]

    @Test(arguments: formerAddresses)
    func `a session goes on at a new address where the former one is named`(
        issuers: [String], tokenEndpoints: [String], goesOn: Bool
    ) async throws {
        try await ScriptedClient.run {
            $0.issuer = URL(string: ScriptedClient.issuer)
        } _: { scripted async throws in
            let stored = try await scripted.adoptExpired()
            let moved = scripted.reconfigured {
                $0.issuer = URL(string: "https://new.example")
                $0.endpoints.token = URL(string: "https://new.example/token")
                $0.previousIssuers = issuers.compactMap { URL(string: $0) }
                $0.previousTokenEndpoints = tokenEndpoints.compactMap { URL(string: $0) }
            }
            if goesOn {
                let granted = scripted.tokens.container()
                scripted.transport.enqueue(.tokens(granted))
                #expect(try await moved.getTokens(policy: .localValid) == granted)
                #expect(scripted.transport.requests.map(\.url) == ["https://new.example/token"])
                #expect(scripted.transport.requests[0].parameter("refresh_token") == stored.refreshToken)
            } else {
                await #expect(throws: OAuthClientError.self) { try await moved.getTokens(policy: .localValid) }
                #expect(scripted.transport.requests.isEmpty)
                #expect(try await moved.currentTokenContainer() == stored)
            }
        }
    }

    /// The grace in seconds, and the longest time of a refresh in milliseconds. Within a grace that is known, a slow refresh is
    /// given up early enough for another one.
    @Test(arguments: [(nil, 10_000), (0, 10_000), (10, 4500), (60, 10_000)])
    func `a refresh is given up early enough to be repeated within the grace`(grace: Int?, limit: Int) async throws {
        try await ScriptedClient.run {
            $0.reuseGrace = grace.map { .seconds($0) }
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.tokens(scripted.tokens.container()))
            _ = try await scripted.client.getTokens(policy: .localForceRefresh)
            #expect(scripted.transport.seen.map(\.timeLimit) == [.milliseconds(limit)])
        }
    }

    /// What is expected of an access token, and whether the factory's token fits.
    private static let expectations: [(AuthConfiguration.TokenVerification.Expectations, Bool)] = [
        (.init(), true), (.init(issuer: ScriptedClient.issuer), true), (.init(issuer: "https://other.example"), false),
        (.init(audience: "PrivacyPro"), true), (.init(audience: "Other"), false), (.init(scope: "privacypro"), true),
        (.init(scope: "privacypro other"), false), (.init(algorithms: ["ES256", "RS256"]), true),
        (.init(algorithms: ["RS256"]), false),
    ]

    @Test(arguments: expectations)
    func `a token must say what is expected`(
        expectations: AuthConfiguration.TokenVerification.Expectations, isAccepted: Bool
    ) async throws {
        try await ScriptedClient.run {
            $0.tokenVerification = .init(accessToken: expectations)
        } _: {
            scripted async throws in
            let container = scripted.tokens.container()
            if isAccepted {
                try await scripted.client.adopt(tokenContainer: container)
            } else {
                await #expect(throws: OAuthClientError.self) {
                    try await scripted.client.adopt(tokenContainer: container)
                }
            }
            #expect(try await scripted.client.isUserAuthenticated == isAccepted)
        }
    }

    // The refresh token of the container expired a minute ago.
    @Test(arguments: [(nil, false), (0, false), (59, false), (60, false), (61, true), (300, true)])
    func `clocks may differ by the tolerance`(leeway: Int?, isAccepted: Bool) async throws {
        try await ScriptedClient.run {
            $0.tokenVerification?.refreshToken?.leeway = leeway.map { .seconds($0) }
        } _: { scripted async throws in
            let container = scripted.tokens.container(.refreshTokenExpired)
            do throws(OAuthClientError) {
                try await scripted.client.adopt(tokenContainer: container)
                #expect(isAccepted)
            } catch {
                #expect(!isAccepted)
            }
        }
    }

    @Test func `keys are fetched at the address of the verification`() async throws {
        try await ScriptedClient.run { configuration in
            configuration.tokenVerification?.jwks = URL(string: "https://keys.example/set")
        } _: { scripted async throws in
            scripted.transport.answer(at: "https://keys.example/set", with: .json(200, scripted.tokens.keySet))
            try await scripted.adopt()
            #expect(scripted.transport.requestsAtAddresses.map(\.url) == ["https://keys.example/set"])
        }
    }

    /// Reads credentials of that age, which are expected to be refreshed or not.
    private static func expect(
        _ refreshes: Bool, of scripted: ScriptedClient, whenTokensAre age: Duration
    ) async throws {
        let stored = try await scripted.adopt()
        scripted.clock.advance(by: age)
        var changes = scripted.auth.bus.makeAsyncIterator()
        let granted = scripted.tokens.container()
        if refreshes { scripted.transport.enqueue(.tokens(granted)) }
        let found = try await scripted.auth.getCredentials()
        if refreshes {
            #expect(await changes.next()?.credentials.token == granted.accessToken)
        } else {
            #expect(found.token == stored.accessToken)
        }
    }

    @Test(arguments: [(nil, false), (99, false), (101, true)])
    func `a token is refreshed earlier by the lead time`(lead: Int?, refreshes: Bool) async throws {
        try await ScriptedClient.run {
            $0.refreshLeadTime = lead.map { .seconds($0) }
        } _: { scripted async throws in
            try await Self.expect(refreshes, of: scripted, whenTokensAre: .seconds(14_300))
        }
    }

    /// When a refresh ends the token before, the lead time of an hour is no reason for one.
    @Test(
        arguments: [
            (nil, 14_300, true), (.lives, 14_300, true), (.ends, 14_300, false), (.ends, 14_390, false),
            (.ends, 14_391, true),
        ] as [(AuthConfiguration.AccessTokenAfterRefresh?, Int, Bool)])
    func `a token that ends at its refresh is refreshed in its last ten seconds`(
        after: AuthConfiguration.AccessTokenAfterRefresh?, age: Int, refreshes: Bool
    ) async throws {
        try await ScriptedClient.run {
            $0.refreshLeadTime = .seconds(3600)
            $0.accessTokenAfterRefresh = after
            // The provider's keys would have to be fetched again by then.
            $0.tokenVerification = nil
        } _: { scripted async throws in
            try await Self.expect(refreshes, of: scripted, whenTokensAre: .seconds(age))
        }
    }

    /// Where a refresh token is spent by its use, the second try comes within the grace.
    @Test(arguments: [(.always, 4500), (.sometimes, 4500), (.never, 10_000)] as [(AuthConfiguration.Rotation, Int)])
    func `a refresh is hurried only where a refresh token is spent by its use`(
        rotation: AuthConfiguration.Rotation, limit: Int
    ) async throws {
        try await ScriptedClient.run {
            $0.rotation = rotation
            $0.reuseGrace = .seconds(10)
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.tokens(scripted.tokens.container()))
            _ = try await scripted.client.getTokens(policy: .localForceRefresh)
            #expect(scripted.transport.seen.map(\.timeLimit) == [.milliseconds(limit)])
        }
    }

    @Test(arguments: [nil, true, false])
    func `the form has the client identifier unless that is off`(repeats: Bool?) async throws {
        try await ScriptedClient.run {
            $0.clientSecret = "s3cret"
            $0.clientAuthentication = .clientSecretBasic
            $0.repeatsClientID = repeats
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.tokens(scripted.tokens.container()))
            _ = try await scripted.client.getTokens(policy: .localForceRefresh)
            #expect(scripted.transport.requests[0].parameter("client_id") == (repeats == false ? nil : "the-app"))
        }
    }

    @Test func `a token is refreshed without a request, when its time has come`() async throws {
        try await ScriptedClient.run {
            $0.proactiveRefresh = .seconds(3600)
            // The provider's keys would have to be fetched again by then.
            $0.tokenVerification = nil
        } _: { scripted async throws in
            try await scripted.adopt()
            let changes = scripted.auth.bus
            #expect(try await scripted.client.isUserAuthenticated)
            let granted = scripted.tokens.at(scripted.clock.date.addingTimeInterval(13_000)).container()
            let request = Gate()
            scripted.transport.enqueue(.after(request, ScriptedAnswer.tokens(granted).step))
            scripted.clock.advance(by: .seconds(13_000))
            // The clock stands still again before the answer comes, so that nothing that has a limit misses it.
            try await scripted.whileTimePasses { await request.arrivals() }
            request.open()
            let change = await changes.first { _ in true }
            #expect(change?.credentials.token == granted.accessToken)
        }
    }

    @Test func `a notice comes before a token expires`() async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adopt()
            let notices = scripted.auth.expirations
            #expect(try await scripted.client.isUserAuthenticated)
            scripted.clock.advance(by: .seconds(14_400 - 300))
            let notice = try await scripted.whileTimePasses { await notices.first { _ in true } }
            #expect(notice?.credentials.token == stored.accessToken)
        }
    }

    @Test(arguments: [(nil, true), ("gone", false), ("other", true)])
    func `the named answers end a session`(ending: String?, isKept: Bool) async throws {
        try await ScriptedClient.run { configuration in
            configuration.sessionEndingAnswers = ending.map { [.init(status: 403, error: $0)] } ?? []
        } _: { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.refusal("gone", status: 403))
            await #expect(throws: OAuthClientError.self) {
                try await scripted.client.getTokens(policy: .localForceRefresh)
            }
            #expect(try await scripted.client.isUserAuthenticated == isKept)
        }
    }

    @Test(
        arguments: [
            { $0.refreshLeadTime = .milliseconds(1500) }, { $0.refreshLeadTime = .seconds(86_401) },
            { $0.refreshLeadTime = .seconds(-1) }, { $0.proactiveRefresh = .seconds(59) },
            { $0.reuseGrace = .seconds(86_401) }, { $0.pinnedCertificates = [] }, { $0.pinnedCertificates = ["key"] },
            { $0.sessionEndingAnswers = [.init(status: 429, error: nil)] },
            { $0.tokenVerification?.accessToken?.leeway = .seconds(301) }, { $0.trustedAudiences = [""] },
            { $0.trustedAudiences = (0...100).map { "api-\($0)" } },
            { $0.tokenVerification?.accessToken?.algorithms = ["HS256"] },
            { $0.endpoints.token = URL(string: "ftp://provider.example") },
            { $0.previousIssuers = [URL(string: "ftp://provider.example")!] },
            { $0.previousIssuers = Array(repeating: URL(string: "https://provider.example")!, count: 11) },
            { $0.previousTokenEndpoints = [URL(string: "https://provider.example/token#here")!] },
            { $0.previousTokenEndpoints = Array(repeating: URL(string: "https://provider.example")!, count: 11) },
        ] as [@Sendable (inout AuthConfiguration) -> Void])
    func `a value out of its range is an illegal argument`(
        change: @Sendable (inout AuthConfiguration) -> Void
    ) async throws {
        try await ScriptedClient.run(change) { scripted async throws in
            let error = await #expect(throws: AuthError.self) { try await scripted.auth.getCredentials() }
            #expect(error?.code == .illegalArgument)
        }
    }
}
