package import CredentialStore
internal import Reactor

/// How far somebody has got who looks through a part of a cache: in each shard, the slots that are `step` apart.
///
/// An entry stays in its slot for as long as it is kept. So who walks through all parts in turn comes by each entry once
/// in every round, however the cache grows meanwhile.
struct CacheWalk: Sendable {
    let step: Int
    private let part: Int
    private(set) var shard = 0
    private(set) var slot: Int

    /// - Parameters:
    ///   - part: which part, 0 to one less than there are.
    ///   - step: how many parts there are.
    init(part: Int, of step: Int) {
        (self.part, self.step) = (part, step)
        slot = part
    }

    /// - Parameter next: the slot to look at next; nil for the next shard's first.
    mutating func goOn(with next: Int?) {
        if next == nil { shard += 1 }
        slot = next ?? part
    }
}

/// An entry of a cache whose belief is to be renewed.
struct RenewableEntry: Sendable {
    let id: RecordID
    /// The version of the record that the entry was read from; 0 where there was none.
    let version: Int64
    /// The entry itself, by which it is told from a later one of the same key.
    let entry: any AnyObject & Sendable
    let shard: Int
    let slot: Int
}

/// A cache whose entries' belief can be renewed, whatever its keys and values are.
package struct RenewableCache: Sendable {
    let find: @Sendable (inout CacheWalk, _ limit: Int, _ checked: Range<MonotonicInstant>) -> [RenewableEntry]
    let renew: @Sendable ([RenewableEntry], _ checked: MonotonicInstant) -> Void

    /// - Parameter record: the record that an entry was read from.
    package init<Key, Value>(
        _ cache: RevalidatingCache<Key, Value>, record: @escaping @Sendable (Key, Value) -> RecordID
    ) {
        find = { walk, limit, checked in cache.renewable(&walk, limit: limit, checked: checked, record: record) }
        renew = { entries, checked in cache.renew(entries, checked: checked) }
    }
}
