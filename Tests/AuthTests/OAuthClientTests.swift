import Auth
import AuthTesting
import ExternalText
import FoundationEssentials
import HTTPCodec
import Testing

/// Tests the role with which DuckDuckGo's apps keep their tokens, at a provider that is a script.
@Suite(.timeLimit(.minutes(1))) struct `OAuth client` {
    // D01
    @Test func `a user is authenticated while tokens are stored, even expired ones`() async throws {
        try await ScriptedClient.run { scripted async throws in
            #expect(try await !scripted.client.isUserAuthenticated)
            try await scripted.adoptExpired()
            #expect(try await scripted.client.isUserAuthenticated)
            try await scripted.client.removeLocalAccount()
            #expect(try await !scripted.client.isUserAuthenticated)
        }
    }

    // D02 D03 D04 D05
    @Test func `stored tokens are returned as they are, and without a request`() async throws {
        try await ScriptedClient.run { scripted async throws in
            await #expect(throws: OAuthClientError.missingTokenContainer) {
                try await scripted.client.getTokens(policy: .local)
            }
            #expect(try await scripted.client.currentTokenContainer() == nil)
            let stored = try await scripted.adoptExpired()
            let found = try await scripted.client.getTokens(policy: .local)
            #expect(found == stored)
            #expect(found.decodedAccessToken == stored.decodedAccessToken)
            #expect(found.decodedAccessToken.isExpired(at: scripted.clock.date))
            #expect(try await scripted.client.currentTokenContainer() == stored)
            #expect(scripted.transport.requests.isEmpty)
        }
    }

    // D06 D16
    @Test(arguments: [AuthTokensCachePolicy.localValid, .createIfNeeded])
    func `valid tokens are returned without a request`(policy: AuthTokensCachePolicy) async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adopt()
            #expect(try await scripted.client.getTokens(policy: policy) == stored)
            #expect(scripted.transport.requests.isEmpty)
        }
    }

    // D03
    @Test(arguments: [AuthTokensCachePolicy.localValid, .localForceRefresh])
    func `without stored tokens there is no request`(policy: AuthTokensCachePolicy) async throws {
        try await ScriptedClient.run { scripted async throws in
            await #expect(throws: OAuthClientError.missingTokenContainer) {
                try await scripted.client.getTokens(policy: policy)
            }
        }
    }

    // D07 D20
    @Test func `expired tokens are refreshed and stored, and nine events tell of it`() async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adopt(.accessTokenExpiresSoon)
            scripted.clock.advance(by: .seconds(30))
            var events = scripted.client.refreshEvents.makeAsyncIterator()
            let granted = scripted.tokens.container()
            scripted.transport.enqueue(.tokens(granted))
            #expect(try await scripted.client.getTokens(policy: .localValid) == granted)
            #expect(try await scripted.client.currentTokenContainer() == granted)
            #expect(scripted.grants == ["refresh_token"])
            #expect(scripted.transport.requests[0].parameter("refresh_token") == stored.refreshToken)
            let first = try #require(await events.next())
            let id = first.refreshID
            #expect(UUID(uuidString: id) != nil)
            #expect(first == .tokenRefreshStarted(refreshID: id))
            for expected in [
                OAuthClientRefreshEvent.tokenRefreshRefreshingAccessToken(refreshID: id),
                .tokenRefreshRefreshedAccessToken(refreshID: id), .tokenRefreshFetchingJWKS(refreshID: id),
                .tokenRefreshFetchedJWKS(refreshID: id), .tokenRefreshVerifyingAccessToken(refreshID: id),
                .tokenRefreshVerifyingRefreshToken(refreshID: id), .tokenRefreshSavingTokens(refreshID: id),
                .tokenRefreshSucceeded(refreshID: id),
            ] {
                #expect(await events.next() == expected)
            }
        }
    }

    // D08
    @Test(arguments: [(24, false), (25, false), (26, true), (45, true)])
    func `tokens that expire within the buffer are refreshed`(buffer: Int, refreshes: Bool) async throws {
        try await ScriptedClient.run {
            $0.tokenExpiryBufferInterval = .seconds(buffer)
        } _: { scripted async throws in
            #expect(scripted.client.tokenExpiryBufferInterval == .seconds(buffer))
            let stored = try await scripted.adopt(.accessTokenExpiresSoon)
            let granted = scripted.tokens.container()
            if refreshes { scripted.transport.enqueue(.tokens(granted)) }
            #expect(try await scripted.client.getTokens(policy: .localValid) == (refreshes ? granted : stored))
        }
    }

    @Test(arguments: [-1, 86_401])
    func `a buffer out of its range is an illegal argument`(buffer: Int) async throws {
        try await ScriptedClient.run {
            $0.tokenExpiryBufferInterval = .seconds(buffer)
        } _: { scripted async throws in
            let error = await #expect(throws: OAuthClientError.self) {
                try await scripted.client.getTokens(policy: .local)
            }
            guard case .serviceError(let error)? = error else { return #expect(Bool(false), "\(error as Any)") }
            #expect(error.code == .illegalArgument)
        }
    }

    // D09
    @Test func `a provider that fails is a service error, and the last event tells of it`() async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adoptExpired()
            var events = scripted.client.refreshEvents.makeAsyncIterator()
            // A provider that asks for such a pause is not asked again.
            scripted.transport.enqueue(.status(504, fields: [("Retry-After", "60")]))
            let error = await #expect(throws: OAuthClientError.self) {
                try await scripted.client.getTokens(policy: .localValid)
            }
            guard case .serviceError(let service)? = error else { return #expect(Bool(false), "\(error as Any)") }
            #expect(service.code == .retryableError && service.retryAfter == .seconds(60))
            #expect(error?.number == 11200)
            #expect(try await scripted.client.currentTokenContainer() == stored)
            var last: OAuthClientRefreshEvent?
            repeat { last = await events.next() } while last.map { !$0.isEnd } ?? false
            guard case .tokenRefreshFailed(_, .serviceError(let reported))? = last else {
                return #expect(Bool(false), "\(last as Any)")
            }
            #expect(reported.code == .retryableError)
        }
    }

    // D10
    @Test func `a refused refresh token ends the session, which later calls do not find`() async throws {
        try await ScriptedClient.run { scripted async throws in
            try await scripted.adoptExpired()
            scripted.transport.enqueue(.refusal("invalid_grant"))
            let error = await #expect(throws: OAuthClientError.self) {
                try await scripted.client.getTokens(policy: .localValid)
            }
            guard case .invalidTokenRequest(nil, let underlying)? = error else {
                return #expect(Bool(false), "\(error as Any)")
            }
            #expect(underlying.code == .invalidTokenRequest)
            #expect(error?.number == 11003)
            for policy in AuthTokensCachePolicy.allCases {
                await #expect(throws: OAuthClientError.missingTokenContainer) {
                    try await scripted.client.getTokens(policy: policy)
                }
            }
        }
    }

    // D11
    @Test func `a forced refresh without tokens is two events`() async throws {
        try await ScriptedClient.run { scripted async throws in
            var events = scripted.client.refreshEvents.makeAsyncIterator()
            await #expect(throws: OAuthClientError.missingTokenContainer) {
                try await scripted.client.getTokens(policy: .localForceRefresh)
            }
            let first = try #require(await events.next())
            #expect(first == .tokenRefreshStarted(refreshID: first.refreshID))
            #expect(
                await events.next() == .tokenRefreshFailed(refreshID: first.refreshID, error: .missingTokenContainer))
        }
    }

    // D12
    @Test func `a forced refresh replaces valid tokens`() async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adopt()
            let granted = scripted.tokens.container()
            scripted.transport.enqueue(.tokens(granted))
            #expect(try await scripted.client.getTokens(policy: .localForceRefresh) == granted)
            #expect(granted != stored)
            #expect(try await scripted.client.currentTokenContainer() == granted)
        }
    }

    // D13
    @Test func `a forced refresh that fails leaves the tokens`() async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adopt()
            scripted.transport.enqueue(.status(503, fields: [("Retry-After", "60")]))
            await #expect(throws: OAuthClientError.self) {
                try await scripted.client.getTokens(policy: .localForceRefresh)
            }
            #expect(try await scripted.client.currentTokenContainer() == stored)
            #expect(try await scripted.client.getTokens(policy: .localValid) == stored)
        }
    }

    // D15: expired tokens, so that a call that comes late finds the new ones.
    @Test func `five calls at once make one request`() async throws {
        try await ScriptedClient.run { scripted async throws in
            try await scripted.adoptExpired()
            let granted = scripted.tokens.container()
            scripted.transport.enqueue(.tokens(granted))
            let client = scripted.client
            let found = try await withThrowingTaskGroup(of: TokenContainer.self) { group in
                for _ in 0..<5 { group.addTask { try await client.getTokens(policy: .localValid) } }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(found == [TokenContainer](repeating: granted, count: 5))
            #expect(scripted.grants == ["refresh_token"])
        }
    }

    // D21 D22 D23
    @Test func `tokens that are not believed are neither adopted nor decoded`() async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adopt()
            let tokens = scripted.tokens
            for refused in [
                tokens.container(.accessTokenExpired), tokens.container(.refreshTokenExpired),
                tokens.container(scope: "other"), tokens.container(refreshScope: "other"),
                TokenContainerFactory(issuer: ScriptedClient.issuer, now: tokens.now).container(),
            ] {
                let adopted = await #expect(throws: OAuthClientError.self) {
                    try await scripted.client.adopt(tokenContainer: refused)
                }
                let decoded = await #expect(throws: OAuthClientError.self) {
                    try await scripted.client.decode(
                        accessToken: refused.accessToken, refreshToken: refused.refreshToken, refreshID: nil)
                }
                for (error, code) in [(adopted, AuthError.Code.illegalArgument), (decoded, .tokenResponseError)] {
                    guard case .serviceError(let error)? = error else { return #expect(Bool(false), "\(error as Any)") }
                    #expect(error.code == code)
                }
            }
            #expect(try await scripted.client.currentTokenContainer() == stored)
            let other = tokens.container()
            let decoded = try await scripted.client.decode(
                accessToken: other.accessToken, refreshToken: other.refreshToken, refreshID: nil)
            #expect(decoded == other && decoded.decodedRefreshToken == other.decodedRefreshToken)
            #expect(try await scripted.client.currentTokenContainer() == stored)
        }
    }

    // D20
    @Test func `decoding with an identifier is told in four events`() async throws {
        try await ScriptedClient.run { scripted async throws in
            var events = scripted.client.refreshEvents.makeAsyncIterator()
            let tokens = scripted.tokens.container()
            for id in [nil, "r-1"] {
                _ = try await scripted.client.decode(
                    accessToken: tokens.accessToken, refreshToken: tokens.refreshToken, refreshID: id)
            }
            for expected in [
                OAuthClientRefreshEvent.tokenRefreshFetchingJWKS(refreshID: "r-1"),
                .tokenRefreshFetchedJWKS(refreshID: "r-1"), .tokenRefreshVerifyingAccessToken(refreshID: "r-1"),
                .tokenRefreshVerifyingRefreshToken(refreshID: "r-1"),
            ] {
                #expect(await events.next() == expected)
            }
        }
    }

    @Test func `tokens are granted and kept back while the provider's keys do not answer`() async throws {
        try await ScriptedClient.run { scripted async throws in
            try await scripted.adoptExpired()
            scripted.transport.answer(at: ScriptedClient.keys, with: .connectionRefused)
            let other = TokenContainerFactory(issuer: ScriptedClient.issuer, now: scripted.clock.date)
            let granted = other.container()
            scripted.transport.enqueue(.tokens(granted))
            let error = await #expect(throws: OAuthClientError.self) {
                try await scripted.client.getTokens(policy: .localValid)
            }
            guard case .serviceError(let service)? = error else { return #expect(Bool(false), "\(error as Any)") }
            #expect([.networkError, .tokenResponseError].contains(service.code))
            #expect(try await scripted.client.currentTokenContainer() != granted)
        }
    }

    @Test func `a logout removes the tokens and ends the session at the provider`() async throws {
        try await ScriptedClient.run { scripted async throws in
            let stored = try await scripted.adopt()
            scripted.transport.enqueue(.ok)
            try await scripted.client.logout()
            #expect(try await scripted.client.currentTokenContainer() == nil)
            #expect(scripted.transport.requests.map(\.url) == [ScriptedClient.issuer + "/revoke"])
            #expect(scripted.transport.requests[0].parameter("token") == stored.refreshToken)
            // Nothing is stored any more.
            try await scripted.client.logout()
            #expect(scripted.transport.requests.count == 1)
        }
    }

    @Test func `a logout is in effect although the provider does not answer`() async throws {
        try await ScriptedClient.run { scripted async throws in
            try await scripted.adopt()
            scripted.transport.enqueue(.connectionRefused)
            try await scripted.client.logout()
            #expect(try await !scripted.client.isUserAuthenticated)
        }
    }

    @Test func `the removal of the local account asks the provider for nothing`() async throws {
        try await ScriptedClient.run { scripted async throws in
            try await scripted.adopt()
            try await scripted.client.setCurrentTokenContainer(nil)
            #expect(try await !scripted.client.isUserAuthenticated)
            let other = scripted.tokens.container()
            try await scripted.client.setCurrentTokenContainer(other)
            #expect(try await scripted.client.currentTokenContainer() == other)
            try await scripted.client.removeLocalAccount()
            #expect(try await scripted.client.currentTokenContainer() == nil)
            #expect(scripted.transport.requests.isEmpty)
        }
    }

    // D19
    @Test func `an error at the code exchange of a login keeps the provider's name for it`() async throws {
        try await ScriptedClient.run { scripted async throws in
            for (answer, name) in [
                (ScriptedAnswer.tokens(scripted.tokens.container()), nil), (.refusal("invalid_grant"), "invalid_grant"),
                (.refusal("invalid_token_request", number: 4), "invalid_token_request"),
            ] {
                let login = try await scripted.auth.initializeLogin(redirectURI: URL(string: "my-app:/callback")!)
                let state = try #require(try Self.query(login).last { $0.name == "state" }?.value)
                scripted.transport.enqueue(answer)
                do throws(AuthError) {
                    try await scripted.auth.finalizeLogin(loginResponseQuery: "code=c-1&state=\(state)")
                    #expect(name == nil)
                } catch {
                    #expect(error.code == .unexpectedError && error.providerErrorCode == name)
                }
            }
            #expect(try await scripted.client.isUserAuthenticated)
        }
    }

    // D30
    @Test func `the order and the encoding of a login's parameters are kept`() async throws {
        try await ScriptedClient.run {
            $0.scopes = ["a", "b+c"]
        } _: { scripted async throws in
            let login = try await scripted.auth.initializeLogin(
                redirectURI: URL(string: "my-app:/callback?x=1%202")!,
                loginConfig: LoginConfig(email: "ada+1@example.com"))
            let query = try Self.query(login)
            #expect(
                query.map(\.name) == [
                    "response_type", "redirect_uri", "client_id", "scope", "code_challenge_method", "code_challenge",
                    "state", "login_hint",
                ])
            #expect(query.first { $0.name == "redirect_uri" }?.value == "my-app:/callback?x=1%202")
            #expect(query.last?.value == "ada+1@example.com")
        }
    }

    private static func query(_ url: URL) throws -> [(name: String, value: String)] {
        let query = try #require(WireText(url.absoluteString).split(at: "?", limit: 2).last)
        return try FormEncoding.decode(query).map { ($0.name.text, $0.value.text) }
    }

    // D29
    @Test func `a complaint of an API without a token causes no request`() async throws {
        try await ScriptedClient.run { scripted async throws in
            #expect(try await scripted.auth.getCredentials(apiErrorSubStatus: "11003").level == .basic)
            #expect(scripted.transport.requests.isEmpty)
        }
    }

    @Test(arguments: [
        (OAuthClientError.internalError("no JWT"), 11000, "internalError: no JWT"),
        (.missingTokenContainer, 11001, "missingTokenContainer: No tokens are stored."),
        (.unauthenticated, 11002, "unauthenticated: The user must log in again."),
        (
            .invalidTokenRequest(status: .reused, underlying: AuthError(.invalidTokenRequest, message: "x")), 11003,
            "invalidTokenRequest: The provider does not accept the refresh token any more (reused)."
        ),
        (.unknownAccount, 11005, "unknownAccount: The provider does not know the account."),
        (.serviceError(AuthError(.networkError, message: "No route.")), 11200, "networkError: No route."),
    ])
    func `an error has a number and says what happened`(error: OAuthClientError, number: Int, text: String) {
        #expect(error.number == number)
        #expect("\(error)" == text)
    }
}

extension OAuthClientRefreshEvent {
    fileprivate var isEnd: Bool {
        switch self {
        case .tokenRefreshSucceeded, .tokenRefreshFailed: true
        default: false
        }
    }
}
