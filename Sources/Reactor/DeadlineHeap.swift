/// The deadlines of one loop, earliest first. A cancelled one stays in the heap as a husk until it is due or until
/// husks outnumber the living, so cancelling costs one dictionary removal.
struct DeadlineHeap {
    private var heap = TimeHeap()
    private var actions: [UInt64: () -> Void] = [:]
    private var lastID: UInt64 = 0

    /// The earliest deadline that may still have an action. It can be a husk's; waking for one is harmless.
    var earliest: MonotonicInstant? { heap.first?.time }

    var count: Int { actions.count }

    mutating func insert(due: MonotonicInstant, _ action: @escaping () -> Void) -> UInt64 {
        lastID += 1
        actions[lastID] = action
        heap.insert(due, lastID)
        return lastID
    }

    mutating func remove(_ id: UInt64) {
        guard actions.removeValue(forKey: id) != nil else { return }
        if heap.count > 64, heap.count > 2 * actions.count { heap.removeAll { actions[$0] == nil } }
    }

    /// Takes out one action that is due, or nil when none is.
    mutating func popDue(at now: MonotonicInstant) -> (() -> Void)? {
        while let first = heap.first, first.time <= now {
            heap.removeFirst()
            if let action = actions.removeValue(forKey: first.number) { return action }
        }
        return nil
    }
}
