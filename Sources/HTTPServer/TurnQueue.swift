internal import Reactor

/// Decides which of a worker's connections have their turn next, and which requests have waited for too long to be
/// answered.
///
/// Connections whose requests are answered at once wait in the quick line, and all others in the slow one, so that a
/// request which is answered from memory does not wait for one that takes longer. On the loop's thread only.
final class TurnQueue: ReadinessHandler, TurnObserver {
    /// What is known of a connection, by its slot.
    private struct Slot {
        /// What became ready since its last turn.
        var readiness = Readiness()
        var isWaiting = false
        /// Whether its turn is the quick line's.
        var isQuick = false
        /// Whether the connection waits for nothing but its next request.
        var isIdle = false
        /// When the connection began.
        var began = MonotonicInstant(nanoseconds: 0)

        mutating func note(isIdle: Bool, isQuick: Bool) {
            (self.isIdle, self.isQuick) = (isIdle, isQuick)
        }
    }

    weak var server: ConnectionServer?
    private let loop: EventLoop
    /// In nanoseconds; see `ServerConfiguration`.
    private let turnBudget: Int64
    private let overloadTime: Int64

    /// Who waits. In one property: each access to one is checked for exclusiveness.
    private struct Lines {
        var slots: [Slot] = []
        var quick = WaitingLine()
        var slow = WaitingLine()

        var count: Int { quick.count &+ slow.count }

        mutating func append(_ slot: Int, _ readiness: Readiness, at now: MonotonicInstant, isQuick: Bool) {
            slots[slot].readiness = Readiness(rawValue: slots[slot].readiness.rawValue | readiness.rawValue)
            if slots[slot].isWaiting { return }
            slots[slot].isWaiting = true
            let entry = WaitingLine.Entry(slot: slot, since: now)
            if isQuick { quick.append(entry) } else { slow.append(entry) }
        }

        /// A descriptor became ready.
        mutating func append(ready slot: Int, _ readiness: Readiness, at now: MonotonicInstant) {
            let isIdle = slots[slot].isIdle
            // An idle connection has nothing to write. By numbers: option sets are compared through tables of functions.
            if isIdle, readiness.rawValue == Readiness.writable.rawValue { return }
            let isForReading = readiness.rawValue & ~Readiness.writable.rawValue == Readiness.readable.rawValue
            append(slot, readiness, at: now, isQuick: isIdle && slots[slot].isQuick && isForReading)
        }

        /// Takes out whose turn it is, with what became ready for it.
        mutating func next(ofQuick isQuick: Bool, limit: MonotonicInstant) -> (WaitingLine.Turn, Slot)? {
            guard let turn = isQuick ? quick.next(limit: limit) : slow.next(limit: limit) else { return nil }
            let slot = slots[turn.slot]
            slots[turn.slot].isWaiting = false
            slots[turn.slot].readiness = []
            return (turn, slot)
        }
    }

    private var lines = Lines()
    private var began = MonotonicInstant(nanoseconds: 0)
    /// Whether there had been more to do than could be done when this turn began. One turn that takes long is no
    /// overload: the process may not have been let run.
    private var isPressed = false
    /// Whether a crowd keeps the loop busy: then a turn serves some of the quick line only.
    private var isCrowded = false

    /// How many of the quick line are served in a turn in which it is crowded, before the kernel is asked who else is
    /// ready.
    private static let quickInTurn = 16
    /// For how long the slow line is served in a turn, in nanoseconds.
    private static let slowInTurn: Int64 = 25_000

    init(loop: EventLoop, configuration: ServerConfiguration) {
        self.loop = loop
        turnBudget = configuration.turnBudget.nanoseconds
        overloadTime = configuration.overloadTime.nanoseconds
    }

    /// A connection begins. What became ready for the slot's last one is not for this one.
    func begin(_ slot: Int) {
        while lines.slots.count <= slot { lines.slots.append(Slot()) }
        // An entry of the slot's last connection in a line is this one's now.
        lines.slots[slot] = Slot(isWaiting: lines.slots[slot].isWaiting, began: loop.turnTime)
    }

    /// Takes note of what the connection waits for.
    func update(_ slot: Int, isIdle: Bool, isQuick: Bool) {
        lines.slots[slot].note(isIdle: isIdle, isQuick: isQuick)
    }

    /// Gives the connection a turn behind those that wait.
    func wait(_ slot: Int) {
        lines.append(slot, [], at: began, isQuick: false)
        loop.requestTurn()
    }

    // MARK: The loop's side

    func turnBegan(at time: MonotonicInstant, busySince: MonotonicInstant, readyCount: Int) {
        began = time
        isPressed = time.nanoseconds &- busySince.nanoseconds > overloadTime
        isCrowded = isPressed && (readyCount > WaitingLine.leastCrowd || lines.quick.count > 0)
    }

    /// - Parameter tag: the connection's slot.
    func becameReady(_ readiness: Readiness, tag: Int) {
        lines.append(ready: tag, readiness, at: began)
    }

    /// Serves those whose turn it is. Many small turns, and not few that are long: a connection that becomes ready
    /// meanwhile and can be served at once waits for no longer than one.
    func readinessHandled() {
        guard let server else { return }
        server.turnBegan()
        let quickLimit = limit(&lines.quick)
        var left = isCrowded ? Self.quickInTurn : lines.quick.count
        while left > 0, let (turn, slot) = lines.next(ofQuick: true, limit: quickLimit) {
            serve(turn, slot, server)
            left -= 1
        }
        if lines.slow.count > 0 {
            let slowLimit = limit(&lines.slow)
            let end = MonotonicInstant.now.advanced(byNanoseconds: Self.slowInTurn)
            while let (turn, slot) = lines.next(ofQuick: false, limit: slowLimit) {
                serve(turn, slot, server)
                if MonotonicInstant.now >= end { break }
            }
        }
        if lines.count > 0 { loop.requestTurn() }
        server.turnEnded()
    }

    /// A connection that began to wait before this is refused. None is for as long as the line has not been too long for
    /// the time of an overload: the process may not have been let run, and then all have waited for that.
    private func limit(_ line: inout WaitingLine) -> MonotonicInstant {
        let none = MonotonicInstant(nanoseconds: .min)
        let limit = isPressed ? began.advanced(byNanoseconds: -turnBudget) : none
        guard let since = line.standing(at: began, limit: limit) else { return none }
        return began.nanoseconds &- since.nanoseconds > overloadTime ? limit : none
    }

    private func serve(_ turn: WaitingLine.Turn, _ slot: Slot, _ server: ConnectionServer) {
        // The entry can be that of an earlier connection.
        let isRefused = turn.isRefused && slot.began <= turn.since
        server.becameReady(turn.slot, slot.readiness, since: turn.since, isRefused: isRefused)
    }
}
