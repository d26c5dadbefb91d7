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

/// What listeners are told of a provider that answers no calls.
@Suite(.timeLimit(.minutes(1))) struct `The outage of a provider` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1"}"#

    private static func leave(_ count: Int, _ broker: BrokerHarness) async {
        for _ in 0..<count {
            let login = await broker.beginLogin()
            broker.transport.enqueue(.failure(.timedOut(.firstByte, requestSent: true)))
            _ = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        }
    }

    private static func settle(_ broker: BrokerHarness) async { await broker.broker.core.renewer.outages.settle() }

    private static func told(_ broker: BrokerHarness) async throws -> [JSONValue] {
        try await broker.events().filter { [.providerDegraded, .providerRecovered].contains($0.kind) }.map(\.data)
    }

    private static func kinds(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.events().map(\.kind.rawValue).filter { $0.hasPrefix("provider.") }
    }

    private static let both = ["provider.degraded", "provider.recovered"]

    @Test func `is told, and so is its end`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await Self.leave(25, broker)
        await Self.settle(broker)
        let begun = try await Self.told(broker)
        #expect(begun.count == 1)
        #expect(
            begun.first?.object?.mapValues { $0.text } == [
                "tenant": "t1", "cause": "outage", "error": "network_error", "retry_at": "2026-11-21T09:00:01Z",
                "time": "2026-11-21T09:00:00Z",
            ])
        #expect(try await broker.count(.outage) == 1)
        broker.time.advance(by: .seconds(7))
        await broker.logIn()
        await Self.settle(broker)
        let told = try await Self.told(broker)
        #expect(told.count == 2)
        #expect(
            told.last?.object?.mapValues { $0.text } == [
                "tenant": "t1", "cause": "outage", "since": "2026-11-21T09:00:00Z", "time": "2026-11-21T09:00:07Z",
            ])
        #expect(try await broker.count(.outage) == 0)
        // A later one is another one.
        await Self.leave(20, broker)
        await Self.settle(broker)
        #expect(try await Self.kinds(broker) == Self.both + Self.both.prefix(1))
    }

    @Test func `is told once over all replicas`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        for broker in [one, two] {
            await Self.leave(20, broker)
            await Self.settle(broker)
        }
        #expect(try await Self.kinds(one) == ["provider.degraded"])
        for broker in [two, one, two] {
            await broker.logIn()
            await Self.settle(broker)
        }
        #expect(try await Self.kinds(one) == Self.both)
    }

    @Test func `ends at the first answer of any replica that knows of it`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        await Self.leave(20, one)
        await Self.settle(one)
        // As a process that starts after the one that told of the outage has died.
        await two.logIn()
        await Self.settle(two)
        #expect(try await Self.kinds(one) == ["provider.degraded"])
        await two.broker.core.renewer.outages.run()
        await two.logIn()
        await Self.settle(two)
        #expect(try await Self.kinds(one) == Self.both)
        #expect(try await one.count(.outage) == 0)
        // The first replica lives after all.
        await one.logIn()
        await Self.settle(one)
        #expect(try await Self.kinds(one) == Self.both)
    }

    @Test(arguments: [(3599, false), (3600, true), (3601, true)])
    func `that replicas have left which have died is over after an hour`(seconds: Int, isNew: Bool) async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        await Self.leave(20, one)
        await Self.settle(one)
        two.time.advance(by: .seconds(seconds))
        await Self.leave(20, two)
        await Self.settle(two)
        #expect(try await Self.kinds(one).count == (isNew ? 2 : 1))
    }

    @Test func `is one however long it lasts`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        await Self.leave(20, one)
        await Self.settle(one)
        for _ in 0..<10 {
            one.time.advance(by: .seconds(900))
            await Self.leave(1, one)
            await Self.settle(one)
        }
        await Self.leave(20, two)
        await Self.settle(two)
        #expect(try await Self.kinds(one) == ["provider.degraded"])
    }

    // MARK: The store

    @Test(arguments: [BrokerFaultyStore.Fault.loseAnswer, .refuse, .landLate])
    func `is told once though the store fails`(fault: BrokerFaultyStore.Fault) async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", Self.tenant)
        store.disturb([fault]) { $0.writes(.outage) }
        await Self.leave(20, broker)
        await Self.settle(broker)
        #expect(store.remainingFaults == 0)
        #expect(try await Self.kinds(broker) == ["provider.degraded"])
        await broker.logIn()
        await Self.settle(broker)
        #expect(try await Self.kinds(broker) == Self.both)
    }

    @Test func `needs no store to spare the provider, and is told when the store is back`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", Self.tenant)
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.writes(.outage) }
        await Self.leave(20, broker)
        await gate.arrivals()
        // The store holds the event, and nothing else.
        #expect(broker.broker.core.providers.circuitCounts.map(\.count.open).reduce(0, +) == 1)
        await Self.leave(1, broker)
        gate.open()
        await Self.settle(broker)
        #expect(try await Self.kinds(broker) == ["provider.degraded"])
    }

    @Test func `that ends before the store is back is not told`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", Self.tenant)
        store.disturb(Array(repeating: .refuse, count: 6)) { $0.writes(.outage) }
        await Self.leave(20, broker)
        await Self.settle(broker)
        await broker.logIn()
        await Self.settle(broker)
        #expect(try await Self.kinds(broker) == [])
        #expect(broker.log.contains { $0.contains("event_not_stored") })
    }

    // MARK: Listeners

    @Test func `is told to listeners of the whole tenant only`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        let whole = await broker.makeKey()
        let narrow = await broker.makeKey(
            "t1", #"{"name": "n", "permissions": ["events"], "storage_keys": ["default"]}"#)
        let (one, other) = (await broker.listen(key: whole), await broker.listen(key: narrow))
        await Self.leave(20, broker)
        await Self.settle(broker)
        await broker.logIn()
        await Self.settle(broker)
        let names = await one.events(24).map(\.name)
        #expect(names.filter { $0.hasPrefix("provider.") } == Self.both)
        #expect(!(await other.events(22).map(\.name)).contains { $0.hasPrefix("provider.") })
        await one.close()
        await other.close()
    }
}
