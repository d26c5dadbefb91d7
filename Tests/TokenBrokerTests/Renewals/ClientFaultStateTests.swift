import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// What the list, the status, the answers to callers and the events say while a provider does not accept the client.
@Suite struct `The users of a client that its provider refuses` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#
    private static let refusal = ScriptedTransport.Step.json(401, #"{"error": "invalid_client"}"#)
    private static let users = ["user1", "user2", "user3"]
    private static let all = Set(users)

    /// Two replicas, and users whose tokens are over; `fleeting` has no refresh token.
    private static func replicas() async throws -> (one: BrokerHarness, two: BrokerHarness) {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await fill(one)
        for broker in [one, two] { broker.transport.always(refusal) }
        return (one, two)
    }

    private static func fill(_ broker: BrokerHarness, lifetime: Duration = .zero) async {
        await broker.makeTenant("t1", tenant)
        for user in users { await broker.set("a", refresh: "r-\(user)", lifetime: lifetime, storageKey: user) }
        await broker.set("a", storageKey: "fleeting")
    }

    private static func get(_ broker: BrokerHarness, _ user: String, _ query: String = "") async -> BrokerHarness.Answer
    {
        await broker.get("storage_key=\(user)\(query)")
    }

    private static func list(_ broker: BrokerHarness, _ query: String = "") async -> [JSONValue] {
        await broker.call(.get, "/credentials/list?" + query, tenant: "t1").json["credentials"]?.array ?? []
    }

    /// The storage keys that the list has as degraded; those of which `status` says so must be the same.
    private static func degraded(_ broker: BrokerHarness) async -> Set<String> {
        let listed = await list(broker).filter { $0["level"]?.text == "user" }
        let states = listed.map { ($0["storage_key"]?.text ?? "", $0["state"]?.text) }
        for (key, state) in states { #expect(await broker.status(storageKey: key).json["state"]?.text == state) }
        return Set(states.filter { $0.1 == "degraded" }.map(\.0))
    }

    @Test func `are degraded at every replica, and in the next process`() async throws {
        let (one, two) = try await Self.replicas()
        #expect(await Self.degraded(one) == [])
        #expect(await Self.get(one, "user1").status == 424)
        for broker in [one, two, try await BrokerHarness(store: one.store, time: one.time)] {
            #expect(await Self.degraded(broker) == Self.all)
        }
        #expect(await Self.list(two, "state=degraded").count == 3)
        #expect(await Self.list(two, "state=active").map { $0["storage_key"]?.text } == ["fleeting"])
        // Whether a provider accepts a client does not change while none asks it.
        one.time.advance(by: .seconds(86_400))
        #expect(await Self.degraded(two).isSuperset(of: Self.all))
    }

    @Test func `are seen by a key that is confined to some storage keys`() async throws {
        let (one, two) = try await Self.replicas()
        #expect(await Self.get(one, "user1").status == 424)
        let key = await one.makeKey(
            "t1", #"{"name": "n", "permissions": ["credentials:read"], "storage_keys": ["user3"]}"#)
        let listed = await two.call(.get, "/credentials/list", key: key).json["credentials"]?.array
        #expect(listed?.map { $0["state"]?.text } == ["degraded"])
    }

    /// The event, the list and what a caller is given tell of one fault: of the same code, and since the same time.
    @Test func `are told the same by the list, by the event and by each answer`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await Self.fill(one, lifetime: .seconds(59))
        for broker in [one, two] { broker.transport.always(Self.refusal) }
        let since = one.time.now
        #expect(await Self.get(one, "user1").status == 200)
        one.time.advance(by: .seconds(12))
        let event = try #require(try await one.events().first { $0.kind == .providerDegraded }?.data)
        for (broker, user) in [(one, "user1"), (one, "user2"), (two, "user3")] {
            let answer = await Self.get(broker, user)
            let degraded = try #require(answer.json["degraded"])
            let listed = try #require(await Self.list(two).first { $0["storage_key"]?.text == user })
            let error = try #require(listed["last_error"])
            #expect(listed["state"]?.text == "degraded")
            #expect(degraded["since"] == .string(WireText(since.description)))
            #expect(degraded["since"] == error["since"] && degraded["since"] == event["time"])
            #expect(degraded["code"] == error["code"] && degraded["code"] == event["error"])
            #expect(error["error_code"] == event["error_code"])
            if broker.transport === one.transport { #expect(degraded["retry_at"] == event["retry_at"]) }
        }
    }

    @Test(arguments: [0, 1])
    func `are degraded no more at any replica once one of them is renewed at one`(index: Int) async throws {
        let (one, two) = try await Self.replicas()
        #expect(await Self.get(one, "user1").status == 424)
        #expect(await Self.degraded(two) == Self.all)
        one.time.advance(by: .seconds(30))
        for broker in [one, two] { broker.transport.always(.json(200, BrokerHarness.token("new", refresh: "r2"))) }
        #expect(await Self.get([one, two][index], "user2").token == "new")
        #expect(await one.status(storageKey: "user1").json["state"]?.text == "active")
        for broker in [one, two] { #expect(await Self.degraded(broker) == []) }
    }

    /// A replica that neither met the fault nor was asked of it hears of it by the store's feed.
    @Test func `are degraded no more once a replica renews one that has only heard of the fault`() async throws {
        let (time, base, group) = (ManualTime(), MemoryRecordStore(), ReplicaStore.Group())
        let feeds = (0..<2).map { _ in ReplicaStore(base, in: group) }
        let one = try await BrokerHarness(store: feeds[0], time: time)
        let two = try await BrokerHarness(store: feeds[1], time: time)
        for feed in feeds { feed.follow() }
        await Self.fill(one)
        one.transport.always(Self.refusal)
        #expect(await Self.get(one, "user1").status == 424)
        two.transport.always(.json(200, BrokerHarness.token("new", refresh: "r2")))
        #expect(await Self.get(two, "user2").token == "new")
        #expect(await one.status(storageKey: "user1").json["state"]?.text == "active")
    }

    @Test func `are degraded no more where the list shows a renewal that came later`() async throws {
        let store = MemoryRecordStore()
        let first = try await BrokerHarness(store: store)
        await Self.fill(first)
        first.transport.always(Self.refusal)
        #expect(await Self.get(first, "user1").status == 424)
        // The process starts again, and has met no fault.
        let next = try await BrokerHarness(store: store, time: first.time)
        next.time.advance(by: .seconds(1))
        next.transport.always(.json(200, BrokerHarness.token("new", refresh: "r2")))
        #expect(await Self.get(next, "user3").token == "new")
        #expect(await Self.list(next, "state=degraded").isEmpty)
        #expect(await Self.degraded(next) == [])
        let again = try await BrokerHarness(store: store, time: first.time)
        #expect(await again.status(storageKey: "user1").json["state"]?.text == "active")
    }

    @Test func `are degraded no more once the tenant is put again`() async throws {
        let (one, two) = try await Self.replicas()
        #expect(await Self.get(one, "user1").status == 424)
        await two.makeTenant("t1", Self.tenant.replacing("s1", with: "s2"))
        for broker in [one, two] { #expect(await Self.degraded(broker) == []) }
    }

    @Test func `are degraded where the store does not take the fault or does not answer`() async throws {
        let store = FaultyStore(MemoryRecordStore())
        let broker = try await BrokerHarness(store: store)
        await Self.fill(broker, lifetime: .seconds(50))
        broker.transport.always(Self.refusal)
        store.onCommit(of: .trouble, .refuse(.unavailable))
        #expect(await Self.get(broker, "user1").status == 200)
        #expect(await Self.degraded(broker) == Self.all)
        store.setDown(true)
        #expect(await broker.status(storageKey: "user1").json["state"]?.text == "degraded")
    }

    @Test(arguments: [("unauthorized_client", true), ("invalid_scope", false)])
    func `are degraded where the client may not refresh, and not where it gets no token of its own`(
        error: String, isRefresh: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        await Self.fill(broker)
        broker.transport.always(
            .decide { seen in
                (seen.form["grant_type"] == "refresh_token") == isRefresh
                    ? .json(400, #"{"error": "\#(error)"}"#) : .json(200, BrokerHarness.token("new"))
            })
        #expect(await Self.get(broker, isRefresh ? "user1" : "nobody").status == 424)
        #expect(await Self.degraded(broker) == (isRefresh ? Self.all : []))
        // The client's own token says nothing of refreshes.
        #expect(await Self.get(broker, isRefresh ? "nobody" : "user1").status == 200)
        #expect(await Self.degraded(broker) == (isRefresh ? Self.all : []))
    }
}
