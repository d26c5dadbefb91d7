internal import Reactor

/// What a pool decides, as a value: who gets which connection, when another one is opened, who is turned away.
///
/// Connections and waiters are numbers here; the pool knows what stands behind them. Every event returns the actions
/// that follow from it, in order.
struct PoolState {
    struct Limits {
        var connections: Int
        var waiters: Int
        var lifetime: Duration?
    }

    enum Refusal: Equatable {
        /// Too many wait already.
        case exhausted
        /// The last attempt to connect failed, and it is too early or already under way to try again.
        case unreachable
        case closed
    }

    enum Action: Equatable {
        /// Lend the connection to the waiter.
        case lend(connection: Int, to: Int)
        /// Open a connection under this number.
        case open(connection: Int)
        /// Close the connection.
        case discard(connection: Int)
        case refuse(waiter: Int, Refusal)
        /// The pool is closed and nothing is lent any more.
        case drained
    }

    /// What a borrower found out about a connection.
    enum Condition {
        case usable
        case broken
        /// The server is not what it was: every connection that was made before is as good as broken.
        case serverSuspect
    }

    private struct Connection {
        var opened: MonotonicInstant
        var generation: Int
    }

    private let limits: Limits
    private var connections: [Int: Connection] = [:]
    /// Ready to be lent; the last one was used last and is the likeliest to be alive and warm.
    private var idle: [Int] = []
    /// With the generation in which the attempt began.
    private var opening: [Int: Int] = [:]
    private var waiting: [Int] = []
    private var lastID = 0
    private var generation = 0
    private var failures = 0
    private var retryAt = MonotonicInstant(nanoseconds: .min)
    private var isClosing = false
    private var isDrained = false

    init(_ limits: Limits) {
        self.limits = limits
    }

    private var lentCount: Int { connections.count - idle.count }

    /// While the server is known to be unreachable, one attempt at a time finds out whether it is back, on behalf of
    /// one waiter; everybody else gets an answer at once instead of the wait for a time-out.
    private var isUnreachable: Bool { failures > 0 && connections.isEmpty }

    mutating func requested(by waiter: Int, at now: MonotonicInstant) -> [Action] {
        if isClosing { return [.refuse(waiter: waiter, .closed)] }
        if isUnreachable, !opening.isEmpty || now < retryAt { return [.refuse(waiter: waiter, .unreachable)] }
        if idle.isEmpty, waiting.count >= limits.waiters { return [.refuse(waiter: waiter, .exhausted)] }
        waiting.append(waiter)
        return settle(at: now)
    }

    /// The waiter gave up.
    mutating func abandoned(by waiter: Int) {
        waiting.removeAll { $0 == waiter }
    }

    mutating func opened(_ connection: Int, at now: MonotonicInstant) -> [Action] {
        let begun = opening.removeValue(forKey: connection)
        failures = 0
        // An attempt that began before the server became suspect can have reached what the server was then.
        if isClosing || begun != generation { return [.discard(connection: connection)] + settle(at: now) }
        connections[connection] = Connection(opened: now, generation: generation)
        idle.append(connection)
        return settle(at: now)
    }

    mutating func openingFailed(_ connection: Int, at now: MonotonicInstant) -> [Action] {
        opening[connection] = nil
        retryAt = now.advanced(by: Self.pause(afterFailures: failures))
        failures += 1
        return settle(at: now)
    }

    /// A borrower is done with the connection.
    mutating func returned(_ connection: Int, _ condition: Condition, at now: MonotonicInstant) -> [Action] {
        guard let state = connections[connection] else { return settle(at: now) }
        var actions: [Action] = []
        if condition == .serverSuspect, state.generation == generation {
            generation += 1
            for other in idle {
                connections[other] = nil
                actions.append(.discard(connection: other))
            }
            idle = []
        }
        let isTooOld = limits.lifetime.map { state.opened.advanced(by: $0) <= now } ?? false
        if condition == .usable, state.generation == generation, !isTooOld, !isClosing {
            idle.append(connection)
        } else {
            connections[connection] = nil
            actions.append(.discard(connection: connection))
        }
        return actions + settle(at: now)
    }

    /// The connection turned out to be dead when it was about to be lent: the waiter keeps its turn.
    mutating func foundDead(_ connection: Int, for waiter: Int, at now: MonotonicInstant) -> [Action] {
        connections[connection] = nil
        waiting.insert(waiter, at: 0)
        return [.discard(connection: connection)] + settle(at: now)
    }

    /// When `look` is due, unless something else happens before: those that wait for the connections that there are get
    /// another one as soon as one may be tried for.
    var nextLook: MonotonicInstant? {
        let mayOpen = opening.isEmpty && connections.count < limits.connections
        return !waiting.isEmpty && failures > 0 && mayOpen && !isClosing ? retryAt : nil
    }

    mutating func look(at now: MonotonicInstant) -> [Action] { settle(at: now) }

    /// No new borrowers; those that have a connection keep it until they return it.
    mutating func close(at now: MonotonicInstant) -> [Action] {
        isClosing = true
        var actions = waiting.map { Action.refuse(waiter: $0, .closed) }
        waiting = []
        for connection in idle {
            connections[connection] = nil
            actions.append(.discard(connection: connection))
        }
        idle = []
        return actions + settle(at: now)
    }

    /// 100 ms, doubled with each failure in a row, up to half a second: a server that is back, or a standby that was
    /// promoted, is used within a second.
    static func pause(afterFailures failures: Int) -> Duration {
        .milliseconds(min(500, 100 << min(failures, 3)))
    }

    private mutating func settle(at now: MonotonicInstant) -> [Action] {
        if isClosing {
            if isDrained || !connections.isEmpty || !opening.isEmpty { return [] }
            isDrained = true
            return [.drained]
        }
        var actions: [Action] = []
        while !waiting.isEmpty, let connection = idle.popLast() {
            actions.append(.lend(connection: connection, to: waiting.removeFirst()))
        }
        while opening.count < waiting.count, connections.count + opening.count < limits.connections,
            failures == 0 || (opening.isEmpty && now >= retryAt)
        {
            lastID += 1
            opening[lastID] = generation
            actions.append(.open(connection: lastID))
        }
        if lentCount == 0, opening.isEmpty {
            // Nobody is left from whom a connection could come.
            actions += waiting.map { .refuse(waiter: $0, .unreachable) }
            waiting = []
        }
        return actions
    }
}
