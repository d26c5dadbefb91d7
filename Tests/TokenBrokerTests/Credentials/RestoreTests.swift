import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Restoring credentials` {
    private static let week: Duration = .seconds(7 * 86_400)

    /// A user whose session the provider has just ended.
    private static func ended(
        _ tenant: String = #"{"client_id": "c1"}"#, store: any RecordStore = MemoryRecordStore(),
        _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, adjust)
        await broker.makeTenant("t1", tenant)
        await broker.set(
            "a1", refresh: "canary-r1", lifetime: .zero, members: #""level": "user", "user_id": "42", "#)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("level=user").status == 424)
        return broker
    }

    @Test func `puts back what the provider ended, to be refreshed as before`() async throws {
        let broker = try await Self.ended()
        let before = await broker.get()
        let answer = await broker.restore()
        #expect(answer.status == 200)
        #expect(
            answer.text == #"{"storage_key":"default","level":"user","client_id":"c1","granted_scopes":[],"#
                + #""user_id":"42","expires":"2026-11-21T09:00:00Z","refreshable":true}"#)
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(answer.version > before.version)
        #expect(await broker.status().isLoggedIn == true)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "canary-r1")
        #expect(try await broker.causes() == ["set", "revoked", "restored", "refresh"])
        #expect(try await broker.count(.quarantine) == 0)
        #expect(!(answer.text + broker.log.joined()).contains("canary-r1"))
    }

    @Test func `a second time is a conflict, and after another logout there is nothing`() async throws {
        let broker = try await Self.ended()
        #expect(await broker.restore().status == 200)
        let second = await broker.restore()
        #expect((second.status, second.code) == (409, "conflict"))
        await broker.logOut()
        #expect(await broker.restore().code == "not_found")
    }

    @Test func `finds nothing where nothing was ended`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.restore(storageKey: "never")
        #expect((answer.status, answer.code) == (404, "not_found"))
        #expect(await broker.restore(tenant: "t9").status == 404)
        #expect(try await broker.count(.credentials) == 0)
    }

    @Test func `finds nothing after an explicit logout`() async throws {
        let broker = try await Self.ended()
        #expect(await broker.logOut().status == 204)
        #expect(try await broker.count(.quarantine) == 0)
        #expect(await broker.restore().status == 404)
        await broker.set("b1", refresh: "r2")
        #expect(await broker.logOut().status == 204)
        #expect(await broker.restore().status == 404)
    }

    @Test func `a logout purges what is kept aside even where nothing else is stored`() async throws {
        let broker = try await Self.ended()
        let id = RecordID(.credentials, TenantName("t1")!, key: "default")
        let version = try #require(try await broker.vault.version(of: id))
        try await broker.vault.commit([.remove(id, version: version)])
        // A process of its own, which has nothing in memory.
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        #expect(await other.logOut().status == 204)
        #expect(try await other.count(.quarantine) == 0)
        #expect(await other.get("policy=local").code == "missing_token_container")
    }

    @Test(arguments: [(-1, 200), (0, 404), (1, 404)])
    func `is possible until the last millisecond of the week`(offset: Int, status: Int) async throws {
        let broker = try await Self.ended()
        broker.time.advance(by: Self.week + .milliseconds(offset))
        #expect(await broker.restore().status == status)
    }

    @Test(arguments: [(-1, 1), (0, 1), (1, 0)])
    func `leaves what is over to housekeeping`(offset: Int, left: Int) async throws {
        let broker = try await Self.ended()
        let stored = try await broker.store.list(.quarantine, tenant: nil, after: nil, limit: 10)
        #expect(stored.map(\.expires) == [broker.time.now.advanced(by: Self.week)])
        // Sealed: neither token is in what the store holds.
        for secret in ["canary-r1", "a1\""] {
            #expect(!String(decoding: stored[0].sealed, as: UTF8.self).contains(secret))
        }
        broker.time.advance(by: Self.week + .milliseconds(offset))
        _ = try await broker.vault.removeExpired(before: broker.time.now, limit: 500)
        #expect(try await broker.count(.quarantine) == left)
    }

    @Test(arguments: [1, 30])
    func `the days are those of the settings`(days: Int) async throws {
        let broker = try await Self.ended { $0.core.quarantine = .seconds(days * 86_400) }
        #expect(try await broker.quarantined()?.until == broker.time.now.advanced(by: .seconds(days * 86_400)))
    }

    @Test func `is refused where a user is logged in, and takes the place of client credentials`() async throws {
        let broker = try await Self.ended(#"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().level == "client")
        #expect(await broker.restore().status == 200)
        #expect(await broker.restore().status == 409)
        await broker.set("b1")
        #expect(await broker.restore().status == 409)
    }

    @Test func `wins over client credentials that are being obtained`() async throws {
        let broker = try await Self.ended(#"{"client_id": "c1", "client_secret": "s1"}"#)
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("client-1"))), .json(200, BrokerHarness.token("a2")))
        async let obtained = broker.get()
        await gate.arrivals()
        #expect(await broker.restore().status == 200)
        gate.open()
        let answer = await obtained
        #expect((answer.level, answer.token) == ("user", "a2"))
        #expect(await broker.status().isLoggedIn == true)
    }

    @Test func `puts back what stood there last, not what was read while it changed`() async throws {
        let base = MemoryRecordStore()
        let store = FaultyStore(base)
        let broker = try await Self.ended(store: store)
        let sibling = try await BrokerHarness(store: base, time: broker.time)
        let gate = Gate()
        store.holdNextRead(of: .quarantine, gate)
        async let restored = broker.restore()
        await gate.arrivals()
        await sibling.set("b1", refresh: "r2", lifetime: .zero)
        sibling.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await sibling.get().level == "basic")
        gate.open()
        #expect(await restored.status == 200)
        broker.transport.enqueue(.json(200, BrokerHarness.token("b2")))
        #expect(await broker.get().token == "b2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test func `of two at once one succeeds`() async throws {
        let broker = try await Self.ended()
        async let first = broker.restore()
        async let second = broker.restore()
        #expect(await [first.status, second.status].sorted() == [200, 409])
    }

    @Test func `only the newest session is kept`() async throws {
        let broker = try await Self.ended()
        await broker.set("b1", refresh: "r2", lifetime: .zero)
        broker.transport.enqueue(.json(401, #"{"error": "invalid_client"}"#))
        #expect(await broker.get().level == "basic")
        #expect(try await broker.count(.quarantine) == 1)
        #expect(try await broker.quarantined()?.credentials.refreshToken?.revealedText == "r2")
    }

    @Test func `storage keys and tenants are apart`() async throws {
        let broker = try await Self.ended()
        await broker.makeTenant("t2")
        #expect(await broker.restore(storageKey: "other").status == 404)
        #expect(await broker.restore(tenant: "t2").status == 404)
        #expect(await broker.call(.post, "/credentials/restore", tenant: "t1").status == 200)
    }

    @Test func `deleting the tenant deletes what is kept aside`() async throws {
        let broker = try await Self.ended()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        await broker.makeTenant()
        #expect(await broker.restore().status == 404)
        #expect(try await broker.count(.quarantine) == 0)
    }

    @Test func `is the admin's`() async throws {
        let broker = try await Self.ended()
        let key = await broker.makeKey()
        let answer = await broker.call(.post, "/credentials/restore", key: key, body: "{}")
        #expect((answer.status, answer.code) == (403, "forbidden"))
        #expect(await broker.call(.post, "/credentials/restore", key: nil, body: "{}").status == 401)
        #expect(await broker.call(.post, "/credentials/restore", body: "{}").status == 400)
        #expect(try await broker.quarantined() != nil)
    }

    @Test(arguments: [
        (#"{"storage_key": "a b"}"#, ["/storage_key"]), (#"{"tenant": "t2"}"#, ["/tenant"]), ("[]", [""]),
    ])
    func `refuses a field that is wrong with its pointer`(body: String, pointers: [String]) async throws {
        let broker = try await Self.ended()
        let answer = await broker.call(.post, "/credentials/restore", tenant: "t1", body: body)
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.pointers == pointers)
        let query = await broker.call(.post, "/credentials/restore?storage_key=default", tenant: "t1", body: "{}")
        #expect(query.pointers == ["storage_key"])
        let type = await broker.call(
            .post, "/credentials/restore", tenant: "t1", body: "{}", fields: ["Content-Type": "text/plain"])
        #expect(type.status == 415)
    }

    @Test func `a restoration whose answer was lost has happened`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.ended(store: store)
        store.disturb([.loseAnswer]) { $0.writes(.credentials) }
        #expect(await broker.restore().code == "storage_unavailable")
        #expect(await broker.restore().status == 409)
        #expect(await broker.status().isLoggedIn == true)
    }
}
