import Reactor

/// Slots of connections, ordered by a time that only moves later, the earliest first. A slot's time may have changed since
/// the slot was inserted, so `first` asks for it.
struct SlotQueue {
    private var heap = TimeHeap()
    private var isListed: [Bool] = []

    /// Inserts the slot, unless it is listed already.
    mutating func insert(_ time: MonotonicInstant, _ slot: Int) {
        while isListed.count <= slot { isListed.append(false) }
        if isListed[slot] { return }
        isListed[slot] = true
        heap.insert(time, UInt64(slot))
    }

    /// The listed slot with the earliest time. It stays listed.
    /// - Parameter currentTime: the slot's time as it is now; nil removes the slot from the list.
    mutating func first(_ currentTime: (Int) -> MonotonicInstant?) -> Int? {
        while let first = heap.first {
            let slot = Int(first.number)
            guard let time = currentTime(slot) else {
                heap.removeFirst()
                isListed[slot] = false
                continue
            }
            if time == first.time { return slot }
            heap.removeFirst()
            heap.insert(time, first.number)
        }
        return nil
    }
}
