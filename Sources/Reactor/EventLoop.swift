internal import CLinux
internal import Glibc
internal import Synchronization

/// What a descriptor is ready for.
@usableFromInline package struct Readiness: OptionSet, Sendable {
    @usableFromInline package let rawValue: UInt8
    // Inlinable, since every event is looked at through these.
    @inlinable package init(rawValue: UInt8) { self.rawValue = rawValue }

    @inlinable package static var readable: Readiness { Readiness(rawValue: 1) }
    @inlinable package static var writable: Readiness { Readiness(rawValue: 2) }
    /// The peer has finished sending; what it sent before can still be read.
    @inlinable package static var peerFinished: Readiness { Readiness(rawValue: 4) }
    /// The connection is gone in both directions, or in error. Always reported.
    @inlinable package static var hangup: Readiness { Readiness(rawValue: 8) }
}

/// Receives readiness on the loop's thread.
package protocol ReadinessHandler: AnyObject {
    /// - Parameter tag: the one that the descriptor was registered with, so that one handler can have many.
    func becameReady(_ readiness: Readiness, tag: Int)
}

/// Hears of the turns of a loop, on its thread.
package protocol TurnObserver: AnyObject {
    /// A turn begins.
    /// - Parameters:
    ///   - busySince: since when the loop has had something to do at every moment.
    ///   - readyCount: of how many descriptors it is going to be told.
    func turnBegan(at time: MonotonicInstant, busySince: MonotonicInstant, readyCount: Int)

    /// What the descriptors became ready for in this turn has been told.
    func readinessTold()
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
@safe package final class EventLoop: SerialExecutor, @unchecked Sendable {
    private enum Item {
        case job(UnownedJob)
        /// Keeps the executor until the job has run, in which the task may let go of it.
        case preferring(UnownedJob, LoopTasks)
        case action(@Sendable () -> Void)
    }

    private struct Mailbox {
        var items: [Item] = []
        var isSignalled = false
        var isStopping = false
    }

    /// What changes with every turn, in memory of its own: see `SlotTable`.
    private struct State: ~Copyable {
        var slots = SlotTable()
        var turnTime = MonotonicInstant.now
        var busySince = MonotonicInstant.now
        var isTurnWanted = false
        var observer: (any TurnObserver)?
        /// What was taken out of the mailbox and has not run, from `firstTaken` on.
        var taken: [Item] = []
        var firstTaken = 0
    }

    package let name: String
    private let epoll: OwnedDescriptor
    private let wakeUp: OwnedDescriptor
    private let mailbox = Mutex(Mailbox())
    private let owner = Atomic<UInt>(0)
    private let thread = Mutex<Thread.Handle?>(nil)

    // The loop's thread only, from here on.
    private let state: UnsafeMutablePointer<State>
    private var deadlines = DeadlineHeap()

    private static let wakeUpTag = UInt64.max
    /// In nanoseconds.
    private static let leastWait: Int64 = 50_000
    /// Where so many are ready, it may not have been a pause: the thread may not have been let run.
    private static let mostAfterPause: Int32 = 64
    private static let roundsInTurn = 32
    /// In nanoseconds.
    private static let leastJobTime: Int64 = 50_000
    /// What a crowd of items has taken is given back.
    private static let keptCapacity = 256

    /// Creates the epoll set and starts the thread.
    package init(name: String) throws(SystemError) {
        self.name = name
        unsafe state = .allocate(capacity: 1)
        unsafe state.initialize(to: State())
        epoll = OwnedDescriptor(adopting: try retryingInterrupts("epoll_create1") { clinux_epoll_create() })
        wakeUp = OwnedDescriptor(adopting: try retryingInterrupts("eventfd") { clinux_eventfd() })
        let (epollNumber, wakeUpNumber) = (epoll.rawValue, wakeUp.rawValue)
        try retryingInterrupts("epoll_ctl") {
            clinux_epoll_set(epollNumber, wakeUpNumber, CLINUX_IN, Self.wakeUpTag)
        }
        let started = try Thread.start(name: name) { self.run() }
        thread.withLock { $0 = started }
    }

    deinit {
        unsafe state.deinitialize(count: 1)
        unsafe state.deallocate()
    }

    // MARK: From any thread

    package var isCurrent: Bool { owner.load(ordering: .relaxed) == UInt(pthread_self()) }

    package func enqueue(_ job: consuming ExecutorJob) {
        let unowned = UnownedJob(job)
        post(.job(unowned))
    }

    /// Runs a job of a task that prefers the loop: it may go on in any actor of the loop's.
    func enqueue(_ job: consuming ExecutorJob, preferring tasks: LoopTasks) {
        let unowned = UnownedJob(job)
        post(.preferring(unowned, tasks))
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
    package func register(
        _ descriptor: CInt, _ handler: any ReadinessHandler, tag: Int = 0
    ) throws(SystemError) -> Registration {
        let events = CLINUX_IN | CLINUX_OUT | CLINUX_RDHUP | CLINUX_ET
        return try register(descriptor, events: events, handler, tag: tag)
    }

    /// Watches a listening descriptor, level-triggered: what one turn leaves unaccepted is reported again.
    package func registerListener(
        _ descriptor: CInt, _ handler: any ReadinessHandler
    ) throws(SystemError) -> Registration {
        try register(descriptor, events: CLINUX_IN, handler, tag: 0)
    }

    /// Forgets the registration. To be called before the descriptor is closed.
    package func deregister(_ registration: Registration) {
        guard let descriptor = release(registration) else { return }
        // ENOENT and EBADF mean that the kernel forgot it first, which is what is wanted.
        _ = clinux_epoll_remove(epoll.rawValue, descriptor)
    }

    /// Like `deregister`, where the descriptor is closed next: closing it makes the kernel forget it, too.
    /// - Precondition: nobody has a duplicate of it.
    package func deregisterBeforeClose(_ registration: Registration) {
        _ = release(registration)
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

    /// When this turn began: for deadlines of many connections, which need no better time.
    package var turnTime: MonotonicInstant { unsafe state.pointee.turnTime }

    /// Has the loop go on to its next turn without waiting for anything, and the observer hear that readiness was told even
    /// if there was none.
    package func wantTurn() {
        unsafe state.pointee.isTurnWanted = true
    }

    /// Has `observer`, and nobody else, hear when the descriptors' readiness has been told, in every turn that had any.
    package func observe(_ observer: any TurnObserver) {
        checkIsolated()
        unsafe state.pointee.observer = observer
    }

    // MARK: The loop

    private func run() {
        owner.store(UInt(pthread_self()), ordering: .relaxed)
        let capacity = 256
        let events = UnsafeMutablePointer<clinux_event>.allocate(capacity: capacity)
        defer { unsafe events.deallocate() }
        var hasMore = false
        while true {
            let end = MonotonicInstant.now
            let isPressed = unsafe hasMore || state.pointee.isTurnWanted
            unsafe state.pointee.isTurnWanted = false
            let timeout = isPressed ? 0 : millisecondsToEarliestDeadline(end)
            let count = unsafe clinux_epoll_wait(epoll.rawValue, events, CInt(capacity), timeout)
            if count < 0 {
                let number = errno
                precondition(number == EINTR, "epoll_wait failed: \(SystemError("epoll_wait", number: number))")
            }
            let start = MonotonicInstant.now
            unsafe state.pointee.turnTime = start
            // Whoever waits for readiness that is there already does not wait that long.
            let tookLong = start.nanoseconds &- end.nanoseconds > Self.leastWait
            if !isPressed, count <= 0 || tookLong && count < Self.mostAfterPause {
                unsafe state.pointee.busySince = start
            } else if tookLong {
                // A crowd after a pause, or a thread that was not let run: neither counts.
                unsafe state.pointee.busySince.nanoseconds += start.nanoseconds - end.nanoseconds
            }
            let readyCount = max(0, Int(count))
            let observer = unsafe state.pointee.observer
            observer?.turnBegan(at: start, busySince: unsafe state.pointee.busySince, readyCount: readyCount)
            for index in 0..<readyCount {
                let event = unsafe events[index]
                dispatch(tag: event.tag, events: event.events)
            }
            if count > 0 || isPressed { observer?.readinessTold() }
            while let action = deadlines.popDue(at: start) { action() }
            hasMore = runMailbox(turnBegan: start)
            if !hasMore, mailbox.withLock({ $0.isStopping && $0.items.isEmpty }) {
                // It holds the loop in its turn.
                unsafe state.pointee.observer = nil
                return
            }
        }
    }

    private func dispatch(tag: UInt64, events: UInt32) {
        if tag == Self.wakeUpTag {
            var value: UInt64 = 0
            _ = unsafe read(wakeUp.rawValue, &value, 8)
            mailbox.withLock { $0.isSignalled = false }
            return
        }
        guard let (handler, ownTag) = unsafe state.pointee.slots.handler(tag) else { return }
        var readiness: UInt8 = 0
        if events & CLINUX_IN != 0 { readiness |= Readiness.readable.rawValue }
        if events & CLINUX_OUT != 0 { readiness |= Readiness.writable.rawValue }
        if events & CLINUX_RDHUP != 0 { readiness |= Readiness.peerFinished.rawValue }
        if events & (CLINUX_HUP | CLINUX_ERR) != 0 { readiness |= Readiness.hangup.rawValue }
        handler.becameReady(Readiness(rawValue: readiness), tag: ownTag)
    }

    /// Runs what is in the mailbox, and for some rounds the jobs that those put into it: what a task does in a few steps
    /// needs no look at the descriptors after each. Actions that are put in meanwhile wait for the next turn. Ends with
    /// the time that jobs have in a turn: as much as the descriptors have taken in this one, and `leastJobTime` at least.
    /// Returns whether there is more, so that neither work which enqueues work nor a thousand tasks that are woken at once
    /// keep the loop from its descriptors.
    private func runMailbox(turnBegan: MonotonicInstant) -> Bool {
        if unsafe state.pointee.taken.isEmpty, !takeMail() { return false }
        var later: [Item] = []
        let now = MonotonicInstant.now.nanoseconds
        let end = now &+ max(Self.leastJobTime, now &- turnBegan.nanoseconds)
        var round = 0
        var isOver = false
        repeat {
            while unsafe state.pointee.firstTaken < state.pointee.taken.count {
                let item = unsafe state.pointee.taken[state.pointee.firstTaken]
                unsafe state.pointee.firstTaken += 1
                switch item {
                case .job(let job): unsafe job.runSynchronously(on: asUnownedSerialExecutor())
                case .preferring(let job, let tasks):
                    unsafe job.runSynchronously(
                        isolatedTo: asUnownedSerialExecutor(), taskExecutor: tasks.asUnownedTaskExecutor())
                case .action(let action) where round == 0: action()
                case .action:
                    later.append(item)
                    continue
                }
                isOver = MonotonicInstant.now.nanoseconds > end
                if isOver, unsafe state.pointee.firstTaken < state.pointee.taken.count {
                    // What waits for the next turn was there before what is left.
                    unsafe state.pointee.taken.replaceSubrange(..<state.pointee.firstTaken, with: later)
                    unsafe state.pointee.firstTaken = 0
                    return true
                }
            }
            unsafe state.pointee.taken.removeAll(
                keepingCapacity: state.pointee.taken.capacity <= Self.keptCapacity)
            unsafe state.pointee.firstTaken = 0
            round += 1
        } while !isOver && round < Self.roundsInTurn && takeMail()
        // What was taken is empty now, and its memory the mailbox's next.
        if !later.isEmpty { unsafe state.pointee.taken.append(contentsOf: later) }
        return !later.isEmpty || mailbox.withLock { !$0.items.isEmpty }
    }

    /// Takes what is in the mailbox. False where there is nothing.
    private func takeMail() -> Bool {
        mailbox.withLock { unsafe swap(&$0.items, &state.pointee.taken) }
        return unsafe !state.pointee.taken.isEmpty
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

    private func millisecondsToEarliestDeadline(_ now: MonotonicInstant) -> CInt {
        guard let earliest = deadlines.earliest else { return -1 }
        let remaining = earliest.nanoseconds &- now.nanoseconds
        if remaining <= 0 { return 0 }
        // Rounded up: waking early would spin through empty turns.
        return CInt(clamping: (remaining - 1) / 1_000_000 + 1)
    }

    func register(
        _ descriptor: CInt, events: UInt32, _ handler: any ReadinessHandler, tag: Int = 0
    ) throws(SystemError) -> Registration {
        checkIsolated()
        let registration = unsafe state.pointee.slots.insert(handler, descriptor, ownTag: tag)
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
        return unsafe state.pointee.slots.remove(registration)
    }
}
