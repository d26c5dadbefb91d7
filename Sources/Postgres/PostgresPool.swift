package import Reactor
import Waiting

/// A few connections to one PostgreSQL server, opened when they are first needed and shared by many callers.
///
/// The queue of borrowers is bounded, and so is the time for which each waits. A connection is not lent again after an
/// error, a deadline or a cancellation, or when a borrower has left a transaction open on it. A connection that has
/// been idle for a while is lent only after a round trip. When an error says that the server is gone or was demoted, no
/// connection made before is lent again. After a failure to connect, callers are refused at once until a pause is over;
/// then one caller's attempt finds out whether the server is back.
package actor PostgresPool {
    /// A connection that has been idle for longer is validated by a round trip before it is lent.
    package static let trustedIdleness: Duration = .seconds(10)
    /// The time limit for that round trip.
    private static let validationLimit: Duration = .seconds(1)
    private static let validation = PostgresStatement("SELECT 1")

    let configuration: PostgresConfiguration
    let loop: EventLoop
    private let resolver: NameResolver
    private let trustedIdleness: Duration
    private let greet: Greeting?
    /// What the pool decides. The actor carries out the actions that it returns.
    private var state: PoolState
    private var connections: [Int: PostgresConnection] = [:]
    /// When the server last answered on each connection.
    private var lastHeard: [Int: MonotonicInstant] = [:]
    private var nextRetry: (due: MonotonicInstant, action: ScheduledAction)?
    private var openings: [Int: Task<Void, Never>] = [:]
    private var waiters: [Int: Suspension<Int>] = [:]
    private var lastWaiter = 0
    /// Why the last attempt to connect failed.
    private var lastFailure = PostgresError.connectionFailed(sqlstate: nil, detail: "")
    private var closers = WaitList<Void, Void>()
    private var isDrained = false
    /// The batch of reads that further reads can join; see `read`.
    var forming: ReadBatch?
    /// The batches whose task has not begun.
    var batches: [Int: ReadBatch] = [:]
    var lastBatch = 0

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    /// The executor that tasks which use the pool should prefer: their waits then need no switch of threads.
    nonisolated package let executor: any TaskExecutor

    /// Called with each new connection before it is lent. When it throws, the connection is closed and counts as a
    /// failure to connect.
    package typealias Greeting = @Sendable (PostgresConnection, MonotonicInstant) async throws(PostgresError) -> Void

    /// Opens no connection yet.
    package init(
        _ configuration: PostgresConfiguration, on loop: EventLoop, resolver: NameResolver,
        trustedIdleness: Duration = PostgresPool.trustedIdleness, greet: Greeting? = nil
    ) {
        self.configuration = configuration
        self.loop = loop
        executor = EventLoopTaskExecutor(loop)
        self.resolver = resolver
        self.trustedIdleness = trustedIdleness
        self.greet = greet
        state = PoolState(
            PoolState.Limits(
                connections: max(1, configuration.maximumConnections), waiters: max(0, configuration.maximumWaiters),
                lifetime: configuration.maximumLifetime))
    }

    /// Lends a connection to `body`, which must not use it after it has returned. No other borrower uses it meanwhile.
    ///
    /// `body` runs on the pool's loop and must not block.
    /// - Throws: `.exhausted` when no connection became free within the configuration's `waitTimeout` or before
    ///   `deadline`; `.connectionFailed` when no connection can be made; `.closed`; `.cancelled`; and what `body`
    ///   throws.
    package func withConnection<Value: Sendable>(
        until deadline: MonotonicInstant,
        _ body: @Sendable (PostgresConnection) async throws(PostgresError) -> Value
    ) async throws(PostgresError) -> Value {
        let limit = min(deadline, .after(configuration.waitTimeout))
        let (id, connection) = try await borrow(at: queueUp(), until: deadline, waiting: limit)
        do throws(PostgresError) {
            let value = try await body(connection)
            takeBack(connection, as: id, after: nil)
            return value
        } catch {
            takeBack(connection, as: id, after: error)
            throw error
        }
    }

    /// Runs one statement on a connection of the pool.
    package func execute(
        _ statement: PostgresStatement, _ parameters: [PostgresValue] = [], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> PostgresResult {
        try await withConnection(until: deadline) { connection throws(PostgresError) in
            try await connection.execute(statement, parameters, until: deadline)
        }
    }

    /// Refuses new and waiting borrowers, waits until the others have returned their connections, and closes every
    /// connection. The deadlines of the borrowers limit how long that takes.
    package func close() async {
        perform(state.close(at: .now))
        for opening in openings.values { opening.cancel() }
        if isDrained { return }
        await closers.enter().value()
    }

    // MARK: Lending

    /// A place in the queue for a connection.
    struct Place {
        fileprivate let waiter: Int
        fileprivate let lent: Suspension<Int>
    }

    func queueUp() -> Place {
        lastWaiter += 1
        let place = Place(waiter: lastWaiter, lent: Suspension(on: loop))
        waiters[place.waiter] = place.lent
        perform(state.requested(by: place.waiter, at: .now))
        return place
    }

    /// Waits for a connection. One that was idle is validated here, so that a connection whose peer has disappeared
    /// costs a second, and not the borrower's whole deadline.
    /// - Parameter limit: the end of the wait for one connection.
    func borrow(
        at place: Place, until deadline: MonotonicInstant, waiting limit: MonotonicInstant
    ) async throws(PostgresError) -> (Int, PostgresConnection) {
        var place = place
        while true {
            let (id, connection) = try await lent(at: place, until: limit)
            guard let heard = lastHeard[id], heard.advanced(by: trustedIdleness) < .now else { return (id, connection) }
            do throws(PostgresError) {
                _ = try await connection.execute(
                    Self.validation, until: min(deadline, .after(Self.validationLimit)))
                lastHeard[id] = .now
                return (id, connection)
            } catch {
                takeBack(connection, as: id, after: error)
                if error == .cancelled || deadline <= .now { throw error }
                place = queueUp()
            }
        }
    }

    private func lent(
        at place: Place, until limit: MonotonicInstant
    ) async throws(PostgresError) -> (Int, PostgresConnection) {
        defer { waiters[place.waiter] = nil }
        do throws(PostgresError) {
            let id = try await place.lent.wait(until: limit, overdue: .exhausted)
            guard let connection = connections[id] else { preconditionFailure("a closed connection was lent") }
            return (id, connection)
        } catch {
            state.abandoned(by: place.waiter)
            throw error
        }
    }

    func takeBack(_ connection: PostgresConnection, as id: Int, after error: PostgresError?) {
        let condition: PoolState.Condition =
            if let error, error.makesServerSuspect {
                .serverSuspect
            } else if connection.assumeIsolated({ $0.isReusable }) {
                .usable
            } else {
                .broken
            }
        if error == nil { lastHeard[id] = .now }
        perform(state.returned(id, in: condition, at: .now))
    }

    private func perform(_ actions: [PoolState.Action]) {
        defer { scheduleRetry() }
        for action in actions {
            switch action {
            case .lend(let id, let waiter): lend(id, to: waiter)
            case .open(let id): openings[id] = Task(executorPreference: executor) { await self.open(id) }
            case .discard(let id):
                lastHeard[id] = nil
                connections.removeValue(forKey: id)?.assumeIsolated { $0.close() }
            case .refuse(let waiter, let refusal): waiters[waiter]?.resume(with: .failure(error(for: refusal)))
            case .drained:
                isDrained = true
                for closer in closers.removeAll() { closer.resume() }
            }
        }
    }

    private func scheduleRetry() {
        let due = state.nextRetry
        if nextRetry?.due == due { return }
        if let nextRetry { loop.cancel(nextRetry.action) }
        nextRetry = due.map { due in
            let action = loop.schedule(at: due) { [weak self] in
                self?.assumeIsolated { pool in
                    pool.nextRetry = nil
                    pool.perform(pool.state.retryDue(at: .now))
                }
            }
            return (due, action)
        }
    }

    private func lend(_ id: Int, to waiter: Int) {
        guard let connection = connections[id] else { preconditionFailure("a closed connection is lent") }
        guard connection.assumeIsolated({ $0.isStillConnected() }) else {
            perform(state.foundDead(id, for: waiter, at: .now))
            return
        }
        // The waiter's deadline may have passed in this turn of the loop, before the waiter could withdraw its request.
        if waiters[waiter]?.resume(with: .success(id)) != true {
            perform(state.returned(id, in: .usable, at: .now))
        }
    }

    private func open(_ id: Int) async {
        do throws(PostgresError) {
            let connection = try await PostgresConnection.open(configuration, on: loop, resolver: resolver)
            try await greet(connection)
            connections[id] = connection
            lastHeard[id] = .now
            openings[id] = nil
            perform(state.opened(id, at: .now))
        } catch {
            openings[id] = nil
            lastFailure = error
            perform(state.openingFailed(id, at: .now))
        }
    }

    private func greet(_ connection: PostgresConnection) async throws(PostgresError) {
        guard let greet else { return }
        do throws(PostgresError) {
            try await greet(connection, .after(configuration.connectTimeout))
        } catch {
            await connection.close()
            throw error
        }
    }

    private func error(for refusal: PoolState.Refusal) -> PostgresError {
        switch refusal {
        case .exhausted: .exhausted
        case .unreachable: lastFailure
        case .closed: .closed
        }
    }
}
