internal import Reactor
internal import Synchronization

/// What was read from the store, kept in memory for as long as it may be believed.
///
/// Sharded, so that readers on different loops seldom meet. Bounded: when a shard is full, the half of it that was
/// used longest ago goes. A value that was read before a change, and arrives after it, is not taken in.
final class RevalidatingCache<Key: Hashable & Sendable, Value: Sendable>: Sendable {
    private struct Entry {
        var value: Value
        var checked: MonotonicInstant
        var lastUse: UInt64
    }

    private struct Contents {
        var entries: [Key: Entry] = [:]
        var uses: UInt64 = 0
        /// Rises with every change that somebody made, as against values that somebody read.
        var changes: UInt64 = 0
    }

    private final class Shard: Sendable {
        let contents = Mutex(Contents())
    }

    /// Shows which changes a reader had not seen when it began to read.
    struct Ticket: Sendable {
        fileprivate let changes: UInt64
    }

    private let shards: [Shard]
    private let capacityPerShard: Int
    private let validity: Duration?

    /// - Parameters:
    ///   - capacity: how many entries are kept, 16 at least.
    ///   - validity: how long an entry is believed after it was checked; nil for ever.
    init(capacity: Int, validity: Duration?) {
        shards = (0..<16).map { _ in Shard() }
        capacityPerShard = max(1, capacity / 16)
        self.validity = validity
    }

    /// The value, while it is believed.
    func fresh(_ key: Key, now: MonotonicInstant) -> Value? {
        shard(key).contents.withLock { contents in
            guard let entry = contents.entries[key], isFresh(entry, now) else { return nil }
            contents.uses += 1
            contents.entries[key]?.lastUse = contents.uses
            return entry.value
        }
    }

    /// The value however old it is: for when the store cannot be asked.
    func any(_ key: Key) -> Value? {
        shard(key).contents.withLock { $0.entries[key]?.value }
    }

    /// To be taken before a value is read from the store.
    func ticket(_ key: Key) -> Ticket {
        shard(key).contents.withLock { Ticket(changes: $0.changes) }
    }

    /// Takes in what was read, unless something changed since the ticket was taken.
    func fill(_ key: Key, _ value: Value, _ ticket: Ticket, now: MonotonicInstant) {
        shard(key).contents.withLock { contents in
            if contents.changes == ticket.changes { insert(value, for: key, into: &contents, now) }
        }
    }

    /// Takes in what was just written.
    func put(_ key: Key, _ value: Value, now: MonotonicInstant) {
        shard(key).contents.withLock { contents in
            contents.changes += 1
            insert(value, for: key, into: &contents, now)
        }
    }

    /// Forgets what was just removed or is no longer believed.
    func remove(_ key: Key) {
        shard(key).contents.withLock { contents in
            contents.changes += 1
            contents.entries[key] = nil
        }
    }

    func removeAll(where matches: (Key, Value) -> Bool) {
        for shard in shards {
            shard.contents.withLock { contents in
                contents.changes += 1
                contents.entries = contents.entries.filter { !matches($0.key, $0.value.value) }
            }
        }
    }

    var count: Int { shards.reduce(0) { $0 + $1.contents.withLock { $0.entries.count } } }

    private func shard(_ key: Key) -> Shard {
        shards[Int(truncatingIfNeeded: UInt(bitPattern: key.hashValue) % UInt(shards.count))]
    }

    private func isFresh(_ entry: Entry, _ now: MonotonicInstant) -> Bool {
        guard let validity else { return true }
        return entry.checked.advanced(by: validity) > now
    }

    private func insert(_ value: Value, for key: Key, into contents: inout Contents, _ now: MonotonicInstant) {
        if contents.entries[key] == nil, contents.entries.count >= capacityPerShard {
            let uses = contents.entries.values.map(\.lastUse).sorted()
            let median = uses[uses.count / 2]
            contents.entries = contents.entries.filter { $0.value.lastUse > median }
        }
        contents.uses += 1
        contents.entries[key] = Entry(value: value, checked: now, lastUse: contents.uses)
    }
}
