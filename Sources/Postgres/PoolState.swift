import Reactor

/// The decisions of a connection pool, as a value without I/O: which waiter gets which connection, when to open another
/// connection, which waiter to refuse.
///
/// Connections and waiters are numbers here; the pool maps them to objects. Every event returns the actions that follow
/// from it, in order.
struct PoolState {
    struct Limits {
        var connections: Int
        var waiters: Int
        var lifetime: Duration?
    }

    enum Refusal: Equatable {
        /// The queue is full.
        case exhausted
        /// The last attempt to connect failed, and the next one is not due yet or is under way.
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
        /// The pool is closed and the last connection has been returned.
        case drained
    }

    /// The state in which a borrower returns a connection.
    enum Condition {
        case usable
        case broken
        /// The server may have gone, been replaced or been demoted: all connections made before count as broken.
        case serverSuspect
    }

    private struct Connection {
        var opened: MonotonicInstant
        var generation: Int
    }

    private let limits: Limits
    private var connections: [Int: Connection] = [:]
    /// Ready to be lent. The last one was used last, so it is the most likely to work.
    private var idle: [Int] = []
    /// The attempts to connect, each with the generation in which it began.
    private var opening: [Int: Int] = [:]
    private var waiting: [Int] = []
    private var lastID = 0
    /// Rises when the server becomes suspect. Connections of an earlier generation are discarded.
    private var generation = 0
    private var failures = 0
    private var retryAt = MonotonicInstant(nanoseconds: .min)
    private var isClosing = false
    private var isDrained = false

    init(_ limits: Limits) {
        self.limits = limits
    }

    private var lentCount: Int { connections.count - idle.count }

    /// Whether the last attempt failed and there is no connection. Then one attempt at a time finds out, for one
    /// waiter, whether the server is back; other waiters are refused at once, so that they do not wait for a timeout.
    private var isUnreachable: Bool { failures > 0 && connections.isEmpty }

    mutating func requested(by waiter: Int, at now: MonotonicInstant) -> [Action] {
        if isClosing { return [.refuse(waiter: waiter, .closed)] }
        if isUnreachable, !opening.isEmpty || now < retryAt { return [.refuse(waiter: waiter, .unreachable)] }
        if idle.isEmpty, waiting.count >= limits.waiters { return [.refuse(waiter: waiter, .exhausted)] }
        waiting.append(waiter)
        return settle(at: now)
    }

    /// The waiter stopped waiting.
    mutating func abandoned(by waiter: Int) {
        waiting.removeAll { $0 == waiter }
    }

    mutating func opened(_ connection: Int, at now: MonotonicInstant) -> [Action] {
        let begun = opening.removeValue(forKey: connection)
        failures = 0
        // An attempt that began before the server became suspect may have reached the old server.
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

    /// A borrower returned the connection.
    mutating func returned(_ connection: Int, in condition: Condition, at now: MonotonicInstant) -> [Action] {
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

    /// The connection was found closed when it was about to be lent. The waiter stays first in the queue.
    mutating func foundDead(_ connection: Int, for waiter: Int, at now: MonotonicInstant) -> [Action] {
        connections[connection] = nil
        waiting.insert(waiter, at: 0)
        return [.discard(connection: connection)] + settle(at: now)
    }

    /// When `retryDue` is to be called, unless another event comes first; nil for never. Waiters for the connections
    /// that exist get a further connection as soon as the pause after a failure is over.
    var nextRetry: MonotonicInstant? {
        let mayOpen = opening.isEmpty && connections.count < limits.connections
        return !waiting.isEmpty && failures > 0 && mayOpen && !isClosing ? retryAt : nil
    }

    mutating func retryDue(at now: MonotonicInstant) -> [Action] { settle(at: now) }

    /// Refuses all waiters from now on. Borrowers keep their connection until they return it.
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

    /// 100 ms, doubled with each failure in a row, at most 500 ms, so that a server that is back, or a standby that was
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
            // No borrower and no attempt is left that could give the waiters a connection.
            actions += waiting.map { .refuse(waiter: $0, .unreachable) }
            waiting = []
        }
        return actions
    }
}
