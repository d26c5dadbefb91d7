import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Handing out credentials` {
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1", "scopes": ["b", "a"]}"#

    // H055
    @Test func `a login's token is handed out and its refresh token never`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["r_usr"]}"#)
        let key = await broker.makeKey()
        await broker.logIn()
        let answer = await broker.call(.get, "/credentials", key: key)
        #expect(answer.status == 200)
        #expect(
            answer.text == #"{"level":"user","client_id":"c1","requested_scopes":["r_usr"],"client_unique_key":null,"#
                + #""granted_scopes":["r_usr"],"user_id":"42","expires":"2026-11-21T10:00:00Z","expires_in":3600,"#
                + #""token_type":"Bearer","token":"access-1"}"#)
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(answer.fields["Content-Type"] == "application/json")
        #expect(!broker.log.joined().contains("access-1"))
        #expect(!broker.log.joined().contains("refresh-1"))
    }

    // MARK: Levels

    // T24
    @Test func `without a user and without a secret the client identifier is given`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["b", "a", "b"], "client_unique_key": "u1"}"#)
        let answer = await broker.get()
        #expect(answer.status == 200)
        #expect(
            answer.text == #"{"level":"basic","client_id":"c1","requested_scopes":["a","b"],"#
                + #""client_unique_key":"u1","granted_scopes":[],"user_id":null,"expires":null,"expires_in":null,"#
                + #""token_type":null,"token":null}"#)
        #expect(broker.transport.seen.isEmpty)
    }

    // T43 K10
    // T67
    @Test func `without a user a client with a secret gets client credentials`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1", expiresIn: 120, scope: "a", userID: 7)))
        let answer = await broker.get()
        #expect(answer.status == 200)
        #expect(answer.level == "client")
        #expect(answer.token == "client-1")
        #expect(answer.json["user_id"] == .null)
        #expect(answer.json["granted_scopes"] == .array([.string("a")]))
        #expect(answer.json["requested_scopes"] == .array([.string("a"), .string("b")]))
        #expect(answer.json["expires_in"] == .integer(120))
        let request = try #require(broker.transport.seen.first)
        #expect(request.form["grant_type"] == "client_credentials")
        #expect(request.form["client_id"] == "c1")
        #expect(request.form["client_secret"] == "s1")
        #expect(request.url == "https://auth.tidal.com/v1/oauth2/token")
        #expect(request.isPinned)

        // It is stored, so the next call makes no request.
        #expect(await broker.get().token == "client-1")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a login takes the place of client credentials`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        let before = await broker.get()
        await broker.logIn()
        let after = await broker.get()
        #expect(after.level == "user")
        #expect(after.version > before.version)
    }

    @Test(arguments: [
        ("user", false, "user", 200), ("client", false, "user", 200), ("basic", false, "user", 200),
        ("user", true, "client", 424), ("client", true, "client", 200), ("basic", true, "client", 200),
    ])
    func `level refuses a lower one`(level: String, isClient: Bool, held: String, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        await broker.set("a1", members: #""level": "\#(isClient ? "client" : "user")", "#)
        let answer = await broker.get("level=\(level)")
        #expect(answer.status == status)
        if status == 200 { #expect(answer.level == held) } else { #expect(answer.code == "level_not_available") }
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `a level that nothing stored can give is refused without a call`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        let user = await broker.get("level=user")
        #expect((user.status, user.code) == (424, "level_not_available"))
        await broker.makeTenant("t2")
        let client = await broker.get("level=client", tenant: "t2")
        #expect((client.status, client.code) == (424, "level_not_available"))
        #expect(await broker.get("level=basic", tenant: "t2").status == 200)
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `client credentials that have expired are asked for again`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1", expiresIn: 100)),
            .json(200, BrokerHarness.token("client-2", expiresIn: 100)))
        let first = await broker.get()
        broker.time.advance(by: .seconds(41))
        let second = await broker.get()
        #expect(second.token == "client-2")
        #expect(second.version > first.version)
        #expect(broker.transport.seen.count == 2)
    }

    @Test(arguments: [
        #"{"client_id": "c1", "client_secret": null}"#,
        #"{"client_id": "c1", "client_secret": "s1", "client_credentials": "off"}"#,
    ])
    func `client credentials serve only where the tenant has the level`(tenant: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        await broker.set("a1", lifetime: .seconds(100), members: #""level": "client", "#)
        #expect(await broker.get().level == "client")
        await broker.makeTenant("t1", tenant)
        #expect(await broker.get().level == "basic")
        #expect(await broker.get("level=client").code == "level_not_available")
        #expect(broker.transport.seen.isEmpty)
    }

    // T42
    @Test(arguments: [(#"{"client_id": "c1"}"#, "basic"), (withSecret, "client")])
    func `user credentials without a refresh token serve until they expire and then the next level does`(
        tenant: String, level: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        let tag = await broker.set("a1", lifetime: .seconds(100))
        broker.time.advance(by: .seconds(40))
        #expect(await broker.get().token == "a1")
        #expect(await broker.get("policy=local_force_refresh").code == "missing_token_container")
        broker.time.advance(by: .milliseconds(1))
        broker.transport.always(.json(200, BrokerHarness.token("client-1")))
        let answer = await broker.get()
        #expect(answer.status == 200)
        #expect(answer.level == level)
        #expect(answer.tag != tag)
        #expect(broker.transport.seen.count == (level == "client" ? 1 : 0))
        let status = await broker.call(.get, "/credentials/status", tenant: "t1")
        #expect(status.json["logged_in"] == .bool(false))
    }

    @Test func `user credentials without a refresh token that the API refuses fall to the next level`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1")
        #expect(await broker.get("api_error_sub_status=4005").level == "user")
        let answer = await broker.get("api_error_sub_status=11003")
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `a lower level than asked for is refused when the user credentials end`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        await broker.set("a1", lifetime: .seconds(10))
        let answer = await broker.get("level=user")
        #expect((answer.status, answer.code) == (424, "level_not_available"))
        #expect(broker.transport.seen.isEmpty)
    }

    // MARK: Validity

    // T23 K04
    // T54
    @Test(
        arguments: [
            (60_000, nil, false), (59_999, nil, true), (60_001, nil, false),
            (59_999, 59, false), (59_000, 59, false), (58_999, 59, true),
            (1000, 0, false), (1, 0, false), (0, 0, true), (-1, 0, true),
            (86_400_000, 86_400, false), (86_399_999, 86_400, true),
        ] as [(Int, Int?, Bool)])
    func `a token that lives at least min_ttl longer is served as it stands`(
        left: Int, minimum: Int?, isRefreshed: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(86_400))
        broker.time.advance(by: .seconds(86_400) - .milliseconds(left))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", expiresIn: 90_000)))
        let answer = await broker.get(minimum.map { "min_ttl=\($0)" } ?? "")
        #expect(answer.status == 200)
        #expect(answer.token == (isRefreshed ? "a2" : "a1"))
        #expect(broker.transport.seen.count == (isRefreshed ? 1 : 0))
    }

    @Test func `a new token that lives shorter than min_ttl is given after one refresh`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", expiresIn: 30)))
        let answer = await broker.get("min_ttl=7200")
        #expect((answer.status, answer.token) == (200, "a2"))
        #expect(answer.json["expires_in"] == .integer(30))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `expires_in is right at the moment of the answer`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(3600))
        broker.time.advance(by: .milliseconds(1500))
        let answer = await broker.get()
        #expect(answer.json["expires_in"] == .integer(3598))
        #expect(answer.json["expires"] == .string("2026-11-21T10:00:00Z"))
        broker.time.advance(by: .seconds(4000))
        #expect(await broker.get("policy=local").json["expires_in"] == .integer(0))
    }

    // H081
    @Test(arguments: [
        (#""expires_in": 100"#, 100), (#""expires_in": "100""#, 100), (#""expires_in": 100.9"#, 100),
        (#""x": 1"#, 3600), (#""expires_in": null"#, 3600), (#""expires_in": "soon""#, 3600),
        (#""expires_in": 1"#, 1), (#""expires_in": 1e12"#, 315_360_000),
        (#""expires_in": 1000000000000"#, 315_360_000),
    ])
    func `the lifetime is what the provider says, within bounds, or the preset's`(
        member: String, seconds: Int64
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(200, #"{"access_token": "a1", \#(member)}"#))
        #expect(await broker.get("min_ttl=0").json["expires_in"] == .integer(seconds))
    }

    // H081
    @Test(arguments: [#""expires_in": 0"#, #""expires_in": -1"#, #""expires_in": "0""#])
    func `a new token that has expired already is given to no caller`(member: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(200, #"{"access_token": "a1", \#(member)}"#))
        let answer = await broker.get("min_ttl=0")
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a token without expires_in lives as long as it says itself`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        // exp: 2026-11-21T09:10:00Z.
        let payload = "eyJleHAiOjE3OTUyNTIyMDB9"
        broker.transport.enqueue(.json(200, #"{"access_token": "e30.\#(payload).c2ln"}"#))
        let answer = await broker.get()
        #expect(answer.json["expires"] == .string("2026-11-21T09:10:00Z"))
    }

    @Test func `user and scopes stay known when a refresh does not name them`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["a", "b"]}"#)
        await broker.logIn(token: BrokerHarness.token("a1", refresh: "r1", scope: "b", userID: 42))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let kept = await broker.get("policy=local_force_refresh")
        #expect(kept.token == "a2")
        #expect(kept.json["user_id"] == .string("42"))
        #expect(kept.json["granted_scopes"] == .array([.string("b")]))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", scope: "b a", userID: 42)))
        let replaced = await broker.get("policy=local_force_refresh")
        #expect(replaced.json["user_id"] == .string("42"))
        #expect(replaced.json["granted_scopes"] == .array([.string("a"), .string("b")]))
    }

    // MARK: Policies

    @Test(arguments: ["local", "local_force_refresh"])
    func `a local policy answers missing_token_container where nothing is stored`(policy: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        let answer = await broker.get("policy=\(policy)")
        #expect((answer.status, answer.code) == (404, "missing_token_container"))
        await broker.set("a1", refresh: "r1")
        _ = await broker.call(.delete, "/credentials", tenant: "t1")
        #expect(await broker.get("policy=\(policy)").code == "missing_token_container")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test(arguments: ["", "policy=local_valid", "policy=create_if_needed"])
    func `the other policies answer with what there is`(query: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.get(query).level == "basic")
        await broker.makeTenant("t2", Self.withSecret)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get(query, tenant: "t2").level == "client")
        await broker.set("a1", refresh: "r1", tenant: "t2")
        #expect(await broker.get(query, tenant: "t2").token == "a1")
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get(query, tenant: "t2").token == "a2")
    }

    @Test func `local gives what is stored, expired or not, without the network`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.time.advance(by: .seconds(100))
        #expect(await broker.get("policy=local").token == "a1")
        #expect(await broker.get("policy=local&api_error_sub_status=11003").token == "a1")
        #expect(await broker.get("policy=local&min_ttl=500").token == "a1")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `local_force_refresh refreshes what is still good, each time`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a2")), .json(200, BrokerHarness.token("a3")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `client credentials are made anew by local_force_refresh`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1")), .json(200, BrokerHarness.token("client-2")))
        #expect(await broker.get().token == "client-1")
        #expect(await broker.get("policy=local_force_refresh").token == "client-2")
    }

    // MARK: Entity tags

    @Test func `the tag changes with each new set of credentials and with nothing else`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        let first = await broker.get()
        broker.time.advance(by: .seconds(30))
        #expect(await broker.get().tag == first.tag)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a1", refresh: "r1")))
        let second = await broker.get("policy=local_force_refresh")
        #expect(second.version > first.version)
        #expect(first.tag.wholeMatch(of: /"[0-9]+"/) != nil)
    }

    @Test func `If-None-Match with the present tag gets 304 without a body`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let tag = await broker.set("a1", refresh: "r1")
        for value in [tag, "W/\(tag)", "\"1\", \(tag)", "*"] {
            let answer = await broker.get(fields: ["If-None-Match": value])
            #expect(answer.status == 304, "\(value)")
            #expect(answer.body.isEmpty)
            #expect(answer.tag == tag)
            #expect(answer.fields["Cache-Control"] == "no-store")
        }
        for value in ["\"1\"", tag.replacing("\"", with: ""), "\"\"", "W/", ","] {
            let answer = await broker.get(fields: ["If-None-Match": value])
            #expect(answer.status == 200, "\(value)")
            #expect(answer.token == "a1")
        }
    }

    @Test func `an old tag gets the new credentials`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let old = await broker.set("a1", refresh: "r1")
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let answer = await broker.get(fields: ["If-None-Match": old])
        #expect((answer.status, answer.token) == (200, "a2"))
    }

    @Test func `the tag of basic credentials follows the configuration`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let first = await broker.get()
        #expect(await broker.get(fields: ["If-None-Match": first.tag]).status == 304)
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let second = await broker.get(fields: ["If-None-Match": first.tag])
        #expect(second.status == 200)
        #expect(second.json["client_id"] == .string("c2"))
        await broker.set("a1", refresh: "r1", clientID: "c2")
        _ = await broker.call(.delete, "/credentials", tenant: "t1")
        let third = await broker.get(fields: ["If-None-Match": second.tag])
        #expect((third.status, third.level) == (200, "basic"))
    }

    // MARK: Many callers
    // T37 K06
    // T41 H076
    @Test func `a hundred callers of an expired token cause one request`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn()
        broker.time.advance(by: .seconds(3600))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("access-2", refresh: "refresh-2"))))
        let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
            for _ in 0..<100 { group.addTask { await broker.call(.get, "/credentials", tenant: "t1") } }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers.count == 100)
        #expect(answers.allSatisfy { $0.status == 200 && $0.json["token"]?.string == "access-2" })
        #expect(broker.transport.seen.count == 2)
    }

    // MARK: Parameters

    // H015
    @Test(arguments: [
        ("policy=remote", "policy"), ("policy=", "policy"), ("level=admin", "level"), ("min_ttl=-1", "min_ttl"),
        ("min_ttl=x", "min_ttl"), ("min_ttl=", "min_ttl"), ("min_ttl=86401", "min_ttl"),
        ("storage_key=", "storage_key"), ("storage_key=a%20b", "storage_key"), ("storage_key=a/b", "storage_key"),
        ("tenant=t2", "tenant"), ("min_tll=5", "min_tll"), ("level=user&level=user", "level"),
        ("storage_key=a&storage_key=b", "storage_key"),
    ])
    func `a parameter that is wrong, unknown or repeated is refused by name`(
        query: String, name: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.get(query)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == [name])
    }

    @Test func `all faults of a query are told together`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.get("policy=x&level=y&min_ttl=z&what=1")
        #expect(answer.pointers == ["level", "min_ttl", "policy", "what"])
    }

    @Test func `a query with a broken escape is refused`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.get("storage_key=%zz").status == 400)
        #expect(await broker.get("storage_key=%ff").status == 400)
    }

    @Test(arguments: [1, 200])
    func `a storage key has up to 200 characters`(count: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = String(repeating: "k", count: count)
        await broker.set("a1", storageKey: key)
        #expect(await broker.get("storage_key=\(key)").token == "a1")
        #expect(await broker.get("storage_key=\(key)k").level == (count == 200 ? nil : "basic"))
        #expect(await broker.get().level == "basic")
    }

    @Test func `a storage key may have every character of the contract`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", storageKey: "Az09._~:@-")
        #expect(await broker.get("storage_key=Az09._~:@-").token == "a1")
        #expect(await broker.get("storage_key=%41z09._~%3a%40-").token == "a1")
    }

    // MARK: Isolation

    // H023 H024
    @Test func `the same storage key of two tenants holds two sets, refreshed apart`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        await broker.set("a1", refresh: "r1", tenant: "t1", storageKey: "bob")
        await broker.set("b1", refresh: "r2", tenant: "t2", storageKey: "bob")
        let keys = (await broker.makeKey("t1"), await broker.makeKey("t2"))
        #expect(await broker.call(.get, "/credentials?storage_key=bob", key: keys.0).token == "a1")
        #expect(await broker.call(.get, "/credentials?storage_key=bob", key: keys.1).token == "b1")
        broker.time.advance(by: .seconds(3600))
        broker.transport.always(
            .decide { .json(200, BrokerHarness.token("new-" + ($0.form["refresh_token"] ?? "none"))) })
        async let first = broker.call(.get, "/credentials?storage_key=bob", key: keys.0)
        async let second = broker.call(.get, "/credentials?storage_key=bob", key: keys.1)
        #expect(await first.token == "new-r1")
        #expect(await second.token == "new-r2")
        #expect(broker.transport.seen.count == 2)
        _ = await broker.call(.delete, "/credentials?storage_key=bob", key: keys.0)
        #expect(await broker.call(.get, "/credentials?storage_key=bob", key: keys.1).token == "new-r2")
    }

    // K18
    @Test func `two storage keys of a tenant hold two sets`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", storageKey: "alice")
        await broker.set("b1", storageKey: "bob")
        #expect(await broker.get("storage_key=alice").token == "a1")
        #expect(await broker.get("storage_key=bob").token == "b1")
        #expect(await broker.get().level == "basic")
    }

    // T40
    @Test func `a storage key whose refresh takes its time holds up no other`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for (key, refresh) in [("alice", "r1"), ("bob", "r2")] {
            await broker.set("old", refresh: refresh, lifetime: .zero, storageKey: key)
        }
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("a2"))), .json(200, BrokerHarness.token("b2")))
        async let slow = broker.get("storage_key=alice")
        await gate.arrivals()
        #expect(await broker.get("storage_key=bob").token == "b2")
        gate.open()
        #expect(await slow.token == "a2")
    }

    @Test func `HEAD is answered like GET`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let tag = await broker.set("a1")
        let answer = await broker.call(.head, "/credentials", tenant: "t1")
        #expect((answer.status, answer.tag) == (200, tag))
    }
}
