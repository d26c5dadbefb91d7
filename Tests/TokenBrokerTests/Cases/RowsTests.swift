import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Cases of the TIDAL SDKs' own suites that are about the broker as a whole. The numbers are those of Tests/README.md.
@Suite struct `Cases of the TIDAL SDKs` {
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1"}"#
    private static let waits: [Duration] = [
        .milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8),
    ]

    /// A broker with a user whose token lives that much longer.
    private static func user(
        _ left: Duration = .seconds(3600), refresh: String? = "r1", tenant: String = #"{"client_id": "c1"}"#
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: refresh, lifetime: left)
        return broker
    }

    private static func isLoggedIn(_ broker: BrokerHarness) async -> Bool? {
        guard
            case .bool(let isLoggedIn)? = await broker.call(.get, "/credentials/status", tenant: "t1").json["logged_in"]
        else { return nil }
        return isLoggedIn
    }

    // MARK: Logging in

    // T08 K03
    @Test func `a login leaves its access token and its refresh token in the store`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.logIn()
        let id = RecordID(.credentials, try #require(TenantName("t1")), key: "default")
        let content = try #require(try await broker.vault.read(id)).content.revealedText
        let held = try #require(CredentialRecord(decoding: Array(content.utf8))?.held)
        #expect(held.accessToken.revealedText == "access-1")
        #expect(held.refreshToken?.revealedText == "refresh-1")
        #expect((held.level, held.userID) == (.user, "42"))

        let restarted = try await BrokerHarness(store: store)
        #expect(await restarted.get().token == "access-1")
        #expect(restarted.transport.seen.isEmpty)
        restarted.time.advance(by: .seconds(3600))
        restarted.transport.enqueue(.json(200, BrokerHarness.token("access-2")))
        #expect(await restarted.get().token == "access-2")
        #expect(restarted.transport.seen.map(\.form["refresh_token"]) == ["refresh-1"])
    }

    // T22
    @Test func `only a user is logged in`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        #expect(await Self.isLoggedIn(broker) == false)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().level == "client")
        #expect(await Self.isLoggedIn(broker) == false)
        await broker.logIn()
        #expect(await Self.isLoggedIn(broker) == true)
    }

    // MARK: Without a renewal

    // T23
    @Test func `a token that lives is handed out without a call`() async throws {
        let broker = try await Self.user()
        for _ in 0..<3 { #expect(await broker.get().token == "a1") }
        #expect(broker.transport.seen.isEmpty)
    }

    // T24
    @Test func `after a logout a client without a secret is basic`() async throws {
        let broker = try await Self.user()
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(answer.json["token"] == .null)
        #expect(answer.json["granted_scopes"] == .array([]))
        #expect(broker.transport.seen.isEmpty)
    }

    // T54
    @Test(arguments: [(120_000, 0), (60_000, 0), (59_999, 1), (30_000, 1), (0, 1)])
    func `a token is good with a minute to spare`(milliseconds: Int64, refreshes: Int) async throws {
        let broker = try await Self.user(.seconds(3600))
        broker.time.advance(by: .seconds(3600) - .milliseconds(milliseconds))
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == (refreshes == 0 ? "a1" : "a2"))
        #expect(broker.transport.seen.count == refreshes)
    }

    // T55
    @Test func `a user's token, the client's and none are the three levels`() async throws {
        let broker = try await Self.user(tenant: Self.withSecret)
        let user = await broker.get()
        #expect((user.level, user.token) == ("user", "a1"))
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        let client = await broker.get()
        #expect((client.level, client.token) == ("client", "client-1"))
        await broker.makeTenant("t2")
        let basic = await broker.get(tenant: "t2")
        #expect((basic.level, basic.token) == ("basic", nil))
    }

    // MARK: Renewals

    // T25 K05
    @Test func `an expired token is replaced by one call`() async throws {
        let broker = try await Self.user(.zero)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token"])
    }

    /// A token that is over is not passed off as good when it cannot be renewed, and the session goes on.
    private static func keepsTheSession(_ broker: BrokerHarness) async {
        #expect(await broker.get("policy=local").token == "a1")
        #expect(await isLoggedIn(broker) == true)
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
    }

    // T28 T29
    @Test func `a provider that fails is tried six times and ends no session`() async throws {
        let broker = try await Self.user(.zero)
        broker.transport.always(.json(503, ""))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "retryable_error"))
        #expect(broker.transport.seen.count == 6)
        #expect(broker.time.slept == Self.waits)
        await Self.keepsTheSession(broker)
    }

    // T30
    @Test func `a provider that cannot be reached is tried six times and ends no session`() async throws {
        let broker = try await Self.user(.zero)
        broker.transport.always(.failure(.connectFailed))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "network_error"))
        #expect(broker.transport.seen.count == 6)
        await Self.keepsTheSession(broker)
    }

    // T31
    @Test func `a redirect is not followed and ends no session`() async throws {
        let broker = try await Self.user(.zero)
        broker.transport.always(.json(302, "", fields: ["Location": "https://other.example/"]))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        #expect(broker.transport.seen.count == 1)
        await Self.keepsTheSession(broker)
    }

    // T37
    @Test func `callers of a token that is being renewed share the call`() async throws {
        let broker = try await Self.user(.zero)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let tokens = await withTaskGroup(of: String?.self) { group in
            for index in 0..<30 {
                group.addTask { await broker.get(index % 2 == 0 ? "" : "policy=create_if_needed").token }
            }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(tokens == Array(repeating: "a2", count: 30))
        #expect(broker.transport.seen.count == 1)
    }

    // T38
    @Test func `a caller who leaves takes the renewal from no other caller`() async throws {
        let broker = try await Self.user(.zero)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let leaving = Task { await broker.get() }
        await gate.arrivals()
        async let staying = broker.get()
        leaving.cancel()
        #expect(await leaving.value.status == 503)
        gate.open()
        #expect(await staying.token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    // T40
    @Test func `a storage key does not wait for another's renewal`() async throws {
        let broker = try await Self.user(.zero)
        await broker.set("b1", refresh: "r2", lifetime: .zero, storageKey: "other")
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("a2"))), .json(200, BrokerHarness.token("b2")))
        async let held = broker.get()
        await gate.arrivals()
        #expect(await broker.get("storage_key=other").token == "b2")
        gate.open()
        #expect(await held.token == "a2")
    }

    // T67
    @Test func `tidal's client credentials are asked for without scopes`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1", "scopes": ["r_usr"]}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        #expect(
            broker.transport.seen.map(\.form) == [
                ["grant_type": "client_credentials", "client_id": "c1", "client_secret": "s1"]
            ])
    }

    // MARK: Configuration

    // T58
    @Test func `a new configuration takes the whole old one's place and leaves the credentials`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1", "scopes": ["a", "b"]}"#)
        await broker.logIn()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": null, "scopes": []}"#)
        let tenant = await broker.call(.get, "/tenants/t1").json
        #expect(tenant["scopes"] == .array([]))
        #expect(tenant["client_secret_set"] == .bool(false))
        #expect(await broker.get("policy=local").token == "access-1")
        #expect(await Self.isLoggedIn(broker) == true)
        #expect(broker.transport.seen.count == 1)
    }

    // T59
    @Test func `a login of a tenant that was never configured is not found`() async throws {
        let broker = try await BrokerHarness()
        let begun = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect((begun.status, begun.code) == (404, "not_found"))
        let finished = await broker.call(
            .post, "/login/finalize", tenant: "t1", body: #"{"login_response_query": "code=c&state=s"}"#)
        #expect((finished.status, finished.code) == (404, "not_found"))
        #expect(broker.transport.seen.isEmpty)
    }

    // T78
    @Test func `a record that does not open stays as it is until it opens again`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", Self.withSecret)
        await broker.set("a1", refresh: "r1")
        let id = RecordID(.credentials, try #require(TenantName("t1")), key: "default")
        let whole = try #require(try await store.read(id))
        var damaged = whole
        damaged.sealed[0] ^= 1
        try await store.commit([.remove(id, version: whole.version)])
        try await store.commit([.insert(damaged)])

        let restarted = try await BrokerHarness(store: store)
        for query in ["", "policy=local", "policy=local_force_refresh", "api_error_sub_status=11003"] {
            let answer = await restarted.get(query)
            #expect((answer.status, answer.code) == (500, "internal_error"))
        }
        #expect(await restarted.call(.get, "/credentials/status", tenant: "t1").status == 500)
        // No user counts as logged out, and no client credentials replace the record.
        #expect(restarted.transport.seen.isEmpty)
        #expect(try await store.read(id) == damaged)

        try await store.commit([.remove(id, version: damaged.version)])
        try await store.commit([.insert(whole)])
        #expect(await restarted.get().token == "a1")
    }

    // MARK: What those suites leave out

    // X01
    @Test(
        arguments: [
            (400, 500, 1, "basic", nil), (401, 200, 1, "basic", nil), (500, 400, 6, nil, "retryable_error"),
            (503, 401, 6, nil, "retryable_error"), (403, 400, 1, nil, "unexpected_error"),
        ] as [(Int, Int, Int, String?, String?)])
    func `the status of HTTP counts and not the one in the body`(
        status: Int, told: Int, calls: Int, level: String?, code: String?
    ) async throws {
        let broker = try await Self.user(.zero)
        broker.transport.always(
            .json(status, #"{"status": \#(told), "error": "invalid_grant", "sub_status": 11101}"#))
        let answer = await broker.get()
        #expect((answer.level, answer.code) == (level, code))
        #expect(broker.transport.seen.count == calls)
        #expect(await Self.isLoggedIn(broker) == (level == nil))
    }

    // X02 K07
    @Test func `a login without a refresh token serves until it expires`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn(token: BrokerHarness.token("access-1", expiresIn: 14_400, userID: 42))
        broker.time.advance(by: .seconds(14_340))
        #expect(await broker.get().token == "access-1")
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.count == 1)
    }

    // X03
    @Test func `a refresh that brings no refresh token leaves the old one good`() async throws {
        let broker = try await Self.user(.zero)
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        for _ in 0..<3 { #expect(await broker.get("policy=local_force_refresh").token == "a2") }
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1", "r1"])
    }

    /// How a client shows who it is: the members of a tenant.
    private static let authentications = [
        #""provider": "tidal", "client_secret": "s1""#, #""provider": "tidal""#,
        #""provider": "spotify", "client_secret": "s1""#, #""provider": "spotify""#,
        #""provider": "spotify", "client_secret": "s1", "token_endpoint_auth_method": "client_secret_post""#,
    ]

    // X04
    @Test(arguments: authentications)
    func `a refresh token that a refresh brought is used from then on`(client: String) async throws {
        let broker = try await Self.user(.seconds(1), tenant: #"{"client_id": "c1", \#(client)}"#)
        for round in 2...4 {
            broker.transport.enqueue(.json(200, BrokerHarness.token("a\(round)", refresh: "r\(round)")))
            #expect(await broker.get("policy=local_force_refresh").token == "a\(round)")
        }
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r2", "r3"])
    }

    // X05
    @Test(arguments: [(#"{"client_id": "c1"}"#, "basic", 1), (withSecret, "client", 2)])
    func `after the provider ended a session its refresh token is not presented again`(
        tenant: String, level: String, calls: Int
    ) async throws {
        let broker = try await Self.user(.seconds(1), tenant: tenant)
        broker.transport.enqueue(
            .json(400, #"{"error": "invalid_grant"}"#), .json(200, BrokerHarness.token("client-1")))
        for query in ["", "", "api_error_sub_status=4005", "min_ttl=120", "policy=create_if_needed"] {
            #expect(await broker.get(query).level == level)
        }
        #expect(broker.transport.seen.count == calls)
        #expect(broker.transport.seen.compactMap(\.form["refresh_token"]) == ["r1"])
    }

    // X06
    @Test(arguments: [("4005", 0), ("6004", 0), ("1005", 0), ("11101", 1), ("11003", 1)])
    func `a 401 of the API is about the token by its sub-status only`(subStatus: String, refreshes: Int) async throws {
        let broker = try await Self.user()
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get("api_error_sub_status=\(subStatus)").token == (refreshes == 0 ? "a1" : "a2"))
        #expect(broker.transport.seen.count == refreshes)
    }
}
