import OAuth
import Postgres
import Reactor

/// The log of events in PostgreSQL.
///
/// Entries are written without a sequence, so that no writer waits for another one. Readers assign the sequences before
/// they read; see `assignSequences`.
struct PostgresLog: Sendable {
    let database: StoreDatabase
    let lineageWatch: LineageWatch
    private let thinning: PostgresThinning

    init(database: StoreDatabase, lineageWatch: LineageWatch) {
        self.database = database
        self.lineageWatch = lineageWatch
        thinning = PostgresThinning(database)
    }

    /// How many entries get a sequence in one transaction. Limits how long the lock on the log is held.
    private static let assignedAtOnce: Int64 = 1000

    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        let bounds = try await assignSequences()
        if sequence >= bounds.last { return [] }
        var parameters: [PostgresValue] = [.integer(sequence), .integer(Int64(max(0, limit)))]
        if let tenant { parameters.append(.text(tenant.description)) }
        let statement = tenant == nil ? Statements.entries : Statements.entriesOfTenant
        return try await database.query(statement, with: parameters) { result throws(PostgresError) in
            try result.rows.map { row throws(PostgresError) in try StoreRows.entry(row) }
        }
    }

    /// Assigns a sequence to every committed entry that has none, and returns the bounds of the log.
    ///
    /// The holder of the lock on the single row of `token_broker_log` sees every sequence that was assigned before, and
    /// sequences only rise. So an entry that becomes visible late, because its writer was slow to commit, gets a higher
    /// sequence than every entry that has been read.
    func assignSequences() async throws(StoreError) -> LogBounds {
        while true {
            let known = lineageWatch.known()
            // A new connection tells whether the store has lost commits.
            let (bounds, isPending) = try await database.query(Statements.log) { result throws(PostgresError) in
                guard let row = result.first, let last = try row.integer(0), let trimmed = try row.integer(1),
                    let isPending = try row.boolean(2)
                else { throw Self.noRow }
                return (LogBounds(trimmed: trimmed, last: last), isPending)
            }
            if let end = lineageWatch.note(sequence: bounds.last, since: known) {
                try await skipSequences(upTo: end)
                continue
            }
            if !isPending { return bounds }
            let deadline = database.deadline
            let assigned = try await database.repeating { () async throws(PostgresError) in
                try await assignSome(since: known, until: deadline)
            }
            // Nil when another reader has assigned them. Fewer than `assignedAtOnce` when no further entry waits.
            if let assigned, assigned.count < Self.assignedAtOnce {
                if lineageWatch.note(sequence: assigned.bounds.last, since: known) == nil { return assigned.bounds }
            }
        }
    }

    /// Skips sequences that the store has assigned before it lost its last commits, so that none is assigned twice.
    private func skipSequences(upTo end: Int64) async throws(StoreError) {
        let deadline = database.deadline
        _ = try await database.repeating { () async throws(PostgresError) in
            try await database.transaction(
                [
                    PostgresCommand(Statements.begin), PostgresCommand(Statements.lockLog),
                    PostgresCommand(Statements.skipSequences, [.integer(end)]),
                ] + StoreDurability.commit, until: deadline)
        }
    }

    /// Assigns sequences to at most `assignedAtOnce` entries; nil when no entry waits for one, and when the log must skip
    /// sequences first. The connection may be a new one, to a server that has lost the last sequences.
    private func assignSome(
        since known: LineageWatch.Known, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> (bounds: LogBounds, count: Int64)? {
        let first = [PostgresCommand(Statements.begin), PostgresCommand(Statements.lockLog)]
        let results = try await database.transaction(beginning: first, until: deadline) {
            results throws(PostgresError) in
            guard let last = try results[1].first?.integer(0) else { throw Self.noRow }
            if lineageWatch.note(sequence: last, since: known) != nil { return nil }
            return [PostgresCommand(Statements.number, [.integer(Self.assignedAtOnce)])] + StoreDurability.commit
        }
        guard let row = results?[0].first, let last = try row.integer(0), let trimmed = try row.integer(1),
            let count = try row.integer(2)
        else { return nil }
        return (LogBounds(trimmed: trimmed, last: last), count)
    }

    func trim(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        // Entries without a sequence cannot be trimmed, and where no replica reads the log none would get one.
        let bounds = try await assignSequences()
        let deadline = database.deadline
        let old = try await database.repeating { () async throws(PostgresError) in
            try await trimSome(before: time, limit: limit, until: deadline)
        }
        return old + (try await thinning.remove(keeping: count, limit: limit - old, of: bounds))
    }

    private func trimSome(
        before time: Timestamp, limit: Int, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Int {
        let first = [
            PostgresCommand(Statements.begin), PostgresCommand(Statements.lockLog),
            PostgresCommand(Statements.oldest, [.integer(Int64(max(0, limit)))]),
        ]
        return try await database.transaction(beginning: first, until: deadline) { results throws(PostgresError) in
            var trimmed: Int64?
            for row in results[2].rows {
                guard let sequence = try row.integer(0), let written = try row.integer(1), written < time.milliseconds
                else { break }
                trimmed = sequence
            }
            guard let trimmed else { return nil }
            return [
                PostgresCommand(Statements.trim, [.integer(trimmed)]),
                PostgresCommand(Statements.noteTrimmed, [.integer(trimmed)]),
            ] + StoreDurability.commit
        }?.first?.affectedRows ?? 0
    }

    /// Whether the log has this entry. Its sealed octets are unique.
    func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool {
        let parameters: [PostgresValue] = [
            .text(entry.tenant.description), .text(entry.key), .bytes(entry.sealed),
        ]
        return try await database.query(Statements.appended, with: parameters) { result throws(PostgresError) in
            try result.first?.boolean(0) ?? false
        }
    }

    private static let noRow = PostgresError.unexpectedResult("the row of token_broker_log is missing")
}
