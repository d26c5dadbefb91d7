package import Reactor

extension PostgresPool {
    /// Runs one statement that only reads, in a pipeline of at most `maximumPipelinedReads` statements with other reads
    /// that arrive at the same time: one round trip on one connection.
    ///
    /// Each read gets its own answer. When the server refuses a statement, the others are sent again without it. When a
    /// caller stops waiting, the others go on. When the connection is lost, all reads without an answer fail. In the
    /// queue for a connection a batch counts as one borrower.
    ///
    /// The statements of a batch share a transaction. They see a committed state that is no older than the last request
    /// that joined the batch.
    /// - Throws: as `execute`.
    package func read(
        _ statement: PostgresStatement, _ parameters: [PostgresValue] = [], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> PostgresResult {
        let read = ReadBatch.Read(PostgresCommand(statement, parameters), until: deadline, on: loop)
        let batch = join(read)
        do throws(PostgresError) {
            let limit = min(deadline, .after(configuration.waitTimeout))
            let result = try await read.answer.wait(until: limit, overdue: .exhausted)
            _ = batch.callerLeft(read, after: nil)
            return result
        } catch {
            if batch.callerLeft(read, after: error) { endForming(batch) }
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
        lastBatch += 1
        let id = lastBatch
        batches[id] = batch
        let place = queueUp()
        // The task begins in a later turn of the loop, so that reads which have arrived already join the batch.
        batch.runner = Task(executorPreference: executor) { await self.runBatch(id, at: place) }
        return batch
    }

    private func runBatch(_ id: Int, at place: Place) async {
        guard let batch = batches.removeValue(forKey: id) else { preconditionFailure("a batch of reads runs twice") }
        let failure: PostgresError?
        do throws(PostgresError) {
            // Each read limits its own wait.
            let (connectionID, connection) = try await borrow(at: place, until: .distantFuture, waiting: .distantFuture)
            endForming(batch)
            failure = await answer(batch, on: connection)
            takeBack(connection, as: connectionID, after: failure)
        } catch {
            endForming(batch)
            failure = error
        }
        guard let failure else { return }
        for read in batch.reads { read.answer.resume(with: .failure(failure)) }
    }

    /// No further read joins the batch.
    private func endForming(_ batch: ReadBatch) {
        if forming === batch { forming = nil }
    }

    /// - Returns: the error for the reads that got no answer; nil when each has one.
    private func answer(_ batch: ReadBatch, on connection: PostgresConnection) async -> PostgresError? {
        var reads = batch.begin()
        var hasLostPreparations = false
        while let deadline = reads.map(\.deadline).max() {
            let (results, failure) = await connection.outcome(of: reads.map(\.command), until: deadline)
            for (read, result) in zip(reads, results) { read.answer.resume(with: .success(result)) }
            guard let failure else { return nil }
            guard case .server(let sqlstate) = failure, await connection.isReusable else { return failure }
            reads.removeFirst(results.count)
            if PostgresConnection.preparationFaults.contains(sqlstate), !hasLostPreparations {
                // The connection prepares nothing from now on, so the same statement succeeds when it is sent again.
                hasLostPreparations = true
            } else if !reads.isEmpty {
                reads.removeFirst().answer.resume(with: .failure(failure))
            }
            reads.removeAll { !$0.isWaitedFor }
        }
        return nil
    }
}
