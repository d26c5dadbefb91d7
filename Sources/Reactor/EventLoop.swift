internal import CLinux
internal import Glibc
internal import Synchronization

/// What a descriptor is ready for.
package struct Readiness: OptionSet, Sendable {
    package let rawValue: UInt8
    package init(rawValue: UInt8) { self.rawValue = rawValue }

    package static let readable = Readiness(rawValue: 1)
    package static let writable = Readiness(rawValue: 2)
    /// The peer has finished sending; what it sent before can still be read.
    package static let peerFinished = Readiness(rawValue: 4)
    /// The connection is gone in both directions, or in error. Always reported.
    package static let hangup = Readiness(rawValue: 8)
}

/// Receives readiness on the loop's thread.
package protocol ReadinessHandler: AnyObject {
    func becameReady(_ readiness: Readiness)
}

/// Names a registration: a slot and the generation of its use, so that an event which was already fetched for a
/// closed descriptor cannot reach the one that reuses its number.
package struct Registration: Hashable, Sendable {
    let slot: UInt32
    let generation: UInt32

    var tag: UInt64 { UInt64(generation) << 32 | UInt64(slot) }
}

/// Names a scheduled action so that it can be cancelled.
package struct ScheduledAction: Hashable, Sendable {
    let id: UInt64
}

