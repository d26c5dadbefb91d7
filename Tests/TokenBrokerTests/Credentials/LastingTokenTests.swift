import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `A token whose answer names no lifetime` {
    /// A tenant whose tokens have no end unless they name one.
    private static let lasting = #"{"client_id": "c1", "default_lifetime": "never"}"#
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1", "default_lifetime": "never"}"#
    private static let century: Duration = .seconds(100 * 366 * 86_400)

    /// A JWT that tells nothing but when it ends.
    private static func jwt(exp: Int64) -> String {
        "e30." + Base64Text.encode(#"{"exp":\#(exp)}"#) + ".s"
    }

    /// A user of such a tenant whose token has no end.
    private static func loggedIn(
        refresh: String? = "r1", _ tenant: String = lasting, store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        await broker.logIn(token: BrokerHarness.token("a1", refresh: refresh, expiresIn: nil, userID: 42))
        return broker
    }

    private static func expectEndless(_ answer: BrokerHarness.Answer, _ token: String) {
        #expect((answer.status, answer.level, answer.token) == (200, "user", token))
        #expect(answer.json["expires"] == .null)
        #expect(answer.json["expires_in"] == .null)
    }

    // Q01
    @Test(
        arguments: [
            (nil, "opaque", 3600), (#""default_lifetime": 1"#, "opaque", 1),
            (#""default_lifetime": 315360000"#, "opaque", 315_360_000), (#""default_lifetime": 60"#, "jwt", 7200),
            (#""default_lifetime": "never""#, "jwt", 7200), (#""default_lifetime": null"#, "opaque", 3600),
        ] as [(String?, String, Int64)])
    func `lives as its JWT says, else as the tenant says, else for an hour where it can be renewed`(
        member: String?, kind: String, seconds: Int64
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1"\#(member.map { ", " + $0 } ?? "")}"#)
        let token = kind == "jwt" ? Self.jwt(exp: broker.time.now.seconds + seconds) : "a1"
        await broker.logIn(token: BrokerHarness.token(token, refresh: "r1", expiresIn: nil))
        let answer = await broker.get("min_ttl=0")
        #expect(answer.json["expires_in"]?.integer == seconds)
    }

    @Test func `lives until it is refused where nothing is known of it and nothing can renew it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1"}"#)
        await broker.logIn(token: BrokerHarness.token("a1", expiresIn: nil))
        broker.time.advance(by: .seconds(30 * 86_400))
        Self.expectEndless(await broker.get(), "a1")
        broker.transport.always(.json(200, BrokerHarness.token("never asked for")))
        let refused = await broker.get("api_error_sub_status=11003")
        #expect(refused.token == nil, "\(refused.text)")
    }

    /// What a provider sends as `expires_in` to a tenant whose tokens last for ever without it; nil for no end.
    @Test(
        arguments: [
            ("null", nil), (#""3600""#, 3600), (#""70.5""#, 70), ("70.5", 70), ("1", 1), ("0.9", 0), ("0", 0),
            ("-1", 0),
            (#""-1""#, 0), ("315360001", 315_360_000), ("1e300", 315_360_000), (#""abc""#, 3600), (#""""#, 3600),
            ("true", 3600), ("[60]", 3600), (#""1e3""#, 3600),
        ] as [(String, Int64?)])
    func `that names one in any way does not last for ever`(value: String, seconds: Int64?) async throws {
        let broker = try await Self.loggedIn()
        broker.transport.enqueue(
            .json(200, #"{"access_token": "a2", "token_type": "Bearer", "expires_in": \#(value)}"#))
        let answer = await broker.get("policy=local_force_refresh&min_ttl=0")
        let stored = try #require(await broker.call(.get, "/credentials/status", tenant: "t1").json["expires"])
        let end = seconds.map { broker.time.now.advanced(by: .seconds($0)).description }
        #expect(stored.text == end, "\(answer.text)")
        let isUnreadable = seconds == 3600 && value != #""3600""#
        #expect(broker.log.contains { $0.contains("token_lifetime_unreadable") } == isUnreadable)
    }

    @Test func `that cannot be read lives for as long as the tenant's tokens without one`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "default_lifetime": 120}"#)
        await broker.logIn(token: #"{"access_token": "a1", "token_type": "Bearer", "expires_in": "soon"}"#)
        #expect(await broker.get().json["expires_in"]?.integer == 120)
    }

    @Test func `that never ends is given out for a century, with nulls for its end`() async throws {
        let broker = try await Self.loggedIn()
        let first = await broker.get()
        Self.expectEndless(first, "a1")
        #expect(
            first.text == #"{"level":"user","client_id":"c1","requested_scopes":[],"client_unique_key":null,"#
                + #""granted_scopes":[],"user_id":"42","expires":null,"expires_in":null,"#
                + #""token_type":"Bearer","token":"a1"}"#)
        broker.time.advance(by: Self.century)
        let second = await broker.get("min_ttl=86400")
        Self.expectEndless(second, "a1")
        #expect(second.tag == first.tag)
        #expect(await broker.get(fields: ["If-None-Match": first.tag]).status == 304)
        #expect(broker.transport.seen.count == 1)
        let status = await broker.status()
        #expect(status.json["expires"] == .null)
        #expect(status.isLoggedIn == true)
    }

    @Test(arguments: ["r1", nil])
    func `that never ends logs its user in without a refresh token, too`(refresh: String?) async throws {
        let broker = try await Self.loggedIn(refresh: refresh)
        broker.time.advance(by: .seconds(86_400))
        Self.expectEndless(await broker.get("level=user"), "a1")
        #expect(await broker.status().isLoggedIn == true)
        #expect(try await broker.causes() == ["login"])
    }

    @Test func `that never ends is read by another process as it was stored`() async throws {
        let broker = try await Self.loggedIn()
        broker.time.advance(by: Self.century)
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        Self.expectEndless(await other.get(), "a1")
        #expect(await other.get().tag == (await broker.get().tag))
    }

    // Q01
    @Test(arguments: ["policy=local_force_refresh", "api_error_sub_status=11003"])
    func `that never ends is refreshed when it is refused`(query: String) async throws {
        let broker = try await Self.loggedIn()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", expiresIn: nil)))
        Self.expectEndless(await broker.get(query), "a2")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", expiresIn: 120)))
        let third = await broker.get(query)
        #expect((third.token, third.json["expires_in"]?.integer) == ("a3", 120))
        #expect(broker.transport.seen.suffix(2).allSatisfy { $0.form["refresh_token"] == "r1" })
    }

    @Test func `that an API refused and nothing can renew falls to the next level, and can be restored`() async throws {
        let broker = try await Self.loggedIn(refresh: nil)
        let refused = await broker.get("api_error_sub_status=11003")
        #expect((refused.status, refused.level) == (200, "basic"))
        #expect(try await broker.causes() == ["login", "expired"])
        #expect(await broker.status().isLoggedIn == false)
        let restored = await broker.restore()
        #expect(restored.status == 200)
        #expect(restored.json["expires"] == .null)
        broker.time.advance(by: Self.century)
        Self.expectEndless(await broker.get(), "a1")
    }

    @Test func `that never ends is restored after the provider ended the session`() async throws {
        let broker = try await Self.loggedIn()
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("policy=local_force_refresh").level == "basic")
        #expect(await broker.restore().status == 200)
        Self.expectEndless(await broker.get(), "a1")
    }

    @Test func `that never ends is gone after a logout`() async throws {
        let broker = try await Self.loggedIn()
        #expect(await broker.logOut().status == 204)
        #expect(await broker.get().level == "basic")
        #expect(await broker.restore().code == "not_found")
    }

    @Test func `that never ends is taken from elsewhere as its broker answers it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.lasting)
        let put = await broker.call(
            .put, "/credentials", tenant: "t1",
            body: #"""
                {"credentials": {"level": "user", "client_id": "c1", "user_id": "42", "expires": null, "expires_in": null,
                 "token_type": "Bearer", "token": "a1"}}
                """#)
        #expect(put.status == 200)
        #expect(put.json["expires"] == .null)
        broker.time.advance(by: Self.century)
        Self.expectEndless(await broker.get(), "a1")
    }

    @Test func `that never ends is the client's, too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1", expiresIn: nil)))
        #expect(await broker.get().token == "client-1")
        broker.time.advance(by: Self.century)
        let answer = await broker.get()
        #expect((answer.level, answer.token) == ("client", "client-1"))
        #expect(answer.json["expires"] == .null)
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `that never ends is told without an end, and never as expiring`() async throws {
        let broker = try await Self.loggedIn(
            #"{"client_id": "c1", "default_lifetime": "never", "proactive_refresh": 3600, "refresh_lead_time": 86400}"#)
        broker.time.advance(by: Self.century)
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
        let events = try await broker.events()
        #expect(events.map(\.kind) == [.credentialsUpdated, .loginCompleted])
        #expect(events.first?.data["expires"] == .null)
        #expect(broker.transport.seen.count == 1)
        Self.expectEndless(await broker.get(), "a1")
    }

    @Test func `that never ends is answered at once as by the way that may wait`() async throws {
        try await withWarmServer(tenant: Self.lasting) { server async throws in
            let put = await server.harness.call(
                .put, "/credentials", key: server.key,
                body: #"{"storage_key": "k", "credentials": {"client_id": "c1", "user_id": "9", "token": "t-k"}}"#)
            #expect(put.status == 200)
            let usual = await server.harness.call(.get, "/credentials?storage_key=k", key: server.key)
            Self.expectEndless(usual, "t-k")
            for _ in 0..<3 {
                let answer = try await server.get("/credentials?storage_key=k")
                #expect(answer.text == usual.text)
                #expect(answer.tag == put.tag)
            }
            #expect(try await server.get("/credentials?storage_key=k", "If-None-Match: \(put.tag)").status == 304)
            #expect(server.usual() == 0)
        }
    }

    @Test(arguments: [
        "0", "315360001", "-1", "1.5", #""soon""#, #""Never""#, #""""#, "true", "[]",
    ])
    func `lives for a number of seconds or never, and nothing else`(value: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1", "default_lifetime": \#(value)}"#)
        #expect((answer.status, answer.pointers) == (400, ["/default_lifetime"]))
    }

    @Test(arguments: [("7200", JSONValue.integer(7200)), (#""never""#, .string("never"))])
    func `has its tenant's lifetime shown as it was put`(value: String, shown: JSONValue) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "default_lifetime": \#(value)}"#)
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        #expect(await other.call(.get, "/tenants/t1").json["default_lifetime"] == shown)
        await broker.makeTenant()
        #expect(await broker.call(.get, "/tenants/t1").json["default_lifetime"] == nil)
    }
}
