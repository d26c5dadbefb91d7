import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import OAuth
import Testing
import TokenBroker

@Suite struct `What a store reports` {
    @Test func `is in the log, with the place of the damage, and not in the answer`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1")
        var record = try #require(await store.read(RecordID(.tenant, TenantName("t1")!)))
        record.sealed[40] ^= 1
        record.version += 1
        try await store.commit([.replace(record, version: record.version - 1)])
        let other = try await BrokerHarness(store: store)
        let answer = await other.call(.get, "/tenants/t1")
        #expect(answer.code == "internal_error")
        #expect(!answer.text.contains("tenant record"))
        #expect(
            other.log.contains {
                $0.contains(#""event":"request_failed""#)
                    && $0.contains(#""store_error":"damaged: the tenant record of t1 does not open"#)
            })
    }

    @Test func `is in the log when it is only away`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        store.isAway = true
        let answer = await broker.call(.get, "/tenants/t1")
        #expect(answer.code == "storage_unavailable")
        #expect(broker.log.contains { $0.contains(#""code":"storage_unavailable","store_error":"unavailable""#) })
    }
}
