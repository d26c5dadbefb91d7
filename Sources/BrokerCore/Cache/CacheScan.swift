package import CredentialStore
import Reactor

/// The position of a scan over one part of a cache: in each shard, the slots that are `step` apart.
///
/// An entry stays in its slot for as long as it is cached. So a scan of all parts in turn visits each entry once in every
/// round, even if the cache grows meanwhile.
struct CacheScan: Sendable {
    let step: Int
    private let part: Int
    private(set) var shard = 0
    private(set) var slot: Int

    /// - Parameters:
    ///   - part: 0 to `step` - 1.
    ///   - step: the number of parts; 1 or more.
    init(part: Int, of step: Int) {
        (self.part, self.step) = (part, step)
        slot = part
    }

    /// - Parameter next: the slot to visit next; nil for the first one of the next shard.
    mutating func proceed(to next: Int?) {
        if next == nil { shard += 1 }
        slot = next ?? part
    }
}

/// A cache entry whose version is to be compared with the store's.
struct RevalidationCandidate: Sendable {
    let id: RecordID
    /// The version of the record that the entry was read from; 0 where there was no record.
    let version: Int64
    /// The entry itself. Its identity tells it apart from a later entry of the same key.
    let entry: any AnyObject & Sendable
    let shard: Int
    let slot: Int
}

/// A `RevalidatingCache` without the types of its keys and values, for `CacheRevalidation`.
package struct AnyRevalidatingCache: Sendable {
    let candidates:
        @Sendable (inout CacheScan, _ limit: Int, _ checked: Range<MonotonicInstant>) -> [RevalidationCandidate]
    let revalidated: @Sendable ([RevalidationCandidate], _ checked: MonotonicInstant) -> Void
    /// By which the metrics show the cache; nil for one that they do not show.
    let name: StaticString?
    let statistics: @Sendable () -> CacheStatistics

    /// - Parameters:
    ///   - name: by which the metrics show the cache. Default: they do not.
    ///   - record: the identity of the record that an entry was read from.
    package init<Key, Value>(
        _ cache: RevalidatingCache<Key, Value>, shownAs name: StaticString? = nil,
        record: @escaping @Sendable (Key, Value) -> RecordID
    ) {
        self.name = name
        statistics = { cache.statistics }
        candidates = { scan, limit, checked in
            cache.candidates(in: &scan, limit: limit, checked: checked, record: record)
        }
        revalidated = { entries, checked in cache.revalidated(entries, checked: checked) }
    }
}
