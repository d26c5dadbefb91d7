import Reactor

/// Decides which of a worker's connections have their turn next, and refuses requests that have waited for too long.
///
/// Connections whose requests are answered at once wait in the quick queue, and all others in the slow queue, so that a
/// request which is answered from memory does not wait for requests that take longer. On the loop's thread only.
final class TurnQueue: ReadinessHandler, TurnObserver {
    /// What the queue knows of the connection in a slot.
    private struct Slot {
        /// What became ready since its last turn.
        var readiness = Readiness()
        var isWaiting = false
        /// Whether its last request was answered at once.
        var isQuick = false
        /// Whether the connection waits for nothing but its next request.
        var isIdle = false
        /// When the connection was accepted.
        var began = MonotonicInstant(nanoseconds: 0)

        mutating func note(isIdle: Bool, isQuick: Bool) {
            (self.isIdle, self.isQuick) = (isIdle, isQuick)
        }
    }

    weak var server: ConnectionServer?
    private let loop: EventLoop
    /// In nanoseconds; see `ServerConfiguration`.
    private let maximumQueueingDelay: Int64
    private let overloadTime: Int64

    /// The connections that wait for a turn.
    private struct Queues {
        var slots: [Slot] = []
        var quick = ReadyQueue()
        var slow = ReadyQueue()

        var count: Int { quick.count &+ slow.count }

        mutating func append(_ slot: Int, _ readiness: Readiness, at now: MonotonicInstant, isQuick: Bool) {
            slots[slot].readiness = Readiness(rawValue: slots[slot].readiness.rawValue | readiness.rawValue)
            if slots[slot].isWaiting { return }
            slots[slot].isWaiting = true
            let entry = ReadyQueue.Entry(slot: slot, since: now)
            if isQuick { quick.append(entry) } else { slow.append(entry) }
        }

        /// A descriptor became ready.
        mutating func append(ready slot: Int, _ readiness: Readiness, at now: MonotonicInstant) {
            let isIdle = slots[slot].isIdle
            // An idle connection has nothing to write. The raw values are compared because the compiler compares option
            // sets through witness tables.
            if isIdle, readiness.rawValue == Readiness.writable.rawValue { return }
            let isForReading = readiness.rawValue & ~Readiness.writable.rawValue == Readiness.readable.rawValue
            append(slot, readiness, at: now, isQuick: isIdle && slots[slot].isQuick && isForReading)
        }

        /// The connections of the quick queue that have their turns next, in the order of their turns.
        var next: [ReadyQueue.Turn] = []

        /// Moves so many entries of the quick queue, at most, to `next`.
        mutating func takeQuick(_ most: Int, limit: MonotonicInstant) {
            next.removeAll(keepingCapacity: true)
            while next.count < most, let turn = quick.next(limit: limit) { next.append(turn) }
        }

        /// What is known of the connection in the slot, whose turn it is.
        mutating func beginTurn(_ slot: Int) -> Slot {
            let known = slots[slot]
            slots[slot].isWaiting = false
            slots[slot].readiness = []
            return known
        }
    }

    private let queues = LoopState(Queues())
    private var began = MonotonicInstant(nanoseconds: 0)
    /// Whether the loop had been busy without a pause for longer than `overloadTime` when this turn began. One long turn
    /// is no overload: the kernel may not have scheduled the process.
    private var isBusy = false
    /// Whether many connections keep the loop busy. Then a turn serves only some of the quick queue.
    private var isCrowded = false

    /// How many connections of the quick queue a crowded turn serves before the loop asks the kernel which descriptors
    /// have become ready.
    private static let quickInTurn = 32
    /// For how long a turn serves the slow queue, in nanoseconds.
    private static let slowInTurn: Int64 = 50_000

    init(loop: EventLoop, configuration: ServerConfiguration) {
        self.loop = loop
        maximumQueueingDelay = configuration.maximumQueueingDelay.nanoseconds
        overloadTime = configuration.overloadTime.nanoseconds
    }

