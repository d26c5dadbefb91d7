/// What a loop's descriptors are registered as: handlers in numbered slots, found by the tag of an event.
///
/// In memory of its own rather than in an array of the loop's, since it is looked at for every event: Swift would check
/// each time that nobody else is in the middle of changing the array. The loop's thread only.
@safe struct SlotTable: ~Copyable {
    private struct Slot {
        var handler: (any ReadinessHandler)?
        /// The handler's own name for the descriptor.
        var ownTag: Int
        var descriptor: CInt
        var generation: UInt32
    }

    private var slots: UnsafeMutablePointer<Slot>
    private var count = 0
    private var capacity = 64
    private var free: [UInt32] = []

    init() {
        unsafe slots = .allocate(capacity: capacity)
    }

    deinit {
        unsafe slots.deinitialize(count: count)
        unsafe slots.deallocate()
    }

    /// The handler that the tag names; nil where its registration has ended.
    @inline(__always)
    func handler(_ tag: UInt64) -> (any ReadinessHandler, ownTag: Int)? {
        let index = Int(truncatingIfNeeded: tag & 0xffff_ffff)
        guard index < count, unsafe slots[index].generation == UInt32(truncatingIfNeeded: tag >> 32),
            let handler = unsafe slots[index].handler
        else { return nil }
        return unsafe (handler, slots[index].ownTag)
    }

    mutating func insert(_ handler: any ReadinessHandler, _ descriptor: CInt, ownTag: Int) -> Registration {
        let index: UInt32
        if let reused = free.popLast() {
            index = reused
        } else {
            if count == capacity { grow() }
            index = UInt32(count)
            unsafe (slots + count).initialize(to: Slot(handler: nil, ownTag: 0, descriptor: -1, generation: 0))
            count += 1
        }
        unsafe slots[Int(index)].handler = handler
        unsafe slots[Int(index)].ownTag = ownTag
        unsafe slots[Int(index)].descriptor = descriptor
        return Registration(slot: index, generation: unsafe slots[Int(index)].generation)
    }

    /// Frees the slot; nil when the registration is not the slot's current one.
    mutating func remove(_ registration: Registration) -> CInt? {
        let index = Int(registration.slot)
        guard index < count, unsafe slots[index].generation == registration.generation,
            unsafe slots[index].handler != nil
        else { return nil }
        let descriptor = unsafe slots[index].descriptor
        unsafe slots[index].generation &+= 1
        unsafe slots[index].handler = nil
        unsafe slots[index].descriptor = -1
        free.append(registration.slot)
        return descriptor
    }

    private mutating func grow() {
        let larger = UnsafeMutablePointer<Slot>.allocate(capacity: capacity * 2)
        unsafe larger.moveInitialize(from: slots, count: count)
        unsafe slots.deallocate()
        unsafe slots = larger
        capacity *= 2
    }
}
