internal import CredentialStore
internal import Reactor
internal import Synchronization

/// Keeps believed what is in use: asks the store for the versions of many records at once, ahead of the time at which
/// their entries in the caches would run out, so that no caller has to wait for each to be read again.
///
/// Only while a change feed vouches for the entries. What it asks for bounds how long a change is served that nobody
/// tells of, as reading again would; each change that it finds is passed to `onChange`, which announces the change as the
/// feed would have.
///
/// A version stands for a record's content, also past the record's removal and return: see `VersionSource`.
///
/// It comes by every entry once in a round that is shorter than belief is long, a little at a time: the store's load is
/// even, though all entries were read in the same second. What was not used for some rounds is not asked for, and runs
/// out.
package final class BeliefRenewal: Sendable {
    /// How often a part of the entries is looked at.
    static let interval: Duration = .milliseconds(250)
    /// In how many parts: a round takes 50 s.
    static let parts = 200
    /// How much later than a round's length the next one may come by.
    private static let slack: Duration = .seconds(5)
    /// How long a store is let alone that did not answer.
    private static let pause: Duration = .seconds(5)
    /// For how many records the store is asked at once: bounds the memory for it, and how long others wait for the
    /// connection.
    static let batch = 500

    private let vault: Vault
    private let trust: Trust
    private let onChange: @Sendable (RenewableEntry, Int64?) -> Void
    private let time: any Time
    private let log: Log
    private let caches = Mutex<[RenewableCache]>([])
    private let missed = Atomic<Int>(0)

    /// - Parameters:
    ///   - trust: the caches' own.
    ///   - onChange: called with each entry that the store has in another version, and with that version; nil where the store
    ///     has no such record.
    init(
        vault: Vault, trust: Trust, time: any Time, log: Log,
        onChange: @escaping @Sendable (RenewableEntry, Int64?) -> Void
    ) {
        self.vault = vault
        self.trust = trust
        self.onChange = onChange
        self.time = time
        self.log = log
    }

    /// Has a cache's entries renewed as well, from the next part on.
    package func include(_ cache: RenewableCache) {
        caches.withLock { $0.append(cache) }
    }

    /// Changes found that nobody had told of by then.
    package var countOfMissedChanges: Int { missed.load(ordering: .relaxed) }

    /// Works until its task is cancelled; at once over where no other process writes to the store. Once at most.
    func run() async {
        if trust.validity == nil { return }
        var done = part(at: time.monotonic)
        while true {
            do {
                try await time.sleep(for: Self.interval)
                do throws(StoreError) {
                    try await renew(&done)
                } catch {
                    if Task.isCancelled { return }
                    log.storeFailed(error)
                    try await time.sleep(for: Self.pause)
                }
            } catch {
                return
            }
        }
    }

    private func part(at now: MonotonicInstant) -> Int64 { now.nanoseconds / Self.interval.nanoseconds }

    /// Sees to the parts whose time has come since, each once at most.
    /// - Parameter done: the last part that was seen to, by the count of intervals.
    private func renew(_ done: inout Int64) async throws(StoreError) {
        let last = part(at: time.monotonic)
        done = max(done, last - Int64(Self.parts))
        while done < last {
            let part = Int((done + 1) % Int64(Self.parts))
            for cache in caches.withLock({ $0 }) { try await renew(cache, CacheWalk(part: part, of: Self.parts)) }
            done += 1
        }
    }

    private func renew(_ cache: RenewableCache, _ walk: CacheWalk) async throws(StoreError) {
        var walk = walk
        let round = Self.interval * Self.parts + Self.slack
        while !Task.isCancelled {
            let now = time.monotonic
            guard let checked = trust.checksRunningOut(at: now.advanced(by: round), now) else { return }
            let entries = cache.find(&walk, Self.batch, checked)
            if entries.isEmpty { return }
            let versions = try await vault.versions(of: entries.map(\.id))
            var same: [RenewableEntry] = []
            for (entry, version) in zip(entries, versions) {
                // What says that there is nothing is of version 0.
                if version == entry.version || version == nil && entry.version == 0 {
                    same.append(entry)
                } else {
                    missed.add(1, ordering: .relaxed)
                    onChange(entry, version)
                }
            }
            cache.renew(same, now)
        }
    }
}
