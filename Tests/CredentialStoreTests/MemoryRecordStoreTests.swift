import BrokerTesting
import CredentialStore
import Testing

@Suite struct `Memory record store` {
    @Test(arguments: StoreConformance.checks)
    func `keeps the contract`(check: StoreConformance) async throws {
        try await check.run { MemoryRecordStore() }
    }
}
