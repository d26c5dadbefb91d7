internal import CredentialStore

extension BrokerHarness {
    /// Two brokers on one store and one clock, by which leases last, too, each with a provider script of its own.
    /// - Parameter belief: for how long each believes what it has read.
    package static func replicas(
        believing belief: Duration, time: ManualTime = ManualTime()
    ) async throws -> (one: BrokerHarness, two: BrokerHarness) {
        let records = MemoryRecordStore { time.monotonic }
        return (
            try await BrokerHarness(store: FaultyStore(records, revalidateAfter: belief), time: time),
            try await BrokerHarness(store: FaultyStore(records, revalidateAfter: belief), time: time)
        )
    }
}
