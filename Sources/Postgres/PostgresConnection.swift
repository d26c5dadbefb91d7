package import Reactor

/// One connection to PostgreSQL. It runs one statement or pipeline at a time, on the thread of an event loop, without
/// blocking that thread.
///
/// After a deadline or a cancellation the connection is closed, so that a late answer cannot be taken for the answer to
/// the next statement. The server ends an abandoned statement by `statement_timeout`.
package actor PostgresConnection {
    let loop: EventLoop
    var handle = PostgresHandle()
    private var isExecuting = false
    private var preparesStatements: Bool
    private var prepared: Set<String> = []

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    /// How many statements are prepared at most. Further ones are run unprepared, so that statements made at run time
    /// cannot fill the server's memory.
    private static let preparedLimit = 64

    /// The SQLSTATEs that say that a prepared statement cannot be used: it does not exist, its name is taken (both
    /// happen behind a pooler that was not configured, in a session of another client), or its result type has changed
    /// with the schema.
    static let preparationFaults: Set<String> = ["26000", "42P05", "0A000"]

    private init(_ configuration: PostgresConfiguration, on loop: EventLoop) {
        self.loop = loop
        preparesStatements = !configuration.usesPooler
    }

    /// Connects, within the configuration's `connectTimeout` and before `deadline`.
    /// - Throws: `.connectionFailed` with the reason of the last host, or `.cancelled`.
    package static func open(
        _ configuration: PostgresConfiguration, on loop: EventLoop, resolver: NameResolver,
        until deadline: MonotonicInstant = .distantFuture
    ) async throws(PostgresError) -> PostgresConnection {
        let connection = PostgresConnection(configuration, on: loop)
        let deadline = min(deadline, .after(configuration.connectTimeout))
        do throws(PostgresError) {
            try await connection.connect(to: configuration, resolver: resolver, until: deadline)
        } catch .timedOut {
            // Nothing was sent that could have had an outcome.
            throw .connectionFailed(sqlstate: nil, detail: "no answer in time")
        } catch .connectionLost {
            throw .connectionFailed(sqlstate: nil, detail: "the connection was closed")
        }
        return connection
    }

    /// Runs one statement and waits until it is complete: when this returns outside a transaction, the changes of the
    /// statement are committed.
    ///
    /// Values travel in PostgreSQL's binary form in both directions. The whole result is held in memory; statements
    /// bound it by LIMIT.
    /// - Precondition: no other statement is in flight. A pool lends a connection to one borrower at a time.
    package func execute(
        _ statement: PostgresStatement, _ parameters: [PostgresValue] = [], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> PostgresResult {
        precondition(!isExecuting, "two statements at once on one PostgreSQL connection")
        isExecuting = true
        defer { isExecuting = false }
        guard handle.socket >= 0 else { throw .closed }

        if statement.isPrepared, preparesStatements,
            prepared.contains(statement.name) || prepared.count < Self.preparedLimit
        {
            let isOutsideTransaction = handle.isIdle
            do throws(PostgresError) {
                // The first use prepares the statement in the same round trip.
                guard prepared.contains(statement.name) else {
                    var results: [PostgresResult] = []
                    try await run([PostgresCommand(statement, parameters)], into: &results, until: deadline)
                    return results[0]
                }
                guard handle.sendPrepared(statement.name, parameters: parameters) else { throw lost() }
                return try await finish(until: deadline)
            } catch .server(let sqlstate) where Self.preparationFaults.contains(sqlstate) {
                preparesStatements = false
                prepared = []
                // The server reports these before it executes anything, so repeating is safe. But the error has aborted
                // an open transaction, and only the caller can repeat that.
                guard isOutsideTransaction else { throw .server(sqlstate: sqlstate) }
            }
        }
        guard handle.send(statement.sql, parameters: parameters) else { throw lost() }
        return try await finish(until: deadline)
    }

    /// Runs several statements in one round trip, and waits until all are complete.
    ///
    /// Outside a transaction the statements form one transaction: either all take effect or, when one fails, none
    /// (PostgreSQL, "Pipelining"). BEGIN, COMMIT and ROLLBACK can be among them; a transaction that they leave open
    /// stays open. Each statement sees the changes of the ones before it.
    /// - Returns: the result of each statement, in their order.
    /// - Throws: the error of the first statement that failed; the statements behind it were not run. `.server` with
    ///   the fault of a prepared statement (26000, 42P05, 0A000) is thrown once: from then on the connection prepares
    ///   nothing, so that repeating the whole transaction helps.
    /// - Precondition: no other statement is in flight.
    package func pipeline(
        _ commands: [PostgresCommand], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresResult] {
        let (results, failure) = await outcome(of: commands, until: deadline)
        if let failure { throw failure }
        return results
    }

    /// Like `pipeline`, but also returns the results of the statements that were run before the first failure. A COMMIT
    /// among those has taken place, although a later statement failed.
    package func outcome(
        of commands: [PostgresCommand], until deadline: MonotonicInstant
    ) async -> (results: [PostgresResult], failure: PostgresError?) {
        precondition(!isExecuting, "two statements at once on one PostgreSQL connection")
        isExecuting = true
        defer { isExecuting = false }
        guard handle.socket >= 0 else { return ([], .closed) }
        var results: [PostgresResult] = []
        do throws(PostgresError) {
            try await run(commands, into: &results, until: deadline)
            return (results, nil)
        } catch {
            if let sqlstate = error.sqlstate, preparesStatements, Self.preparationFaults.contains(sqlstate) {
                preparesStatements = false
                prepared = []
            }
            return (results, error)
        }
    }

    /// Waits until a notification has arrived, or until `deadline`. The connection stays open at the deadline.
    /// - Returns: all notifications that have arrived, in the order in which they were sent; none at the deadline.
    /// - Precondition: no statement is in flight. Notifications that arrive during a statement are kept for the next
    ///   call.
    package func notifications(
        until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresNotification] {
        precondition(!isExecuting, "notifications are awaited while a statement is in flight")
        isExecuting = true
        defer { isExecuting = false }
        guard handle.socket >= 0 else { throw .closed }
        while true {
            guard handle.consumeInput() else { throw lost() }
            var notifications: [PostgresNotification] = []
            while let notification = handle.takeNotification() { notifications.append(notification) }
            if !notifications.isEmpty { return notifications }
            do throws(WaitInterrupted) {
                _ = try await loop.ready(handle.socket, for: .readable, until: deadline)
            } catch .deadlineExceeded {
                return []
            } catch {
                handle.close()
                throw error == .cancelled ? .cancelled : .connectionLost
            }
        }
    }

    /// Whether a transaction is open, including one that an error has aborted.
    package var isInTransaction: Bool { handle.isConnected && !handle.isIdle }

    /// Whether a pool may lend the connection again: connected, no statement in flight, no transaction open.
    var isReusable: Bool { !isExecuting && handle.isConnected && handle.isIdle }

    /// Checks, without waiting, whether the server has closed the connection while it was idle.
    func isStillConnected() -> Bool {
        // The first read may find the server's last message, and only the second read the end of the stream behind it.
        for _ in 0..<2 {
            guard handle.consumeInput() else { return false }
            _ = handle.isBusy
        }
        return isReusable
    }

    /// Closes the connection.
    /// - Precondition: no statement is in flight.
    package func close() {
        precondition(!isExecuting, "a PostgreSQL connection is closed while a statement is in flight")
        handle.close()
    }

    // MARK: Executing

    private func run(
        _ commands: [PostgresCommand], into results: inout [PostgresResult], until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        guard handle.beginPipeline() else { throw lost() }
        var steps: [PipelineStep] = []
        for command in commands { try queue(command, &steps) }
        guard handle.sendSync() else { throw lost() }
        if try !isFlushed() { try await flush(until: deadline) }
        let failure = try await finish(steps, into: &results, until: deadline)
        guard handle.endPipeline() else { throw lost() }
        if let failure { throw failure }
    }

    /// A request in a pipeline for which the server sends results.
    private enum PipelineStep {
        /// The preparation of the statement with this name.
        case preparation(String)
        case statement
    }

    private func queue(_ command: PostgresCommand, _ steps: inout [PipelineStep]) throws(PostgresError) {
        let statement = command.statement
        guard statement.isPrepared, preparesStatements,
            prepared.contains(statement.name) || prepared.count < Self.preparedLimit
        else {
            guard handle.send(statement.sql, parameters: command.parameters) else { throw lost() }
            return steps.append(.statement)
        }
        // The same statement may occur several times in one pipeline.
        let isPrepared =
            prepared.contains(statement.name)
            || steps.contains { step in
                if case .preparation(statement.name) = step { return true }
                return false
            }
        if !isPrepared {
            guard handle.sendPrepare(statement.sql, as: statement.name, parameters: command.parameters) else {
                throw lost()
            }
            steps.append(.preparation(statement.name))
        }
        guard handle.sendPrepared(statement.name, parameters: command.parameters) else { throw lost() }
        steps.append(.statement)
    }

    /// Receives the results of a pipeline up to its end.
    /// - Returns: the error of the first statement that failed. The connection stays usable.
    private func finish(
        _ steps: [PipelineStep], into results: inout [PostgresResult], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> PostgresError? {
        var failure: PostgresError?
        var finished = 0
        while true {
            if handle.isBusy { try await arrival(until: deadline, after: failure) }
            guard let result = handle.takeResult() else {
                // The results of this step are complete. The next step follows, and at last the synchronization point,
                // which can fail as well. A broken connection reports the end of results again and again.
                finished += 1
                guard finished <= steps.count + 1, handle.isConnected else { throw lost(after: failure) }
                continue
            }
            switch result.status {
            case .succeeded where failure == nil && finished < steps.count:
                switch steps[finished] {
                case .preparation(let name): prepared.insert(name)
                case .statement: results.append(PostgresResult(result))
                }
            case .failed:
                // An error without an SQLSTATE comes from libpq: the connection has ended.
                guard let sqlstate = result.sqlstate else { throw lost(after: failure) }
                failure = failure ?? .server(sqlstate: sqlstate)
            case .passedOver: continue
            case .pipelineEnd:
                return failure
            case .succeeded, .unusable:
                handle.close()
                throw .unexpectedResult("neither rows nor the end of a command")
            }
        }
    }

    /// Sends the queued bytes and receives every result of the command in flight.
    private func finish(until deadline: MonotonicInstant) async throws(PostgresError) -> PostgresResult {
        if try !isFlushed() { try await flush(until: deadline) }
        var answer: PostgresResult?
        var failure: PostgresError?
        // Reads to the end, because the server reports completion before it commits: an error can still follow.
        while true {
            if handle.isBusy { try await arrival(until: deadline, after: failure) }
            guard let result = handle.takeResult() else { break }
            switch result.status {
            case .succeeded: answer = PostgresResult(result)
            case .failed:
                // An error without an SQLSTATE comes from libpq: the connection has ended.
                guard let sqlstate = result.sqlstate else { throw lost(after: failure) }
                failure = .server(sqlstate: sqlstate)
            case .passedOver, .pipelineEnd, .unusable:
                handle.close()
                throw .unexpectedResult("neither rows nor the end of a command")
            }
        }
        if let failure { throw failure }
        guard let answer else { throw .unexpectedResult("no result") }
        return answer
    }

    /// Waits until `takeResult` can tell whether the command in flight has a further result.
    /// - Parameter failure: the error that the server has reported before.
    private func arrival(
        until deadline: MonotonicInstant, after failure: PostgresError?
    ) async throws(PostgresError) {
        repeat {
            _ = try await ready(.readable, until: deadline)
            guard handle.consumeInput() else { throw lost(after: failure) }
        } while handle.isBusy
    }

    /// Writes the bytes that the socket has not taken at once. Reads meanwhile, because the server may be waiting for
    /// this side to read (libpq, "Asynchronous command processing").
    private func flush(until deadline: MonotonicInstant) async throws(PostgresError) {
        repeat {
            let readiness = try await ready([.readable, .writable], until: deadline)
            if !readiness.isDisjoint(with: [.readable, .peerFinished, .hangup]) {
                guard handle.consumeInput() else { throw lost() }
            }
        } while try !isFlushed()
    }

    /// Writes queued bytes as far as the socket takes them.
    /// - Returns: whether all were written.
    private func isFlushed() throws(PostgresError) -> Bool {
        switch handle.flush() {
        case .flushed: return true
        case .blocked: return false
        case .failed: throw lost()
        }
    }

    /// - Parameter descriptor: the descriptor to wait on; nil for libpq's socket.
    func ready(
        _ interests: Readiness, of descriptor: CInt? = nil, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Readiness {
        let socket = descriptor ?? handle.socket
        guard socket >= 0 else { throw lost() }
        do throws(WaitInterrupted) {
            return try await loop.ready(socket, for: interests, until: deadline)
        } catch {
            handle.close()
            switch error {
            case .deadlineExceeded: throw .timedOut
            case .cancelled: throw .cancelled
            case .system: throw .connectionLost
            }
        }
    }

    /// Closes the connection.
    /// - Parameter failure: the error that the server has reported before, if any. A server that ends a session reports
    ///   the reason before it closes the connection, and the reason is more useful than `.connectionLost`.
    private func lost(after failure: PostgresError? = nil) -> PostgresError {
        handle.close()
        return failure ?? .connectionLost
    }
}
