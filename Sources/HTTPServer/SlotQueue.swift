internal import Reactor

/// Slots of connections by a time that only ever moves later, the earliest first. What a slot stands for may have changed
/// since it was inserted; `first` asks.
struct SlotQueue {
    private var heap = TimeHeap()
    private var isListed: [Bool] = []

    /// Does nothing where the slot is listed.
    mutating func insert(_ time: MonotonicInstant, _ slot: Int) {
        while isListed.count <= slot { isListed.append(false) }
        if isListed[slot] { return }
        isListed[slot] = true
        heap.insert(time, UInt64(slot))
    }

    /// The listed slot with the earliest time. It stays listed.
    /// - Parameter currentTime: the slot's time as it is now; nil where it is no longer to be listed.
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
