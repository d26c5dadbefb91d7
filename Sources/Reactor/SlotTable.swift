/// The registrations of a loop: handlers in numbered slots, found by the tag of an event. Only the loop's thread uses
/// it.
///
/// The slots are in manually allocated memory because every event reads them.
@safe struct SlotTable: ~Copyable {
    private struct Slot {
        var handler: (any ReadinessHandler)?
        /// The tag that the handler was registered with.
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

    /// The handler for an event's tag; nil when that registration has ended.
    @inline(__always)
    func handler(for tag: UInt64) -> (any ReadinessHandler, ownTag: Int)? {
        let index = Int(truncatingIfNeeded: tag & 0xffff_ffff)
        guard index < count, unsafe slots[index].generation == UInt32(truncatingIfNeeded: tag >> 32),
            let handler = unsafe slots[index].handler
        else { return nil }
        return unsafe (handler, slots[index].ownTag)
    }

    mutating func insert(_ handler: any ReadinessHandler, descriptor: CInt, ownTag: Int) -> Registration {
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

    /// Frees the slot and returns its descriptor; nil when the slot belongs to another registration by now.
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
