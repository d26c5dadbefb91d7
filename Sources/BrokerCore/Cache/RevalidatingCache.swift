internal import CredentialStore
package import Reactor
internal import Synchronization

/// What a cache holds, and what went because there was no room for it.
package struct CacheStatistics: Sendable, Equatable {
    package var entries = 0
    /// What the entries take of memory, by the estimate that bounds them.
    package var bytes = 0
    package var evictions = 0
    /// Of belief, in entries that were found unchanged in the store.
    package var renewals = 0
}

/// What was read from the store, kept in memory for as long as it may be believed.
///
/// Sharded, so that readers on different loops seldom meet. Bounded by the memory that the entries take: where a shard
/// is full, something goes that, as a rule, was not used for long. A value that was read or written before another
/// change, and arrives after it, is not taken in: with a store of one writer, or while a change feed vouches for what is
/// here, it would never be looked at again.
package final class RevalidatingCache<Key: Hashable & Sendable, Value: Cacheable>: Sendable {
    typealias Contents = CacheShard<Key, Value>

    /// Shows which changes were known, and when, before somebody turned to the store.
    package struct Ticket: Sendable {
        fileprivate let changes: UInt64
        fileprivate let taken: MonotonicInstant
    }

    private static var shardCount: Int { 64 }

    /// Within this object: the way to one counts no reference.
    private let shards: InlineArray<64, Mutex<Contents>>
    let trust: Trust
    private let cost: @Sendable (Key, Value) -> Int
    private let version: @Sendable (Value) -> Int64
    private let hash: @Sendable (Key) -> Int

    /// - Parameters:
    ///   - bytes: what the entries may take of memory. A 64th of it is any one entry's limit: a larger one is not kept.
    ///   - trust: says for how long an entry is believed after it was checked.
    ///   - cost: what the key and the value take of memory beside their own fields; 0 or more.
    ///   - version: the version of the record that the value was read from.
    ///   - hash: of the same key always the same, of which all bits count, and that nobody outside can foretell.
    package init(
        bytes: Int, trust: Trust, cost: @escaping @Sendable (Key, Value) -> Int,
        version: @escaping @Sendable (Value) -> Int64, hash: @escaping @Sendable (Key) -> Int = { $0.hashValue }
    ) {
        shards = InlineArray { _ in Mutex(Contents(limit: bytes / Self.shardCount)) }
        self.trust = trust
        self.cost = cost
        self.version = version
        self.hash = hash
    }

    /// What an entry takes of memory beside what `cost` says.
    package static var overhead: Int { Contents.overhead }

    /// The value, while it is believed.
    package func fresh(_ key: Key, now: MonotonicInstant) -> Value? { holding(key, now: now)?.value }

    /// A value that is believed, and until when, as things stand.
    package struct Holding: Sendable {
        package let value: Value
        package let end: MonotonicInstant
        /// When the store was asked for it.
        package let checked: MonotonicInstant
    }

    /// The value that `fresh` gives, for somebody who makes something of it.
    package func holding(_ key: Key, now: MonotonicInstant) -> Holding? { holding(key, hash(key), now: now) }

    /// The same for a key whose hash is known.
    func holding(_ key: Key, _ hash: Int, now: MonotonicInstant) -> Holding? {
        withContents(of: hash) { contents in
            guard let slot = contents.find(key, hash), let end = believedEnd(of: slot, in: contents, now) else {
                return nil
            }
            contents.use(slot)
            return Holding(value: contents.entry(slot).value, end: end, checked: contents.checked(slot))
        }
    }

    /// Lends what stands under the lock of the keys with that hash, to somebody who does not turn to the cache meanwhile.
    @inline(__always)
    func withContents<R>(of hash: Int, _ body: (inout Contents) -> R) -> R {
        shards[shard(hash)].withLock { body(&$0) }
    }

    /// Until when an entry is believed, nil where it is not.
    @inline(__always)
    func believedEnd(of slot: Int, in contents: borrowing Contents, _ now: MonotonicInstant) -> MonotonicInstant? {
        let end = trust.end(of: contents.checked(slot), now)
        return end.nanoseconds > now.nanoseconds ? end : nil
    }

    /// The value however old it is: for when the store cannot be asked.
    package func any(_ key: Key) -> Value? { remembered(key)?.value }

    /// The value, where the store is known to have had it within `span` before `now`: for when the store cannot be asked.
    package func any(_ key: Key, within span: Duration, now: MonotonicInstant) -> Value? {
        guard let (value, checked) = remembered(key) else { return nil }
        return trust.lastVouched(for: checked).advanced(by: span) > now ? value : nil
    }

    private func remembered(_ key: Key) -> (value: Value, checked: MonotonicInstant)? {
        let hash = hash(key)
        let found = withContents(of: hash) { contents in
            contents.find(key, hash).map { (contents.entry($0), contents.checked($0)) }
        }
        return found.map { ($0.0.value, $0.1) }
    }

    /// To be taken before a value is read from the store or written to it.
    package func ticket(_ key: Key, now: MonotonicInstant) -> Ticket {
        withContents(of: hash(key)) { Ticket(changes: $0.changes, taken: now) }
    }

    /// Takes in what was read, nil for nothing, unless the key was changed since the ticket was taken. A change that
    /// the store told of, and that the value has seen, is none.
    package func fill(_ key: Key, _ value: Value?, _ ticket: Ticket) {
        let hash = hash(key)
        let made = value.map { entry(key, $0) }
        withContents(of: hash) { contents in
            if contents.hasChanged(hash, since: ticket.changes, asSeenBy: made?.entry.version) { return }
            // A read that began before this one ended may have found an older version, and may end later. A read that begins
            // after this one has found an older version only where the store has gone back.
            if let version = made?.entry.version,
                contents.find(key, hash).map({ contents.entry($0).version < version }) ?? true
            {
                contents.noteNews(of: hash, version: version)
            }
            contents.set(key, hash, to: made, checked: ticket.taken)
        }
    }

    /// Takes in what was written. When another change of the key was reported since the ticket was taken, nobody here
    /// knows which of the two the store took last, so neither is kept; a change that the store told of has its version,
    /// so that one which is not newer than this stands in nobody's way: it is this one, or was overwritten by it.
    package func put(_ key: Key, _ value: Value, _ ticket: Ticket) {
        let hash = hash(key)
        let made = entry(key, value)
        withContents(of: hash) { contents in
            let isLast = !contents.hasChanged(hash, since: ticket.changes, asSeenBy: made.entry.version)
            contents.noteChange(of: hash)
            contents.set(key, hash, to: isLast ? made : nil, checked: ticket.taken)
        }
    }

    /// Forgets what was removed, or what a write may have replaced whose outcome is not known.
    package func remove(_ key: Key) {
        let hash = hash(key)
        withContents(of: hash) { contents in
            contents.noteChange(of: hash)
            contents.set(key, hash, to: nil, checked: MonotonicInstant(nanoseconds: 0))
        }
    }

    /// The store told that the key was given that version, nil for none, by whomever. An entry of that version or a
    /// newer one stays: what we write ourselves is told of as well.
    package func hear(_ key: Key, version: Int64?) {
        guard let version else { return remove(key) }
        let hash = hash(key)
        withContents(of: hash) { contents in
            contents.noteNews(of: hash, version: version)
            guard let slot = contents.find(key, hash), contents.entry(slot).version < version else { return }
            contents.set(key, hash, to: nil, checked: MonotonicInstant(nanoseconds: 0))
        }
    }

    /// Like `remove` for every key; of the entries, only those that match go. Looks at every entry.
    package func removeAll(where matches: (Key, Value) -> Bool) {
        for index in shards.indices {
            shards[index].withLock { contents in
                contents.noteChangeOfAll()
                contents.removeAll { matches($0.key, $0.value) }
            }
        }
    }

    /// Every key whose value is of that version or a later one, with it, whether it is believed or not. Looks at every entry.
    func versions(from oldest: Int64) -> [(Key, Int64)] {
        var found: [(Key, Int64)] = []
        for index in shards.indices {
            shards[index].withLock { contents in
                contents.visit { if $0.version >= oldest { found.append(($0.key, $0.version)) } }
            }
        }
        return found
    }

    // MARK: Renewal of belief

    /// Those entries in the places of `walk` that were checked during that time and used not too long ago, with their
    /// records. Ends soon after `limit` entries, and at the end of the walk with none.
    func renewable(
        _ walk: inout CacheWalk, limit: Int, checked: Range<MonotonicInstant>,
        record: (Key, Value) -> RecordID
    ) -> [RenewableEntry] {
        var entries: [RenewableEntry] = []
        while walk.shard < shards.count, entries.count < limit {
            let number = walk.shard
            // What is made of them is made outside of the lock, which is held for as long as so many slots take.
            let (found, next) = shards[number].withLock { contents in
                var found: [(slot: Int, entry: Contents.Entry)] = []
                let next = contents.find(
                    from: walk.slot, step: walk.step, limit: Self.slotsAtOnce, checked: checked
                ) { found.append(($0, $1)) }
                return (found, next)
            }
            for (slot, entry) in found {
                entries.append(
                    RenewableEntry(
                        id: record(entry.key, entry.value), version: entry.version, entry: entry, shard: number,
                        slot: slot))
            }
            walk.goOn(with: next)
        }
        return entries
    }

    private static var slotsAtOnce: Int { 128 }

    /// The store has these entries' versions.
    /// - Parameter checked: taken before the entries were found, and so before the store was asked.
    func renew(_ entries: [RenewableEntry], checked: MonotonicInstant) {
        for entry in entries {
            shards[entry.shard].withLock { $0.renew(entry.slot, entry.entry, checked: checked) }
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
                sum.renewals += contents.renewals
            }
        }
        return sum
    }

    private func entry(_ key: Key, _ value: Value) -> (entry: Contents.Entry, bytes: Int) {
        (Contents.Entry(key, value, version: version(value)), Contents.overhead + cost(key, value))
    }

    @inline(__always)
    private func shard(_ hash: Int) -> Int {
        // By other bits than those that place the key within its shard.
        Int(truncatingIfNeeded: UInt(bitPattern: hash) >> UInt(UInt.bitWidth - 6))
    }
}
