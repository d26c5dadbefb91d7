import CredentialStore
import OAuth

/// Removes expired records and old events from the store, and from memory and journal what was kept for its time, and finishes
/// changes of operators' profiles, once a minute.
/// Every replica does so, and finds only what no other replica has removed.
struct Housekeeping: BackgroundJob {
    let vault: Vault
    let memory: RecentCommits
    let baseURL: BaseURLWatch
    let profiles: OperatorProfiles
    /// For how long events are kept, and the events of how many commits at most.
    let events: (retention: Duration, limit: Int)
    let time: any Time
    let log: Log

    func work() async -> NextTime {
        await baseURL.check()
        await memory.expire()
        await profiles.settleDue()
        await removeExpired()
        await trimEvents()
        return .after(JobInterval.housekeeping)
    }

    private func removeExpired() async {
        await remove(inBatchesOf: 500, logging: "expired_records_removed") { limit throws(StoreError) in
            try await vault.removeExpired(before: time.now, limit: limit)
        }
    }

    private func trimEvents() async {
        await remove(inBatchesOf: 1000, logging: "events_trimmed") { limit throws(StoreError) in
            try await vault.trimLog(
                before: time.now.advanced(by: .zero - events.retention), keeping: events.limit, limit: limit)
        }
    }

    /// Calls `body`, which returns how many records it has removed, until it removes fewer than `batch`.
    private func remove(
        inBatchesOf batch: Int, logging event: StaticString, _ body: (_ limit: Int) async throws(StoreError) -> Int
    ) async {
        do throws(StoreError) {
            var removed = 0
            while !Task.isCancelled {
                let count = try await body(batch)
                removed += count
                if count < batch { break }
            }
            if removed > 0 { log.info(event, [.count(removed)]) }
        } catch {
            log.storeFailed(error)
        }
    }
}
