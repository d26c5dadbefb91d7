import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Setting credentials` {
    private static let tenant = #"{"client_id": "c1", "client_unique_key": "u1", "scopes": ["a", "b"]}"#

    private static func put(_ broker: BrokerHarness, _ body: String) async -> BrokerHarness.Answer {
        await broker.call(.put, "/credentials", tenant: "t1", body: body)
    }

    // H055
    @Test func `what is set is handed out, without the refresh token`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let answer = await Self.put(
            broker,
            """
            {"credentials": {"level": "user", "client_id": "c1", "client_unique_key": "u1", "user_id": "42",
             "requested_scopes": ["b", "a"], "granted_scopes": ["a"], "expires": "2026-11-21T09:30:00Z",
             "expires_in": 1800, "token_type": "bearer", "token": "a1"}, "refresh_token": "canary-refresh"}
            """)
        #expect(answer.status == 200)
        #expect(
            answer.text == #"{"storage_key":"default","level":"user","client_id":"c1","granted_scopes":["a"],"#
                + #""user_id":"42","expires":"2026-11-21T09:30:00Z","refreshable":true}"#)
        #expect(answer.fields["Cache-Control"] == "no-store")
        let read = await broker.get()
        #expect(read.tag == answer.tag)
        #expect(
            read.text == #"{"level":"user","client_id":"c1","requested_scopes":["a","b"],"client_unique_key":"u1","#
                + #""granted_scopes":["a"],"user_id":"42","expires":"2026-11-21T09:30:00Z","expires_in":1800,"#
                + #""token_type":"Bearer","token":"a1"}"#)
        #expect(!(answer.text + read.text + broker.log.joined()).contains("canary-refresh"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `one broker's answer can be given to another`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await broker.logIn(token: BrokerHarness.token("a1", refresh: "r1", scope: "a", userID: 42))
        let given = await broker.get()
        let other = try await BrokerHarness()
        await other.makeTenant("t1", Self.tenant)
        #expect(await Self.put(other, #"{"credentials": \#(given.text)}"#).status == 200)
        #expect(await other.get().text == given.text)
    }

    @Test func `an answer that tells how the token stood can be given on, and that is dropped`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let members =
            #""degraded": {"since": "2026-11-21T08:59:05Z", "code": "network_error"}, "session": {"cause": "x"}"#
        let answer = await Self.put(
            broker, #"{"credentials": {"client_id": "c1", "user_id": "42", "token": "a1", \#(members)}}"#)
        #expect(answer.status == 200)
        let read = await broker.get("policy=local")
        #expect((read.token, read.json["degraded"], read.json["session"]) == ("a1", nil, nil))
    }

    // T52
    @Test func `what is set overwrites what was there`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let first = await broker.set("a1", refresh: "r1")
        let second = await broker.set("a2")
        #expect(first != second)
        #expect(await broker.get().token == "a2")
        #expect(await broker.call(.get, "/credentials/status", tenant: "t1").json["refreshable"] == .bool(false))
        #expect(try await broker.causes() == ["set", "set"])
    }

    @Test func `a refresh token that was set is used and kept to itself`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.first?.form["refresh_token"] == "r1")
    }

    // T75
    @Test(arguments: [
        (#""client_id": "c2", "client_unique_key": "u1""#, 422),
        (#""client_id": "C1", "client_unique_key": "u1""#, 422),
        (#""client_id": "c1""#, 422), (#""client_id": "c1", "client_unique_key": "u2""#, 422),
        (#""client_id": "c1", "client_unique_key": "u1""#, 200),
        (#""client_id": "c1", "client_unique_key": "u1", "requested_scopes": ["a"]"#, 200),
        (#""client_id": "c1", "client_unique_key": "u1", "requested_scopes": ["a", "c"]"#, 422),
        (#""client_id": "c1", "client_unique_key": "u1", "granted_scopes": ["c"]"#, 422),
        (#""client_id": "c1", "client_unique_key": "u1", "granted_scopes": []"#, 200),
        (#""client_id": "c1", "client_unique_key": "u1", "granted_scopes": ["a", "b"]"#, 200),
        (#""client_id": "c1", "client_unique_key": "u1", "requested_scopes": ["A"]"#, 422),
        (#""client_id": "c1", "client_unique_key": "u1", "requested_scopes": ["b", "a"]"#, 200),
        (#""client_id": "c1", "client_unique_key": "u1", "level": "basic""#, 422),
    ])
    func `what does not match the tenant is illegal_argument`(members: String, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let answer = await Self.put(broker, #"{"credentials": {\#(members), "token": "a1"}}"#)
        #expect(answer.status == status)
        if status == 422 {
            #expect(answer.code == "illegal_argument")
            #expect(await broker.get("policy=local").code == "missing_token_container")
        }
    }

    @Test func `a unique key that the tenant lacks does not match`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let members = #""client_id": "c1", "token": "a1""#
        #expect(await Self.put(broker, #"{"credentials": {\#(members), "client_unique_key": "u1"}}"#).status == 422)
        #expect(await Self.put(broker, #"{"credentials": {\#(members), "client_unique_key": null}}"#).status == 200)
    }

    @Test func `client credentials have no refresh token`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await Self.put(
            broker, #"{"credentials": {"level": "client", "client_id": "c1", "token": "a1"}, "refresh_token": "r1"}"#)
        #expect((answer.status, answer.code) == (422, "illegal_argument"))
    }

    @Test(arguments: [
        ("", "", "client"), (#", "user_id": "42""#, "", "user"), ("", #", "refresh_token": "r1""#, "user"),
        (#", "level": "client", "user_id": "42""#, "", "client"), (#", "level": "user""#, "", "user"),
    ])
    func `the level follows from the rest where it is not given`(
        members: String, outer: String, level: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        let answer = await Self.put(
            broker, #"{"credentials": {"client_id": "c1", "token": "a1"\#(members)}\#(outer)}"#)
        #expect(answer.json["level"] == .string(level))
        let read = await broker.get()
        #expect(read.level == level)
        #expect(read.json["user_id"] == (level == "user" && members.contains("42") ? .string("42") : .null))
    }

    @Test(arguments: [
        (#", "expires": "2026-11-21T09:00:59.5+00:00""#, "2026-11-21T09:00:59Z"),
        (#", "expires": "2026-11-21T11:30:00+02:00""#, "2026-11-21T09:30:00Z"), ("", "2026-11-21T10:00:00Z"),
        (#", "expires": null, "expires_in": 5"#, "2026-11-21T09:00:05Z"),
        (#", "expires_in": 0"#, "2026-11-21T09:00:00Z"),
        (#", "expires_in": 5, "expires": "2026-11-21T09:30:00Z""#, "2026-11-21T09:30:00Z"),
    ])
    func `the expiry is the one given or the preset's`(members: String, expires: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await Self.put(broker, #"{"credentials": {"client_id": "c1", "token": "a1"\#(members)}}"#)
        #expect(answer.json["expires"] == .string(expires))
    }

    @Test func `a token that tells its expiry is believed where none is given`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        // exp: 2026-11-21T09:10:00Z.
        let token = "e30.eyJleHAiOjE3OTUyNTIyMDB9.c2ln"
        let answer = await Self.put(broker, #"{"credentials": {"client_id": "c1", "token": "\#(token)"}}"#)
        #expect(answer.json["expires"] == .string("2026-11-21T09:10:00Z"))
    }

    // T75
    @Test(arguments: [
        ("{}", ["/credentials"]), (#"{"credentials": null}"#, ["/credentials"]),
        (#"{"credentials": {}}"#, ["/credentials/client_id", "/credentials/token"]),
        (#"{"credentials": {"client_id": "c1", "token": ""}}"#, ["/credentials/token"]),
        (#"{"credentials": {"client_id": "c1", "token": 5}}"#, ["/credentials/token"]),
        (#"{"credentials": {"client_id": "c1", "token": "a b"}}"#, ["/credentials/token"]),
        (#"{"credentials": {"client_id": "c1", "token": "\u00e4"}}"#, ["/credentials/token"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "expires": "tomorrow"}}"#, ["/credentials/expires"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "expires": 1795251600}}"#, ["/credentials/expires"]),
        (
            #"{"credentials": {"client_id": "c1", "token": "a", "expires": "2026-02-30T00:00:00Z"}}"#,
            ["/credentials/expires"]
        ),
        (#"{"credentials": {"client_id": "c1", "token": "a", "expires_in": -1}}"#, ["/credentials/expires_in"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "expires_in": "5"}}"#, ["/credentials/expires_in"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "expires_in": 315360001}}"#, ["/credentials/expires_in"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "token_type": "mac"}}"#, ["/credentials/token_type"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "level": "admin"}}"#, ["/credentials/level"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "degraded": true}}"#, ["/credentials/degraded"]),
        (#"{"credentials": {"client_id": "c1", "token": "a", "user_id": 42}}"#, ["/credentials/user_id"]),
        (
            #"{"credentials": {"client_id": "c1", "token": "a", "granted_scopes": ["a b"]}}"#,
            ["/credentials/granted_scopes/0"]
        ),
        (
            #"{"credentials": {"client_id": "c1", "token": "a", "requested_scopes": "a"}}"#,
            ["/credentials/requested_scopes"]
        ),
        (#"{"credentials": {"client_id": "c1", "token": "a", "refresh_token": "r"}}"#, ["/credentials/refresh_token"]),
        (#"{"credentials": {"client_id": "c1", "token": "a"}, "refresh_token": ""}"#, ["/refresh_token"]),
        (#"{"credentials": {"client_id": "c1", "token": "a"}, "refresh_token": 5}"#, ["/refresh_token"]),
        (#"{"credentials": {"client_id": "c1", "token": "a"}, "storage_key": "a b"}"#, ["/storage_key"]),
        (#"{"credentials": {"client_id": "c1", "token": "a"}, "storage_key": ""}"#, ["/storage_key"]),
        (#"{"credentials": {"client_id": "c1", "token": "a"}, "tenant": "t2"}"#, ["/tenant"]),
    ])
    func `a field that is wrong is refused with its pointer`(body: String, pointers: [String]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await Self.put(broker, body)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == pointers)
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `credentials that are no object are refused`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        for value in ["[]", "5", #""a1""#] {
            let answer = await Self.put(broker, #"{"credentials": \#(value)}"#)
            #expect(answer.status == 400)
            #expect(answer.pointers.contains("/credentials"))
        }
    }

    @Test func `no body, a query and another media type are refused`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.call(.put, "/credentials", tenant: "t1").pointers == ["/credentials"])
        let body = #"{"credentials": {"client_id": "c1", "token": "a1"}}"#
        let query = await broker.call(.put, "/credentials?storage_key=x", tenant: "t1", body: body)
        #expect(query.pointers == ["storage_key"])
        let type = await broker.call(
            .put, "/credentials", tenant: "t1", body: body, fields: ["Content-Type": "text/plain"])
        #expect((type.status, type.code) == (415, "unsupported_media_type"))
    }

    @Test(arguments: [65_536, 65_537])
    func `a token has up to 65536 bytes`(count: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let token = String(repeating: "t", count: count)
        let answer = await Self.put(broker, #"{"credentials": {"client_id": "c1", "token": "\#(token)"}}"#)
        #expect(answer.status == (count == 65_536 ? 200 : 400))
        #expect(!answer.text.contains("ttt"))
    }

    @Test func `setting credentials of a tenant that is gone is not found`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let gate = Gate()
        store.onCommit(of: .credentials, .hold(gate))
        async let late = Self.put(broker, #"{"credentials": {"client_id": "c1", "token": "a1"}}"#)
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        let answer = await late
        #expect((answer.status, answer.code) == (404, "not_found"))
    }
}
