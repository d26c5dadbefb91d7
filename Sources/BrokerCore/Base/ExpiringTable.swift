import Containers
import Reactor
import Synchronization

/// A bounded number of values, each for the same time after it was set, in memory only.
///
/// Safe to use from any task.
final class ExpiringTable<Key: Hashable & Sendable, Value: Sendable>: Sendable {
    private let validity: Duration
    private let time: any Time
    private let entries: Mutex<BoundedTable<Key, (value: Value, end: MonotonicInstant)>>

    /// - Parameter capacity: the most values; the one that was set first is removed for another one.
    init(validity: Duration, capacity: Int, time: any Time) {
        self.validity = validity
        self.time = time
        entries = Mutex(BoundedTable(capacity: capacity))
    }

    /// The value of a key; nil where none was set, or its time is over.
    subscript(_ key: Key) -> Value? {
        let now = time.monotonic
        return entries.withLock { entries in entries[key].flatMap { now < $0.end ? $0.value : nil } }
    }

    /// The values whose time is not over, from the one that was set first to the one that was set last.
    var values: [Value] {
        let now = time.monotonic
        return entries.withLock { $0.all }.compactMap { now < $0.value.end ? $0.value.value : nil }
    }

    /// Sets the value of a key.
    func set(_ key: Key, _ value: Value) { set(key) { _ in value } }

    /// Sets the value of a key to what `next` makes of the value before, if that one's time is not over.
    func set(_ key: Key, _ next: (Value?) -> Value) {
        let now = time.monotonic
        entries.withLock { entries in
            // The values end in the order in which they were set. They must not stay in memory for longer than they are valid.
            while let oldest = entries.oldest, oldest.value.end <= now { entries.removeValue(forKey: oldest.key) }
            entries.setNewest((next(entries[key]?.value), now.advanced(by: validity)), forKey: key)
        }
    }

    /// Removes the value of a key.
    func remove(_ key: Key) { entries.withLock { _ = $0.removeValue(forKey: key) } }
}
