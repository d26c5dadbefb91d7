package import Reactor
internal import Synchronization

/// What was read from the store, kept in memory for as long as it may be believed.
///
/// Sharded, so that readers on different loops seldom meet. Bounded: when a shard is full, the half of it that was
/// used longest ago goes. A value that was read or written before another change, and arrives after it, is not taken
/// in: with a store of one writer it would never be looked at again.
package final class RevalidatingCache<Key: Hashable & Sendable, Value: Sendable>: Sendable {
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
        /// When a key was changed last, by that count.
        var lastChange: [Key: UInt64] = [:]
        /// Changes up to this one are taken for changes of every key.
        var horizon: UInt64 = 0

        mutating func noteChange(of key: Key) {
            // Who holds an older ticket than the horizon reads once more than needed; the table stays small for it.
            if lastChange.count >= 1024 {
                lastChange = [:]
                horizon = changes
            }
            changes += 1
            lastChange[key] = changes
        }

        func hasChanged(_ key: Key, since ticket: Ticket) -> Bool {
            max(lastChange[key] ?? 0, horizon) > ticket.changes
        }
    }

    private final class Shard: Sendable {
        let contents = Mutex(Contents())
    }

    /// Shows which changes were known, and when, before somebody turned to the store.
    package struct Ticket: Sendable {
        fileprivate let changes: UInt64
        fileprivate let taken: MonotonicInstant
    }

    private let shards: [Shard]
    private let capacityPerShard: Int
    private let validity: Duration?

    /// - Parameters:
    ///   - capacity: how many entries are kept, 16 at least.
    ///   - validity: how long an entry is believed after it was checked; nil for ever.
    package init(capacity: Int, validity: Duration?) {
        shards = (0..<16).map { _ in Shard() }
        capacityPerShard = max(1, capacity / 16)
        self.validity = validity
    }

    /// The value, while it is believed.
    package func fresh(_ key: Key, now: MonotonicInstant) -> Value? {
        shard(key).contents.withLock { contents in
            guard let entry = contents.entries[key], isFresh(entry, now) else { return nil }
            contents.uses += 1
            contents.entries[key]?.lastUse = contents.uses
            return entry.value
        }
    }

    /// The value however old it is: for when the store cannot be asked.
    package func any(_ key: Key) -> Value? {
        shard(key).contents.withLock { $0.entries[key]?.value }
    }

    /// To be taken before a value is read from the store or written to it.
    package func ticket(_ key: Key, now: MonotonicInstant) -> Ticket {
        shard(key).contents.withLock { Ticket(changes: $0.changes, taken: now) }
    }

    /// Takes in what was read, nil for nothing, unless the key was changed since the ticket was taken.
    package func fill(_ key: Key, _ value: Value?, _ ticket: Ticket) {
        shard(key).contents.withLock { contents in
            if contents.hasChanged(key, since: ticket) { return }
            if let value {
                insert(value, for: key, into: &contents, ticket.taken)
            } else {
                contents.entries[key] = nil
            }
        }
    }

    /// Takes in what was written. When another change of the key was reported since the ticket was taken, nobody here
    /// knows which of the two the store took last, so neither is kept.
    package func put(_ key: Key, _ value: Value, _ ticket: Ticket) {
        shard(key).contents.withLock { contents in
            let isLast = !contents.hasChanged(key, since: ticket)
            contents.noteChange(of: key)
            if isLast {
                insert(value, for: key, into: &contents, ticket.taken)
            } else {
                contents.entries[key] = nil
            }
        }
    }

    /// Forgets what was removed, or what a write may have replaced whose outcome is not known.
    package func remove(_ key: Key) {
        shard(key).contents.withLock { contents in
            contents.noteChange(of: key)
            contents.entries[key] = nil
        }
    }

    /// Like `remove` for every key; of the entries, only those that match go.
    package func removeAll(where matches: (Key, Value) -> Bool) {
        for shard in shards {
            shard.contents.withLock { contents in
                contents.changes += 1
                contents.horizon = contents.changes
                contents.lastChange = [:]
                contents.entries = contents.entries.filter { !matches($0.key, $0.value.value) }
            }
        }
    }

    package var count: Int { shards.reduce(0) { $0 + $1.contents.withLock { $0.entries.count } } }

    private func shard(_ key: Key) -> Shard {
        shards[Int(truncatingIfNeeded: UInt(bitPattern: key.hashValue) % UInt(shards.count))]
    }

    private func isFresh(_ entry: Entry, _ now: MonotonicInstant) -> Bool {
        guard let validity else { return true }
        return entry.checked.advanced(by: validity) > now
    }

    private func insert(_ value: Value, for key: Key, into contents: inout Contents, _ checked: MonotonicInstant) {
        if contents.entries[key] == nil, contents.entries.count >= capacityPerShard {
            let uses = contents.entries.values.map(\.lastUse).sorted()
            let median = uses[uses.count / 2]
            contents.entries = contents.entries.filter { $0.value.lastUse > median }
        }
        contents.uses += 1
        contents.entries[key] = Entry(value: value, checked: checked, lastUse: contents.uses)
    }
}
