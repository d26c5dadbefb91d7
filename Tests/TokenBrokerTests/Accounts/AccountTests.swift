import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Accounts of DuckDuckGo` {
    /// A broker with an account that was just created.
    private static func account() async throws -> (broker: BrokerHarness, provider: DevelopmentProvider, token: String)
    {
        let (broker, provider) = try await BrokerHarness.accounts()
        let token = try #require(await broker.get("policy=create_if_needed").token)
        return (broker, provider, token)
    }

    private static func refuse(_ provider: DevelopmentProvider, _ body: String) {
        provider.script(Fault(.token, status: .badRequest, body: Array(body.utf8)))
    }

    private static func steps(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.events().map(\.kind.rawValue).filter { $0.hasPrefix("refresh.") }
    }

    // MARK: Refreshing

    /// What is left of the token in milliseconds, whether the caller waits for a refresh, and whether there is one.
    // D06 D08
    @Test(arguments: [(45_001, false, false), (45_000, false, true), (44_999, true, true), (0, true, true)])
    func `a token is refreshed when less than 45 seconds are left`(
        left: Int, waits: Bool, isRefreshed: Bool
    ) async throws {
        let (broker, provider, token) = try await Self.account()
        broker.time.advance(by: .seconds(14_400) - .milliseconds(left))
        let answer = await broker.get()
        #expect((answer.token != token) == waits)
        await broker.broker.core.renewer.finish()
        #expect((await broker.get("policy=local").token != token) == isRefreshed)
        #expect(provider.counters.requests(.refreshToken) == (isRefreshed ? 1 : 0))
    }

    // D07 D12 D20 K33
    @Test(arguments: ["", "policy=local_force_refresh"])
    func `a refresh is a query, is stored as a whole, and its steps are told in order`(query: String) async throws {
        let (broker, provider, token) = try await Self.account()
        if query.isEmpty { broker.time.advance(by: .seconds(14_400)) }
        let answer = await broker.get(query)
        #expect(answer.status == 200 && answer.token != token)
        func refreshes() -> [ScriptedTransport.Seen] {
            broker.transport.seen.filter { $0.url.contains("grant_type=refresh_token") }
        }
        let request = try #require(refreshes().last)
        #expect(request.method == .get && request.timeLimit == .seconds(20))
        #expect(request.url.contains("/api/auth/v2/token?grant_type=refresh_token&client_id=app&refresh_token="))
        let used = BrokerHarness.parameters(of: request.url)["refresh_token"]
        _ = await broker.get("policy=local_force_refresh")
        let next = BrokerHarness.parameters(of: refreshes().last?.url ?? "")["refresh_token"]
        #expect(next != nil && next != used)
        #expect(provider.counters.requests(.refreshToken) == 2)
        // Whether the keys are in memory, or have to be fetched anew after four hours.
        let steps = [
            "refresh.started", "refresh.refreshing_access_token", "refresh.refreshed_access_token",
            "refresh.fetching_jwks", "refresh.fetched_jwks", "refresh.verifying_access_token",
            "refresh.verifying_refresh_token", "refresh.saving_tokens", "refresh.succeeded",
        ]
        #expect(try await Self.steps(broker) == steps + steps)
        let told = try await broker.events().filter { $0.kind.rawValue.hasPrefix("refresh.") }
        #expect(Set(told.prefix(steps.count).map { $0.data["refresh_id"]?.text }).count == 1)
        #expect(Set(told.map { $0.data["refresh_id"]?.text }).count == 2)
    }

    // D09 D13
    @Test(arguments: ["", "policy=local_force_refresh"])
    func `a provider that does not answer leaves the tokens as they are`(query: String) async throws {
        let (broker, provider, token) = try await Self.account()
        if query.isEmpty { broker.time.advance(by: .seconds(14_400)) }
        provider.script(Fault(.token, times: 6, status: Status(504)))
        #expect(await broker.get(query).code == "retryable_error")
        #expect(await broker.get("policy=local").token == token)
        #expect(
            try await Self.steps(broker) == ["refresh.started", "refresh.refreshing_access_token", "refresh.failed"])
    }

    // D10 D14
    @Test(
        arguments: [
            (#"{"error": "invalid_token_request", "error_code": 0}"#, "invalid_token_request", "invalid"),
            (#"{"error": "invalid_token_request", "error_code": 1}"#, "invalid_token_request", "expired"),
            (#"{"error": "invalid_token_request", "error_code": 2}"#, "invalid_token_request", "reused"),
            (#"{"error": "invalid_token_request", "error_code": 3}"#, "invalid_token_request", "logged_out"),
            (#"{"error": "invalid_token_request", "error_code": 4}"#, "invalid_token_request", "fraud_detected"),
            (#"{"error": "invalid_token_request", "error_code": 5}"#, "invalid_token_request", "invalid_token_request"),
            (#"{"error": "invalid_token_request"}"#, "invalid_token_request", "invalid_token_request"),
            (#"{"error": "unknown_account"}"#, "unknown_account", "unknown_account"),
        ], ["", "policy=local_force_refresh"])
    func `a refresh token that is refused ends the session by name, and is put aside`(
        answer: (body: String, code: String, errorCode: String), query: String
    ) async throws {
        let (broker, provider, token) = try await Self.account()
        if query.isEmpty { broker.time.advance(by: .seconds(14_400)) }
        Self.refuse(provider, answer.body)
        let refused = await broker.get(query)
        #expect((refused.status, refused.code) == (424, answer.code))
        #expect(refused.json["error_code"]?.text == answer.errorCode)
        #expect(try await broker.quarantined()?.credentials.accessToken == SecretBytes(utf8: token))
        for query in ["", "policy=local", "policy=local_force_refresh", "level=user"] {
            let later = await broker.get(query)
            #expect((later.status, later.code) == (404, "missing_token_container"))
        }
        let last = try #require(try await broker.events().last)
        #expect(last.kind == .refreshFailed)
        #expect(last.data["error"]?.text == answer.code)
        #expect(last.data["error_code"]?.text == answer.errorCode)
        #expect(await broker.restore().status == 200)
        #expect(await broker.get("policy=local").token == token)
    }

    @Test func `an early refresh that ends the session is not served from`() async throws {
        let (broker, provider, token) = try await Self.account()
        broker.time.advance(by: .seconds(14_400) - .milliseconds(44_999))
        Self.refuse(provider, #"{"error": "invalid_token_request", "error_code": 2}"#)
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "invalid_token_request"))
        #expect(!answer.text.contains(token))
    }

    @Test(arguments: ["invalid_client", "invalid_grant", "suspended_account"])
    func `another refusal keeps the session`(error: String) async throws {
        let (broker, provider, token) = try await Self.account()
        broker.time.advance(by: .seconds(14_400))
        Self.refuse(provider, #"{"error": "\#(error)"}"#)
        #expect([424, 502].contains(await broker.get().status))
        #expect(await broker.get("policy=local").token == token)
        #expect(try await broker.quarantined() == nil)
    }

    // D15
    @Test func `five callers that force a refresh get one`() async throws {
        let (broker, provider, token) = try await Self.account()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, provider.step))
        let tokens = await withTaskGroup(of: String?.self) { tasks in
            tasks.addTask { await broker.get("policy=local_force_refresh").token }
            await gate.arrivals()
            let callers = (0..<4).map { _ in Task.immediate { await broker.get("policy=local_force_refresh").token } }
            gate.open()
            for caller in callers { tasks.addTask { await caller.value } }
            return await tasks.reduce(into: Set<String?>()) { $0.insert($1) }
        }
        #expect(tokens.count == 1 && tokens.first != .some(nil) && tokens.first != .some(token))
        #expect(provider.counters.requests(.refreshToken) == 1)
    }

    @Test func `a forced refresh without a refresh token finds nothing to refresh`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        let session = try #require(provider.openSessions(users: ["ada"], clientID: "app")?.first)
        await broker.set(session.accessToken, clientID: "app")
        let answer = await broker.get("policy=local_force_refresh")
        #expect((answer.status, answer.code) == (404, "missing_token_container"))
        #expect(await broker.get("policy=local").token == session.accessToken)
    }

    /// `exp` of the token, `expires_in` of the answer, and the lifetime that counts.
    @Test(arguments: [(14_400, 240, 14_400), (240, 14_400, 240)])
    func `the token's own expiry counts before the lifetime in the answer`(
        expiry: Int, named: Int, counted: Int
    ) async throws {
        let (broker, _, _) = try await Self.account()
        let keys = SigningProvider()
        broker.transport.standing(
            at: BrokerHarness.accountBase + "/api/auth/v2/.well-known/jwks.json", .json(200, keys.keySet))
        func signed(_ audience: String, _ scope: String) -> String {
            let (now, base) = (broker.time.now.seconds, BrokerHarness.accountBase)
            return keys.token(
                #"{"iss": "\#(base)", "aud": "\#(audience)", "scope": "\#(scope)", "exp": \#(now + Int64(expiry))}"#)
        }
        let token = signed("PrivacyPro", "privacypro")
        // A replica that knows no other keys yet.
        let replica = try await BrokerHarness(store: broker.store, transport: broker.transport, time: broker.time)
        replica.transport.enqueue(
            .json(200, BrokerHarness.token(token, refresh: signed("Auth", "refresh"), expiresIn: named)))
        let answer = await replica.get("policy=local_force_refresh")
        #expect(answer.token == token)
        #expect(answer.json["expires_in"] == .integer(Int64(counted)))
    }

    /// What is added to the user's `sub` in the refresh token; with nil it has no `sub`.
    @Test(arguments: [("", true), ("2", false), (nil, false)])
    func `a refresh token of another user is not believed`(suffix: String?, isBelieved: Bool) async throws {
        let (broker, _, _) = try await Self.account()
        let user = try #require(await broker.get().json["user_id"]?.text)
        let keys = SigningProvider()
        broker.transport.standing(
            at: BrokerHarness.accountBase + "/api/auth/v2/.well-known/jwks.json", .json(200, keys.keySet))
        func signed(_ audience: String, _ scope: String, of subject: String?) -> String {
            let (now, base) = (broker.time.now.seconds, BrokerHarness.accountBase)
            let name = subject.map { #""sub": "\#($0)", "# } ?? ""
            return keys.token(
                #"{\#(name)"iss": "\#(base)", "aud": "\#(audience)", "scope": "\#(scope)", "exp": \#(now + 14_400)}"#)
        }
        // A replica that knows no other keys yet.
        let replica = try await BrokerHarness(store: broker.store, transport: broker.transport, time: broker.time)
        let token = signed("PrivacyPro", "privacypro", of: user)
        replica.transport.enqueue(
            .json(200, BrokerHarness.token(token, refresh: signed("Auth", "refresh", of: suffix.map { user + $0 }))))
        let answer = await replica.get("policy=local_force_refresh")
        #expect((answer.token == token) == isBelieved)
        if !isBelieved { #expect((answer.status, answer.code) == (502, "token_response_error")) }
    }

    // MARK: Staging

    @Test func `the base URI leads to another environment, and a scope of the tenant's replaces the usual one`()
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "duckduckgo", "client_id": "app", "scopes": ["other"],
             "auth_service_base_uri": "https://staging.example/"}
            """#)
        _ = await broker.get("policy=create_if_needed")
        let url = try #require(broker.transport.seen.first?.url)
        #expect(url.hasPrefix("https://staging.example/api/auth/v2/authorize?response_type=code&"))
        #expect(url.hasSuffix("&scope=other"))
        await broker.makeTenant("t2", #"{"provider": "duckduckgo", "client_id": "app"}"#)
        let shown = await broker.call(.get, "/tenants/t2").json
        #expect(shown["scopes"] == .array([.string("privacypro")]))
        _ = await broker.get("policy=create_if_needed", tenant: "t2")
        #expect(
            broker.transport.seen.last?.url.hasPrefix("https://quack.duckduckgo.com/api/auth/v2/authorize?") == true)
    }

    // MARK: Activation

    @Test(arguments: ["", #""source": "google_play_store", "#])
    func `a platform's signature activates the account that it names`(member: String) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.setAccount("alice", to: .active)
        let answer = await broker.activate("alice", storageKey: "k", members: member)
        #expect(answer.status == 200)
        #expect(answer.json["storage_key"]?.text == "k")
        #expect(answer.json["level"]?.text == "user")
        #expect(answer.json["refreshable"] == .bool(true))
        #expect(answer.json["token"] == nil)
        let token = try #require(await broker.get("storage_key=k&policy=local").token)
        #expect(provider.introspect(accessToken: token) != nil)
        #expect(try await broker.causes() == ["login"])
        let login = broker.transport.seen[1]
        #expect(login.url == BrokerHarness.accountBase + "/api/auth/v2/login")
        #expect(login.fields["Content-Type"] == "application/json")
        let sent = try #require(provider.requests.first { $0.endpoint == .login })
        #expect(sent.contentType == "application/json")
    }

    @Test func `an activation takes the place of what is stored`() async throws {
        let (broker, provider, token) = try await Self.account()
        provider.setAccount("alice", to: .active)
        #expect(await broker.activate("alice").status == 200)
        #expect(await broker.get("policy=local").token != token)
        #expect(try await broker.causes() == ["login", "login"])
    }

    @Test(
        arguments: [
            (.suspended, 502, "unexpected_error", "suspended_account"),
            (.unverified, 502, "unexpected_error", "unverified_account"),
            (.removed, 424, "unknown_account", "unknown_account"),
        ] as [(AccountState, Int, String, String)])
    func `an account that is not active is told by the provider's name for that`(
        state: AccountState, status: Int, code: String, errorCode: String
    ) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.setAccount("alice", to: state)
        let answer = await broker.activate("alice")
        #expect((answer.status, answer.code) == (status, code))
        #expect(answer.json["error_code"]?.text == errorCode)
        #expect(!broker.log.contains { $0.contains("alice") })
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test(
        arguments: [
            (#"{}"#, "/platform_signature"), (#"{"platform_signature": ""}"#, "/platform_signature"),
            (#"{"platform_signature": 1}"#, "/platform_signature"),
            (#"{"platform_signature": "s", "source": ""}"#, "/source"),
            (#"{"platform_signature": "s", "source": "a b"}"#, "/source"),
            (#"{"platform_signature": "s", "signature": "s"}"#, "/signature"),
        ])
    func `an activation that is not well-formed is refused`(body: String, pointer: String) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        let answer = await broker.call(.post, "/credentials/activate", tenant: "t1", body: body)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [pointer])
        #expect(provider.requests.isEmpty)
    }

    @Test func `there is no login page to lead a browser to, and no device login`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        for path in ["/login/initialize", "/device"] {
            let answer = await broker.call(.post, path, tenant: "t1", body: "{}")
            #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        }
        #expect(provider.requests.isEmpty)
    }

    @Test func `the check of a tenant tries the token endpoint by a query`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        let answer = await broker.call(.post, "/tenants/t1/check")
        #expect(answer.status == 200)
        let request = try #require(provider.requests.last { $0.endpoint == .token })
        #expect(request.method == "GET" && request.error == "invalid_token_request")
        #expect(answer.text.contains("made-up code"))
        #expect(answer.text.contains("keys are at \(BrokerHarness.accountBase)/api/auth/v2/.well-known/jwks.json"))
    }

    @Test func `a provider without accounts activates none`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.activate("alice")
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `an activation needs the permission to write, for the key's own storage keys`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.setAccount("alice", to: .active)
        let body = #"{"storage_key": "k", "platform_signature": "alice"}"#
        for (permissions, keys, status) in [
            (#"["credentials:read"]"#, "", 403), (#"["login"]"#, "", 403),
            (#"["credentials:write"]"#, #", "storage_keys": ["other"]"#, 403), (#"["credentials:write"]"#, "", 200),
        ] {
            let key = await broker.makeKey("t1", #"{"name": "k", "permissions": \#(permissions)\#(keys)}"#)
            #expect(await broker.call(.post, "/credentials/activate", key: key, body: body).status == status)
        }
    }
}
