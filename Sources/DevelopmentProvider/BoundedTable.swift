/// A dictionary that removes its oldest entry when an insertion would exceed its capacity.
struct BoundedTable<Key: Hashable & Sendable, Value: Sendable>: Sendable {
    private var entries: [Key: (value: Value, serial: Int)] = [:]
    /// Keys in the order of insertion, from `head` on. A key whose serial differs from its entry's was removed
    /// meanwhile.
    private var order: [(key: Key, serial: Int)] = []
    private var head = 0
    private var lastSerial = 0
    private let capacity: Int

    init(capacity: Int) {
        precondition(capacity > 0, "a table holds something")
        self.capacity = capacity
    }

    var count: Int { entries.count }

    /// Replacing a value does not change the entry's position in the order.
    subscript(_ key: Key) -> Value? {
        get { entries[key]?.value }
        set {
            guard let newValue else {
                entries[key] = nil
                return
            }
            if let serial = entries[key]?.serial {
                entries[key] = (newValue, serial)
                return
            }
            if entries.count == capacity { removeOldest() }
            lastSerial += 1
            entries[key] = (newValue, lastSerial)
            order.append((key, lastSerial))
            // Removed keys leave gaps, so the queue is rewritten once it is twice as long as the capacity.
            if order.count > 2 * capacity {
                order = order[head...].filter { entries[$0.key]?.serial == $0.serial }
                head = 0
            }
        }
    }

    /// The entries from the oldest to the newest.
    var all: [(key: Key, value: Value)] {
        order[head...].compactMap { item in
            guard let entry = entries[item.key], entry.serial == item.serial else { return nil }
            return (item.key, entry.value)
        }
    }

    mutating func updateAll(_ change: (inout Value) -> Void) {
        for key in entries.keys { change(&entries[key]!.value) }
    }

    private mutating func removeOldest() {
        while head < order.count {
            let item = order[head]
            head += 1
            if entries[item.key]?.serial == item.serial {
                entries[item.key] = nil
                return
            }
        }
    }
}
