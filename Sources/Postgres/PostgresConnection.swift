package import Reactor

/// One connection to PostgreSQL: one statement at a time, on the thread of an event loop, without blocking it.
///
/// libpq resolves names with a blocking getaddrinfo(3). So each host is looked up first, and each of its addresses is
/// tried in its own attempt with `hostaddr`, while `host` stays what the server's certificate is checked against.
/// Trying them one by one also gives each its share of the time: a first host that swallows packets cannot use up
/// what a second one needs, as it would if libpq went through the list. Numeric hosts and Unix-domain sockets need no
/// look-up and are passed on as they are.
///
/// What libpq computes while it connects (TLS, and SCRAM's 4096 rounds of HMAC) keeps the loop's thread for some
/// milliseconds per connection: a loop that must answer sooner should not be the one of a pool.
///
/// After a deadline or a cancellation the connection is closed: an answer that nobody waits for must not become the
/// next statement's. The server ends an abandoned statement by `statement_timeout`.
package actor PostgresConnection {
    private let loop: EventLoop
    private var handle = PostgresHandle()
    private var isExecuting = false
    private var preparesStatements: Bool
    private var prepared: Set<String> = []

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    /// More statements than this are run unprepared, so that text made at run time cannot fill the server's memory.
    private static let preparedLimit = 64

    /// What says that a prepared statement is not what was prepared: it does not exist, its name is taken (another
    /// client's session, behind a pooler that was not declared), or its result has changed with the schema.
    static let preparationFaults: Set<String> = ["26000", "42P05", "0A000"]

    /// SQLSTATEs with which a server says that another one may do: it is starting, stopping or has no room.
    private static let otherHostMayDo: Set<String> = ["57P01", "57P02", "57P03", "53300"]

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
            try await connection.connect(configuration, resolver, until: deadline)
        } catch .timedOut {
            // Nothing was sent that could have had an outcome.
            throw .connectionFailed(sqlstate: nil, detail: "no answer in time")
        } catch .connectionLost {
            throw .connectionFailed(sqlstate: nil, detail: "the connection was closed")
        }
        return connection
    }

    /// Runs one statement and waits for all of its outcome: when this returns outside a transaction, what the
    /// statement changed is committed.
    ///
    /// Values travel in PostgreSQL's binary form, in both directions. The whole result is held in memory; statements
    /// bound it by LIMIT.
    /// - Precondition: no other statement is in flight. A pool's borrower has the connection for itself.
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
                // At its first use the statement is prepared in the same round trip.
                guard prepared.contains(statement.name) else {
                    var results: [PostgresResult] = []
                    try await run([PostgresCommand(statement, parameters)], &results, until: deadline)
                    return results[0]
                }
                guard handle.sendPrepared(statement.name, parameters) else { throw lost() }
                return try await finish(until: deadline)
            } catch .server(let sqlstate) where Self.preparationFaults.contains(sqlstate) {
                preparesStatements = false
                prepared = []
                // These are found before anything is executed, so that repeating is safe; but a transaction is
                // aborted by any error, and only its owner can repeat that.
                guard isOutsideTransaction else { throw .server(sqlstate: sqlstate) }
            }
        }
        guard handle.send(statement.sql, parameters) else { throw lost() }
        return try await finish(until: deadline)
    }

    /// Runs several statements in one round trip, and waits for the outcome of all of them: the result of each, in their
    /// order.
    ///
    /// Outside a transaction they are one: either all take effect or, where one fails, none (PostgreSQL, "Pipelining").
    /// BEGIN, COMMIT and ROLLBACK can be among them; what they leave open stays open. Each statement sees what the ones
    /// before it have done.
    /// - Throws: what the first statement met that failed; those behind it were not run. `.server` with the fault of a
    ///   prepared statement (26000, 42P05, 0A000) comes once: from then on the connection prepares nothing, so that
    ///   repeating the whole transaction helps.
    /// - Precondition: no other statement is in flight.
    package func pipeline(
        _ commands: [PostgresCommand], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresResult] {
        let (results, failure) = await outcome(of: commands, until: deadline)
        if let failure { throw failure }
        return results
    }

    /// Like `pipeline`, but tells what the statements returned that were run before the first failure: where a COMMIT is
    /// among them, it took place, whatever was met behind it.
    package func outcome(
        of commands: [PostgresCommand], until deadline: MonotonicInstant
    ) async -> (results: [PostgresResult], failure: PostgresError?) {
        precondition(!isExecuting, "two statements at once on one PostgreSQL connection")
        isExecuting = true
        defer { isExecuting = false }
        guard handle.socket >= 0 else { return ([], .closed) }
        var results: [PostgresResult] = []
        do throws(PostgresError) {
            try await run(commands, &results, until: deadline)
            return (results, nil)
        } catch {
            if let sqlstate = error.sqlstate, preparesStatements, Self.preparationFaults.contains(sqlstate) {
                preparesStatements = false
                prepared = []
            }
            return (results, error)
        }
    }

    /// Waits until a notification has arrived, or until `deadline`, and takes all that have: none at the deadline, which
    /// costs the connection nothing. They stand in the order in which they were sent.
    /// - Precondition: no statement is in flight. Notifications that come while one is are kept for the next call.
    package func notifications(
        until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresNotification] {
        precondition(!isExecuting, "a PostgreSQL connection is listened to under a statement")
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
                handle.finish()
                throw error == .cancelled ? .cancelled : .connectionLost
            }
        }
    }

    /// Whether a transaction is open, be it one that an error has ended.
    package var isInTransaction: Bool { handle.isConnected && !handle.isIdle }

    /// Whether the next borrower may have it: connected, nothing in flight, no transaction open.
    var isReusable: Bool { !isExecuting && handle.isConnected && handle.isIdle }

    /// Looks, without waiting, whether the server has ended the connection while it lay idle.
    func isStillConnected() -> Bool {
        // The first read can find the server's farewell, and only the second one the end behind it.
        for _ in 0..<2 {
            guard handle.consumeInput() else { return false }
            _ = handle.isBusy
        }
        return isReusable
    }

    /// Ends the connection.
    /// - Precondition: no statement is in flight.
    package func close() {
        precondition(!isExecuting, "a PostgreSQL connection is closed under a statement")
        handle.finish()
    }

    // MARK: Connecting

    private func connect(
        _ configuration: PostgresConfiguration, _ resolver: NameResolver, until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        var failure = PostgresError.timedOut
        for (index, target) in configuration.targets.enumerated() {
            let share = Self.share(of: deadline, among: configuration.targets.count - index)
            do throws(PostgresError) {
                return try await connect(configuration, target, resolver, until: share)
            } catch {
                guard Self.mayTryOtherHost(after: error) else { throw error }
                failure = error
            }
        }
        throw failure
    }

    /// Tries each address of one host.
    private func connect(
        _ configuration: PostgresConfiguration, _ target: PostgresConfiguration.Target, _ resolver: NameResolver,
        until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        var addresses = [target.address]
        if target.needsLookup { addresses = try await lookUp(target, resolver, until: deadline) }
        var failure = PostgresError.timedOut
        for (index, address) in addresses.enumerated() {
            let share = Self.share(of: deadline, among: addresses.count - index)
            do throws(PostgresError) {
                return try await make(configuration.attempts(at: target, address: address), until: share)
            } catch {
                handle.finish()
                guard Self.mayTryOtherHost(after: error) else { throw error }
                failure = error
            }
        }
        throw failure
    }

    /// The addresses of a target's host, at most those of loopback where it is local by its name.
    private func lookUp(
        _ target: PostgresConfiguration.Target, _ resolver: NameResolver, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [String] {
        let answer: Result<[SocketAddress], ResolutionError>
        do throws(WaitInterrupted) {
            answer = try await resolver.addresses(of: target.host, port: 0, on: loop, until: deadline)
        } catch {
            throw error == .cancelled ? .cancelled : .timedOut
        }
        switch answer {
        case .success(let addresses):
            let usable = target.isLocal ? addresses.filter(\.ip.isLoopback) : addresses
            if !usable.isEmpty { return usable.map(\.host) }
            throw .connectionFailed(sqlstate: nil, detail: "the host \"\(target.host)\" is not at a loopback address")
        case .failure(let error):
            let reason = error == .notFound ? "is unknown" : "could not be looked up"
            throw .connectionFailed(sqlstate: nil, detail: "the host \"\(target.host)\" \(reason)")
        }
    }

    /// Makes one attempt after the other until one succeeds. A further one is made where the server refuses the protection
    /// of the one before, or users with it, and not where it refuses the password.
    private func make(
        _ attempts: [PostgresConfiguration.Attempt], until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        var failure = PostgresError.timedOut
        for (index, attempt) in attempts.enumerated() {
            let share = Self.share(of: deadline, among: attempts.count - index)
            do throws(PostgresError) {
                return try await make(attempt, until: share)
            } catch {
                handle.finish()
                switch error {
                case .connectionFailed(nil, _), .connectionFailed("28000"?, _), .insecureAuthentication:
                    // What was refused for the password's sake says more than what else failed.
                    if failure != .insecureAuthentication { failure = error }
                default: throw error
                }
            }
        }
        throw failure
    }

    private func make(
        _ attempt: PostgresConfiguration.Attempt, until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        guard handle.start(attempt.options) else { throw handle.failure }
        var relay: AuthenticationRelay?
        var needsRelay = attempt.allowsSCRAMOnly
        // libpq, "Asynchronous connection": begin as if PQconnectPoll had said that it waits to write.
        var step = PostgresHandle.ConnectStep.writable
        while true {
            if needsRelay {
                switch handle.progress {
                case .connecting: break
                case .connected:
                    relay = try startRelay()
                    needsRelay = false
                // libpq has begun to speak before anything could stand between.
                case .speaking: throw step == .failed ? handle.failure : .connectionLost
                }
            }
            switch step {
            case .writable where relay == nil: _ = try await ready(.writable, until: deadline)
            case .writable: break
            case .readable:
                if let relay {
                    try await receive(by: relay, until: deadline)
                } else {
                    _ = try await ready(.readable, until: deadline)
                }
            case .failed: throw handle.failure
            case .connected:
                guard handle.useNonBlocking() else { throw .connectionLost }
                return
            }
            step = handle.connectPoll()
            if let authenticating = relay, step != .failed {
                try await send(by: authenticating, until: deadline)
                if authenticating.isAuthenticated {
                    try end(authenticating)
                    relay = nil
                }
            }
        }
    }

    // MARK: Keeping the password

    private func startRelay() throws(PostgresError) -> AuthenticationRelay {
        do throws(SystemError) {
            return try AuthenticationRelay(replacing: handle.socket)
        } catch {
            throw .connectionFailed(sqlstate: nil, detail: "\(error)")
        }
    }

    private func end(_ relay: AuthenticationRelay) throws(PostgresError) {
        do throws(SystemError) {
            try relay.end(at: handle.socket)
        } catch {
            throw .connectionFailed(sqlstate: nil, detail: "\(error)")
        }
    }

    /// Has the server hear what libpq has said.
    private func send(by relay: AuthenticationRelay, until deadline: MonotonicInstant) async throws(PostgresError) {
        while true {
            do throws(AuthenticationRelay.Fault) {
                if try relay.send() { return }
            } catch {
                throw Self.failure(of: error)
            }
            _ = try await ready(.writable, of: relay.descriptor, until: deadline)
        }
    }

    /// Has libpq hear the server's next message.
    private func receive(by relay: AuthenticationRelay, until deadline: MonotonicInstant) async throws(PostgresError) {
        while true {
            do throws(AuthenticationRelay.Fault) {
                if case .passedOn = try relay.receive() { return }
            } catch {
                throw Self.failure(of: error)
            }
            _ = try await ready(.readable, of: relay.descriptor, until: deadline)
        }
    }

    private static func failure(of fault: AuthenticationRelay.Fault) -> PostgresError {
        switch fault {
        case .asksForPassword: .insecureAuthentication
        case .broken: .connectionLost
        }
    }

    /// As libpq does with a list: an unreachable or read-only host sends us to the next one, a refused user or
    /// database does not.
    private static func mayTryOtherHost(after error: PostgresError) -> Bool {
        switch error {
        case .connectionFailed(let sqlstate, _): sqlstate.map { otherHostMayDo.contains($0) } ?? true
        case .timedOut, .connectionLost: true
        default: false
        }
    }

    private static func share(of deadline: MonotonicInstant, among count: Int) -> MonotonicInstant {
        let now = MonotonicInstant.now
        return now.advanced(by: now.duration(to: deadline) / count)
    }

    // MARK: Executing

    private func run(
        _ commands: [PostgresCommand], _ results: inout [PostgresResult], until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        guard handle.beginPipeline() else { throw lost() }
        var steps: [PipelineStep] = []
        for command in commands { try queue(command, &steps) }
        guard handle.sendSync() else { throw lost() }
        if try !isFlushed() { try await flush(until: deadline) }
        let failure = try await finish(steps, &results, until: deadline)
        guard handle.endPipeline() else { throw lost() }
        if let failure { throw failure }
    }

    /// One thing sent in a pipeline, for which results come back.
    private enum PipelineStep {
        /// The preparation of the statement of that name.
        case preparation(String)
        case statement
    }

    private func queue(_ command: PostgresCommand, _ steps: inout [PipelineStep]) throws(PostgresError) {
        let statement = command.statement
        guard statement.isPrepared, preparesStatements,
            prepared.contains(statement.name) || prepared.count < Self.preparedLimit
        else {
            guard handle.send(statement.sql, command.parameters) else { throw lost() }
            return steps.append(.statement)
        }
        // The same statement may come several times in one pipeline.
        let isPrepared =
            prepared.contains(statement.name)
            || steps.contains { step in
                if case .preparation(statement.name) = step { return true }
                return false
            }
        if !isPrepared {
            guard handle.sendPrepare(statement.name, statement.sql, command.parameters) else { throw lost() }
            steps.append(.preparation(statement.name))
        }
        guard handle.sendPrepared(statement.name, command.parameters) else { throw lost() }
        steps.append(.statement)
    }

    /// Receives the results of a pipeline up to its end. The failure that is returned left the connection usable.
    private func finish(
        _ steps: [PipelineStep], _ results: inout [PostgresResult], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> PostgresError? {
        var failure: PostgresError?
        var finished = 0
        while true {
            if handle.isBusy { try await arrival(until: deadline, after: failure) }
            guard let result = handle.takeResult() else {
                // No more of this step: the next one follows, at last the mark, which itself can fail. A broken
                // connection says "no more" without end.
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
                // libpq names no state for what it met itself: the connection has ended.
                guard let sqlstate = result.sqlstate else { throw lost(after: failure) }
                failure = failure ?? .server(sqlstate: sqlstate)
            case .passedOver: continue
            case .pipelineEnd:
                return failure
            case .succeeded, .unusable:
                handle.finish()
                throw .unexpectedResult("neither rows nor the end of a command")
            }
        }
    }

    /// Sends what is queued and receives every result of the command in flight.
    private func finish(until deadline: MonotonicInstant) async throws(PostgresError) -> PostgresResult {
        if try !isFlushed() { try await flush(until: deadline) }
        var answer: PostgresResult?
        var failure: PostgresError?
        // To the end, since the server says "done" before it commits: an error can still follow.
        while true {
            if handle.isBusy { try await arrival(until: deadline, after: failure) }
            guard let result = handle.takeResult() else { break }
            switch result.status {
            case .succeeded: answer = PostgresResult(result)
            case .failed:
                // libpq names no state for what it met itself: the connection has ended.
                guard let sqlstate = result.sqlstate else { throw lost(after: failure) }
                failure = .server(sqlstate: sqlstate)
            case .passedOver, .pipelineEnd, .unusable:
                handle.finish()
                throw .unexpectedResult("neither rows nor the end of a command")
            }
        }
        if let failure { throw failure }
        guard let answer else { throw .unexpectedResult("no result") }
        return answer
    }

    /// Waits until it is known what comes next of the command in flight: a result, or that there are no more.
    /// - Parameter failure: what the server has refused before.
    private func arrival(
        until deadline: MonotonicInstant, after failure: PostgresError?
    ) async throws(PostgresError) {
        repeat {
            _ = try await ready(.readable, until: deadline)
            guard handle.consumeInput() else { throw lost(after: failure) }
        } while handle.isBusy
    }

    /// Writes what the socket has not taken at once. libpq, "Asynchronous command processing": while it does not take all,
    /// read as well, for the server may itself be waiting for us to read.
    private func flush(until deadline: MonotonicInstant) async throws(PostgresError) {
        repeat {
            let readiness = try await ready([.readable, .writable], until: deadline)
            if !readiness.isDisjoint(with: [.readable, .peerFinished, .hangup]) {
                guard handle.consumeInput() else { throw lost() }
            }
        } while try !isFlushed()
    }

    /// Writes what is queued, as far as the socket takes it, and tells whether that was all.
    private func isFlushed() throws(PostgresError) -> Bool {
        switch handle.flush() {
        case .flushed: return true
        case .blocked: return false
        case .failed: throw lost()
        }
    }

    /// - Parameter descriptor: what is waited for; nil for libpq's socket.
    private func ready(
        _ interests: Readiness, of descriptor: CInt? = nil, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Readiness {
        let socket = descriptor ?? handle.socket
        // Without a socket there is nothing that could become ready.
        guard socket >= 0 else { throw lost() }
        do throws(WaitInterrupted) {
            return try await loop.ready(socket, for: interests, until: deadline)
        } catch {
            handle.finish()
            switch error {
            case .deadlineExceeded: throw .timedOut
            case .cancelled: throw .cancelled
            case .system: throw .connectionLost
            }
        }
    }

    private func lost() -> PostgresError {
        handle.finish()
        return .connectionLost
    }

    /// A server that ends a session says why before it closes: that is worth more than that it closed.
    private func lost(after failure: PostgresError?) -> PostgresError {
        handle.finish()
        return failure ?? .connectionLost
    }
}
