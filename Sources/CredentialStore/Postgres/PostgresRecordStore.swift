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

    /// Where the store hears of the commits of others.
    package enum Listening: Sendable {
        /// On one more connection to where the store's own lead, or nowhere where those lead to a pooler: LISTEN needs a
        /// session of its own.
        case automatic
        /// At the same database, on a connection made as this says.
        case through(PostgresConfiguration)
        /// Nowhere, and others are not told either: for servers that have neither LISTEN nor pg_notify. It must be the
        /// same for every replica.
        case off
    }

    private let pool: PostgresPool
    private let feed: CommitFeed
    private let lineageWatch: LineageWatch
    /// Nil where others are not told.
    private let notifier: CommitNotifier?
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

    /// Connects and brings the schema up to date, or sees that it is.
    ///
    /// Every operation takes at most the configuration's `statementTimeout`, the wait for a connection included; a
    /// commit whose outcome is unknown takes as long again.
    /// - Parameters:
    ///   - migrates: whether the schema may be changed. If not, one that lacks steps is `.damaged`, and a role suffices
    ///     that can read and write the tables. Default true.
    ///   - listening: how `watch` hears of commits. Default automatic.
    ///   - heartbeat: how soon `watch` notices that it hears nothing any more. Default 2 s and 3 s.
    ///   - revalidateAfter: how old what was read may become in a replica's memory. Default 5 s.
    ///   - report: told of each error before it becomes a `StoreError`, which cannot say as much. Called on `loop`
    ///     or the caller's executor; must not block.
    /// - Throws: `.unavailable` when PostgreSQL cannot be reached or refuses; `.damaged` when the schema is one that
    ///   this build cannot work with.
    package static func open(
        _ configuration: PostgresConfiguration, on loop: EventLoop, resolver: NameResolver, migrates: Bool = true,
        listening: Listening = .automatic, heartbeat: PostgresListener.Settings = PostgresListener.Settings(),
        revalidateAfter: Duration = .seconds(5), report: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) async throws(StoreError) -> PostgresRecordStore {
        let lineage = LineageWatch(usesPooler: configuration.usesPooler, report: report)
        let pool = PostgresPool(configuration, on: loop, resolver: resolver) {
            connection, deadline throws(PostgresError) in
            try await lineage.ask(connection, until: deadline)
        }
        let source: PostgresConfiguration?
        var notifier: CommitNotifier? = CommitNotifier(pool, timeout: configuration.statementTimeout)
        switch listening {
        case .automatic: source = configuration.usesPooler ? nil : configuration
        case .through(let direct): source = direct
        case .off: (source, notifier) = (nil, nil)
        }
        let feed = CommitFeed(report: report) { hear in
            source.map { source in
                PostgresListener(source, channel: Statements.channel, settings: heartbeat, on: loop, resolver: resolver)
                {
                    payload, deadline throws(PostgresError) in
                    _ = try await pool.execute(Statements.notify, [.text(payload)], until: deadline)
                } hear: {
                    hear($0)
                }
            }
        }
        let store = PostgresRecordStore(
            revalidateAfter: revalidateAfter, pool: pool, feed: feed, lineage: lineage, notifier: notifier,
            timeout: configuration.statementTimeout, report: report)
        do throws(StoreError) {
            try await store.prepareSchema(migrates: migrates)
        } catch {
            await store.close()
            throw error
        }
        return store
    }

    private init(
        revalidateAfter: Duration?, pool: PostgresPool, feed: CommitFeed, lineage: LineageWatch,
        notifier: CommitNotifier?, timeout: Duration, report: @escaping @Sendable (PostgresError) -> Void
    ) {
        self.revalidateAfter = revalidateAfter
        self.pool = pool
        self.feed = feed
        lineageWatch = lineage
        self.notifier = notifier
        self.timeout = timeout
        self.report = report
    }

    // MARK: Reading

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try await selectOne(id.kind, Statements.read, PostgresCommit.names(id))
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try await selectOne(kind, Statements.find, [.text(kind.rawValue), .bytes(lookup)])
    }

    /// By itself on a connection: it takes the server as long as hundreds of reads, none of which is to wait for it.
    package func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        if ids.isEmpty { return [] }
        let parameters: [PostgresValue] = [
            .texts(ids.map(\.kind.rawValue)), .texts(ids.map(\.tenant.description)), .texts(ids.map(\.key)),
        ]
        return try await query(Statements.versions, parameters) { result throws(PostgresError) in
            guard let versions = try result.first?.integers(0), versions.count == ids.count else {
                throw .unexpectedResult("there are not as many versions as records were asked for")
            }
            return versions
        }
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

    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        let parameters: [PostgresValue] = [
            .text(tenant.description), .integer(now.milliseconds), .integer(Int64(max(0, limit))),
        ]
        return try await query(Statements.countDue(kind), parameters) { result throws(PostgresError) in
            guard let count = try result.first?.integer(0) else { throw .unexpectedResult("a count is missing") }
            return Int(count)
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

    package func watch(_ hear: @escaping @Sendable (StoreNews) -> Void) {
        lineageWatch.watch(hear)
        feed.watch(hear)
    }

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
            let known = lineageWatch.known()
            let (bounds, isPending) = try await query(Statements.log, []) { result throws(PostgresError) in
                guard let row = result.first, let last = try row.integer(0), let trimmed = try row.integer(1),
                    let isPending = try row.boolean(2)
                else { throw .unexpectedResult("the row of token_broker_log is not there") }
                return (LogBounds(trimmed: trimmed, last: last), isPending)
            }
            if let end = lineageWatch.note(sequence: bounds.last, since: known) {
                try await skipSequences(to: end)
                continue
            }
            if !isPending { return bounds }
            let deadline = MonotonicInstant.after(timeout)
            let numbered = try await repeating { () async throws(PostgresError) in
                try await numberSome(until: deadline)
            }
            // Another reader was quicker, or this one is done when there was less than it may do at once.
            if let numbered, numbered.count < Self.numberedAtOnce {
                if lineageWatch.note(sequence: numbered.bounds.last, since: known) == nil { return numbered.bounds }
            }
        }
    }

    /// After the store has gone back: gives no sequence a second time.
    private func skipSequences(to end: Int64) async throws(StoreError) {
        let deadline = MonotonicInstant.after(timeout)
        _ = try await repeating { () async throws(PostgresError) in
            try await whole(
                [
                    PostgresCommand(Statements.begin), PostgresCommand(Statements.lockLog),
                    PostgresCommand(Statements.skipSequences, [.integer(end)]), PostgresCommand(Statements.commit),
                ], until: deadline)
        }
    }

    /// Gives sequences to as many entries as one transaction may; nil where none waits for one.
    private func numberSome(
        until deadline: MonotonicInstant
    ) async throws(PostgresError) -> (bounds: LogBounds, count: Int64)? {
        let results = try await whole(
            [
                PostgresCommand(Statements.begin), PostgresCommand(Statements.lockLog),
                PostgresCommand(Statements.number, [.integer(Self.numberedAtOnce)]), PostgresCommand(Statements.commit),
            ], until: deadline)
        guard let row = results[2].first, let last = try row.integer(0), let trimmed = try row.integer(1),
            let count = try row.integer(2)
        else { return nil }
        return (LogBounds(trimmed: trimmed, last: last), count)
    }

    // MARK: Writing

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        if changes.isEmpty { return }
        // In a task of its own, so that a caller who goes away does not leave a commit with an unknown outcome: it
        // ends by its deadlines.
        let settled = await Task(executorPreference: pool.executor) { () async -> Result<Void, StoreError> in
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
            try await trimSome(before: time, keeping: count, limit: limit, until: deadline)
        }
    }

    private func trimSome(
        before time: Timestamp, keeping count: Int, limit: Int, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Int {
        let first = [
            PostgresCommand(Statements.begin), PostgresCommand(Statements.lockLog),
            PostgresCommand(Statements.oldest, [.integer(Int64(max(0, limit)))]),
        ]
        return try await transaction(first, until: deadline) { results throws(PostgresError) in
            guard let row = results[1].first, let last = try row.integer(0), let before = try row.integer(1) else {
                throw .unexpectedResult("the row of token_broker_log is not there")
            }
            let floor = LogBounds(trimmed: before, last: last).floor(keeping: count)
            var trimmed: Int64?
            for row in results[2].rows {
                guard let sequence = try row.integer(0), let written = try row.integer(1),
                    sequence <= floor || written < time.milliseconds
                else { break }
                trimmed = sequence
            }
            guard let trimmed else { return nil }
            return [
                PostgresCommand(Statements.trim, [.integer(trimmed)]),
                PostgresCommand(Statements.noteTrimmed, [.integer(trimmed)]), PostgresCommand(Statements.commit),
            ]
        }?.first?.affectedRows ?? 0
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

    package func clock() async throws(StoreError) -> Timestamp? {
        try await query(Statements.time, []) { result throws(PostgresError) in
            guard let milliseconds = try result.first?.integer(0) else {
                throw .unexpectedResult("the server does not tell the time")
            }
            return Timestamp(milliseconds: milliseconds)
        }
    }

    package func lineage() async throws(StoreError) -> StoreLineage? {
        let deadline = MonotonicInstant.after(timeout)
        do throws(PostgresError) {
            return try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
                try await lineageWatch.ask(connection, until: deadline)
            }
        } catch {
            throw storeError(error)
        }
    }

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
        await feed.close()
        await notifier?.close()
        await pool.close()
    }

    private func prepareSchema(migrates: Bool) async throws(StoreError) {
        let schema: Migrations.SchemaState
        do throws(PostgresError) {
            if migrates {
                schema = try await Migrations.apply(through: pool, until: .after(Self.migrationTimeout))
            } else {
                let deadline = MonotonicInstant.after(timeout)
                schema = try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
                    try await Migrations.state(of: connection, until: deadline)
                }
            }
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
            throw .damaged(
                "PostgreSQL: the schema has version \(version), this build needs \(known): run token-broker migrate")
        case .tooNew(let version):
            throw .damaged(
                "PostgreSQL: the schema has version \(version), this build knows \(known): run a newer build")
        }
    }

    // MARK: Commits

    private func settle(_ changes: [RecordChange]) async throws(StoreError) {
        let changes = Self.inLockOrder(changes)
        let notice = notifier == nil ? nil : CommitNotice.text(changes)
        var commit = PostgresCommit(changes, notice: notice)
        let asks = changes.contains(where: \.claims) && lineageWatch.asksWithClaims
        if asks { commit = commit.asking(Statements.lineage) }
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
                attempt = .success(try await apply(commit, asksForLineage: asks, until: deadline))
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
                if notice != nil { notifier?.doubt() }
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
            case .require(let id), .remove(let id, _), .settleDue(let id, _, _, _), .claim(let id, _, _),
                .release(let id, _, _, _):
                (id.kind == .tenant ? 0 : 1, id)
            case .replace(let record, _, _): (record.id.kind == .tenant ? 0 : 1, record.id)
            case .removeAll(let tenant): (2, RecordID(.tenant, tenant))
            case .insert(let record): (record.id.kind == .tenant ? 3 : 4, record.id)
            case .append: (5, RecordID(.tenant, .broker))
            }
        }
        // As nearly every commit is made.
        if zip(changes, changes.dropFirst()).allSatisfy({ !(place($1) < place($0)) }) { return changes }
        return changes.filter { !$0.appends }.sorted { place($0) < place($1) } + changes.filter(\.appends)
    }

    /// Makes the changes; false when one of them is in conflict, and then none is made.
    /// - Parameter asksForLineage: whether the second statement is the question for the lineage.
    private func apply(
        _ commit: PostgresCommit, asksForLineage: Bool, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Bool {
        let known = lineageWatch.known()
        switch commit {
        case .alone(let command):
            return try await pool.execute(command.statement, command.parameters, until: deadline).affectedRows == 1
        case .inOne(let commands, let decisive, let end):
            let results = try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
                try await Self.rollingBack(connection, until: deadline) { () async throws(PostgresError) in
                    try await self.conclude(commands, end: end, on: connection, until: deadline)
                }
            }
            if asksForLineage { try lineageWatch.note(results[1], since: known) }
            return decisive.map { results[$0].affectedRows == 1 } ?? true
        case .inTwo(let first, let decisive, let last, let end):
            return try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
                try await Self.rollingBack(connection, until: deadline) { () async throws(PostgresError) in
                    let results = try await connection.pipeline(first, until: deadline)
                    if asksForLineage { try self.lineageWatch.note(results[1], since: known) }
                    guard decisive.allSatisfy({ results[$0].affectedRows == 1 }) else {
                        _ = try await connection.execute(Statements.rollback, until: deadline)
                        return false
                    }
                    _ = try await self.conclude(last, end: end, on: connection, until: deadline)
                    return true
                }
            }
        }
    }

    /// Runs the end of a transaction, with its COMMIT at `end` and what is to be told behind that.
    private func conclude(
        _ commands: [PostgresCommand], end: Int, on connection: PostgresConnection, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresResult] {
        let (results, failure) = await connection.outcome(of: commands, until: deadline)
        if let failure {
            guard results.count > end else { throw failure }
            report(failure)
            notifier?.doubt()
        }
        return results
    }

    /// Runs all of a transaction in one round trip.
    private func whole(
        _ commands: [PostgresCommand], until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresResult] {
        try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
            try await Self.rollingBack(connection, until: deadline) { () async throws(PostgresError) in
                try await connection.pipeline(commands, until: deadline)
            }
        }
    }

    /// Runs a transaction in two round trips. `decide` sees the results of `first`, which begins it, and gives the rest,
    /// which commits it, or nil to roll it back.
    /// - Returns: the results of the rest; nil when there was none.
    private func transaction(
        _ first: [PostgresCommand], until deadline: MonotonicInstant,
        _ decide: @Sendable ([PostgresResult]) throws(PostgresError) -> [PostgresCommand]?
    ) async throws(PostgresError) -> [PostgresResult]? {
        try await pool.withConnection(until: deadline) { connection throws(PostgresError) in
            try await Self.rollingBack(connection, until: deadline) { () async throws(PostgresError) in
                let results = try await connection.pipeline(first, until: deadline)
                if let last = try decide(results) { return try await connection.pipeline(last, until: deadline) }
                _ = try await connection.execute(Statements.rollback, until: deadline)
                return nil
            }
        }
    }

    /// Rolls back the transaction that `body` leaves open by an error, so that the pool can keep the connection. Whether
    /// that works changes nothing for the caller: a transaction that is left open goes with its connection.
    private static func rollingBack<Value>(
        _ connection: PostgresConnection, until deadline: MonotonicInstant,
        _ body: () async throws(PostgresError) -> Value
    ) async throws(PostgresError) -> Value {
        do throws(PostgresError) {
            return try await body()
        } catch {
            if !error.leavesOutcomeUnknown, await connection.isInTransaction {
                _ = try? await connection.execute(Statements.rollback, until: deadline)
            }
            throw error
        }
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
            case .claim(let id, let version, let claim):
                let found = try await read(id)
                // Nobody else uses that name. But the lease may have been its own before, and then shows nothing of the
                // entries.
                if found?.version == version, found?.lease?.holder == claim.holder, !changes.contains(where: \.appends)
                {
                    return
                }
                if found?.version != version { hasMoved = true }
            case .release(let id, let version, let holder, let release):
                let found = try await read(id)
                if found?.version != version || found?.lease?.holder != holder { hasMoved = true }
                if release.isDone(found?.lease), found?.version == version { return }
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

    /// One record, by what an index has once: it takes the server so little time that reads which come together share a
    /// pipeline, where none waits for another to be slow.
    private func selectOne(
        _ kind: RecordKind, _ statement: PostgresStatement, _ parameters: [PostgresValue]
    ) async throws(StoreError) -> StoredRecord? {
        let deadline = MonotonicInstant.after(timeout)
        let result = try await repeating { () async throws(PostgresError) in
            try await pool.read(statement, parameters, until: deadline)
        }
        do throws(PostgresError) {
            return try result.first.map { row throws(PostgresError) in try Self.record(kind, row) }
        } catch {
            throw storeError(error)
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
        let (remaining, state) = (try row.integer(8), try row.integer(10) ?? 0)
        var failure: LeaseFailure?
        if state & Statements.LeaseState.wasGivenUp != 0, let code = try row.text(11), let left = try row.integer(12),
            left > 0
        {
            failure = LeaseFailure(code: code, remaining: .milliseconds(left))
        }
        let isSettled = state & Statements.LeaseState.isSettled != 0
        let wasGivenUp = remaining == nil || state & Statements.LeaseState.wasGivenUp != 0
        return Lease(
            holder: holder, remaining: wasGivenUp ? .zero : .milliseconds(remaining ?? 0), wasGivenUp: wasGivenUp,
            sinceFirstUse: try row.integer(9).map { .milliseconds($0) },
            isOpen: state & Statements.LeaseState.isOpen != 0, isSettled: isSettled, failure: failure)
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

extension LeaseRelease {
    /// Whether a lease that still has the holder's name shows that this took place.
    fileprivate func isDone(_ lease: Lease?) -> Bool {
        switch outcome {
        case .settled: lease?.isSettled == true
        case .unknown: lease?.wasGivenUp == true && lease?.isSettled == false
        case .open: lease?.hasRunOut == true && lease?.isOpen == true
        }
    }
}

extension RecordChange {
    fileprivate var claims: Bool {
        if case .claim = self { return true }
        return false
    }

    fileprivate var appends: Bool {
        if case .append = self { return true }
        return false
    }
}
