import BrokerCore
import BrokerTesting
import CredentialStore
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Testing
import TokenBroker

@Suite struct `Accounts that are created if needed` {
    private static let create = "policy=create_if_needed"

    private static func query(_ seen: ScriptedTransport.Seen) -> [String] {
        let query = seen.url.split(separator: "?", maxSplits: 1).dropFirst().first.map(String.init) ?? ""
        return (try? FormEncoding.decode(query))?.map(\.name.text) ?? []
    }

    // D01 D17
    @Test func `an account is authorized, created and given tokens, which are stored`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        #expect(await broker.status().isLoggedIn == false)
        let answer = await broker.get(Self.create)
        #expect((answer.status, answer.level) == (200, "user"))
        #expect(answer.json["granted_scopes"] == .array([.string("privacypro")]))
        #expect(provider.introspect(accessToken: answer.token ?? "") != nil)

        // Then the keys with which its tokens are verified.
        let seen = broker.transport.seen.dropLast()
        #expect(broker.transport.seen.last?.url.hasSuffix("/.well-known/jwks.json") == true)
        let paths = seen.map {
            "\($0.method) " + $0.url.prefix { $0 != "?" }.dropFirst(BrokerHarness.accountBase.count)
        }
        #expect(
            paths == [
                "GET /api/auth/v2/authorize", "POST /api/auth/v2/account/create", "GET /api/auth/v2/token",
            ])
        #expect(
            Self.query(seen[0]) == [
                "response_type", "code_challenge", "code_challenge_method", "client_id", "redirect_uri", "scope",
            ])
        #expect(Self.query(seen[2]) == ["grant_type", "client_id", "code_verifier", "code", "redirect_uri"])
        // The cookie goes to the request that it is for, and to no other.
        #expect(seen.map { $0.fields["Cookie"]?.starts(with: "ddg_auth_session_id=") } == [nil, true, nil])
        #expect(seen.map(\.timeLimit) == [.seconds(10), .seconds(10), .seconds(20)])
        #expect(seen[1].form.isEmpty)

        #expect(await broker.status().isLoggedIn == true)
        #expect(try await broker.causes() == ["login"])
        let events = try await broker.events()
        #expect(events.map(\.kind) == [.credentialsUpdated])
    }

    @Test(arguments: [true, false])
    func `an account without a refresh token is refused, and nothing is stored`(isCreated: Bool) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.setAccount("alice", to: .active)
        broker.transport.always(
            .forward { (request) async throws(TransportError) in
                let response = try await provider.answer(to: request)
                guard request.url.description.contains("/token"),
                    case .object(var members)? = try? JSONValue(parsing: response.body)
                else { return response }
                members["refresh_token"] = nil
                var json = JSONWriter()
                json.value(.object(members))
                return ClientResponse(status: response.status, fields: response.fields, body: json.bytes)
            })
        let answer = isCreated ? await broker.get(Self.create) : await broker.activate("alice")
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(answer.json["detail"]?.text?.contains("without a refresh token") == true)
        #expect(await broker.status().isLoggedIn == false)
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(try await broker.events().isEmpty)
    }

    // D02 D04 D16
    @Test func `what is stored is given without a call`() async throws {
        let (broker, _) = try await BrokerHarness.accounts()
        let token = await broker.get(Self.create).token
        let calls = broker.transport.seen.count
        for query in [Self.create, "", "policy=local", "policy=local_valid"] {
            #expect(await broker.get(query).token == token)
        }
        #expect(broker.transport.seen.count == calls)
    }

    // D03 D11
    @Test(arguments: ["", "level=user", "policy=local", "policy=local_valid", "policy=local_force_refresh"])
    func `without an account every other policy finds nothing`(query: String) async throws {
        let (broker, _) = try await BrokerHarness.accounts()
        let answer = await broker.get(query)
        #expect((answer.status, answer.code) == (404, "missing_token_container"))
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.events().isEmpty)
    }

    // D05
    @Test func `an expired token is given as it is to a caller that asks for that`() async throws {
        let (broker, _) = try await BrokerHarness.accounts()
        let token = await broker.get(Self.create).token
        broker.time.advance(by: .seconds(14_401))
        let answer = await broker.get("policy=local")
        #expect((answer.status, answer.token) == (200, token))
        #expect(answer.json["expires_in"] == .integer(0))
    }

    @Test func `a provider without accounts takes the policy for another name of the usual one`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.get(Self.create).level == "basic")
        #expect(broker.transport.seen.isEmpty)
    }

    /// The endpoint that fails, with what, and what the caller gets.
    // D18
    @Test(
        arguments: [
            (.authorize, 400, #"{"error": "authorize_failed"}"#, 502, "unexpected_error", "authorize_failed"),
            (.authorize, 400, #"{"error": "new_error"}"#, 502, "unexpected_error", "new_error"),
            (.authorize, 400, "<html>", 502, "unexpected_error", nil),
            (.authorize, 500, #"{"error": "authorize_failed"}"#, 503, "retryable_error", "authorize_failed"),
            (.authorize, 429, "", 503, "retryable_error", nil), (.authorize, 200, "", 502, "token_response_error", nil),
            (.authorize, 302, "", 502, "token_response_error", nil),
            (.authorize, 303, "", 502, "token_response_error", nil),
            (.createAccount, 400, #"{"error": "invalid_request"}"#, 502, "unexpected_error", "invalid_request"),
            (.createAccount, 400, #"{"error": "unknown_account"}"#, 424, "unknown_account", "unknown_account"),
            (
                .createAccount, 500, #"{"error": "account_create_failed"}"#, 503, "retryable_error",
                "account_create_failed"
            ),
            (.createAccount, 302, "", 502, "token_response_error", nil),
            (.createAccount, 200, "", 502, "token_response_error", nil),
        ] as [(Endpoint, Int, String, Int, String, String?)])
    func `a failure is told, and nothing is stored`(
        endpoint: Endpoint, status: Int, body: String, told: Int, code: String, errorCode: String?
    ) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.script(Fault(endpoint, status: Status(status), body: Array(body.utf8)))
        let answer = await broker.get(Self.create)
        #expect((answer.status, answer.code) == (told, code), "\(answer.text)")
        #expect(answer.json["error_code"]?.text == errorCode)
        #expect(provider.counters.requests(endpoint) == 1)
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(await broker.get(Self.create).status == 200)
    }

    /// The `Location` of the answer that should have the code.
    @Test(
        arguments: [
            "com.duckduckgo:/authcb", "com.duckduckgo:/authcb?", "com.duckduckgo:/authcb?code=",
            "com.duckduckgo:/authcb?state=x", "com.duckduckgo:/authcb?code=a&code=b", "com.duckduckgo:/authcb#code=a",
            "com.duckduckgo:/authcb?code=%00", "", "com.duckduckgo://other.example/authcb?code=a",
            "com.duckduckgo:/authcb2?code=a", "com.duckduckgo:/authc?code=a", "https://other.example/authcb?code=a",
            "/authcb?code=a", "?code=a",
        ])
    func `a redirect without one code for the redirect URI is an answer without tokens`(location: String) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.script(Fault(.createAccount, status: .found, fields: ["Location": location]))
        let answer = await broker.get(Self.create)
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(provider.counters.requests(.token) == 0)
    }

    @Test(
        arguments: [
            "other=1", "ddg_auth_session_id", "ddg_auth_session_id=", "ddg_auth_session_id=; Path=/",
            "Ddg_auth_session_id=1", "ddg_auth_session_id2=1", #"ddg_auth_session_id=a"b"#,
        ])
    func `an authorization without the session cookie goes no further`(cookie: String) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.script(Fault(.authorize, status: .found, fields: ["Set-Cookie": cookie]))
        let answer = await broker.get(Self.create)
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(provider.counters.requests(.createAccount) == 0)
    }

    // D19
    @Test(arguments: [("invalid_token_request", 502, "unexpected_error"), ("unknown_account", 424, "unknown_account")])
    func `a code that is refused is told by the provider's own error`(
        error: String, status: Int, code: String
    ) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        let body = #"{"error": "\#(error)", "error_code": 4}"#
        provider.script(Fault(.token, status: .badRequest, body: Array(body.utf8)))
        let answer = await broker.get(Self.create)
        #expect((answer.status, answer.code) == (status, code))
        #expect(provider.counters.requests(.token) == 1)
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `an account whose creation has no answer is not created again by itself`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.script(Fault(.createAccount, mode: .dropAfterWork))
        #expect(await broker.get(Self.create).code == "network_error")
        #expect(provider.counters.requests(.createAccount) == 1)
    }

    @Test func `the exchange of the code is repeated where the provider fails`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.script(Fault(.token, times: 3, status: .internalServerError))
        #expect(await broker.get(Self.create).status == 200)
        #expect(provider.counters.requests(.createAccount) == 1)
        #expect(provider.counters.requests(.token) == 4)
    }

    @Test func `the cookie stays at the host that has set it`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts(
            tenant: BrokerHarness.accountTenant(
                #""endpoints": {"account_creation": "https://other.example/create"}, "#))
        let answer = await broker.get(Self.create)
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(provider.requests.isEmpty)
    }

    @Test func `no secret of the requests is in an error, an event or the log`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        provider.script(Fault(.token, status: .badRequest, body: Array(#"{"error": "invalid_token_request"}"#.utf8)))
        let refused = await broker.get(Self.create)
        let granted = await broker.get(Self.create)
        broker.time.advance(by: .seconds(14_400))
        provider.script(Fault(.token, times: 1, mode: .dropBeforeWork))
        #expect(await broker.get().status == 200)
        let texts = broker.log + [refused.text] + (try await broker.events().map { "\($0.data)" })
        let secrets = broker.transport.seen.flatMap { seen -> [String] in
            let pairs = BrokerHarness.parameters(of: seen.url)
            return ["code", "code_verifier", "refresh_token"].compactMap { pairs[$0] }
                + [seen.fields["Cookie"]?.text].compactMap(\.self)
        }
        #expect(secrets.count >= 7)
        for secret in secrets + [granted.token ?? "?"] {
            #expect(!texts.contains { $0.contains(secret) })
        }
    }

    // MARK: Once

    @Test func `fifty callers of three replicas get one account`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let provider = BrokerHarness.accountProvider(time)
        let base = MemoryRecordStore { time.monotonic }
        let group = ReplicaStore.Group()
        let gate = Gate()
        var brokers: [BrokerHarness] = []
        for _ in 0..<3 {
            let store = ReplicaStore(base, in: group)
            let broker = try await BrokerHarness.accounts(store: store, time: time, provider: provider).broker
            store.follow()
            broker.transport.always(
                .decide { $0.url.contains("/account/create") ? .after(gate, provider.step) : provider.step })
            brokers.append(broker)
        }
        let all = brokers
        let tokens = await withTaskGroup(of: String?.self) { tasks in
            for caller in 0..<50 { tasks.addTask { await all[caller % 3].get(Self.create).token } }
            await gate.arrivals()
            gate.open()
            return await tasks.reduce(into: Set<String?>()) { $0.insert($1) }
        }
        #expect(tokens.count == 1 && tokens.first != .some(nil))
        #expect(provider.counters.requests(.createAccount) == 1)
    }

    @Test func `a replica that dies while it creates the account leaves that to another`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let provider = BrokerHarness.accountProvider(time)
        let base = MemoryRecordStore { time.monotonic }
        let group = ReplicaStore.Group()
        let stores = (0..<2).map { _ in BrokerFaultyStore(ReplicaStore(base, in: group), revalidateAfter: .seconds(5)) }
        let dying = try await BrokerHarness.accounts(store: stores[0], time: time, provider: provider).broker
        let other = try await BrokerHarness.accounts(store: stores[1], time: time, provider: provider).broker
        let gate = Gate()
        dying.transport.enqueue(.after(gate, .failure(.cancelled)))
        async let lost = dying.get(Self.create)
        await gate.arrivals()
        // The first replica's statements do not arrive any more, so that its lease runs out.
        stores[0].isAway = true
        async let saved = other.get(Self.create)
        await time.sleepers(of: .seconds(1))
        time.advance(by: .seconds(23))
        #expect(await saved.status == 200)
        #expect(provider.counters.requests(.createAccount) == 1)
        gate.open()
        time.advance(by: .seconds(60))
        _ = await lost
    }

    @Test func `what is stored and cannot be refreshed is no reason to create an account`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        _ = await broker.get(Self.create)
        broker.time.advance(by: .seconds(14_400))
        for status in [Status.internalServerError, Status(504)] {
            provider.script(Fault(.token, times: 6, status: status))
            #expect(await broker.get(Self.create).code == "retryable_error")
        }
        #expect(provider.counters.requests(.createAccount) == 1)
        // The session has ended, which this call finds out; a later one gets a new account.
        provider.script(
            Fault(.token, status: .badRequest, body: Array(#"{"error":"invalid_token_request","error_code":3}"#.utf8)))
        let refused = await broker.get(Self.create)
        #expect((refused.status, refused.code) == (424, "invalid_token_request"))
        #expect(refused.json["error_code"]?.text == "logged_out")
        #expect(provider.counters.requests(.createAccount) == 1)
        #expect(await broker.get(Self.create).status == 200)
        #expect(provider.counters.requests(.createAccount) == 2)
    }

    @Test func `an expired set without a refresh token ends in nothing, and a later call creates an account`()
        async throws
    {
        let (broker, provider) = try await BrokerHarness.accounts()
        let session = try #require(provider.openSessions(users: ["ada"], clientID: "app")?.first)
        await broker.set(session.accessToken, clientID: "app")
        broker.time.advance(by: .seconds(14_401))
        #expect(await broker.get(Self.create).code == "missing_token_container")
        #expect(provider.counters.requests(.createAccount) == 0)
        #expect(await broker.get(Self.create).status == 200)
    }
}
