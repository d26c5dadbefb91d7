/// The deadlines of one loop, earliest first. A cancelled one stays in the heap as a husk until it is due or until
/// husks outnumber the living, so cancelling costs one dictionary removal.
struct DeadlineHeap {
    private struct Entry {
        var due: MonotonicInstant
        var id: UInt64
    }

    private var heap: [Entry] = []
    private var actions: [UInt64: () -> Void] = [:]
    private var lastID: UInt64 = 0

    /// The earliest deadline that may still have an action. It can be a husk's; waking for one is harmless.
    var earliest: MonotonicInstant? { heap.first?.due }

    var count: Int { actions.count }

    mutating func insert(due: MonotonicInstant, _ action: @escaping () -> Void) -> UInt64 {
        lastID += 1
        actions[lastID] = action
        heap.append(Entry(due: due, id: lastID))
        siftUp(heap.count - 1)
        return lastID
    }

    mutating func remove(_ id: UInt64) {
        guard actions.removeValue(forKey: id) != nil else { return }
        if heap.count > 64, heap.count > 2 * actions.count {
            heap.removeAll { actions[$0.id] == nil }
            // A sorted array is a heap.
            heap.sort { $0.due < $1.due }
        }
    }

    /// Takes out one action that is due, or nil when none is.
    mutating func popDue(at now: MonotonicInstant) -> (() -> Void)? {
        while let first = heap.first, first.due <= now {
            let last = heap.removeLast()
            if !heap.isEmpty {
                heap[0] = last
                siftDown(0)
            }
            if let action = actions.removeValue(forKey: first.id) { return action }
        }
        return nil
    }

    private mutating func siftUp(_ start: Int) {
        var child = start
        while child > 0 {
            let parent = (child - 1) / 2
            if heap[parent].due <= heap[child].due { return }
            heap.swapAt(parent, child)
            child = parent
        }
    }

    private mutating func siftDown(_ start: Int) {
        var parent = start
        while true {
            var least = parent
            for child in [2 * parent + 1, 2 * parent + 2] where child < heap.count {
                if heap[child].due < heap[least].due { least = child }
            }
            if least == parent { return }
            heap.swapAt(parent, least)
            parent = least
        }
    }
}
