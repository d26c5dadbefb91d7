import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// What providers say of the life of their grants, and what keeps grants alive that no caller uses.
@Suite(.timeLimit(.minutes(1))) struct `The life of a grant` {
    private static let day = 86_400

    private static func make(_ members: String = "") async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{\#(BrokerHarness.oidc) "client_id": "c1"\#(members)}"#)
        return broker
    }

    private static func token(_ access: String, _ refresh: String, _ more: String = "") -> String {
        #"{"access_token": "\#(access)", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "\#(refresh)"\#(more)}"#
    }

    private static func look(_ broker: BrokerHarness) async {
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
    }

    private static func mark(_ broker: BrokerHarness, _ key: String = "default") async throws -> Timestamp? {
        try await broker.vault.read(RecordID(.credentials, try #require(TenantName("t1")), key: key))?.due
    }

    /// Moves the time past a mark: a mark is due once its time has passed.
    private static func pass(_ mark: Timestamp, _ broker: BrokerHarness) {
        broker.time.advance(by: max(.zero, broker.time.now.duration(to: mark)) + .milliseconds(1))
    }

    private static func notices(_ broker: BrokerHarness) async throws -> Int {
        try await broker.events().count { $0.kind == .credentialsExpiring }
    }

    // MARK: The earliest refresh

    /// - Parameters:
    ///   - form: how the answer says 1800 seconds from now.
    ///   - later: what it adds to that, in seconds.
    // Q30
    @Test(
        arguments: [
            ("number", 0, 1799, 1), ("number", 0, 1800, nil), ("text", 0, 0, 1800), ("text", 0, 1799, 1),
            ("text", 0, 1800, nil), ("none", 0, 0, nil),
            // What lies behind the token's end counts as that.
            ("number", 1_000_000, 3599, 1), ("number", 1_000_000, 3600, nil), ("number", -10_000, 0, nil),
        ] as [(String, Int64, Int, Int?)])
    func `is not renewed before the time that its answer names`(
        form: String, later: Int64, age: Int, retryAfter: Int?
    ) async throws {
        let broker = try await Self.make()
        let time = Timestamp(seconds: broker.time.now.seconds + 1800 + later)
        let member =
            switch form {
            case "number": #", "earliest_refresh_at": \#(time.seconds)"#
            case "text": #", "earliest_refresh_at": "\#(time)""#
            default: ""
            }
        await broker.logIn(token: Self.token("a1", "r1", member))
        broker.time.advance(by: .seconds(age))
        broker.transport.enqueue(.json(200, Self.token("a2", "r2")))
        let forced = await broker.get("policy=local_force_refresh")
        guard let retryAfter else {
            #expect(forced.token == "a2", "\(forced.text)")
            return
        }
        #expect((forced.status, forced.retryAfter) == (503, retryAfter), "\(forced.text)")
        let refused = await broker.get("api_error_sub_status=11003")
        #expect(refused.status == 503, "\(refused.text)")
        let answer = await broker.get("min_ttl=86400")
        #expect(answer.token == "a1" && answer.json["degraded"] == nil, "\(answer.text)")
        #expect(broker.transport.seen.count == 1)
    }

    // Q30
    @Test(arguments: [(0, 3570), (3569, 1), (3570, nil), (3599, nil)] as [(Int, Int?)])
    func `is renewed at the end of the token only where the provider wants that`(age: Int, retryAfter: Int?)
        async throws
    {
        let broker = try await Self.make(#", "no_refresh_while_valid": true, "refresh_lead_time": 30"#)
        await broker.logIn(token: Self.token("a1", "r1"))
        broker.time.advance(by: .seconds(age))
        if let retryAfter {
            #expect(await broker.get("min_ttl=3600").token == "a1")
            #expect(await broker.get("policy=local_force_refresh").retryAfter == retryAfter)
            #expect(broker.transport.seen.count == 1)
        } else {
            broker.transport.enqueue(.json(200, Self.token("a2", "r2")))
            #expect(await broker.get("min_ttl=60").token == "a2")
        }
    }

    @Test func `is renewed ahead at the end of the token where the provider wants that`() async throws {
        let broker = try await Self.make(
            #", "no_refresh_while_valid": true, "refresh_lead_time": 30, "proactive_refresh": 1800"#)
        await broker.logIn(token: Self.token("a1", "r1"))
        broker.time.advance(by: .seconds(3500))
        await Self.look(broker)
        #expect(broker.transport.seen.count == 1)
        #expect(try await Self.notices(broker) == 1)
        broker.transport.enqueue(.json(200, Self.token("a2", "r2")))
        broker.time.advance(by: .seconds(71))
        await Self.look(broker)
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
        #expect(try await Self.notices(broker) == 1)
    }

    // MARK: What ends unused

    // Q31
    @Test(arguments: [(60 * day, 53 * day, 53 * day + 7 * day / 5), (4 * day, 3 * day, 3 * day + day / 5)])
    func `is used before it ends unused, whether a caller asks or not`(idle: Int, earliest: Int, latest: Int)
        async throws
    {
        let broker = try await Self.make(#", "idle_expiry": \#(idle)"#)
        let login = broker.time.now
        await broker.logIn(token: Self.token("a1", "r1"))
        broker.time.advance(by: .seconds(3301))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 1)
        #expect(broker.transport.seen.count == 1)
        let mark = try #require(try await Self.mark(broker))
        let age = login.duration(to: mark)
        #expect(age >= .seconds(earliest) && age <= .seconds(latest), "\(age)")
        broker.transport.enqueue(.json(200, Self.token("a2", "r2")))
        Self.pass(mark, broker)
        await Self.look(broker)
        #expect(broker.transport.seen.map(\.form["refresh_token"]).last == "r1")
        #expect(try await Self.notices(broker) == 1)
        let ends = await broker.status().json["ends"]
        #expect(ends?["why"]?.text == "idle")
        #expect(ends?["at"]?.text == broker.time.now.advanced(by: .seconds(idle)).description)
        // The next token's expiry is told again.
        broker.time.advance(by: .seconds(3301))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 2)
    }

    @Test func `is used when an outage at that time has ended`() async throws {
        let broker = try await Self.make(#", "idle_expiry": \#(60 * Self.day)"#)
        await broker.logIn(token: Self.token("a1", "r1"))
        broker.time.advance(by: .seconds(3301))
        await Self.look(broker)
        broker.transport.always(.json(503, "{}"))
        broker.time.advance(by: .seconds(55 * Self.day))
        for _ in 0..<10 {
            await Self.look(broker)
            let mark = try #require(try await Self.mark(broker), "it is never given up")
            Self.pass(mark, broker)
        }
        #expect(broker.time.now < ManualTime.beginning.advanced(by: .seconds(56 * Self.day)))
        broker.transport.always(.json(200, Self.token("a2", "r2")))
        broker.time.advance(by: .seconds(1200))
        await Self.look(broker)
        #expect(await broker.get("policy=local").token == "a2")
    }

    @Test func `is used by one replica`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", #"{\#(BrokerHarness.oidc) "client_id": "c1", "idle_expiry": 864000}"#)
        await broker.logIn(token: Self.token("a1", "r1"))
        broker.time.advance(by: .seconds(3301))
        await Self.look(broker)
        let other = try await BrokerHarness(store: store, transport: broker.transport, time: broker.time)
        broker.transport.always(.json(200, Self.token("a2", "r2")))
        broker.time.advance(by: .seconds(9 * Self.day))
        async let first: Void = Self.look(broker)
        async let second: Void = Self.look(other)
        _ = await (first, second)
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `is left alone where its end is fixed, or not known`() async throws {
        for members in ["", #", "consent_lifetime": 86400"#] {
            let broker = try await Self.make(members)
            await broker.logIn(token: Self.token("a1", "r1"))
            broker.time.advance(by: .seconds(3301))
            await Self.look(broker)
            #expect(try await Self.mark(broker) == nil)
        }
    }

    // MARK: What answers say of the end

    @Test(
        arguments: [
            ("", #", "refresh_token_expires_in": 864000"#, 864_000, "refresh_token"),
            (#", "idle_expiry": 5184000"#, #", "refresh_token_expires_in": 864000"#, 864_000, "idle"),
            ("", #", "authorization_expires_in": 1000"#, 1000, "consent"),
            (#", "consent_lifetime": 500"#, #", "authorization_expires_in": 1000"#, 1000, "consent"),
            ("", #", "authorization_expires_in": 1000, "refresh_token_expires_in": 500"#, 500, "refresh_token"),
            ("", #", "authorization_expires_in": 0, "refresh_token_expires_in": "x""#, nil, nil),
        ] as [(String, String, Int64?, String?)])
    func `ends as its answer says`(members: String, answer: String, seconds: Int64?, why: String?) async throws {
        let broker = try await Self.make(members)
        await broker.logIn(token: Self.token("a1", "r1", answer))
        let ends = await broker.status().json["ends"]
        #expect(ends?["why"]?.text == why)
        #expect(ends?["at"]?.text == seconds.map { broker.time.now.advanced(by: .seconds($0)).description })
    }

    @Test func `keeps the end of a consent over refreshes, and that of a refresh token while it is the same`()
        async throws
    {
        let broker = try await Self.make()
        let login = broker.time.now
        await broker.logIn(
            token: Self.token("a1", "r1", #", "authorization_expires_in": 90000, "refresh_token_expires_in": 80000"#))
        func end() async -> (String?, String?) {
            let ends = await broker.status().json["ends"]
            return (ends?["at"]?.text, ends?["why"]?.text)
        }
        broker.time.advance(by: .seconds(100))
        broker.transport.enqueue(.json(200, #"{"access_token": "a2", "expires_in": 3600}"#))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        #expect(await end() == (login.advanced(by: .seconds(80_000)).description, "refresh_token"))
        broker.transport.enqueue(.json(200, Self.token("a3", "r2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        #expect(await end() == (login.advanced(by: .seconds(90_000)).description, "consent"))
    }

    @Test(arguments: [("consent_lifetime", "consent"), ("idle_expiry", "idle")])
    func `begins anew with a further login of its user`(member: String, why: String) async throws {
        let broker = try await Self.make(#", "\#(member)": 864000"#)
        let first = broker.time.now
        for number in 1...2 {
            await broker.logIn(token: Self.token("a\(number)", "r\(number)", #", "user_id": 7"#))
            let ends = await broker.status().json["ends"]
            #expect(ends?["at"]?.text == broker.time.now.advanced(by: .seconds(864_000)).description)
            #expect(ends?["why"]?.text == why)
            broker.time.advance(by: .seconds(1000))
        }
        broker.transport.enqueue(.json(200, Self.token("a3", "r3", #", "user_id": 7"#)))
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        let start = why == "consent" ? first.advanced(by: .seconds(1000)) : broker.time.now
        #expect(
            await broker.status().json["ends"]?["at"]?.text == start.advanced(by: .seconds(864_000)).description)
    }

    // Q29
    @Test(
        arguments: [
            ("tiktok", #", "refresh_expires_in": 1000"#, 1000),
            ("quickbooks", #", "x_refresh_token_expires_in": 1000"#, 1000),
        ])
    func `ends as the provider's own member says`(provider: String, answer: String, seconds: Int64) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "\#(provider)", "client_id": "c1", "client_secret": "s1"}"#)
        await broker.logIn(token: Self.token("a1", "r1", answer))
        let ends = await broker.status().json["ends"]
        #expect(ends?["at"]?.text == broker.time.now.advanced(by: .seconds(seconds)).description)
        #expect(ends?["why"]?.text == "idle")
    }

    // MARK: Requests

    // Q46
    @Test func `is asked to be short at Zendesk, by the code's exchange and by each refresh`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"provider": "zendesk", "client_id": "c1", "client_secret": "s1", "parameters": {"subdomain": "acme"}}"#)
        await broker.logIn(token: Self.token("a1", "r1"))
        #expect(broker.transport.seen.last?.form["expires_in"] == "1800")
        broker.transport.enqueue(.json(200, Self.token("a2", "r2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        #expect(broker.transport.seen.last?.form["expires_in"] == "1800")
    }

    // MARK: Two tokens

    private static func slack(_ members: String) -> String {
        #"{"provider": "slack", "client_id": "c1", "client_secret": "s1"\#(members)}"#
    }

    private static let bot =
        #"{"ok": true, "access_token": "xoxb-1", "token_type": "bot", "scope": "chat:write", "refresh_token": "rb", "expires_in": 43200, "authed_user": {"id": "U1"}}"#

    // Q08
    @Test(
        arguments: [
            (#", "scopes": ["chat:write"]"#, 200, "xoxb-1"),
            (#", "scopes": ["chat:write"], "token_use": "bot", "user_scopes": ["search:read"]"#, 200, "xoxb-1"),
            (#", "scopes": ["chat:write"], "user_scopes": ["search:read"]"#, 502, nil),
            (#", "scopes": ["chat:write"], "token_use": "user", "user_scopes": ["search:read"]"#, 502, nil),
        ] as [(String, Int, String?)])
    func `is never the bot's where the user's is wanted`(members: String, status: Int, token: String?) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.slack(members))
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.bot))
        let ended = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(ended.status == status, "\(ended.text)")
        #expect(await broker.get().token == token)
    }

    // Q08
    @Test(arguments: [
        #"{"ok": true, "access_token": "xoxp-2", "refresh_token": "r2", "expires_in": 43200, "token_type": "user"}"#,
        #"{"ok": true, "access_token": "xoxb-9", "authed_user": {"access_token": "xoxp-2", "refresh_token": "r2", "expires_in": 43200, "token_type": "user"}}"#,
    ])
    func `is the user's after a refresh, wherever the answer has it`(answer: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.slack(#", "user_scopes": ["search:read"]"#))
        await broker.logIn(
            token:
                #"{"ok": true, "authed_user": {"id": "U1", "access_token": "xoxp-1", "refresh_token": "r1", "expires_in": 43200, "token_type": "user"}}"#
        )
        broker.transport.enqueue(.json(200, answer), .json(200, answer))
        #expect(await broker.get("policy=local_force_refresh").token == "xoxp-2")
        _ = await broker.get("policy=local_force_refresh")
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == [nil, "r1", "r2"])
    }

    @Test(arguments: [
        (#", "token_use": "user""#, false), (#", "token_use": "user", "scopes": ["chat:write"]"#, false),
        (#", "token_use": "user", "user_scopes": ["search:read"]"#, true), (#", "token_use": "bot""#, true),
        (#", "token_use": "user", "authorize_parameters": {"user_scope": "search:read"}"#, true), ("", true),
    ])
    func `is refused where no login can bring the user's`(members: String, isTaken: Bool) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: Self.slack(members))
        #expect(answer.status == (isTaken ? 201 : 400), "\(answer.text)")
        #expect(answer.pointers == (isTaken ? [] : ["/token_use"]))
    }
}
