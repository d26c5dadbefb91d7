import CredentialStore
package import Reactor
import Synchronization

/// The size of a cache, and what has happened to its entries so far.
package struct CacheStatistics: Sendable, Equatable {
    package var entries = 0
    /// The memory that the entries take, by the estimate that bounds it.
    package var bytes = 0
    /// Entries that were removed because others needed their memory.
    package var evictions = 0
    /// How often an entry was found unchanged in the store before it expired.
    package var revalidations = 0
}

/// A cache of values that were read from the store, each used for as long as `CacheValidity` says.
///
/// It is sharded, so that readers on different loops seldom wait for each other. The memory of the entries bounds it: a full
/// shard evicts an entry that, as a rule, was not used for long. A value that was read or written before another change of
/// its key and arrives here after that change is not cached: where no other process writes to the store, or while a change
/// feed covers the entry, nothing would ever correct it.
package final class RevalidatingCache<Key: Hashable & Sendable, Value: Cacheable>: Sendable {
    typealias Contents = CacheShard<Key, Value>

    /// Taken before the store is asked: which changes were known by then, and the time.
    package struct Ticket: Sendable {
        fileprivate let changes: UInt64
        fileprivate let taken: MonotonicInstant
    }

    private static var shardCount: Int { 64 }

    /// Inline, so that a look-up counts no reference.
    private let shards: InlineArray<64, Mutex<Contents>>
    let validity: CacheValidity
    private let cost: @Sendable (Key, Value) -> Int
    private let version: @Sendable (Value) -> Int64
    private let hash: @Sendable (Key) -> Int

    /// - Parameters:
    ///   - bytes: the memory that the entries may take. An entry that takes more than a 64th of it is not cached.
    ///   - validity: says for how long an entry is valid after it was checked.
    ///   - cost: the memory that the key and the value take beside their own fields, in bytes; 0 or more.
    ///   - version: the version of the record that the value was read from.
    ///   - hash: always the same for the same key. All its bits count, and callers of the service cannot predict it.
    package init(
        bytes: Int, validity: CacheValidity, cost: @escaping @Sendable (Key, Value) -> Int,
        version: @escaping @Sendable (Value) -> Int64, hash: @escaping @Sendable (Key) -> Int = { $0.hashValue }
    ) {
        shards = InlineArray { _ in Mutex(Contents(limit: bytes / Self.shardCount)) }
        self.validity = validity
        self.cost = cost
        self.version = version
        self.hash = hash
    }

    /// The memory that an entry takes beside its `cost`, in bytes.
    package static var overhead: Int { Contents.overhead }

    /// The value, while it is valid.
    package func fresh(_ key: Key, now: MonotonicInstant) -> Value? { holding(key, now: now)?.value }

    /// A valid value.
    package struct Holding: Sendable {
        package let value: Value
        /// Until when it is valid, unless it is revalidated or invalidated before.
        package let end: MonotonicInstant
        /// When the store was asked for it.
        package let checked: MonotonicInstant
    }

    /// The value that `fresh` returns, with its validity.
    package func holding(_ key: Key, now: MonotonicInstant) -> Holding? { holding(key, hash(key), now: now) }

    /// The same for a key whose hash the caller has.
    func holding(_ key: Key, _ hash: Int, now: MonotonicInstant) -> Holding? {
        withContents(of: hash) { contents in
            guard let slot = contents.find(key, hash), let end = validEnd(of: slot, in: contents, now) else {
                return nil
            }
            contents.use(slot)
            return Holding(value: contents.entry(slot).value, end: end, checked: contents.checked(slot))
        }
    }

    /// Calls `body` with the shard of that hash, under the shard's lock. `body` must not call the cache.
    @inline(__always)
    func withContents<R>(of hash: Int, _ body: (inout Contents) -> R) -> R {
        shards[shard(hash)].withLock { body(&$0) }
    }

    /// Until when an entry is valid; nil where it has expired.
    @inline(__always)
    func validEnd(of slot: Int, in contents: borrowing Contents, _ now: MonotonicInstant) -> MonotonicInstant? {
        let end = validity.end(ofEntryChecked: contents.checked(slot), at: now)
        return end.nanoseconds > now.nanoseconds ? end : nil
    }

    /// The value, valid or not. For use while the store does not answer.
    package func any(_ key: Key) -> Value? { checkedValue(key)?.value }

    /// The value, valid or not, if the store is known to have had it within `span` before `now`. For use while the store does
    /// not answer.
    package func any(_ key: Key, within span: Duration, now: MonotonicInstant) -> Value? {
        guard let (value, checked) = checkedValue(key) else { return nil }
        return validity.lastConfirmed(ofEntryChecked: checked).advanced(by: span) > now ? value : nil
    }

    private func checkedValue(_ key: Key) -> (value: Value, checked: MonotonicInstant)? {
        let hash = hash(key)
        let found = withContents(of: hash) { contents in
            contents.find(key, hash).map { (contents.entry($0), contents.checked($0)) }
        }
        return found.map { ($0.0.value, $0.1) }
    }

    /// A ticket for `fill` and `put`, to be taken before the value is read from the store or written to it.
    package func ticket(_ key: Key, now: MonotonicInstant) -> Ticket {
        withContents(of: hash(key)) { Ticket(changes: $0.changes, taken: now) }
    }

    /// Caches a value that was read, nil where there was none, unless the key was changed since the ticket was taken. A
    /// change that the store has reported and that the value contains does not count.
    package func fill(_ key: Key, _ value: Value?, _ ticket: Ticket) {
        let hash = hash(key)
        let made = value.map { entry(key, $0) }
        withContents(of: hash) { contents in
            if contents.hasChanged(hash, since: ticket.changes, asSeenBy: made?.entry.version) { return }
            // A read that began before this one ended may have found an older version, and may end later. A read that begins
            // after this one finds an older version only where the store has lost commits.
            if let version = made?.entry.version,
                contents.find(key, hash).map({ contents.entry($0).version < version }) ?? true
            {
                contents.noteReportedChange(of: hash, version: version)
            }
            contents.set(key, hash, to: made, checked: ticket.taken)
        }
    }

    /// Caches a value that was written. If another change of the key was made or reported since the ticket was taken, it is
    /// not known which of the two the store carried out last, and the key is left without an entry. A change that the store
    /// has reported has a version: one that is not newer than this value does not count, since it is this write itself, or was
    /// overwritten by it.
    package func put(_ key: Key, _ value: Value, _ ticket: Ticket) {
        let hash = hash(key)
        let made = entry(key, value)
        withContents(of: hash) { contents in
            let isLast = !contents.hasChanged(hash, since: ticket.changes, asSeenBy: made.entry.version)
            contents.noteChange(of: hash)
            contents.set(key, hash, to: isLast ? made : nil, checked: ticket.taken)
        }
    }

    /// Removes the entry of a record that was removed, or that may have been replaced by a write whose outcome is not known.
    package func remove(_ key: Key) {
        let hash = hash(key)
        withContents(of: hash) { contents in
            contents.noteChange(of: hash)
            contents.set(key, hash, to: nil, checked: MonotonicInstant(nanoseconds: 0))
        }
    }

    /// Removes the entry, if its version is lower: the store has reported that the record was given `version`. The store also
    /// reports what this process has written itself, so an entry of that version stays.
    /// - Parameter version: nil where the record was removed.
    package func invalidate(_ key: Key, olderThan version: Int64?) {
        guard let version else { return remove(key) }
        let hash = hash(key)
        withContents(of: hash) { contents in
            contents.noteReportedChange(of: hash, version: version)
            guard let slot = contents.find(key, hash), contents.entry(slot).version < version else { return }
            contents.set(key, hash, to: nil, checked: MonotonicInstant(nanoseconds: 0))
        }
    }

    /// Counts as a change of every key, and removes the entries that match. Visits every entry.
    package func removeAll(where matches: (Key, Value) -> Bool) {
        for index in shards.indices {
            shards[index].withLock { contents in
                contents.noteChangeOfAll()
                contents.removeAll { matches($0.key, $0.value) }
            }
        }
    }

    /// The keys, with their versions, of all entries of that version or a later one, valid or not. Visits every entry.
    func versions(from oldest: Int64) -> [(Key, Int64)] {
        var found: [(Key, Int64)] = []
        for index in shards.indices {
            shards[index].withLock { contents in
                contents.visit { if $0.version >= oldest { found.append(($0.key, $0.version)) } }
            }
        }
        return found
    }

    // MARK: Revalidation

    /// Continues the scan. Returns the entries that were checked during that time and used not too long ago. Returns soon
    /// after `limit` entries were found, and no entries once the scan is complete.
    func candidates(
        in scan: inout CacheScan, limit: Int, checked: Range<MonotonicInstant>, record: (Key, Value) -> RecordID
    ) -> [RevalidationCandidate] {
        var entries: [RevalidationCandidate] = []
        while scan.shard < shards.count, entries.count < limit {
            let number = scan.shard
            // The lock is held only while the slots are visited.
            let (found, next) = shards[number].withLock { contents in
                var found: [(slot: Int, entry: Contents.Entry)] = []
                let next = contents.find(
                    from: scan.slot, step: scan.step, limit: Self.slotsAtOnce, checked: checked
                ) { found.append(($0, $1)) }
                return (found, next)
            }
            for (slot, entry) in found {
                entries.append(
                    RevalidationCandidate(
                        id: record(entry.key, entry.value), version: entry.version, entry: entry, shard: number,
                        slot: slot))
            }
            scan.proceed(to: next)
        }
        return entries
    }

    private static var slotsAtOnce: Int { 128 }

    /// The store still has the versions of these entries.
    /// - Parameter checked: taken before `candidates` returned them, and so before the store was asked.
    func revalidated(_ entries: [RevalidationCandidate], checked: MonotonicInstant) {
        for entry in entries {
            shards[entry.shard].withLock { $0.revalidated(entry.slot, entry.entry, checked: checked) }
        }
    }

    package var count: Int { statistics.entries }

    package var statistics: CacheStatistics {
        var sum = CacheStatistics()
        for index in shards.indices {
            shards[index].withLock { contents in
                sum.entries += contents.count
                sum.bytes += contents.bytes
                sum.evictions += contents.evictions
                sum.revalidations += contents.revalidations
            }
        }
        return sum
    }

    private func entry(_ key: Key, _ value: Value) -> (entry: Contents.Entry, bytes: Int) {
        (Contents.Entry(key, value, version: version(value)), Contents.overhead + cost(key, value))
    }

    @inline(__always)
    private func shard(_ hash: Int) -> Int {
        // Other bits than those that decide on the place within the shard.
        Int(truncatingIfNeeded: UInt(bitPattern: hash) >> UInt(UInt.bitWidth - 6))
    }
}
