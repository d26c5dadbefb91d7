import Postgres
import Reactor

/// The connections of a PostgreSQL store, with the store's time limit, its retries and its errors.
struct StoreDatabase: Sendable {
    let pool: PostgresPool
    /// The time limit of an operation, including the wait for a connection.
    let timeout: Duration
    /// Called with each error before it becomes a `StoreError`, which says less.
    let report: @Sendable (PostgresError) -> Void

    /// How often an operation is tried that the server aborted in favour of another transaction.
    static let attempts = 5

    /// The states after which the same operation may succeed at once: a serialization failure and a deadlock, after
    /// which the server has rolled back, and the faults of a prepared statement, after which the connection prepares
    /// nothing.
    static let transientStates: Set<String> = ["40001", "40P01", "26000", "42P05"]

    /// The deadline of an operation that begins now.
    var deadline: MonotonicInstant { .after(timeout) }

    // MARK: Operations that may be repeated

    /// Runs one statement that may be run twice, and reads its result.
    func query<Value>(
        _ statement: PostgresStatement, with parameters: [PostgresValue] = [],
        read: (PostgresResult) throws(PostgresError) -> Value
    ) async throws(StoreError) -> Value {
        let deadline = deadline
        let result = try await repeating { () async throws(PostgresError) in
            try await pool.execute(statement, parameters, until: deadline)
        }
        return try reading { () throws(PostgresError) in try read(result) }
    }

    /// Runs an operation that may be run twice. Repeats it after a transient state, and once after a lost connection.
    func repeating<Value: Sendable>(
        _ body: () async throws(PostgresError) -> Value
    ) async throws(StoreError) -> Value {
        var hasLostConnection = false
        for _ in 1..<Self.attempts {
            do throws(PostgresError) {
                return try await body()
            } catch {
                if case .server(let sqlstate) = error, Self.transientStates.contains(sqlstate) { continue }
                // The connection may have been lost while it was idle. A new one works, unless the time is up.
                guard error.makesServerSuspect, error != .timedOut, !hasLostConnection else { throw storeError(error) }
                hasLostConnection = true
                report(error)
            }
        }
        return try await translating { () async throws(PostgresError) in try await body() }
    }

    /// Runs an operation, with its errors reported and translated.
    func translating<Value: Sendable>(
        _ body: () async throws(PostgresError) -> Value
    ) async throws(StoreError) -> Value {
        do throws(PostgresError) {
            return try await body()
        } catch {
            throw storeError(error)
        }
    }

    /// Reads a result, with its errors reported and translated.
    func reading<Value>(_ body: () throws(PostgresError) -> Value) throws(StoreError) -> Value {
        do throws(PostgresError) {
            return try body()
        } catch {
            throw storeError(error)
        }
    }

    // MARK: Transactions

    /// Runs a whole transaction, from BEGIN to COMMIT, in one round trip.
    func transaction(
        _ commands: [PostgresCommand], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresResult] {
        try await onConnection(until: deadline) { connection throws(PostgresError) in
            try await connection.pipeline(commands, until: deadline)
        }
    }

    /// Runs a transaction in two round trips.
    /// - Parameters:
    ///   - first: the beginning of the transaction, with its BEGIN.
    ///   - rest: gets the results of `first`. Returns the rest of the transaction with its COMMIT, or nil to roll back.
    /// - Returns: the results of the rest; nil when the transaction was rolled back.
    func transaction(
        beginning first: [PostgresCommand], until deadline: MonotonicInstant,
        rest: @Sendable ([PostgresResult]) throws(PostgresError) -> [PostgresCommand]?
    ) async throws(PostgresError) -> [PostgresResult]? {
        try await onConnection(until: deadline) { connection throws(PostgresError) in
            let results = try await connection.pipeline(first, until: deadline)
            if let last = try rest(results) { return try await connection.pipeline(last, until: deadline) }
            _ = try await connection.execute(Statements.rollback, until: deadline)
            return nil
        }
    }

    /// Lends a connection to `body`, and rolls back the transaction that `body` leaves open when it throws, so that the
    /// pool can keep the connection. When the rollback fails, the pool closes the connection, which ends the
    /// transaction as well.
    func onConnection<Value: Sendable>(
        until deadline: MonotonicInstant,
        _ body: @Sendable (PostgresConnection) async throws(PostgresError) -> Value
    ) async throws(PostgresError) -> Value {
        try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
            do throws(PostgresError) {
                return try await body(connection)
            } catch {
                if !error.leavesOutcomeUnknown, await connection.isInTransaction {
                    _ = try? await connection.execute(Statements.rollback, until: deadline)
                }
                throw error
            }
        }
    }

    // MARK: Errors

    /// What an error means to a caller of a store that is open.
    ///
    /// A statement that the server refuses succeeds again once an operator has put right what it lacks: a privilege, a table, room
    /// on the disk. So it is `.unavailable`, whatever the SQLSTATE, and what was granted to a user is kept and stored then.
    func storeError(_ error: PostgresError) -> StoreError {
        report(error)
        if case .unexpectedResult(let text) = error {
            return .damaged("PostgreSQL: the tables of the store are not what this build needs: \(text)")
        }
        return .unavailable
    }

    /// Runs an operation of the opening of the store. An operator who starts the process learns at once that this build cannot work
    /// with the tables.
    func opening<Value: Sendable>(
        _ body: () async throws(PostgresError) -> Value
    ) async throws(StoreError) -> Value {
        do throws(PostgresError) {
            return try await body()
        } catch {
            let meaning = storeError(error)
            guard case .server(let sqlstate) = error, sqlstate.hasPrefix("42") || sqlstate.hasPrefix("3F") else {
                throw meaning
            }
            throw .damaged(
                "PostgreSQL: the tables token_broker_records, token_broker_events, token_broker_log, token_broker_audit "
                    + "and token_broker_schema, or the role's privileges on them, are not what this build needs "
                    + "(SQLSTATE \(sqlstate))")
        }
    }
}
