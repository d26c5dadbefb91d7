import CredentialStore
import Reactor
import Synchronization

/// Keeps the cache entries that are in use from expiring: it asks the store for the versions of many records at once, before
/// their entries expire, so that no caller waits while an entry is read again.
///
/// It revalidates only entries that the change feed covers. So it also bounds how long an entry is served whose change the
/// feed has not reported. It passes each such change to `onChange`, which announces the change as the feed would have.
///
/// A version identifies a record's content, even when the record is removed and made again: see `VersionSource`.
///
/// One round over all entries is shorter than an entry's lifetime. A round has many parts, each of which looks at a few
/// entries, so that the load of the store is even although all entries may have been read in the same second. An entry that
/// was not used for several rounds is left to expire.
package final class CacheRevalidation: BackgroundJob {
    /// The parts of a round, which takes 50 s.
    static let parts = 200
    /// By how much a round may be late.
    private static let slack: Duration = .seconds(5)
    /// The pause after the store did not answer.
    private static let pause: Duration = .seconds(5)
    /// How many versions one statement asks for. It bounds the memory of the answer, and how long other statements wait for
    /// the connection.
    static let batch = 500

    private let vault: Vault
    private let validity: CacheValidity
    private let onChange: @Sendable (RevalidationCandidate, Int64?) -> Void
    package let time: any Time
    private let log: Log
    private let caches = Mutex<[AnyRevalidatingCache]>([])
    private let missed = Atomic<Int>(0)
    /// The last part that was revalidated, as a number of intervals; nil before the first one.
    private let done = Mutex<Int64?>(nil)

    /// - Parameters:
    ///   - validity: that of the caches.
    ///   - onChange: called with each entry of which the store has another version, and with that version; nil where the
    ///     store has no such record.
    init(
        vault: Vault, validity: CacheValidity, instruments: Instruments,
        onChange: @escaping @Sendable (RevalidationCandidate, Int64?) -> Void
    ) {
        self.vault = vault
        self.validity = validity
        self.onChange = onChange
        (time, log) = (instruments.time, instruments.log)
        show(in: instruments.metrics)
    }

    private func show(in metrics: Metrics) {
        func show(_ metric: Metrics.Shown, _ value: @escaping @Sendable (CacheStatistics) -> Int) {
            metrics.showEach(metric) { [weak self] in
                self?.caches.withLock { $0 }.compactMap { cache in
                    cache.name.map { (#"cache="\#($0)""#, value(cache.statistics())) }
                }
            }
        }
        show(.cacheEntries, \.entries)
        show(.cacheBytes, \.bytes)
        show(.cacheEvictions, \.evictions)
        show(.cacheRenewals, \.revalidations)
        if validity.lifetime == nil { return }
        metrics.show(.changeFeedFollowing) { [validity, time] in validity.isFeedAlive(at: time.monotonic) ? 1 : 0 }
        metrics.show(.changesMissed) { [weak self] in self?.missedChangeCount }
    }

    /// Has a cache's entries revalidated as well, from the next part of the round on, and shown in the metrics if it has a name.
    package func include(_ cache: AnyRevalidatingCache) {
        caches.withLock { $0.append(cache) }
    }

    /// How many changes were found that the feed had not reported.
    package var missedChangeCount: Int { missed.load(ordering: .relaxed) }

    package func work() async -> NextTime {
        if validity.lifetime == nil { return .never }
        do throws(StoreError) {
            try await revalidateDue()
            return .after(JobInterval.revalidation)
        } catch {
            if !Task.isCancelled { log.storeFailed(error) }
            return .after(Self.pause)
        }
    }

    /// Revalidates the parts whose time has come since the last call, each of them once at most; none at the first call.
    private func revalidateDue() async throws(StoreError) {
        let last = time.monotonic.nanoseconds / JobInterval.revalidation.nanoseconds
        var next = max(done.withLock { $0 } ?? last, last - Int64(Self.parts)) + 1
        done.withLock { $0 = next - 1 }
        while next <= last {
            let part = Int(next % Int64(Self.parts))
            for cache in caches.withLock({ $0 }) {
                try await revalidate(cache, CacheScan(part: part, of: Self.parts))
            }
            done.withLock { $0 = next }
            next += 1
        }
    }

    private func revalidate(_ cache: AnyRevalidatingCache, _ scan: CacheScan) async throws(StoreError) {
        var scan = scan
        let round = JobInterval.revalidation * Self.parts + Self.slack
        while !Task.isCancelled {
            let now = time.monotonic
            guard let checked = validity.checksExpiring(by: now.advanced(by: round), at: now) else { return }
            let entries = cache.candidates(&scan, Self.batch, checked)
            if entries.isEmpty { return }
            let versions = try await vault.versions(of: entries.map(\.id))
            var unchanged: [RevalidationCandidate] = []
            var changed: [(entry: RevalidationCandidate, version: Int64?)] = []
            for (entry, version) in zip(entries, versions) {
                // Version 0 stands for a record that does not exist.
                if version == entry.version || version == nil && entry.version == 0 {
                    unchanged.append(entry)
                } else {
                    changed.append((entry, version))
                }
            }
            if changed.contains(where: { ($0.version ?? 0) < $0.entry.version }) {
                // A store that has lost commits looks the same, and tells of that when it is asked for its lineage: those who
                // hear of these changes are to know before.
                _ = try await vault.lineage()
            }
            missed.add(changed.count, ordering: .relaxed)
            for (entry, version) in changed { onChange(entry, version) }
            cache.revalidated(unchanged, now)
        }
    }
}
