import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import OAuth
import Synchronization
import Testing
import TokenBroker

/// A replica has died in the middle of its call, and the provider takes the refresh token again for some seconds only.
@Suite(.timeLimit(.minutes(1))) struct `A statement that hangs while the provider's grace runs` {
    /// A store in which one statement hangs: the first one of its kind after `arm`.
    private final class HangingStore: ForwardingStore {
        enum Kind: CaseIterable, Sendable { case read, claim }

        let inner: any RecordStore
        let revalidateAfter: Duration? = .seconds(5)
        let gate = Gate()
        private let hanging = Mutex<Kind?>(nil)

        init(_ inner: any RecordStore) {
            self.inner = inner
        }

        func arm(_ kind: Kind) { hanging.withLock { $0 = kind } }

        private func hang(_ kind: Kind) async {
            let hangs = hanging.withLock { hanging in
                guard hanging == kind else { return false }
                hanging = nil
                return true
            }
            guard hangs else { return }
            gate.arrive()
            await gate.opened()
        }

        func admit() throws(StoreError) {}

        func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
            if id.kind == .credentials { await hang(.read) }
            return try await inner.read(id)
        }

        func commit(_ changes: [RecordChange]) async throws(StoreError) {
            let isClaim = changes.contains { if case .claim = $0 { true } else { false } }
            if isClaim { await hang(.claim) }
            try await inner.commit(changes)
        }
    }

    private static let row = RecordID(.credentials, TenantName("t1")!, key: "default")

    @Test(arguments: HangingStore.Kind.allCases)
    private func `keeps no other statement from taking the lease over`(kind: HangingStore.Kind) async throws {
        let time = ManualTime(skipsSleeps: false)
        let store = HangingStore(MemoryRecordStore { time.monotonic })
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", #"{"client_id": "c1", "rotation": "always"}"#)
        _ = await broker.set("a1", refresh: "r1")
        let asked = Gate()
        broker.transport.enqueue(.after(asked, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        // It has reached the store for long enough.
        time.advance(by: .seconds(5))
        let version = try #require(try await broker.vault.read(Self.row)).version
        let lease = LeaseClaim(holder: "dead", for: .seconds(10) / 3, marksUse: true)
        try await broker.vault.commit([.claim(Self.row, version: version, lease)])
        time.advance(by: .seconds(4))
        store.arm(kind)
        broker.broker.core.start()
        let clock = Task {
            while !Task.isCancelled {
                await time.sleeper()
                time.advance(by: .milliseconds(50))
                for _ in 0..<50 { await Task.yield() }
            }
        }
        await store.gate.arrivals()
        // The provider is asked while the statement hangs.
        await asked.arrivals()
        store.gate.open()
        asked.open()
        broker.broker.beginDraining()
        await broker.broker.core.finish()
        clock.cancel()
        await clock.value
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1"])
        #expect(try await broker.vault.read(Self.row)?.lease == nil)
    }
}
