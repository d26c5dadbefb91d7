import BrokerTesting
import Postgres
import Reactor
import Testing

@Suite(.timeLimit(.minutes(3))) struct `PostgreSQL reads` {
    private static let session = PostgresStatement("SELECT pg_backend_pid()", isPrepared: true)
    private static let divide = PostgresStatement("SELECT 100 / $1", isPrepared: true)
    private static let draw = PostgresStatement("SELECT nextval('drawn')", isPrepared: true)
    /// What a read is told when no connection was made within the limit.
    private static let unanswered = PostgresError.connectionFailed(sqlstate: nil, detail: "no answer in time")
    private static var soon: MonotonicInstant { .after(.seconds(60)) }

    private typealias Answer = Result<Int64?, PostgresError>

    /// Makes calls on the loop's thread in a known order: each call has joined the queue of the pool before the next
    /// step of this actor has an effect.
    private actor Caller {
        let pool: PostgresPool
        nonisolated var unownedExecutor: UnownedSerialExecutor {
            unsafe PostgresServer.loop.asUnownedSerialExecutor()
        }

        init(_ pool: PostgresPool) {
            self.pool = pool
        }

        func reads(
            _ numbers: [Int64], _ statement: PostgresStatement = divide, until deadline: MonotonicInstant = soon
        ) -> [Task<Answer, Never>] {
            numbers.map { number in read(statement, [.integer(number)], until: deadline) }
        }

        func read(
            _ statement: PostgresStatement, _ parameters: [PostgresValue] = [], until deadline: MonotonicInstant = soon
        ) -> Task<Answer, Never> {
            task { pool throws(PostgresError) in try await pool.read(statement, parameters, until: deadline) }
        }

        func write(_ statement: PostgresStatement) -> Task<Answer, Never> {
            task { pool throws(PostgresError) in try await pool.execute(statement, until: soon) }
        }

        private func task(
            _ body: @escaping @Sendable (PostgresPool) async throws(PostgresError) -> PostgresResult
        ) -> Task<Answer, Never> {
            Task {
                do throws(PostgresError) {
                    return .success(try await body(self.pool).first?.integer(0))
                } catch {
                    return .failure(error)
                }
            }
        }

        /// Occupies the pool's only connection until `body` returns.
        func holding<Value: Sendable>(
            _ body: @escaping @Sendable (isolated Caller) async throws -> Value
        ) async throws -> Value {
            let borrowed = AsyncStream.makeStream(of: Void.self)
            let release = AsyncStream.makeStream(of: Void.self)
            let holder = Task {
                try await pool.withConnection(until: soon) { _ throws(PostgresError) in
                    borrowed.continuation.yield()
                    for await _ in release.stream { break }
                }
            }
            for await _ in borrowed.stream { break }
            let value = try await body(self)
            release.continuation.yield()
            try await holder.value
            return value
        }
    }

    /// A pool with one connection through a relay. The connection was used, so its statements are prepared.
    private static func withPool(
        usesPooler: Bool = false, connections: Int = 1, readsAtOnce: Int = 32, waiters: Int = 256,
        waiting: Duration = .seconds(30), connecting: Duration = .seconds(30),
        _ body: (Caller, PostgresRelay) async throws -> Void
    ) async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        var configuration = try PostgresServer.configuration(server.uri(database: "postgres", port: relay.port))
        configuration.usesPooler = usesPooler
        configuration.maximumConnections = connections
        configuration.maximumPipelinedReads = readsAtOnce
        configuration.maximumWaiters = waiters
        configuration.waitTimeout = waiting
        configuration.connectTimeout = connecting
        let pool = PostgresServer.pool(configuration)
        let caller = Caller(pool)
        var first = await caller.read(divide, [.integer(1)]).value
        // A slow machine may not make the first connection within the limits of a test, which are for later.
        while first == .failure(.exhausted) || first == .failure(unanswered) {
            try await Task.sleep(for: .milliseconds(20))
            first = await caller.read(divide, [.integer(1)]).value
        }
        #expect(first == .success(100))
        _ = try await pool.read(session, until: soon)
        try await body(caller, relay)
        await pool.close()
        await relay.close()
    }

    private static func answers(_ tasks: [Task<Answer, Never>]) async -> [Answer] {
        var answers: [Answer] = []
        for task in tasks { answers.append(await task.value) }
        return answers
    }

    private static func session(_ caller: Caller) async throws -> Int64 {
        try #require(try await caller.read(session).value.get())
    }

    // MARK: Round trips

    @Test(arguments: [false, true])
    func `one alone is one round trip, its first one included`(usesPooler: Bool) async throws {
        try await Self.withPool(usesPooler: usesPooler) { caller, relay in
            let other = PostgresStatement("SELECT 200 / $1", isPrepared: true)
            for _ in 0..<3 {
                let before = await relay.roundTrips
                #expect(await caller.read(other, [.integer(2)]).value == .success(100))
                #expect(await relay.roundTrips == before + 1)
            }
        }
    }

    @Test(
        arguments: [(1, 1), (2, 1), (31, 1), (32, 1), (33, 2), (63, 2), (64, 2), (65, 3), (200, 7)],
        [false, true])
    func `as many as share a pipeline are one round trip`(
        counts: (reads: Int, roundTrips: Int), usesPooler: Bool
    ) async throws {
        try await Self.withPool(usesPooler: usesPooler) { caller, relay in
            let before = await relay.roundTrips
            let numbers = (1...counts.reads).map { Int64($0) }
            let tasks = try await caller.holding { caller in caller.reads(numbers) }
            #expect(await Self.answers(tasks) == numbers.map { .success(100 / $0) })
            #expect(await relay.roundTrips == before + counts.roundTrips)
        }
    }

    @Test func `those that come in one turn of the loop share a pipeline, though a connection is free`() async throws {
        try await Self.withPool { caller, relay in
            let before = await relay.roundTrips
            let tasks = await caller.reads([1, 2, 4, 5])
            #expect(await Self.answers(tasks) == [100, 50, 25, 20].map { .success($0) })
            #expect(await relay.roundTrips == before + 1)
        }
    }

    @Test(arguments: [1, 2, 3])
    func `how many share a pipeline is the configuration's to say`(limit: Int) async throws {
        try await Self.withPool(readsAtOnce: limit) { caller, relay in
            let before = await relay.roundTrips
            let tasks = try await caller.holding { caller in caller.reads([1, 2, 4, 5, 10, 20]) }
            #expect(await Self.answers(tasks) == [100, 50, 25, 20, 10, 5].map { .success($0) })
            #expect(await relay.roundTrips == before + 6 / limit)
        }
    }

    @Test func `behind a pooler nothing is prepared`() async throws {
        try await Self.withPool(usesPooler: true) { caller, _ in
            let prepared = PostgresStatement("SELECT count(*) FROM pg_prepared_statements")
            #expect(await caller.read(prepared).value == .success(0))
        }
    }

    // MARK: Refusals

    @Test(arguments: [[0], [1], [31], [0, 31], [3, 4, 5], Array(0..<32)])
    func `a refused statement takes nothing from the others, nor the connection`(refused: [Int]) async throws {
        try await Self.withPool { caller, relay in
            let session = try await Self.session(caller)
            let before = await relay.roundTrips
            let numbers = (0..<32).map { refused.contains($0) ? Int64(0) : 4 }
            let tasks = try await caller.holding { caller in caller.reads(numbers) }
            #expect(
                await Self.answers(tasks)
                    == numbers.map { $0 == 0 ? .failure(.server(sqlstate: "22012")) : .success(25) })
            // The reads behind a refused one are sent again; behind the last one there is none.
            #expect(await relay.roundTrips == before + refused.count + (refused.last == 31 ? 0 : 1))
            #expect(try await Self.session(caller) == session)
        }
    }

    @Test func `statements whose preparations have vanished are answered all the same`() async throws {
        try await Self.withPool { caller, _ in
            let session = try await Self.session(caller)
            _ = await caller.write(PostgresStatement("DEALLOCATE ALL")).value
            let tasks = try await caller.holding { caller in caller.reads([1, 0, 2, 4]) }
            #expect(
                await Self.answers(tasks) == [
                    .success(100), .failure(.server(sqlstate: "22012")), .success(50), .success(25),
                ])
            #expect(try await Self.session(caller) == session)
        }
    }

    // MARK: Lost connections

    @Test func `a connection that is lost is lost once for each, and replaced for those that come then`() async throws {
        try await Self.withPool { caller, relay in
            let tasks = try await caller.holding { caller in
                let first = caller.reads(Array(repeating: 1, count: 32))
                await relay.set(.cutBefore("token_broker"))
                return first + caller.reads([2, 4])
            }
            #expect(
                await Self.answers(tasks)
                    == Array(repeating: .failure(.connectionLost), count: 32) + [.success(50), .success(25)])
            #expect(await relay.cuts == 1)
            #expect(await relay.accepted == 2)
        }
    }

    @Test func `what was answered before the connection was lost is answered`() async throws {
        try await Self.withPool { caller, _ in
            let end = PostgresStatement("SELECT pg_terminate_backend(pg_backend_pid())::integer")
            let tasks = try await caller.holding { caller in
                caller.reads([1, 2]) + [caller.read(end)] + caller.reads([4])
            }
            #expect(
                await Self.answers(tasks) == [
                    .success(100), .success(50), .failure(.server(sqlstate: "57P01")),
                    .failure(.server(sqlstate: "57P01")),
                ])
            #expect(await caller.read(Self.divide, [.integer(5)]).value == .success(20))
        }
    }

    @Test func `a server that cannot be reached is an error for each`() async throws {
        try await Self.withPool(connecting: .seconds(1)) { caller, relay in
            let tasks = try await caller.holding { caller in
                await relay.set(.swallow)
                await relay.cutAll()
                return caller.reads(Array(repeating: 1, count: 40))
            }
            #expect(await Self.answers(tasks) == Array(repeating: .failure(Self.unanswered), count: 40))
        }
    }

    // MARK: Callers who give up

    @Test func `who is cancelled while waiting for a connection takes nothing from the others`() async throws {
        try await Self.withPool { caller, relay in
            let session = try await Self.session(caller)
            let before = await relay.roundTrips
            let tasks = try await caller.holding { caller in
                let tasks = caller.reads([1, 2, 0, 4])
                for index in [0, 2] {
                    tasks[index].cancel()
                    #expect(await tasks[index].value == .failure(.cancelled))
                }
                return tasks
            }
            #expect(
                await Self.answers(tasks) == [
                    .failure(.cancelled), .success(50), .failure(.cancelled), .success(25),
                ])
            #expect(await relay.roundTrips == before + 1)
            #expect(try await Self.session(caller) == session)
        }
    }

    @Test func `who is cancelled under way takes nothing from the others, and not the connection`() async throws {
        try await Self.withPool { caller, relay in
            let session = try await Self.session(caller)
            await relay.set(.delay(.seconds(1)))
            let before = await relay.roundTrips
            let tasks = await caller.reads([1, 2, 4])
            while await relay.roundTrips == before { await Task.yield() }
            tasks[0].cancel()
            tasks[1].cancel()
            #expect(
                await Self.answers(tasks) == [.failure(.cancelled), .failure(.cancelled), .success(25)])
            await relay.set(.forward)
            #expect(try await Self.session(caller) == session)
        }
    }

    @Test func `a batch without waiting callers ends, with its connection where it is under way`() async throws {
        try await Self.withPool { caller, relay in
            let session = try await Self.session(caller)
            // Cancelled before the batch has a connection.
            let before = await relay.roundTrips
            try await caller.holding { caller in
                let tasks = caller.reads([1, 2])
                for task in tasks {
                    task.cancel()
                    #expect(await task.value == .failure(.cancelled))
                }
            }
            #expect(await relay.roundTrips == before)
            #expect(try await Self.session(caller) == session)
            // Cancelled after the batch has a connection.
            let sleep = PostgresStatement("SELECT pg_sleep(60)")
            let sent = await relay.roundTrips
            let tasks = try await caller.holding { caller in
                [caller.read(sleep), caller.read(Self.divide, [.integer(1)])]
            }
            while await relay.roundTrips == sent { await Task.yield() }
            for task in tasks {
                task.cancel()
                #expect(await task.value == .failure(.cancelled))
            }
            #expect(try await Self.session(caller) != session)
        }
    }

    // MARK: Time

    @Test func `each has its own deadline, and the latest one is the connection's`() async throws {
        try await Self.withPool { caller, relay in
            let session = try await Self.session(caller)
            // Time enough for the reads to be sent, also where the machine is slow.
            let limit: Duration = .seconds(1)
            let late = try await caller.holding { caller in
                // The answer comes after twice the delay, and so after the limit.
                await relay.set(.delay(.milliseconds(800)))
                return caller.reads([1], until: .after(limit)) + caller.reads([4])
            }
            #expect(await Self.answers(late) == [.failure(.timedOut), .success(25)])
            await relay.set(.forward)
            #expect(try await Self.session(caller) == session)
            await relay.set(.swallow)
            let lost = await caller.reads([1, 2], until: .after(limit))
            #expect(await Self.answers(lost) == [.failure(.timedOut), .failure(.timedOut)])
            await relay.set(.forward)
            #expect(try await Self.session(caller) != session)
        }
    }

    @Test func `each waits for a connection for its own time`() async throws {
        // The third read has most of it left when the second one's is over, also where the machine is slow.
        let (wait, lead): (Duration, Duration) = (.seconds(4), .seconds(3))
        try await Self.withPool(waiting: wait) { caller, _ in
            let start = MonotonicInstant.now
            let first = try await caller.holding { caller in
                let first = caller.reads([1])
                #expect(await Self.answers(first) == [.failure(.exhausted)])
                #expect(start.duration(to: .now) >= wait)
                // While another read waits in the batch, the batch stays the same.
                let second = caller.reads([2])
                try await PostgresServer.loop.sleep(until: .after(lead))
                let third = caller.reads([4])
                #expect(await Self.answers(second) == [.failure(.exhausted)])
                return third
            }
            #expect(await Self.answers(first) == [.success(25)])
        }
    }

    @Test func `the wait for a connection is no part of what a statement may take`() async throws {
        let (wait, delay): (Duration, Duration) = (.seconds(2), .milliseconds(1200))
        try await Self.withPool(waiting: wait) { caller, relay in
            // The answer comes after twice the delay, and so after the wait.
            await relay.set(.delay(delay))
            let tasks = await caller.reads([1, 2])
            #expect(await Self.answers(tasks) == [.success(100), .success(50)])
        }
    }

    @Test func `a deadline that is over is an error before anything is sent`() async throws {
        try await Self.withPool { caller, relay in
            let before = await relay.roundTrips
            let task = try await caller.holding { caller in
                let task = caller.read(Self.divide, [.integer(1)], until: .now)
                #expect(await task.value == .failure(.exhausted))
                return task
            }
            _ = await task.value
            #expect(await relay.roundTrips == before)
        }
    }

    // MARK: The queue

    @Test func `a batch is one borrower in its place, so that writers have their turn`() async throws {
        try await Self.withPool { caller, _ in
            _ = await caller.write(PostgresStatement("CREATE SEQUENCE drawn")).value
            let (first, write, second) = try await caller.holding { caller in
                // The second batch is in the queue before the writer, and the third batch behind the writer.
                let first = (0..<40).map { _ in caller.read(Self.draw) }
                let write = caller.write(Self.draw)
                return (first, write, (0..<60).map { _ in caller.read(Self.draw) })
            }
            #expect(await Self.answers(first) == (1...40).map { .success($0) })
            #expect(await write.value == .success(65))
            #expect(
                await Self.answers(second) == (41...64).map { .success($0) } + (66...101).map { .success($0) })
            _ = await caller.write(PostgresStatement("DROP SEQUENCE drawn")).value
        }
    }

    // H106
    @Test func `more batches than may wait are refused at once`() async throws {
        try await Self.withPool(readsAtOnce: 2, waiters: 2) { caller, _ in
            let tasks = try await caller.holding { caller in caller.reads([1, 1, 1, 1, 1, 1]) }
            #expect(
                await Self.answers(tasks)
                    == Array(repeating: .success(100), count: 4) + Array(repeating: .failure(.exhausted), count: 2))
        }
    }

    @Test func `a pool that is closed refuses those that wait and those that come`() async throws {
        try await Self.withPool { caller, _ in
            let (waiting, closing) = try await caller.holding { caller in
                let waiting = caller.reads([1, 2])
                let closing = Task { await caller.pool.close() }
                #expect(await Self.answers(waiting) == Array(repeating: .failure(.closed), count: 2))
                return (waiting, closing)
            }
            #expect(waiting.count == 2)
            await closing.value
            #expect(await caller.read(Self.session).value == .failure(.closed))
        }
    }

    @Test func `many callers on several connections have each their own answer`() async throws {
        try await Self.withPool(connections: 4) { caller, relay in
            let echo = PostgresStatement("SELECT $1", isPrepared: true)
            let before = await relay.roundTrips
            let found = await withTaskGroup(of: Bool.self) { group in
                for number in 0..<2000 as Range<Int64> {
                    group.addTask { await caller.read(echo, [.integer(number)]).value == .success(number) }
                }
                return await group.reduce(into: 0) { $0 += $1 ? 1 : 0 }
            }
            #expect(found == 2000)
            #expect(await relay.accepted <= 4)
            #expect(await relay.roundTrips < before + 1000)
        }
    }
}
