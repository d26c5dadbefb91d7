import BrokerTesting
import CredentialStore
import Cryptography
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Two replicas, and a store that loses the commit of events that a listener of one of them has got.
@Suite(.timeLimit(.minutes(1))) struct `Events that a store loses` {
    private struct Setting {
        private static let tenant = TenantName("t1")!
        let time = ManualTime()
        let store: RewindingStore
        let one: BrokerHarness
        let two: BrokerHarness

        init() async throws {
            let group = ReplicaStore.Group()
            store = RewindingStore(MemoryRecordStore { [time] in time.monotonic })
            let ways = [ReplicaStore(store, in: group), ReplicaStore(store, in: group)]
            one = try await BrokerHarness(store: ways[0], time: time)
            two = try await BrokerHarness(store: ways[1], time: time)
            for way in ways { way.follow() }
            for broker in [one, two] { try await broker.broker.core.takeUpJournal() }
            await one.makeTenant()
            store.note()
        }

        /// Commits events at the first replica.
        func commit(_ text: String) async throws {
            let now = time.now
            try await one.broker.core.vault.commit([
                .append(
                    OpenLogEntry(
                        tenant: Self.tenant, key: "default", version: now.milliseconds, time: now,
                        content: SecretBytes(utf8: text)))
            ])
            one.broker.core.bus.announce(Self.tenant)
        }

        /// Loses what was committed since the store was noted; then `body` runs, and the replicas notice the loss.
        func goBack(_ body: () async throws -> Void = {}) async throws {
            time.advance(by: .seconds(1))
            store.goBack()
            try await body()
            for broker in [one, two] { _ = await broker.broker.core.storeRecovery.check() }
        }

        func kinds() async throws -> [BrokerEvent.Kind] { try await two.events().map { $0.kind } }
    }

    @Test func `are appended again, once, where a listener of one replica has got them`() async throws {
        let setting = try await Setting()
        let listener = await setting.one.listen(tenant: "t1")
        try await setting.commit("login.completed {\"login_id\":\"a\"}\nsession.started {\"session_id\":\"b\"}\n")
        #expect(await listener.events(2).count == 2)
        try await setting.goBack()
        #expect(try await setting.kinds().filter { $0 == .loginCompleted || $0 == .sessionStarted }.count == 2)
        #expect(setting.one.log.contains { $0.contains("events_stored_again") })
        setting.store.note()
        try await setting.goBack()
        #expect(try await setting.kinds().filter { $0 == .loginCompleted || $0 == .sessionStarted }.count == 2)
        await listener.close()
    }

    @Test func `tell of no credentials of which the log tells something newer`() async throws {
        let setting = try await Setting()
        let listener = await setting.one.listen(tenant: "t1")
        try await setting.commit(
            "credentials.deauthorized {\"storage_key\":\"default\"}\nlogin.completed {\"login_id\":\"a\"}\n")
        #expect(await listener.events(2).count == 2)
        try await setting.goBack { await setting.two.set("a2", refresh: "r2") }
        let kinds = try await setting.kinds()
        #expect(kinds.contains(.loginCompleted) && !kinds.contains(.credentialsDeauthorized), "\(kinds)")
        await listener.close()
    }

    @Test func `are not appended again where they were removed because there were too many`() async throws {
        let setting = try await Setting()
        let listener = await setting.one.listen(tenant: "t1")
        for id in ["a", "b", "c"] { try await setting.commit("login.completed {\"login_id\":\"\(id)\"}\n") }
        #expect(await listener.events(3).count == 3)
        let vault = setting.one.broker.core.vault
        #expect(try await vault.trimLog(before: Timestamp(seconds: 0), keeping: 1, limit: 9) == 2)
        setting.store.note()
        try await setting.goBack()
        #expect(try await setting.kinds().filter { $0 == .loginCompleted }.count == 1)
        await listener.close()
    }

    @Test func `are not appended twice where the store has lost nothing`() async throws {
        let setting = try await Setting()
        let listener = await setting.one.listen(tenant: "t1")
        try await setting.commit("login.completed {\"login_id\":\"a\"}\n")
        #expect(await listener.events(1).count == 1)
        setting.store.note()
        try await setting.goBack()
        #expect(try await setting.kinds().filter { $0 == .loginCompleted }.count == 1)
        await listener.close()
    }
}