    /// A connection was accepted. What became ready for the slot's previous connection does not concern this one.
    func begin(_ slot: Int) {
        while queues.value.slots.count <= slot { queues.value.slots.append(Slot()) }
        // An entry that the slot's previous connection has left in a queue belongs to this connection now.
        queues.value.slots[slot] = Slot(isWaiting: queues.value.slots[slot].isWaiting, began: loop.turnTime)
    }

    /// Stores what the connection waits for.
    func update(_ slot: Int, isIdle: Bool, isQuick: Bool) {
        queues.value.slots[slot].note(isIdle: isIdle, isQuick: isQuick)
    }

    /// Appends the connection to the slow queue.
    func wait(_ slot: Int) {
        queues.value.append(slot, [], at: began, isQuick: false)
        loop.requestTurn()
    }

    // MARK: The loop's side

    func turnBegan(at time: MonotonicInstant, busySince: MonotonicInstant, readyCount: Int) {
        began = time
        isBusy = time.nanoseconds &- busySince.nanoseconds > overloadTime
        isCrowded = isBusy && (readyCount > ReadyQueue.leastCrowd || queues.value.quick.count > 0)
    }

    /// - Parameter tag: the connection's slot.
    func becameReady(_ readiness: Readiness, tag: Int) {
        queues.value.append(ready: tag, readiness, at: began)
    }

    /// Serves the connections whose turn it is. Turns are many and short, because a connection that becomes ready
    /// meanwhile, and whose request is answered at once, waits for the end of the turn.
    func readinessHandled() {
        guard let server else { return }
        server.turnBegan()
        let quickLimit = limit(&queues.value.quick)
        var left = isCrowded ? min(Self.quickInTurn, queues.value.quick.count) : queues.value.quick.count
        while left > 0 {
            let count = min(left, ReadAhead.mostConnections)
            serveQuick(count, limit: quickLimit, server)
            left -= count
        }
        if queues.value.slow.count > 0 {
            // What is held by now does not use up the time of the slow queue.
            server.settleHeld()
            let slowLimit = limit(&queues.value.slow)
            let end = loop.now.advanced(byNanoseconds: Self.slowInTurn)
            while let turn = queues.value.slow.next(limit: slowLimit) {
                serve(turn, server)
                if loop.now >= end { break }
            }
        }
        if queues.value.count > 0 { loop.requestTurn() }
        server.turnEnded()
    }

    /// Connections that became ready before the returned time are refused. None is refused until the queue has been
    /// overloaded for `overloadTime`: if the kernel did not schedule the process, all connections have waited for that.
    private func limit(_ queue: inout ReadyQueue) -> MonotonicInstant {
        let none = MonotonicInstant(nanoseconds: .min)
        let limit = isBusy ? began.advanced(byNanoseconds: -maximumQueueingDelay) : none
        guard let since = queue.overload(at: began, limit: limit) else { return none }
        return began.nanoseconds &- since.nanoseconds > overloadTime ? limit : none
    }

    /// Serves so many connections of the quick queue, which has as many. Of several, those that can be are read before the first
    /// is answered.
    private func serveQuick(_ count: Int, limit: MonotonicInstant, _ server: ConnectionServer) {
        queues.value.takeQuick(count, limit: limit)
        if count > 1 {
            for index in 0..<count { server.readAhead(queues.value.next[index].slot) }
        }
        for index in 0..<count { serve(queues.value.next[index], server) }
        server.endReadAhead()
    }

    private func serve(_ turn: ReadyQueue.Turn, _ server: ConnectionServer) {
        let slot = queues.value.beginTurn(turn.slot)
        // The entry may be from the slot's previous connection.
        let isRefused = turn.isRefused && slot.began <= turn.since
        server.becameReady(turn.slot, slot.readiness, since: turn.since, isRefused: isRefused)
    }
}
