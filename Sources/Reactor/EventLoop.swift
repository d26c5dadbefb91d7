import CLinux
import Glibc
import Synchronization

/// What a descriptor is ready for.
@usableFromInline package struct Readiness: OptionSet, Sendable {
    @usableFromInline package let rawValue: UInt8
    // Inlinable because these run for every event.
    @inlinable package init(rawValue: UInt8) { self.rawValue = rawValue }

    @inlinable package static var readable: Readiness { Readiness(rawValue: 1) }
    @inlinable package static var writable: Readiness { Readiness(rawValue: 2) }
    /// The peer has finished sending; what it sent before can still be read.
    @inlinable package static var peerFinished: Readiness { Readiness(rawValue: 4) }
    /// The connection has ended in both directions or has failed. The kernel always reports this.
    @inlinable package static var hangup: Readiness { Readiness(rawValue: 8) }
}

/// Is called when a registered descriptor becomes ready, on the loop's thread.
package protocol ReadinessHandler: AnyObject {
    /// - Parameter tag: the tag that was passed to `register`. It lets one handler serve many descriptors.
    func becameReady(_ readiness: Readiness, tag: Int)
}

/// Observes the turns of a loop, on the loop's thread.
package protocol TurnObserver: AnyObject {
    /// A turn begins.
    /// - Parameters:
    ///   - busySince: the time since which the loop has had work without a pause.
    ///   - readyCount: the number of descriptors that are ready in this turn.
    func turnBegan(at time: MonotonicInstant, busySince: MonotonicInstant, readyCount: Int)

    /// Every handler of this turn's ready descriptors has been called.
    func readinessHandled()
}

/// Identifies a registration by a slot and the generation of its use. The generation keeps an event that was fetched
/// for a closed descriptor from reaching a new descriptor with the same number.
package struct Registration: Hashable, Sendable {
    let slot: UInt32
    let generation: UInt32

    var tag: UInt64 { UInt64(generation) << 32 | UInt64(slot) }
}

/// Identifies a scheduled action, for cancelling it.
package struct ScheduledAction: Hashable, Sendable {
    let id: UInt64
}

