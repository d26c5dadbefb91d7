package import Reactor

/// A few connections to one PostgreSQL, opened when they are first needed and shared by many callers.
///
/// Its borrowers wait in a bounded queue and for a bounded time. A connection that has met an error, a deadline or a
/// cancellation, or that was left inside a transaction, is not lent again, and one that has lain idle for a while is
/// not without a round trip; when the error says that the server itself
/// has gone or was demoted, none of the connections made before is. After a failure to connect, callers are refused
/// at once until a pause is over, and then one of them finds out whether the server is back.
package actor PostgresPool {
    /// A connection that has lain idle for longer shows that it still works before it is lent.
    package static let trustedIdleness: Duration = .seconds(10)
    /// The longest that it may take to show that.
    private static let validationLimit: Duration = .seconds(1)
    private static let validation = PostgresStatement("SELECT 1")

    let configuration: PostgresConfiguration
    let loop: EventLoop
    private let resolver: NameResolver
    private let trustedIdleness: Duration
    private let greet: Greeting?
    private var state: PoolState
    private var connections: [Int: PostgresConnection] = [:]
    /// When the server was last heard on each.
    private var lastHeard: [Int: MonotonicInstant] = [:]
    private var nextLook: (due: MonotonicInstant, action: ScheduledAction)?
    private var openings: [Int: Task<Void, Never>] = [:]
    private var waiters: [Int: Suspension<Int>] = [:]
    private var lastWaiter = 0
    /// Why the last attempt to connect failed.
    private var lastFailure = PostgresError.connectionFailed(sqlstate: nil, detail: "")
    private var closers: [CheckedContinuation<Void, Never>] = []
    private var isDrained = false
    /// The reads that the next free connection takes; see `read`.
    var forming: ReadBatch?

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    /// A task that uses the pool is spared the way between threads where it prefers this one.
    nonisolated package let executor: any TaskExecutor

    /// What is done with each new connection before it is lent; one that it fails on is as good as not made.
    package typealias Greeting = @Sendable (PostgresConnection, MonotonicInstant) async throws(PostgresError) -> Void

    /// Opens nothing yet.
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

    /// Lends a connection to `body`, which has it for itself and must be done with it when it returns.
    ///
    /// `body` runs on the pool's loop and must not block.
    /// - Throws: `.exhausted` when none became free within the configuration's `waitTimeout` or before `deadline`;
    ///   `.connectionFailed` when none can be made; `.closed`; `.cancelled`; and what `body` throws.
    package func withConnection<Value: Sendable>(
        until deadline: MonotonicInstant,
        _ body: @Sendable (PostgresConnection) async throws(PostgresError) -> Value
    ) async throws(PostgresError) -> Value {
        let limit = min(deadline, .after(configuration.waitTimeout))
        let (id, connection) = try await borrow(at: queueUp(), until: deadline, waiting: limit)
        do throws(PostgresError) {
            let value = try await body(connection)
            takeBack(id, connection, after: nil)
            return value
        } catch {
            takeBack(id, connection, after: error)
            throw error
        }
    }

    /// Runs one statement on any connection.
    package func execute(
        _ statement: PostgresStatement, _ parameters: [PostgresValue] = [], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> PostgresResult {
        try await withConnection(until: deadline) { connection throws(PostgresError) in
            try await connection.execute(statement, parameters, until: deadline)
        }
    }

    /// Refuses new borrowers and those that wait, lets the others finish, and closes every connection. Returns when
    /// that is done; borrowers are bound by their deadlines.
    package func close() async {
        perform(state.close(at: .now))
        for opening in openings.values { opening.cancel() }
        if isDrained { return }
        await withCheckedContinuation { closers.append($0) }
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

    /// What has died without a word is found out here, at the cost of a moment, and not by the borrower's deadline.
    /// - Parameter limit: how long one connection is waited for.
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
                takeBack(id, connection, after: error)
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
            guard let connection = connections[id] else { preconditionFailure("a connection was lent that is gone") }
            return (id, connection)
        } catch {
            state.abandoned(by: place.waiter)
            throw error
        }
    }

    func takeBack(_ id: Int, _ connection: PostgresConnection, after error: PostgresError?) {
        let condition: PoolState.Condition =
            if let error, error.makesServerSuspect {
                .serverSuspect
            } else if connection.assumeIsolated({ $0.isReusable }) {
                .usable
            } else {
                .broken
            }
        if error == nil { lastHeard[id] = .now }
        perform(state.returned(id, condition, at: .now))
    }

    private func perform(_ actions: [PoolState.Action]) {
        defer { scheduleLook() }
        for action in actions {
            switch action {
            case .lend(let id, let waiter): lend(id, to: waiter)
            case .open(let id): openings[id] = Task(executorPreference: executor) { await self.open(id) }
            case .discard(let id):
                lastHeard[id] = nil
                connections.removeValue(forKey: id)?.assumeIsolated { $0.close() }
            case .refuse(let waiter, let refusal): waiters[waiter]?.resume(.failure(error(for: refusal)))
            case .drained:
                isDrained = true
                for closer in closers { closer.resume() }
                closers = []
            }
        }
    }

    private func scheduleLook() {
        let due = state.nextLook
        if nextLook?.due == due { return }
        if let nextLook { loop.cancel(nextLook.action) }
        nextLook = due.map { due in
            let action = loop.schedule(at: due) { [weak self] in
                self?.assumeIsolated { pool in
                    pool.nextLook = nil
                    pool.perform(pool.state.look(at: .now))
                }
            }
            return (due, action)
        }
    }

    private func lend(_ id: Int, to waiter: Int) {
        guard let connection = connections[id] else { preconditionFailure("a connection is lent that is gone") }
        guard connection.assumeIsolated({ $0.isStillConnected() }) else {
            perform(state.foundDead(id, for: waiter, at: .now))
            return
        }
        // The waiter may have given up in this turn of the loop, without having had its turn to say so.
        if waiters[waiter]?.resume(.success(id)) != true {
            perform(state.returned(id, .usable, at: .now))
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
