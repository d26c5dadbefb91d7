internal import BrokerCore
internal import BrokerTesting
internal import CredentialStore
internal import HTTPCodec
internal import OAuth
internal import Testing
internal import TokenBroker

/// Pauses that a provider has asked for, and what ends them before their time.
@Suite struct `A provider's pause` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1"}"#

    /// Has the provider ask for an hour, by an answer to the first replica.
    private static func pause(_ broker: BrokerHarness, tenant: String = "t1") async {
        await broker.set("old", refresh: "r1", lifetime: .zero, tenant: tenant)
        broker.time.advance(by: .seconds(2))
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "3600"]))
        #expect(await broker.get(tenant: tenant).retryAfter == 3600)
    }

    private static func isSpared(_ broker: BrokerHarness, tenant: String = "t1") async -> Bool {
        let count = broker.transport.seen.count
        let answer = await broker.get(tenant: tenant)
        #expect((answer.status == 503) == (broker.transport.seen.count == count))
        return broker.transport.seen.count == count
    }

    @Test func `ends when the tenant is put again`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await Self.pause(broker)
        #expect(await Self.isSpared(broker))
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await broker.get().token == "new")
    }

    @Test func `goes on when the tenant of another client or another provider is put`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await Self.pause(broker)
        await broker.makeTenant("t2", Self.tenant.replacing("c1", with: "c2"))
        await broker.makeTenant("t3", Self.tenant.replacing("id.example/t", with: "id.example/other"))
        #expect(await Self.isSpared(broker))
        // It is the client's: any tenant of the same one will do.
        await broker.makeTenant("t4", Self.tenant)
        broker.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await broker.get().token == "new")
    }

    @Test func `of a provider that is known by its metadata ends, too`() async throws {
        let tenant = #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example"}"#
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
                 "token_endpoint": "https://op.example/t"}
                """#))
        await Self.pause(broker)
        #expect(await Self.isSpared(broker))
        await broker.makeTenant("t1", tenant)
        broker.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await broker.get().token == "new")
    }

    /// Whether the replica is told of the change, or reads it again once its cache entry has expired.
    @Test(arguments: [true, false])
    func `ends at every replica`(isTold: Bool) async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let group = ReplicaStore.Group()
        let stores = (ReplicaStore(records, in: group), ReplicaStore(records, in: group))
        let one = try await BrokerHarness(store: stores.0, time: time)
        let two = try await BrokerHarness(store: stores.1, time: time)
        if isTold {
            stores.0.follow()
            stores.1.follow()
        } else {
            stores.1.setDelivery(.fails)
        }
        await one.makeTenant("t1", Self.tenant)
        await Self.pause(two)
        #expect(await Self.isSpared(two))
        await one.makeTenant("t1", Self.tenant)
        if !isTold {
            #expect(await Self.isSpared(two))
            time.advance(by: .seconds(5))
        }
        two.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await two.get().token == "new")
    }

    /// The store tells a replica of what it has written itself as well.
    @Test func `that begins after the tenant was put goes on`() async throws {
        let time = ManualTime()
        let store = ReplicaStore(MemoryRecordStore { time.monotonic }, in: ReplicaStore.Group())
        let broker = try await BrokerHarness(store: store, time: time)
        store.follow()
        await broker.makeTenant("t1", Self.tenant)
        await Self.pause(broker)
        for _ in 0..<100 {
            #expect(await Self.isSpared(broker))
            time.advance(by: .seconds(10))
            store.follow()
        }
    }

    /// The user of one client is not kept waiting for an hour by a server that is in trouble for a moment.
    @Test func `after a 503 lasts a minute for all users of the client`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await broker.set("other", refresh: "r2", lifetime: .zero, storageKey: "other")
        await broker.set("old", refresh: "r1", lifetime: .zero)
        broker.time.advance(by: .seconds(2))
        broker.transport.enqueue(.json(503, "", fields: ["Retry-After": "3600"]))
        #expect(await broker.get().retryAfter == 60)
        #expect(await broker.get("storage_key=other").retryAfter == 60)
        broker.time.advance(by: .seconds(60))
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("new")), .json(200, BrokerHarness.token("another")))
        #expect(await broker.get().token == "new")
        #expect(await broker.get("storage_key=other").token == "another")
    }
}
