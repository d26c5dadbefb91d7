package import OAuth
package import Postgres
package import Reactor

/// Records in PostgreSQL 13 or later, shared by any number of replicas.
///
/// Nothing lives in a session but prepared statements, and those can be switched off: a pooler in transaction mode may
/// stand between.
///
/// A read that meets a lost connection is repeated once. A commit is not: it may have taken place. Whether it did is
/// found out by reading back what it wrote; see `resolve`.
///
/// Entries of the log are written without a sequence, so that no writer waits for another one. Readers give the
/// sequences, before they read; see `numberEntries`.
package struct PostgresRecordStore: RecordStore {
    package let revalidateAfter: Duration?

    private let pool: PostgresPool
    private let timeout: Duration
    private let report: @Sendable (PostgresError) -> Void

    /// How often a commit is tried that the server gave up in favour of another one.
    private static let attempts = 5
    /// Bounds how long the lock on the log is held.
    private static let numberedAtOnce: Int64 = 1000
    /// Room for the steps of a migration.
    private static let migrationTimeout: Duration = .seconds(90)

    /// Serialization failure and deadlock: the server has rolled back, and asks for a new attempt. The others say that
    /// a prepared statement was not there, which the connection that found out has put right.
    private static let transientStates: Set<String> = ["40001", "40P01", "26000", "42P05"]
    private static let uniqueViolation = "23505"

    /// Connects and brings the schema up to date.
    ///
    /// Every operation takes at most the configuration's `statementTimeout`, the wait for a connection included; a
    /// commit whose outcome is unknown takes as long again.
    /// - Parameters:
    ///   - revalidateAfter: how old what was read may become in a replica's memory. Default 5 s.
    ///   - report: told of each error before it becomes a `StoreError`, which cannot say as much. Called on `loop`
    ///     or the caller's executor; must not block.
    /// - Throws: `.unavailable` when PostgreSQL cannot be reached or refuses; `.damaged` when the schema is one that
    ///   this build cannot work with.
    package static func open(
        _ configuration: PostgresConfiguration, on loop: EventLoop, resolver: NameResolver,
        revalidateAfter: Duration = .seconds(5), report: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) async throws(StoreError) -> PostgresRecordStore {
        let store = PostgresRecordStore(
            revalidateAfter: revalidateAfter, pool: PostgresPool(configuration, on: loop, resolver: resolver),
            timeout: configuration.statementTimeout, report: report)
        do throws(StoreError) {
            try await store.migrate()
        } catch {
            await store.close()
            throw error
        }
        return store
    }

    private init(
        revalidateAfter: Duration?, pool: PostgresPool, timeout: Duration,
        report: @escaping @Sendable (PostgresError) -> Void
    ) {
        self.revalidateAfter = revalidateAfter
        self.pool = pool
        self.timeout = timeout
        self.report = report
    }

    // MARK: Reading

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try await select(id.kind, Statements.read, Self.names(id)).first
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try await select(kind, Statements.find, [.text(kind.rawValue), .bytes(lookup)]).first
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        // No tenant's name is empty, so the empty pair stands before every record.
        var parameters: [PostgresValue] = [
            .text(kind.rawValue), .text(after?.tenant.description ?? ""), .text(after?.key ?? ""),
            .integer(Int64(max(0, limit))),
        ]
        guard let tenant else { return try await select(kind, Statements.list, parameters) }
        parameters.append(.text(tenant.description))
        return try await select(kind, Statements.listOfTenant, parameters)
    }

    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        try await select(
            kind, Statements.due,
            [.text(kind.rawValue), .integer(now.milliseconds), .integer(Int64(max(0, limit)))])
    }

    package func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try await query(Statements.nextDue, [.text(kind.rawValue)]) { result throws(PostgresError) in
            try result.first?.integer(0).map { Timestamp(milliseconds: $0) }
        }
    }

    package func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await query(
            Statements.lapsed, [.text(kind.rawValue), .integer(Int64(max(0, limit)))]
        ) { result throws(PostgresError) in
            var lapsed: [LapsedLease] = []
            for row in result.rows {
                guard let name = try row.text(0), let key = try row.text(1), let version = try row.integer(2),
                    let holder = try row.text(3), let tenant = Self.tenant(named: name)
                else { throw .unexpectedResult("a lease has no name, version or holder") }
                lapsed.append(LapsedLease(id: RecordID(kind, tenant, key: key), version: version, holder: holder))
            }
            return lapsed
        }
    }

    package func watch(_ hear: @escaping @Sendable (StoreNews) -> Void) {}

    // MARK: The log

    package func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        let bounds = try await numberEntries()
        if sequence >= bounds.last { return [] }
        var parameters: [PostgresValue] = [.integer(sequence), .integer(Int64(max(0, limit)))]
        if let tenant { parameters.append(.text(tenant.description)) }
        let statement = tenant == nil ? Statements.entries : Statements.entriesOfTenant
        return try await query(statement, parameters) { result throws(PostgresError) in
            var entries: [PlacedLogEntry] = []
            for row in result.rows { entries.append(try Self.entry(row)) }
            return entries
        }
    }

    package func logBounds() async throws(StoreError) -> LogBounds {
        try await numberEntries()
    }

    /// Gives every entry its sequence that is committed and has none, and tells how far the log then reaches.
    ///
    /// Whoever holds the lock on the one row of `token_broker_log` sees all that was numbered before, and numbers go up
    /// only: so an entry that becomes visible late, its writer having been slow to commit, comes behind all that
    /// anybody has read.
    private func numberEntries() async throws(StoreError) -> LogBounds {
        while true {
            let (bounds, isPending) = try await query(Statements.log, []) { result throws(PostgresError) in
                guard let row = result.first, let last = try row.integer(0), let trimmed = try row.integer(1),
                    let isPending = try row.boolean(2)
                else { throw .unexpectedResult("the row of token_broker_log is not there") }
                return (LogBounds(trimmed: trimmed, last: last), isPending)
            }
            if !isPending { return bounds }
            let deadline = MonotonicInstant.after(timeout)
            let numbered = try await repeating { () async throws(PostgresError) in
                try await numberSome(until: deadline)
            }
            // Another reader was quicker, or this one is done when there was less than it may do at once.
            if let numbered, numbered.count < Self.numberedAtOnce { return numbered.bounds }
        }
    }

    /// Gives sequences to as many entries as one transaction may; nil where none waits for one.
    private func numberSome(
        until deadline: MonotonicInstant
    ) async throws(PostgresError) -> (bounds: LogBounds, count: Int64)? {
        try await transaction(until: deadline) { connection throws(PostgresError) -> (LogBounds, Int64)? in
            let bounds = try await Self.lockLog(on: connection, until: deadline)
            let result = try await connection.execute(
                Statements.number, [.integer(bounds.last), .integer(Self.numberedAtOnce)], until: deadline)
            guard let count = try result.first?.integer(0), let last = try result.first?.integer(1) else {
                return nil
            }
            _ = try await connection.execute(Statements.advanceLog, [.integer(last)], until: deadline)
            return (LogBounds(trimmed: bounds.trimmed, last: last), count)
        }
    }

    private static func lockLog(
        on connection: PostgresConnection, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> LogBounds {
        let result = try await connection.execute(Statements.lockLog, until: deadline)
        guard let row = result.first, let last = try row.integer(0), let trimmed = try row.integer(1) else {
            throw .unexpectedResult("the row of token_broker_log is not there")
        }
        return LogBounds(trimmed: trimmed, last: last)
    }

    // MARK: Writing

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        if changes.isEmpty { return }
        // In a task of its own, so that a caller who goes away does not leave a commit with an unknown outcome: it
        // ends by its deadlines.
        let settled = await Task { () async -> Result<Void, StoreError> in
            do throws(StoreError) {
                return .success(try await settle(changes))
            } catch {
                return .failure(error)
            }
        }.value
        try settled.get()
    }

    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        // Where nobody reads the log, its entries would never get their sequences, and never go.
        _ = try await numberEntries()
        let deadline = MonotonicInstant.after(timeout)
        return try await repeating { () async throws(PostgresError) in
            try await transaction(until: deadline) { connection throws(PostgresError) -> Int? in
                try await Self.trim(before: time, keeping: count, limit: limit, on: connection, until: deadline)
            }
        } ?? 0
    }

    /// Nil where nothing is to go.
    private static func trim(
        before time: Timestamp, keeping count: Int, limit: Int, on connection: PostgresConnection,
        until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Int? {
        let floor = try await lockLog(on: connection, until: deadline).floor(keeping: count)
        let oldest = try await connection.execute(Statements.oldest, [.integer(Int64(max(0, limit)))], until: deadline)
        var trimmed: Int64?
        for row in oldest.rows {
            guard let sequence = try row.integer(0), let written = try row.integer(1),
                sequence <= floor || written < time.milliseconds
            else { break }
            trimmed = sequence
        }
        guard let trimmed else { return nil }
        let removal = try await connection.execute(Statements.trim, [.integer(trimmed)], until: deadline)
        _ = try await connection.execute(Statements.noteTrimmed, [.integer(trimmed)], until: deadline)
        return removal.affectedRows
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        do throws(PostgresError) {
            return try await pool.execute(
                Statements.removeExpired, [.integer(now.milliseconds), .integer(Int64(max(0, limit)))],
                until: .after(timeout)
            ).affectedRows
        } catch {
            throw storeError(error)
        }
    }

    // MARK: The store as a whole

    package func check() async throws(StoreError) {
        let deadline = MonotonicInstant.after(timeout)
        let isWritable: Bool
        let schema: Migrations.SchemaState
        do throws(PostgresError) {
            (isWritable, schema) = try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
                let state = try await connection.execute(Statements.state, until: deadline).first
                let (isReplica, isReadOnly) = (try state?.boolean(0), try state?.text(1))
                let schema = try await Migrations.state(of: connection, until: deadline)
                return (isReplica == false && isReadOnly == "off", schema)
            }
        } catch {
            throw storeError(error)
        }
        if !isWritable { throw storeError(.server(sqlstate: "25006")) }
        try Self.checkSchema(schema)
    }

    package func close() async {
        await pool.close()
    }

    private func migrate() async throws(StoreError) {
        let schema: Migrations.SchemaState
        do throws(PostgresError) {
            schema = try await Migrations.apply(through: pool, until: .after(Self.migrationTimeout))
        } catch {
            throw storeError(error)
        }
        try Self.checkSchema(schema)
    }

    private static func checkSchema(_ state: Migrations.SchemaState) throws(StoreError) {
        let known = Migrations.all.last?.version ?? 0
        switch state {
        case .usable: return
        case .behind(let version):
            throw .damaged("PostgreSQL: the schema has version \(version), this build needs \(known): restart it")
        case .tooNew(let version):
            throw .damaged(
                "PostgreSQL: the schema has version \(version), this build knows \(known): run a newer build")
        }
    }

    // MARK: Commits

    private func settle(_ changes: [RecordChange]) async throws(StoreError) {
        let changes = Self.inLockOrder(changes)
        // Requirements, the removal of all that a tenant has, and claims come to the same when they are done twice.
        let isRepeatable = changes.allSatisfy { change in
            switch change {
            case .require, .removeAll, .claim: true
            case .insert, .replace, .remove, .settleDue, .release, .append: false
            }
        }
        let deadline = MonotonicInstant.after(timeout)
        for _ in 0..<Self.attempts {
            let attempt: Result<Bool, PostgresError>
            do throws(PostgresError) {
                attempt = .success(try await apply(changes, until: deadline))
            } catch {
                attempt = .failure(error)
            }
            switch attempt {
            case .success(true): return
            case .success(false), .failure(.server(Self.uniqueViolation)): throw .conflict
            case .failure(.server(let sqlstate)) where Self.transientStates.contains(sqlstate): continue
            case .failure(let error):
                guard error.leavesOutcomeUnknown else { throw storeError(error) }
                report(error)
                if !isRepeatable { return try await resolve(changes) }
            }
        }
        throw .unavailable
    }

    /// The order in which every commit touches records, so that two of them do not wait for each other: existing
    /// records before new ones, and tenants' records before all that stand under them.
    ///
    /// It is also the order in which the changes mean what they say. What a removal frees can be inserted, a tenant's
    /// record is checked before the tenant is removed, and entries come last, each in its place among them: those of a
    /// removed tenant have gone before.
    static func inLockOrder(_ changes: [RecordChange]) -> [RecordChange] {
        func place(_ change: RecordChange) -> (phase: Int, id: RecordID) {
            switch change {
            case .require(let id), .remove(let id, _), .settleDue(let id, _, _, _), .claim(let id, _, _, _, _),
                .release(let id, _, _, _):
                (id.kind == .tenant ? 0 : 1, id)
            case .replace(let record, _, _): (record.id.kind == .tenant ? 0 : 1, record.id)
            case .removeAll(let tenant): (2, RecordID(.tenant, tenant))
            case .insert(let record): (record.id.kind == .tenant ? 3 : 4, record.id)
            case .append(let entry): (5, RecordID(.tenant, entry.tenant))
            }
        }
        return changes.filter { !$0.appends }.sorted { place($0) < place($1) } + changes.filter(\.appends)
    }

    /// Makes the changes; false when one of them is in conflict, and then none is made.
    private func apply(
        _ changes: [RecordChange], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Bool {
        if let change = changes.first, changes.count == 1, !change.takesSeveralStatements {
            // One statement is a transaction by itself.
            return try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
                try await Self.apply(change, on: connection, until: deadline)
            }
        }
        return try await transaction(until: deadline) { connection throws(PostgresError) -> Bool? in
            var isCleared = false
            for change in changes {
                if change.appends, !isCleared {
                    try await Self.clearLog(changes, on: connection, until: deadline)
                    isCleared = true
                }
                guard try await Self.apply(change, on: connection, until: deadline) else { return nil }
            }
            if !isCleared { try await Self.clearLog(changes, on: connection, until: deadline) }
            return true
        } ?? false
    }

    /// Runs `body` in a transaction, which is rolled back where that returns nil or throws.
    private func transaction<Value: Sendable>(
        until deadline: MonotonicInstant,
        _ body: @Sendable (PostgresConnection) async throws(PostgresError) -> Value?
    ) async throws(PostgresError) -> Value? {
        try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
            _ = try await connection.execute(Statements.begin, until: deadline)
            do throws(PostgresError) {
                let value = try await body(connection)
                let end = value == nil ? Statements.rollback : Statements.commit
                _ = try await connection.execute(end, until: deadline)
                return value
            } catch {
                // So that the pool can keep the connection. Whether it works changes nothing for the caller: a
                // transaction that is left open goes with its connection.
                if !error.leavesOutcomeUnknown {
                    _ = try? await connection.execute(Statements.rollback, until: deadline)
                }
                throw error
            }
        }
    }

    /// Removes the entries of the tenants that the changes remove. Under the log's lock, so that none of them is being
    /// numbered; and after all that may have to wait for others, for readers wait for that lock.
    private static func clearLog(
        _ changes: [RecordChange], on connection: PostgresConnection, until deadline: MonotonicInstant
    ) async throws(PostgresError) {
        var isLocked = false
        for case .removeAll(let tenant) in changes {
            if !isLocked { _ = try await lockLog(on: connection, until: deadline) }
            isLocked = true
            _ = try await connection.execute(
                Statements.removeTenantEntries, [.text(tenant.description)], until: deadline)
        }
    }

    /// Makes one change; false when it is in conflict.
    private static func apply(
        _ change: RecordChange, on connection: PostgresConnection, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Bool {
        let result: PostgresResult
        switch change {
        case .insert(let record):
            result = try await connection.execute(Statements.insert, values(record), until: deadline)
        case .replace(let record, let version, nil):
            result = try await connection.execute(
                Statements.replace, values(record) + [.integer(version)], until: deadline)
        case .replace(let record, let version, let holder?):
            result = try await connection.execute(
                Statements.replaceFenced, values(record) + [.integer(version), .text(holder)], until: deadline)
        case .remove(let id, let version):
            result = try await connection.execute(
                Statements.remove, names(id) + [.integer(version)], until: deadline)
        case .settleDue(let id, let version, let due, let next):
            result = try await connection.execute(
                Statements.settleDue,
                names(id) + [.integer(version), .integer(due?.milliseconds), .integer(next?.milliseconds)],
                until: deadline)
        case .claim(let id, let version, let holder, let replacing, let duration):
            result = try await connection.execute(
                Statements.claim,
                names(id) + [
                    .integer(version), .text(holder), .text(replacing), .integer(duration.milliseconds),
                ], until: deadline)
        case .release(let id, let version, let holder, let isSettled):
            result = try await connection.execute(
                isSettled ? Statements.release : Statements.giveUp,
                names(id) + [.integer(version), .text(holder)], until: deadline)
        case .append(let entry):
            result = try await connection.execute(Statements.append, values(entry), until: deadline)
        case .require(let id):
            result = try await connection.execute(Statements.require, names(id), until: deadline)
        case .removeAll(let tenant):
            let parameters: [PostgresValue] = [.text(tenant.description), .text(RecordKind.tenant.rawValue)]
            _ = try await connection.execute(Statements.removeTenant, parameters, until: deadline)
            _ = try await connection.execute(Statements.removeTenantRecords, parameters, until: deadline)
            return true
        }
        return result.affectedRows == 1
    }

    /// Finds out what became of a commit whose answer did not arrive.
    ///
    /// Sealing draws a new nonce each time, so a record or an entry that holds exactly our bytes was written by this
    /// commit, and one such proves all its changes. Without that proof, a record that is no longer what a change named is a
    /// conflict: the world moved on, by us or by another, and the caller must read again. Removals alone leave nothing
    /// that could prove who made them; that they count as a conflict, too, keeps what may be claimed once from being
    /// claimed twice. When all is still as it was, the commit did not take place, or has not yet: `.unavailable`. A
    /// later attempt names the same versions, so that the two cannot both succeed; where there are entries alone, it is
    /// for the caller to choose between none and two.
    private func resolve(_ changes: [RecordChange]) async throws(StoreError) {
        var hasMoved = false
        for change in changes {
            switch change {
            case .insert(let record):
                guard let found = try await read(record.id) else { continue }
                if found.version == record.version, found.sealed == record.sealed { return }
                hasMoved = true
            case .replace(let record, let version, _):
                let found = try await read(record.id)
                if let found, found.version == record.version, found.sealed == record.sealed { return }
                if found?.version != version { hasMoved = true }
            case .remove(let id, let version):
                if try await read(id)?.version != version { hasMoved = true }
            case .settleDue(let id, let version, let due, let next):
                let found = try await read(id)
                if found?.version != version || found?.due == nil || found?.due == next
                    || due != nil && found?.due != due
                {
                    hasMoved = true
                }
            case .claim(let id, let version, let holder, _, _):
                let found = try await read(id)
                // Nobody else uses that name.
                if found?.version == version, found?.lease?.holder == holder { return }
                if found?.version != version { hasMoved = true }
            case .release(let id, let version, let holder, let isSettled):
                let found = try await read(id)
                if found?.version != version || found?.lease?.holder != holder { hasMoved = true }
                if !isSettled, found?.version == version, found?.lease?.wasGivenUp == true { return }
            case .append(let entry):
                if try await isAppended(entry) { return }
            case .require(let id):
                if try await read(id) == nil { hasMoved = true }
            case .removeAll:
                continue
            }
        }
        throw hasMoved ? .conflict : .unavailable
    }

    // MARK: Values and errors

    private func select(
        _ kind: RecordKind, _ statement: PostgresStatement, _ parameters: [PostgresValue]
    ) async throws(StoreError) -> [StoredRecord] {
        try await query(statement, parameters) { result throws(PostgresError) in
            var records: [StoredRecord] = []
            for row in result.rows { records.append(try Self.record(kind, row)) }
            return records
        }
    }

    private func isAppended(_ entry: StoredLogEntry) async throws(StoreError) -> Bool {
        let parameters: [PostgresValue] = [
            .text(entry.tenant.description), .text(entry.key), .bytes(entry.sealed),
        ]
        return try await query(Statements.appended, parameters) { result throws(PostgresError) in
            try result.first?.boolean(0) ?? false
        }
    }

    private func query<Value>(
        _ statement: PostgresStatement, _ parameters: [PostgresValue],
        _ read: (PostgresResult) throws(PostgresError) -> Value
    ) async throws(StoreError) -> Value {
        let deadline = MonotonicInstant.after(timeout)
        let result = try await repeating { () async throws(PostgresError) in
            try await pool.execute(statement, parameters, until: deadline)
        }
        do throws(PostgresError) {
            return try read(result)
        } catch {
            throw storeError(error)
        }
    }

    /// Does what comes to the same when it is done twice.
    private func repeating<Value: Sendable>(
        _ body: () async throws(PostgresError) -> Value
    ) async throws(StoreError) -> Value {
        var hasLostConnection = false
        for _ in 1..<Self.attempts {
            do throws(PostgresError) {
                return try await body()
            } catch {
                if case .server(let sqlstate) = error, Self.transientStates.contains(sqlstate) { continue }
                // The connection may have died while it lay idle. Another one is as good, unless time is up.
                guard error.makesServerSuspect, error != .timedOut, !hasLostConnection else { throw storeError(error) }
                hasLostConnection = true
                report(error)
            }
        }
        do throws(PostgresError) {
            return try await body()
        } catch {
            throw storeError(error)
        }
    }

    private func storeError(_ error: PostgresError) -> StoreError {
        report(error)
        switch error {
        case .server(let sqlstate) where sqlstate.hasPrefix("42") || sqlstate.hasPrefix("3F"):
            return .damaged(
                "PostgreSQL: the tables token_broker_records, token_broker_events, token_broker_log and "
                    + "token_broker_schema, or the role's rights on them, are not what this build needs "
                    + "(SQLSTATE \(sqlstate))")
        case .unexpectedResult(let text):
            return .damaged("PostgreSQL: the tables of the store are not what this build needs: \(text)")
        default:
            return .unavailable
        }
    }

    private static func names(_ id: RecordID) -> [PostgresValue] {
        [.text(id.kind.rawValue), .text(id.tenant.description), .text(id.key)]
    }

    private static func values(_ record: StoredRecord) -> [PostgresValue] {
        names(record.id) + [
            .integer(record.version), .bytes(record.sealed), .bytes(record.lookup),
            .integer(record.expires?.milliseconds), .integer(record.due?.milliseconds),
        ]
    }

    private static func values(_ entry: StoredLogEntry) -> [PostgresValue] {
        [
            .text(entry.tenant.description), .text(entry.key), .integer(entry.version),
            .integer(entry.time.milliseconds), .bytes(entry.sealed),
        ]
    }

    private static func entry(_ row: PostgresResult.Row) throws(PostgresError) -> PlacedLogEntry {
        guard let sequence = try row.integer(0), let name = try row.text(1), let key = try row.text(2),
            let version = try row.integer(3), let time = try row.integer(4), let sealed = try row.bytes(5),
            let tenant = tenant(named: name)
        else { throw .unexpectedResult("an entry of the log has no place, name or content") }
        return PlacedLogEntry(
            sequence: sequence,
            entry: StoredLogEntry(
                tenant: tenant, key: key, version: version, time: Timestamp(milliseconds: time), sealed: sealed))
    }

    private static func tenant(named name: String) -> TenantName? {
        name == TenantName.broker.description ? .broker : TenantName(name)
    }

    private static func lease(_ row: PostgresResult.Row) throws(PostgresError) -> Lease? {
        guard let holder = try row.text(7) else { return nil }
        guard let remaining = try row.integer(8) else {
            return Lease(holder: holder, remaining: .zero, wasGivenUp: true)
        }
        return Lease(holder: holder, remaining: .milliseconds(remaining))
    }

    private static func record(_ kind: RecordKind, _ row: PostgresResult.Row) throws(PostgresError) -> StoredRecord {
        guard let name = try row.text(0), let key = try row.text(1), let version = try row.integer(2),
            let sealed = try row.bytes(3),
            let tenant = tenant(named: name)
        else { throw .unexpectedResult("a record has no name, version or content") }
        return StoredRecord(
            id: RecordID(kind, tenant, key: key), version: version, sealed: sealed, lookup: try row.bytes(4),
            expires: try row.integer(5).map { Timestamp(milliseconds: $0) },
            due: try row.integer(6).map { Timestamp(milliseconds: $0) }, lease: try lease(row))
    }
}

extension RecordChange {
    /// Whether the change is more than one statement, and so needs a transaction even alone.
    fileprivate var takesSeveralStatements: Bool {
        if case .removeAll = self { return true }
        return false
    }

    fileprivate var appends: Bool {
        if case .append = self { return true }
        return false
    }
}
