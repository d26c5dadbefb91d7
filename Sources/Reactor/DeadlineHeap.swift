/// The deadlines of one loop, earliest first.
///
/// Cancelling a deadline removes its action and leaves its heap entry, so it costs one dictionary removal. A cancelled
/// entry leaves the heap when it is due, or when more than half of the entries are cancelled.
struct DeadlineHeap {
    private var heap = TimeHeap()
    private var actions: [UInt64: () -> Void] = [:]
    private var lastID: UInt64 = 0

    /// The earliest deadline in the heap. It may belong to a cancelled action; waking up for a cancelled action is
    /// harmless.
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

    /// Removes one due action and returns it; nil when no action is due.
    mutating func popDue(at now: MonotonicInstant) -> (() -> Void)? {
        while let first = heap.first, first.time <= now {
            heap.removeFirst()
            if let action = actions.removeValue(forKey: first.number) { return action }
        }
        return nil
    }
}
