/// A dictionary that removes its oldest entry when an insertion would exceed its capacity.
///
/// Every operation on one entry takes constant time, whatever the order of insertions and removals.
package struct BoundedTable<Key: Hashable, Value> {
    private var places: [Key: Int] = [:]
    /// From the oldest to the newest.
    private var entries = LinkedList<(key: Key, value: Value)>()
    private let capacity: Int

    /// - Parameter capacity: the most entries; at least 1. Memory is taken as entries come.
    package init(capacity: Int) {
        precondition(capacity > 0, "a table holds something")
        self.capacity = capacity
    }

    package var count: Int { places.count }

    /// The value of a key. Replacing it does not change the entry's age.
    package subscript(_ key: Key) -> Value? {
        get { places[key].flatMap { entries[$0]?.value } }
        set {
            guard let newValue else {
                removeValue(forKey: key)
                return
            }
            if let place = places[key] {
                entries.replace(at: place, with: (key, newValue))
            } else {
                setNewest(newValue, forKey: key)
            }
        }
    }

    /// Inserts or replaces a value. Its entry is the newest from then on.
    /// - Returns: the entry that was removed for it; nil where there was room.
    @discardableResult
    package mutating func setNewest(_ value: Value, forKey key: Key) -> (key: Key, value: Value)? {
        removeValue(forKey: key)
        var removed: (key: Key, value: Value)?
        if entries.count == capacity, let oldest = entries.popFirst() {
            places[oldest.key] = nil
            removed = oldest
        }
        places[key] = entries.append((key, value))
        return removed
    }

    @discardableResult
    package mutating func removeValue(forKey key: Key) -> Value? {
        places.removeValue(forKey: key).flatMap { entries.remove(at: $0)?.value }
    }

    package mutating func removeAll() {
        places = [:]
        entries.removeAll()
    }

    package var oldest: (key: Key, value: Value)? { entries.first }

    /// The entries from the oldest to the newest.
    package var all: [(key: Key, value: Value)] { entries.map { $0.element } }

    package mutating func updateAll(_ change: (inout Value) -> Void) {
        for (place, entry) in entries {
            var value = entry.value
            change(&value)
            entries.replace(at: place, with: (entry.key, value))
        }
    }
}

extension BoundedTable: Sendable where Key: Sendable, Value: Sendable {}
