import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Providers without refresh tokens, whose access token is renewed by itself.
@Suite(.timeLimit(.minutes(1))) struct `A token that is refreshed by itself` {
    private static let day = 86_400
    private static let secret = "secret-of-c1"

    private static func tenant(_ provider: String, _ more: String = "") -> String {
        #"{"provider": "\#(provider)", "client_id": "c1", "client_secret": "\#(secret)"\#(more)}"#
    }

    /// A user of Instagram who has just logged in, whose token lives an hour.
    private static func loggedIn(_ store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant("instagram"))
        await broker.logIn(token: #"{"access_token": "short-token-1", "user_id": 17}"#)
        return broker
    }

    private static func long(_ token: String) -> ScriptedTransport.Step {
        .json(200, #"{"access_token": "\#(token)", "token_type": "bearer", "expires_in": \#(60 * day)}"#)
    }

    /// A user whose token lives 60 days.
    private static func lasting(_ store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await loggedIn(store)
        broker.transport.enqueue(long("long-token-1"))
        #expect(await broker.get().token == "long-token-1")
        return broker
    }

    private static func look(_ broker: BrokerHarness) async {
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
    }

    private static func mark(_ broker: BrokerHarness) async throws -> Timestamp? {
        try await broker.vault.read(RecordID(.credentials, try #require(TenantName("t1")), key: "default"))?.due
    }

    /// Moves the time past a mark: a mark is due once its time has passed.
    private static func pass(_ mark: Timestamp?, _ broker: BrokerHarness) {
        guard let mark else {
            Issue.record("there is no mark")
            return
        }
        broker.time.advance(by: max(.zero, broker.time.now.duration(to: mark)) + .milliseconds(1))
    }

    // MARK: The exchange

    // Q23 Q25
    @Test(
        arguments: [
            (
                "instagram",
                "https://graph.instagram.com/access_token?access_token=short-token-1&client_secret=secret-of-c1&grant_type=ig_exchange_token"
            ),
            (
                "threads",
                "https://graph.threads.com/access_token?access_token=short-token-1&client_secret=secret-of-c1&grant_type=th_exchange_token"
            ),
            (
                "facebook",
                "https://graph.facebook.com/v26.0/oauth/access_token?client_id=c1&client_secret=secret-of-c1&fb_exchange_token=short-token-1&grant_type=fb_exchange_token"
            ),
        ])
    func `is exchanged for one that lives longer before it is served`(provider: String, address: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(provider))
        await broker.logIn(token: #"{"access_token": "short-token-1", "user_id": 17}"#)
        broker.transport.enqueue(Self.long("long-token-1"))
        let answer = await broker.get("min_ttl=86400")
        #expect(answer.token == "long-token-1" && answer.json["expires_in"]?.integer == Int64(60 * Self.day))
        #expect(answer.json["degraded"] == nil, "\(answer.text)")
        let exchange = try #require(broker.transport.seen.last)
        #expect(exchange.method == .get && exchange.url == address && exchange.form.isEmpty)
        #expect(exchange.fields["Authorization"] == nil)
        #expect(broker.transport.seen.count == 2)
        #expect(await broker.get().token == "long-token-1")
        #expect(broker.transport.seen.count == 2, "the exchange is made once")
        let status = await broker.status()
        #expect(status.json["refreshable"]?.bool == true && status.json["logged_in"]?.bool == true)
        #expect(status.json["ends"]?["why"]?.text == "idle", "\(status.text)")
        for line in broker.log {
            #expect(!line.contains("-token-1") && !line.contains(Self.secret), "\(line)")
        }
    }

    @Test func `is served as it is while the exchange fails, and exchanged at a later read`() async throws {
        let broker = try await Self.loggedIn()
        broker.transport.always(.json(400, #"{"error": {"message": "m", "type": "OAuthException", "code": 1}}"#))
        let answer = await broker.get()
        #expect(answer.token == "short-token-1" && answer.json["degraded"] != nil, "\(answer.text)")
        broker.time.advance(by: .seconds(300))
        broker.transport.always(Self.long("long-token-1"))
        #expect(await broker.get().token == "long-token-1")
    }

    // Q25
    @Test func `is exchanged by another replica where the one of the login has died`() async throws {
        let store = MemoryRecordStore()
        let first = try await Self.loggedIn(store)
        #expect(try await Self.mark(first) == first.time.now, "the exchange is due at once")
        let second = try await BrokerHarness(store: store, time: first.time)
        second.transport.enqueue(Self.long("long-token-1"))
        Self.pass(try await Self.mark(first), second)
        await Self.look(second)
        #expect(second.transport.seen.map(\.method) == [.get])
        #expect(await second.get().token == "long-token-1")
        #expect(second.transport.seen.count == 1)
        #expect(first.transport.seen.count == 1, "that of the code")
    }

    // Q51
    @Test func `ends with its session where the provider says that it is dead`() async throws {
        let broker = try await Self.lasting()
        broker.time.advance(by: .seconds(61 * Self.day))
        broker.transport.always(
            .json(400, #"{"error": {"message": "expired", "type": "OAuthException", "code": 190}}"#))
        #expect(await broker.get().token == nil)
        #expect(await broker.status().isLoggedIn == false)
    }

    @Test func `of a further login is exchanged again`() async throws {
        let broker = try await Self.lasting()
        await broker.logIn(token: #"{"access_token": "short-token-2", "user_id": 17}"#)
        broker.transport.enqueue(Self.long("long-token-2"))
        #expect(await broker.get().token == "long-token-2")
        #expect(broker.transport.seen.last?.parameters.first { $0.name == "access_token" }?.value == "short-token-2")
    }

    // MARK: The refresh

    @Test(arguments: [(0, 86_400), (1, 86_399), (86_399, 1), (86_400, nil), (86_401, nil)] as [(Int, Int?)])
    func `is not refreshed before it is a day old`(age: Int, retryAfter: Int?) async throws {
        let broker = try await Self.lasting()
        broker.time.advance(by: .seconds(age))
        broker.transport.enqueue(Self.long("long-token-2"))
        let forced = await broker.get("policy=local_force_refresh")
        if let retryAfter {
            #expect((forced.status, forced.code) == (503, "retryable_error"), "\(forced.text)")
            #expect(forced.retryAfter == retryAfter, "\(forced.text)")
            #expect(broker.transport.seen.count == 2)
            #expect(await broker.get("min_ttl=86400").token == "long-token-1")
            return
        }
        #expect(forced.token == "long-token-2", "\(forced.text)")
        let refresh = try #require(broker.transport.seen.last)
        #expect(
            refresh.url
                == "https://graph.instagram.com/refresh_access_token?access_token=long-token-1&grant_type=ig_refresh_token"
        )
        #expect(refresh.method == .get)
    }

    // Q23
    @Test func `is refreshed a week before its end although no caller asks`() async throws {
        let broker = try await Self.lasting()
        let granted = broker.time.now
        let mark = try #require(try await Self.mark(broker))
        let days = granted.duration(to: mark)
        #expect(days >= .seconds(53 * Self.day) && days <= .seconds(53 * Self.day + 7 * Self.day / 5), "\(days)")
        broker.time.advance(by: days - .seconds(1))
        await Self.look(broker)
        #expect(broker.transport.seen.count == 2)
        Self.pass(mark, broker)
        broker.transport.enqueue(Self.long("long-token-2"))
        await Self.look(broker)
        #expect(broker.transport.seen.count == 3)
        #expect(await broker.get().token == "long-token-2")
        #expect(try await broker.events().allSatisfy { $0.kind != .credentialsExpiring })
        #expect(try #require(try await Self.mark(broker)) > broker.time.now.advanced(by: .seconds(50 * Self.day)))
    }

    @Test func `is tried again and again while the provider is away`() async throws {
        let broker = try await Self.lasting()
        broker.transport.always(.failure(.connectFailed))
        for _ in 0..<40 {
            Self.pass(try await Self.mark(broker), broker)
            if broker.time.now > ManualTime.beginning.advanced(by: .seconds(59 * Self.day)) { break }
            await Self.look(broker)
        }
        broker.transport.always(Self.long("long-token-2"))
        await Self.look(broker)
        #expect(await broker.get("min_ttl=0").token == "long-token-2")
    }

    // MARK: Tenants

    // Q23
    @Test func `is refreshed by a form that the tenant has described`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oauth2", "client_id": "c1", "client_secret": "s 1", "scopes": ["a", "b"],
             "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"},
             "refresh": {"endpoint": "https://id.example/r?x=1", "parameters": {
                "t": "{access_token}", "c": "{client_id}:{client_secret}", "s": "{scope}", "g": "again"}}}
            """#)
        await broker.logIn(token: BrokerHarness.token("a1", expiresIn: 3600))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", expiresIn: 3600)))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        let refresh = try #require(broker.transport.seen.last)
        #expect(refresh.method == .post && refresh.url == "https://id.example/r?x=1")
        #expect(refresh.form == ["t": "a1", "c": "c1:s 1", "s": "a b", "g": "again"])
        #expect(refresh.fields["Authorization"] == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", expiresIn: 3600)))
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        #expect(broker.transport.seen.last?.form["t"] == "a2")
    }

    @Test func `goes to the tenant's own token endpoint, which takes the provider's place`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            Self.tenant(
                "instagram",
                #", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"}"#))
        await broker.logIn(token: #"{"access_token": "short-token-1", "user_id": 17}"#)
        broker.transport.enqueue(Self.long("long-token-1"))
        #expect(await broker.get().token == "long-token-1")
        #expect(broker.transport.seen.last?.url.hasPrefix("https://id.example/t?access_token=short-token-1&") == true)
    }

    @Test(
        arguments: [
            (#""refresh": {"parameters": {"a": "{user_id}"}}"#, "/refresh/parameters/a"),
            (#""refresh": {"parameters": {"a b": "x"}}"#, "/refresh/parameters/a b"),
            (#""refresh": {"parameters": {"a": "{access_token"}}"#, "/refresh/parameters/a"),
            (#""refresh": {"endpoint": "ftp://x/", "parameters": {"a": "b"}}"#, "/refresh/endpoint"),
            (#""refresh": {"method": "PUT", "parameters": {"a": "b"}}"#, "/refresh/method"),
            (#""refresh": {"method": "GET"}"#, "/refresh"),
            (#""refresh": {"x": 1, "parameters": {"a": "b"}}"#, "/refresh/x"),
            (#""exchange_for_long_lived": {"method": "GET"}"#, "/exchange_for_long_lived"),
            (#""refresh": {"parameters": {}}"#, "/refresh/parameters"), (#""idle_expiry": 0"#, "/idle_expiry"),
            (#""no_refresh_while_valid": 1"#, "/no_refresh_while_valid"),
        ])
    func `is refused with the place where the form is wrong`(members: String, pointer: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: "{\(BrokerHarness.oidc) \"client_id\": \"c1\", \(members)}")
        #expect(answer.status == 400 && answer.pointers == [pointer], "\(answer.text)")
    }

    @Test func `warns not of logins that end`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: Self.tenant("threads"))
        #expect(answer.status == 201 && !answer.text.contains("no_refresh_token"), "\(answer.text)")
    }
}
