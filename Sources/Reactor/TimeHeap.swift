/// A binary heap of numbers ordered by time, earliest first. The order of numbers with the same time is not defined.
package struct TimeHeap {
    package struct Entry {
        package let time: MonotonicInstant
        package let number: UInt64
    }

    private var entries: [Entry] = []

    package init() {}

    package var count: Int { entries.count }

    package var first: Entry? { entries.first }

    package mutating func insert(_ time: MonotonicInstant, _ number: UInt64) {
        entries.append(Entry(time: time, number: number))
        var child = entries.count - 1
        while child > 0 {
            let parent = (child - 1) / 2
            if entries[parent].time <= entries[child].time { return }
            entries.swapAt(parent, child)
            child = parent
        }
    }

    /// Removes the entry with the earliest time.
    package mutating func removeFirst() {
        let last = entries.removeLast()
        if entries.isEmpty { return }
        entries[0] = last
        var parent = 0
        while true {
            var least = parent
            for child in [2 * parent + 1, 2 * parent + 2] where child < entries.count {
                if entries[child].time < entries[least].time { least = child }
            }
            if least == parent { return }
            entries.swapAt(parent, least)
            parent = least
        }
    }

    mutating func removeAll(where isToGo: (UInt64) -> Bool) {
        entries.removeAll { isToGo($0.number) }
        // A sorted array is a heap.
        entries.sort { $0.time < $1.time }
    }
}
