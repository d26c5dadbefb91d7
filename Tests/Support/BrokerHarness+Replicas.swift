import CredentialStore

extension BrokerHarness {
    /// Two brokers on one store and one clock, by which leases last, too, each with a provider script of its own.
    /// - Parameter cacheValidity: for how long a cache entry of each replica is valid.
    package static func replicas(
        cacheValidity: Duration, time: ManualTime = ManualTime()
    ) async throws -> (one: BrokerHarness, two: BrokerHarness) {
        let records = MemoryRecordStore { time.monotonic }
        return (
            try await BrokerHarness(store: FaultyStore(records, revalidateAfter: cacheValidity), time: time),
            try await BrokerHarness(store: FaultyStore(records, revalidateAfter: cacheValidity), time: time)
        )
    }
}
