internal import CredentialStore
internal import OAuth

/// Removes what has expired from the store and from memory, once a minute. Every replica does this; what another replica has
/// removed is not there any more.
struct Housekeeping: Sendable {
    private static let interval: Duration = .seconds(60)

    let vault: Vault
    let memory: GrantMemory
    /// How long events are kept, and how many commits' events are kept at most.
    let events: (retention: Duration, limit: Int)
    let time: any Time
    let log: Log

    /// Works until its task is cancelled.
    func run() async {
        while !Task.isCancelled {
            await memory.expire()
            await removeExpired()
            await trimEvents()
            do {
                try await time.sleep(for: Self.interval)
            } catch {
                return
            }
        }
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

    /// Calls `body`, which returns how many it has removed, until it removes fewer than it may.
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
