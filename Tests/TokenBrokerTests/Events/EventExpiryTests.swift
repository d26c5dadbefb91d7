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

@Suite(.timeLimit(.minutes(2))) struct `Notice of expiry` {
    private static func expiring(_ broker: BrokerHarness) async throws -> [SSEParser.Event] {
        try await broker.loggedEvents().filter { $0.name == "credentials.expiring" }
    }

    @Test func `comes once, five minutes ahead`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(3600))
        for (elapsed, count) in [(Duration.zero, 0), (.seconds(3300), 0), (.milliseconds(1), 1), (.seconds(400), 1)] {
            broker.time.advance(by: elapsed)
            _ = await broker.broker.core.expiryJob.handleAllDue()
            #expect(try await Self.expiring(broker).count == count, "\(elapsed)")
        }
        let event = try #require(try await Self.expiring(broker).first)
        #expect(event.json["expires"]?.string == "2026-11-21T10:00:00Z")
        #expect(event.json["refreshable"]?.bool == true)
        #expect(event.json["version"]?.integer == (await broker.get("policy=local")).version)
        #expect(!event.data.contains("a1") && !event.data.contains("r1"))
    }

    @Test func `comes at once, and once, for a token that lives shorter`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", lifetime: .seconds(100))
        for _ in 0..<3 { _ = await broker.broker.core.expiryJob.handleAllDue() }
        #expect(try await Self.expiring(broker).count == 1)
        await broker.set("a2", lifetime: .seconds(100))
        for _ in 0..<3 { _ = await broker.broker.core.expiryJob.handleAllDue() }
        #expect(try await Self.expiring(broker).count == 2)
    }

    @Test func `does not come for what was renewed or ended before`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", storageKey: "renewed")
        await broker.set("a1", refresh: "r1", storageKey: "ended")
        broker.time.advance(by: .seconds(3200))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        _ = await broker.get("policy=local_force_refresh&storage_key=renewed")
        _ = await broker.call(.delete, "/credentials?storage_key=ended", tenant: "t1")
        broker.time.advance(by: .seconds(200))
        _ = await broker.broker.core.expiryJob.handleAllDue()
        #expect(try await Self.expiring(broker).isEmpty)
    }

    @Test func `comes once when several replicas look at once, in the order of the expiries`() async throws {
        let store = MemoryRecordStore()
        let replicas = [try await BrokerHarness(store: store), try await BrokerHarness(store: store)]
        await replicas[0].makeTenant()
        for number in 0..<250 {
            await replicas[0].set("a", lifetime: .seconds(1000 - number), storageKey: "k\(number)")
        }
        for replica in replicas { replica.time.advance(by: .seconds(1000)) }
        await withTaskGroup { group in
            for replica in replicas { group.addTask { _ = await replica.broker.core.expiryJob.handleAllDue() } }
        }
        let told = try await Self.expiring(replicas[0])
        #expect(told.count == 250)
        #expect(Set(told.map(\.storageKey)).count == 250)
        #expect(try await replicas[0].vault.nextDue(.credentials) == nil)
    }

    @Test func `comes once although the answer to its commit is lost, and after a store that was away`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("a1", lifetime: .seconds(100))
        store.disturb([.loseAnswer]) { if case .settleDue = $0 { true } else { false } }
        #expect(await broker.broker.core.expiryJob.handleAllDue() == .seconds(5))
        #expect(store.remainingFaults == 0)
        _ = await broker.broker.core.expiryJob.handleAllDue()
        #expect(try await Self.expiring(broker).count == 1)
        await broker.set("a2", lifetime: .seconds(100))
        store.isAway = true
        _ = await broker.broker.core.expiryJob.handleAllDue()
        store.isAway = false
        _ = await broker.broker.core.expiryJob.handleAllDue()
        #expect(try await Self.expiring(broker).count == 2)
    }

    @Test func `a record that cannot be opened holds up no other`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let tenant = try #require(TenantName("t1"))
        for number in 0..<120 {
            try await broker.store.commit([
                .insert(
                    StoredRecord(
                        id: RecordID(.credentials, tenant, key: "broken-\(number)"), version: 1, sealed: [1, 2, 3],
                        due: ManualTime.beginning.advanced(by: .seconds(-1000))))
            ])
        }
        try await broker.vault.commit([
            .insert(
                OpenRecord(
                    id: RecordID(.credentials, tenant, key: "unreadable"), version: 1, content: SecretBytes([1]),
                    due: ManualTime.beginning.advanced(by: .seconds(-1000))))
        ])
        await broker.set("a1", lifetime: .seconds(100))
        _ = await broker.broker.core.expiryJob.handleAllDue()
        #expect(try await Self.expiring(broker).map(\.storageKey) == ["default"])
        _ = await broker.broker.core.expiryJob.handleAllDue()
        #expect(broker.log.filter { $0.contains("credentials_unreadable") }.count == 121)
        // A replica that has their key, or is of a newer version, finds their marks.
        #expect(try await broker.vault.nextDue(.credentials) == ManualTime.beginning.advanced(by: .seconds(60)))
        let later = ManualTime.beginning.advanced(by: .seconds(61))
        #expect(try await broker.vault.due(.credentials, before: later, limit: 500).count == 121)
    }

    @Test func `the job hears of a mark that comes before its next look`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(time: time)
        await broker.makeTenant()
        let listener = await broker.listen(tenant: "t1")
        let job = Task { await broker.broker.core.expiryJob.run() }
        // The feed's look and the job's.
        await time.sleepers(of: .seconds(1), .seconds(5))
        await broker.set("a1", lifetime: .seconds(100))
        #expect(await listener.events(2).map(\.name) == ["credentials.updated", "credentials.expiring"])
        job.cancel()
        await job.value
        await listener.close()
    }

    @Test func `the job that is stopped begins no further notice, however slow the store is`() async throws {
        let store = SlowNoticeStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        for number in 0..<3 { await broker.set("a", lifetime: .seconds(100), storageKey: "k\(number)") }
        let job = Task { await broker.broker.core.expiryJob.run() }
        await store.gate.arrivals(1)
        job.cancel()
        store.gate.open()
        await job.value
        #expect(try await Self.expiring(broker).count == 1)
    }

    @Test func `the job looks again when the next mark comes due, and every five seconds`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.broker.core.expiryJob.handleAllDue() == .seconds(5))
        await broker.set("a1", lifetime: .seconds(302))
        #expect(await broker.broker.core.expiryJob.handleAllDue() == .milliseconds(2001))
        await broker.set("a1", lifetime: .seconds(3600))
        #expect(await broker.broker.core.expiryJob.handleAllDue() == .seconds(5))
    }
}

/// A store in which notices wait for the gate, and which goes on with them when the caller is cancelled, as a database
/// does.
private final class SlowNoticeStore: ForwardingStore {
    let inner: any RecordStore = MemoryRecordStore()
    let gate = Gate()
    var revalidateAfter: Duration? { nil }

    func admit() throws(StoreError) {}

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        if changes.contains(where: { if case .settleDue = $0 { true } else { false } }) {
            gate.arrive()
            await gate.opened()
        }
        try await inner.commit(changes)
    }
}