/// An event loop: one thread and one epoll set. Each turn handles ready descriptors, then due deadlines, then queued
/// jobs.
///
/// It is the serial executor of the actors that run on it. Methods under "On the loop's thread only" stop the process
/// when another thread calls them.
///
/// `@unchecked Sendable`: each stored property below is immutable, protected by a lock, or touched by the loop's thread
/// only, which the compiler cannot check.
@safe package final class EventLoop: SerialExecutor, @unchecked Sendable {
    private enum Item {
        case job(UnownedJob)
        /// Retains the executor until the job has run, since the task may release it while it runs.
        case preferring(UnownedJob, EventLoopTaskExecutor)
        case action(@Sendable () -> Void)
    }

    private struct Mailbox {
        var items: [Item] = []
        var isSignalled = false
        var isStopping = false
    }

    /// The state that changes in every turn.
    private struct State: ~Copyable {
        var slots = SlotTable()
        var turnTime: MonotonicInstant
        var busySince: MonotonicInstant
        var standstill = Standstill()
        var isTurnRequested = false
        var observer: (any TurnObserver)?
        /// Items that were taken out of the mailbox. The items from `firstTaken` on have not run yet.
        var taken: [Item] = []
        var firstTaken = 0

        init(at time: MonotonicInstant) {
            turnTime = time
            busySince = time
        }
    }

    package let name: String
    /// Nil for the machine's clock.
    private let clock: (any LoopClock)?
    private let epoll: OwnedDescriptor
    private let wakeUp: OwnedDescriptor
    private let mailbox = Mutex(Mailbox())
    private let owner = Atomic<UInt>(0)
    private let thread = Mutex<Thread.Handle?>(nil)

    // Only the loop's thread touches the properties from here on.
    private let state: LoopState<State>
    private var deadlines = DeadlineHeap()

    private static let wakeUpTag = UInt64.max
    /// A loop with an observer begins a turn at least this often, in milliseconds, so that it knows how long it has stood still.
    private static let heartbeat: CInt = 1000
    /// The shortest wait that counts as a pause, in nanoseconds.
    private static let shortestPause: Int64 = 50_000
    /// When at least this many descriptors are ready after a pause, the pause may not have been idle time: the kernel
    /// may not have scheduled the thread.
    private static let backlogThreshold: Int32 = 64
    private static let maximumRounds = 32
    /// The least time that jobs get in one turn, in nanoseconds.
    private static let minimumJobTime: Int64 = 50_000
    /// A larger array of items is released after use, so that one burst does not hold its memory for ever.
    private static let largestKeptCapacity = 256

    /// Creates the epoll set and starts the thread. Throws when the system refuses a descriptor or a thread.
    /// - Parameter clock: what the loop reads the time from; nil for the machine's clock.
    package init(name: String, clock: (any LoopClock)? = nil) throws(SystemError) {
        self.name = name
        self.clock = clock
        state = LoopState(State(at: clock?.now ?? .now))
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

    /// The time on the loop's clock.
    package var now: MonotonicInstant {
        if let clock { clock.now } else { .now }
    }

    package var isCurrent: Bool { owner.load(ordering: .relaxed) == UInt(pthread_self()) }

    package func enqueue(_ job: consuming ExecutorJob) {
        let unowned = UnownedJob(job)
        post(.job(unowned))
    }

    /// Runs a job of a task that prefers this loop. The task may continue in any actor of the loop.
    func enqueue(_ job: consuming ExecutorJob, preferring executor: EventLoopTaskExecutor) {
        let unowned = UnownedJob(job)
        post(.preferring(unowned, executor))
    }

    /// Runs `action` on the loop's thread, after the items that are already queued.
    package func execute(_ action: @escaping @Sendable () -> Void) {
        post(.action(action))
    }

    package func isSameExclusiveExecutionContext(other: EventLoop) -> Bool { self === other }

    package func checkIsolated() {
        precondition(isCurrent, "not on the thread of event loop \(name)")
    }

    package func isIsolatingCurrentContext() -> Bool? { isCurrent }

    /// Ends the thread once its queue is empty. Waits for the end, unless the loop's own thread makes the call.
    package func shutDown() {
        mailbox.withLock { $0.isStopping = true }
        signal()
        let joinable = thread.withLock { thread in
            defer { thread = nil }
            return thread
        }
        // A thread that is neither joined nor detached keeps its stack for the life of the process.
        if isCurrent { joinable?.detach() } else { joinable?.join() }
    }

    // MARK: On the loop's thread only

    /// Watches `descriptor`, edge-triggered, until `deregister`. The loop retains the handler until then.
    package func register(
        _ descriptor: CInt, handler: any ReadinessHandler, tag: Int = 0
    ) throws(SystemError) -> Registration {
        let events = CLINUX_IN | CLINUX_OUT | CLINUX_RDHUP | CLINUX_ET
        return try register(descriptor, events: events, handler: handler, tag: tag)
    }

    /// Watches a listening descriptor, level-triggered: connections that one turn does not accept are reported again in
    /// the next.
    package func registerListener(
        _ descriptor: CInt, _ handler: any ReadinessHandler
    ) throws(SystemError) -> Registration {
        try register(descriptor, events: CLINUX_IN, handler: handler)
    }

    /// Ends the registration. Call this before closing the descriptor.
    package func deregister(_ registration: Registration) {
        guard let descriptor = release(registration) else { return }
        // ENOENT and EBADF mean that the kernel has already removed the descriptor.
        _ = clinux_epoll_remove(epoll.rawValue, descriptor)
    }

    /// Like `deregister`, for a descriptor that is closed next: closing it also removes it from the epoll set.
    /// - Precondition: the descriptor has no duplicate, or the kernel keeps reporting it.
    package func deregisterBeforeClose(_ registration: Registration) {
        _ = release(registration)
    }

    /// Runs `action` on this thread at `due`, or in the first turn after it.
    @discardableResult
    package func schedule(at due: MonotonicInstant, _ action: @escaping () -> Void) -> ScheduledAction {
        checkIsolated()
        return ScheduledAction(id: deadlines.insert(due: due, action))
    }

    /// Runs `action` on this thread when `delay` has passed.
    @discardableResult
    package func schedule(after delay: Duration, _ action: @escaping () -> Void) -> ScheduledAction {
        schedule(at: now.advanced(by: delay), action)
    }

    package func cancel(_ action: ScheduledAction) {
        checkIsolated()
        deadlines.remove(action.id)
    }

    /// The time at which this turn began. It is precise enough for the deadlines of many connections and saves reading
    /// the clock.
    package var turnTime: MonotonicInstant { state.value.turnTime }

    /// A process that has stood still for so long is known to have done so.
    package static let shortestStandstill: Duration = .nanoseconds(Standstill.shortest)

    /// Since when what is read now may have waited, because the process stood still meanwhile: stopped by a signal, or with its
    /// virtual machine. Nil where it has come just now.
    ///
    /// Known of a loop that has an observer.
    /// - Parameter quietSince: when all had been read that waited at the place that is read from.
    package func arrivalBeforeStandstill(quietSince: MonotonicInstant) -> MonotonicInstant? {
        state.value.standstill.arrival(at: now, turnBegan: state.value.turnTime, quietSince: quietSince)
    }

    /// Makes the loop begin its next turn without waiting, and makes that turn call `readinessHandled` even if no
    /// descriptor is ready.
    package func requestTurn() {
        state.value.isTurnRequested = true
    }

    /// Sets the observer of this loop's turns. It replaces the previous observer.
    package func observe(_ observer: any TurnObserver) {
        checkIsolated()
        state.value.observer = observer
    }

    // MARK: The loop

    private func run() {
        owner.store(UInt(pthread_self()), ordering: .relaxed)
        let capacity = 256
        let events = UnsafeMutablePointer<clinux_event>.allocate(capacity: capacity)
        defer { unsafe events.deallocate() }
        var hasMore = false
        while true {
            let end = now
            let hasWork = hasMore || state.value.isTurnRequested
            state.value.isTurnRequested = false
            let timeout = hasWork ? 0 : millisecondsToNextTurn(end)
            state.value.standstill.note(from: state.value.turnTime, to: end)
            var count = unsafe clinux_epoll_wait(epoll.rawValue, events, CInt(capacity), timeout)
            while count < 0 {
                let number = errno
                precondition(number == EINTR, "epoll_wait failed: \(SystemError("epoll_wait", number: number))")
                // SIGSTOP interrupts the call as well. Descriptors may have become ready and deadlines may have passed
                // while the process was stopped, and descriptors come first.
                count = unsafe clinux_epoll_wait(epoll.rawValue, events, CInt(capacity), 0)
            }
            let start = now
            state.value.standstill.note(from: end, to: start)
            state.value.turnTime = start
            // epoll_wait returns at once when a descriptor is already ready, so a long call was a pause.
            let wasPaused = start.nanoseconds &- end.nanoseconds > Self.shortestPause
            if !hasWork, count <= 0 || wasPaused && count < Self.backlogThreshold {
                state.value.busySince = start
            } else if wasPaused {
                // Either many descriptors became ready after a pause, or the kernel did not schedule the thread. The
                // busy period goes on, and the time of this call does not count as part of it.
                state.value.busySince.nanoseconds += start.nanoseconds - end.nanoseconds
            }
            let readyCount = max(0, Int(count))
            let observer = state.value.observer
            observer?.turnBegan(at: start, busySince: state.value.busySince, readyCount: readyCount)
            for index in 0..<readyCount {
                let event = unsafe events[index]
                dispatch(tag: event.tag, events: event.events)
            }
            if count > 0 || hasWork { observer?.readinessHandled() }
            while let action = deadlines.popDue(at: start) { action() }
            hasMore = runMailbox(turnBegan: start)
            if !hasMore, mailbox.withLock({ $0.isStopping && $0.items.isEmpty }) {
                // The observer retains the loop, so keeping it would leak both.
                state.value.observer = nil
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
        guard let (handler, ownTag) = state.value.slots.handler(for: tag) else { return }
        var readiness: UInt8 = 0
        if events & CLINUX_IN != 0 { readiness |= Readiness.readable.rawValue }
        if events & CLINUX_OUT != 0 { readiness |= Readiness.writable.rawValue }
        if events & CLINUX_RDHUP != 0 { readiness |= Readiness.peerFinished.rawValue }
        if events & (CLINUX_HUP | CLINUX_ERR) != 0 { readiness |= Readiness.hangup.rawValue }
        handler.becameReady(Readiness(rawValue: readiness), tag: ownTag)
    }

    /// Runs the items in the mailbox. For up to `maximumRounds` rounds it also runs the jobs that these items enqueue: a
    /// task that takes a few steps needs no poll of the descriptors between them. Actions that are enqueued meanwhile
    /// wait for the next turn.
    ///
    /// Jobs get as much time as the descriptors took in this turn, and at least `minimumJobTime`. So neither jobs that
    /// enqueue jobs nor a thousand tasks that are resumed at once keep the loop from its descriptors.
    /// - Returns: whether items are left.
    private func runMailbox(turnBegan: MonotonicInstant) -> Bool {
        if state.value.taken.isEmpty, !takeItems() { return false }
        var postponed: [Item] = []
        let start = now.nanoseconds
        let end = start &+ max(Self.minimumJobTime, start &- turnBegan.nanoseconds)
        var round = 0
        var isOver = false
        repeat {
            while state.value.firstTaken < state.value.taken.count {
                let item = state.value.taken[state.value.firstTaken]
                state.value.firstTaken += 1
                switch item {
                case .job(let job): unsafe job.runSynchronously(on: asUnownedSerialExecutor())
                case .preferring(let job, let executor):
                    unsafe job.runSynchronously(
                        isolatedTo: asUnownedSerialExecutor(), taskExecutor: executor.asUnownedTaskExecutor())
                case .action(let action) where round == 0: action()
                case .action:
                    postponed.append(item)
                    continue
                }
                isOver = now.nanoseconds > end
                if isOver, state.value.firstTaken < state.value.taken.count {
                    // The postponed actions were enqueued before the remaining items.
                    state.value.taken.replaceSubrange(..<state.value.firstTaken, with: postponed)
                    state.value.firstTaken = 0
                    return true
                }
            }
            state.value.taken.removeAll(
                keepingCapacity: state.value.taken.capacity <= Self.largestKeptCapacity)
            state.value.firstTaken = 0
            round += 1
        } while !isOver && round < Self.maximumRounds && takeItems()
        // `taken` is empty now. The next `takeItems` gives its memory to the mailbox.
        if !postponed.isEmpty { state.value.taken.append(contentsOf: postponed) }
        return !postponed.isEmpty || mailbox.withLock { !$0.items.isEmpty }
    }

    /// Moves the mailbox's items into `taken`. Returns false when the mailbox was empty.
    private func takeItems() -> Bool {
        mailbox.withLock { swap(&$0.items, &state.value.taken) }
        return !state.value.taken.isEmpty
    }

    private func post(_ item: Item) {
        let onThread = isCurrent
        let mustSignal = mailbox.withLock { mailbox in
            mailbox.items.append(item)
            // The loop's own thread checks the mailbox before it sleeps.
            if onThread || mailbox.isSignalled { return false }
            mailbox.isSignalled = true
            return true
        }
        if mustSignal { signal() }
    }

    private func signal() {
        var one: UInt64 = 1
        // EAGAIN means that the counter is full, so the loop wakes up anyway.
        _ = unsafe write(wakeUp.rawValue, &one, 8)
    }

    private func millisecondsToNextTurn(_ now: MonotonicInstant) -> CInt {
        let most = clock == nil && state.value.observer != nil ? Self.heartbeat : -1
        guard let earliest = deadlines.earliest else { return most }
        let remaining = earliest.nanoseconds &- now.nanoseconds
        if remaining <= 0 { return 0 }
        if clock != nil { return -1 }
        // Rounded up: waking up early would spin through empty turns.
        let milliseconds = CInt(clamping: (remaining - 1) / 1_000_000 + 1)
        return most < 0 ? milliseconds : min(milliseconds, most)
    }

    func register(
        _ descriptor: CInt, events: UInt32, handler: any ReadinessHandler, tag: Int = 0
    ) throws(SystemError) -> Registration {
        checkIsolated()
        let registration = state.value.slots.insert(handler, descriptor: descriptor, ownTag: tag)
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

    /// Frees the slot and returns its descriptor; nil when the slot belongs to another registration by now.
    func release(_ registration: Registration) -> CInt? {
        checkIsolated()
        return state.value.slots.remove(registration)
    }
}