/// One thread, one epoll set: readiness, deadlines and jobs, in that order, for ever.
///
/// It is the serial executor of the actors that live on it. Methods marked "loop's thread only" stop the process
/// when called from elsewhere. Unchecked, because the compiler cannot see that every stored property below is either
/// immutable, in a lock, or touched by the loop's thread alone.
package final class EventLoop: SerialExecutor, @unchecked Sendable {
    private enum Item {
        case job(UnownedJob)
        case action(@Sendable () -> Void)
    }

    private struct Mailbox {
        var items: [Item] = []
        var isSignalled = false
        var isStopping = false
    }

    private struct Slot {
        var generation: UInt32 = 0
        var handler: (any ReadinessHandler)?
        var descriptor: CInt = -1
    }

    package let name: String
    private let epoll: OwnedDescriptor
    private let wakeUp: OwnedDescriptor
    private let mailbox = Mutex(Mailbox())
    private let owner = Atomic<UInt>(0)
    private let thread = Mutex<Thread.Handle?>(nil)

    // The loop's thread only, from here on.
    private var slots: [Slot] = []
    private var freeSlots: [UInt32] = []
    private var deadlines = DeadlineHeap()

    private static let wakeUpTag = UInt64.max
    private static let roundsInTurn = 32

    /// Creates the epoll set and starts the thread.
    package init(name: String) throws(SystemError) {
        self.name = name
        epoll = OwnedDescriptor(adopting: try retryingInterrupts("epoll_create1") { clinux_epoll_create() })
        wakeUp = OwnedDescriptor(adopting: try retryingInterrupts("eventfd") { clinux_eventfd() })
        let (epollNumber, wakeUpNumber) = (epoll.rawValue, wakeUp.rawValue)
        try retryingInterrupts("epoll_ctl") {
            clinux_epoll_set(epollNumber, wakeUpNumber, CLINUX_IN, Self.wakeUpTag)
        }
        let started = try Thread.start(name: name) { self.run() }
        thread.withLock { $0 = started }
    }

    // MARK: From any thread

    package var isCurrent: Bool { owner.load(ordering: .relaxed) == UInt(pthread_self()) }

    package func enqueue(_ job: consuming ExecutorJob) {
        let unowned = UnownedJob(job)
        post(.job(unowned))
    }

    /// Runs `action` on the loop's thread, after what is queued already.
    package func execute(_ action: @escaping @Sendable () -> Void) {
        post(.action(action))
    }

    package func isSameExclusiveExecutionContext(other: EventLoop) -> Bool { self === other }

    package func checkIsolated() {
        precondition(isCurrent, "not on the thread of event loop \(name)")
    }

    package func isIsolatingCurrentContext() -> Bool? { isCurrent }

    /// Ends the thread once its queue is empty, and waits for it unless called from it.
    package func shutDown() {
        mailbox.withLock { $0.isStopping = true }
        signal()
        let joinable = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        // A thread that can be neither joined nor left to itself would keep its stack for ever.
        if isCurrent { joinable?.detach() } else { joinable?.join() }
    }

    // MARK: On the loop's thread only

    /// Watches `descriptor`, edge-triggered, until `deregister`. The handler is kept alive meanwhile.
    package func register(_ descriptor: CInt, _ handler: any ReadinessHandler) throws(SystemError) -> Registration {
        let events = CLINUX_IN | CLINUX_OUT | CLINUX_RDHUP | CLINUX_ET
        return try register(descriptor, events: events, handler)
    }

    /// Watches a listening descriptor, level-triggered: what one turn leaves unaccepted is reported again.
    package func registerListener(
        _ descriptor: CInt, _ handler: any ReadinessHandler
    ) throws(SystemError) -> Registration {
        try register(descriptor, events: CLINUX_IN, handler)
    }

    /// Forgets the registration. To be called before the descriptor is closed.
    package func deregister(_ registration: Registration) {
        guard let descriptor = release(registration) else { return }
        // ENOENT and EBADF mean that the kernel forgot it first, which is what is wanted.
        _ = clinux_epoll_remove(epoll.rawValue, descriptor)
    }

    /// Runs `action` on this thread at `due`, or as soon after as the loop's turn allows.
    @discardableResult
    package func schedule(at due: MonotonicInstant, _ action: @escaping () -> Void) -> ScheduledAction {
        checkIsolated()
        return ScheduledAction(id: deadlines.insert(due: due, action))
    }

    package func cancel(_ action: ScheduledAction) {
        checkIsolated()
        deadlines.remove(action.id)
    }

    // MARK: The loop

    private func run() {
        owner.store(UInt(pthread_self()), ordering: .relaxed)
        let capacity = 256
        let events = UnsafeMutablePointer<clinux_event>.allocate(capacity: capacity)
        defer { unsafe events.deallocate() }
        var hasMore = false
        while true {
            let timeout = hasMore ? 0 : millisecondsToEarliestDeadline()
            let count = unsafe clinux_epoll_wait(epoll.rawValue, events, CInt(capacity), timeout)
            if count < 0 {
                let number = errno
                precondition(number == EINTR, "epoll_wait failed: \(SystemError("epoll_wait", number: number))")
            }
            for index in 0..<max(0, Int(count)) {
                let event = unsafe events[index]
                dispatch(tag: event.tag, events: event.events)
            }
            let now = MonotonicInstant.now
            while let action = deadlines.popDue(at: now) { action() }
            hasMore = runMailbox()
            if !hasMore, mailbox.withLock({ $0.isStopping && $0.items.isEmpty }) { return }
        }
    }

    private func dispatch(tag: UInt64, events: UInt32) {
        if tag == Self.wakeUpTag {
            var value: UInt64 = 0
            _ = unsafe read(wakeUp.rawValue, &value, 8)
            mailbox.withLock { $0.isSignalled = false }
            return
        }
        let index = Int(truncatingIfNeeded: tag & 0xffff_ffff)
        guard index < slots.count, slots[index].generation == UInt32(truncatingIfNeeded: tag >> 32),
            let handler = slots[index].handler
        else { return }
        var readiness = Readiness()
        if events & CLINUX_IN != 0 { readiness.insert(.readable) }
        if events & CLINUX_OUT != 0 { readiness.insert(.writable) }
        if events & CLINUX_RDHUP != 0 { readiness.insert(.peerFinished) }
        if events & (CLINUX_HUP | CLINUX_ERR) != 0 { readiness.insert(.hangup) }
        handler.becameReady(readiness)
    }

    /// Runs what is in the mailbox and what that puts into it, for some rounds. Returns whether there is more: work which
    /// enqueues work cannot keep the loop from its descriptors, and what a task does in a few steps needs no look at them
    /// after each.
    private func runMailbox() -> Bool {
        for _ in 0..<Self.roundsInTurn {
            let items = mailbox.withLock { mailbox in
                let items = mailbox.items
                mailbox.items = []
                return items
            }
            if items.isEmpty { return false }
            for item in items {
                switch item {
                case .job(let job): unsafe job.runSynchronously(on: asUnownedSerialExecutor())
                case .action(let action): action()
                }
            }
        }
        return mailbox.withLock { !$0.items.isEmpty }
    }

    private func post(_ item: Item) {
        let onThread = isCurrent
        let mustSignal = mailbox.withLock { mailbox in
            mailbox.items.append(item)
            // The loop's own thread looks into the mailbox before it sleeps.
            if onThread || mailbox.isSignalled { return false }
            mailbox.isSignalled = true
            return true
        }
        if mustSignal { signal() }
    }

    private func signal() {
        var one: UInt64 = 1
        // EAGAIN means that the counter is full, so the loop wakes up in any case.
        _ = unsafe write(wakeUp.rawValue, &one, 8)
    }

    private func millisecondsToEarliestDeadline() -> CInt {
        guard let earliest = deadlines.earliest else { return -1 }
        let remaining = MonotonicInstant.now.duration(to: earliest).nanoseconds
        if remaining <= 0 { return 0 }
        // Rounded up: waking early would spin through empty turns.
        return CInt(clamping: (remaining - 1) / 1_000_000 + 1)
    }

    func register(
        _ descriptor: CInt, events: UInt32, _ handler: any ReadinessHandler
    ) throws(SystemError) -> Registration {
        checkIsolated()
        let index: UInt32
        if let free = freeSlots.popLast() {
            index = free
        } else {
            index = UInt32(slots.count)
            slots.append(Slot())
        }
        slots[Int(index)].handler = handler
        slots[Int(index)].descriptor = descriptor
        let registration = Registration(slot: index, generation: slots[Int(index)].generation)
        let epollNumber = epoll.rawValue
        do throws(SystemError) {
            try retryingInterrupts("epoll_ctl") {
                clinux_epoll_set(epollNumber, descriptor, events, registration.tag)
            }
        } catch {
            _ = release(registration)
            throw error
        }
        return registration
    }

    /// Frees the slot; nil when the registration is not the slot's current one.
    func release(_ registration: Registration) -> CInt? {
        checkIsolated()
        let index = Int(registration.slot)
        guard index < slots.count, slots[index].generation == registration.generation, slots[index].handler != nil
        else { return nil }
        let descriptor = slots[index].descriptor
        slots[index].generation &+= 1
        slots[index].handler = nil
        slots[index].descriptor = -1
        freeSlots.append(registration.slot)
        return descriptor
    }
}
