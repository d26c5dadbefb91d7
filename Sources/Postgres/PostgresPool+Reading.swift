package import Reactor

extension PostgresPool {
    /// Runs one statement that only reads, together with others that come at the same time: in one round trip, on one
    /// connection, as a pipeline of at most `maximumPipelinedReads` statements.
    ///
    /// Each is answered for itself. A statement that the server refuses takes nothing from the others, which are sent
    /// again without it; a caller who gives up leaves them alone; a connection that is lost is lost for all that had
    /// not been answered, once. In the queue for a connection a batch is one borrower, in its place among the others.
    ///
    /// The statements of a batch share a transaction. What they see was committed, and not before the last of them was
    /// asked for.
    /// - Throws: as `execute`.
    package func read(
        _ statement: PostgresStatement, _ parameters: [PostgresValue] = [], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> PostgresResult {
        let read = ReadBatch.Read(PostgresCommand(statement, parameters), until: deadline, on: loop)
        let batch = join(read)
        do throws(PostgresError) {
            let limit = min(deadline, .after(configuration.waitTimeout))
            let result = try await read.answer.wait(until: limit, overdue: .exhausted)
            _ = batch.left(read, after: nil)
            return result
        } catch {
            if batch.left(read, after: error), forming === batch { forming = nil }
            throw error
        }
    }

    private func join(_ read: ReadBatch.Read) -> ReadBatch {
        if let forming, forming.reads.count < configuration.maximumPipelinedReads {
            forming.add(read)
            return forming
        }
        let batch = ReadBatch()
        batch.add(read)
        forming = batch
        let place = queueUp()
        // It begins after the reads that have arrived already.
        batch.runner = Task(executorPreference: executor) { await self.run(batch, at: place) }
        return batch
    }

    private func run(_ batch: ReadBatch, at place: Place) async {
        let failure: PostgresError?
        do throws(PostgresError) {
            // Each read bounds its own wait.
            let (id, connection) = try await borrow(at: place, until: .distantFuture, waiting: .distantFuture)
            if forming === batch { forming = nil }
            failure = await answer(batch, on: connection)
            takeBack(id, connection, after: failure)
        } catch {
            if forming === batch { forming = nil }
            failure = error
        }
        guard let failure else { return }
        for read in batch.reads { read.answer.resume(.failure(failure)) }
    }

    /// - Returns: what was met last; what is unanswered then has no other answer.
    private func answer(_ batch: ReadBatch, on connection: PostgresConnection) async -> PostgresError? {
        var reads = batch.begin()
        var hasLostPreparations = false
        while let deadline = reads.map(\.deadline).max() {
            let (results, failure) = await connection.outcome(of: reads.map(\.command), until: deadline)
            for (read, result) in zip(reads, results) { read.answer.resume(.success(result)) }
            guard let failure else { return nil }
            guard case .server(let sqlstate) = failure, await connection.isReusable else { return failure }
            reads.removeFirst(results.count)
            if PostgresConnection.preparationFaults.contains(sqlstate), !hasLostPreparations {
                // The connection prepares nothing any more: the statement is well as it is.
                hasLostPreparations = true
            } else if !reads.isEmpty {
                reads.removeFirst().answer.resume(.failure(failure))
            }
            reads.removeAll { !$0.isWaitedFor }
        }
        return nil
    }
}
