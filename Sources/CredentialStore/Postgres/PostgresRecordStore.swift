package import OAuth
package import Postgres
package import Reactor

/// Records in PostgreSQL 13 or later, shared by any number of replicas.
///
/// Sessions hold no state except prepared statements, which can be switched off, so connections may lead to a pooler in
/// transaction mode.
///
/// A read whose connection is lost is repeated once. A commit is not repeated, because it may have taken place: the
/// store reads the records back to find out; see `PostgresCommitter`.
package struct PostgresRecordStore: RecordStore {
    package let revalidateAfter: Duration?

    /// On which connection the store listens for the commits of other replicas.
    package enum Listening: Sendable {
        /// On one more connection with the store's own configuration. With a pooler the store does not listen, because
        /// LISTEN needs a session of its own.
        case automatic
        /// On a connection with this configuration, to the same database.
        case through(PostgresConfiguration)
        /// On none, and other replicas are not notified: for servers without LISTEN and pg_notify. All replicas must
        /// have the same setting.
        case off
    }

    private let database: StoreDatabase
    private let log: PostgresLog
    private let committer: PostgresCommitter
    private let feed: CommitFeed
    private let lineageWatch: LineageWatch
    private let privileges = PrivilegeCheck()
    /// Nil when other replicas are not notified.
    private let notifier: CommitNotifier?

    /// The time limit of all migrations together.
    private static let migrationTimeout: Duration = .seconds(90)

    /// Connects, and applies missing migrations or checks that none is missing.
    ///
    /// Every operation takes at most the configuration's `statementTimeout`, including the wait for a connection. A
    /// commit whose outcome is unknown takes up to twice as long.
    /// - Parameters:
    ///   - migrates: whether the schema may be changed. If not, a schema that lacks migrations is `.damaged`, and the
    ///     role needs no privilege but to read and write the tables. Default true.
    ///   - listening: how `watch` hears of commits. Default automatic.
    ///   - heartbeat: how soon `watch` notices a connection that has died. Default: every 2 s, with a limit of 3 s.
    ///   - revalidateAfter: how old a cached value may become before it is revalidated. Default 5 s.
    ///   - report: called with each error before it becomes a `StoreError`, which says less. Called on `loop` or on the
    ///     caller's executor. Must not block.
    ///   - reportFlaw: called with each reason why commits may be gone after a crash of the server, also more than once.
    /// - Throws: `.unavailable` when PostgreSQL cannot be reached or refuses; `.damaged` when this build cannot work
    ///   with the schema.
    package static func open(
        _ configuration: PostgresConfiguration, on loop: EventLoop, resolver: NameResolver, migrates: Bool = true,
        listening: Listening = .automatic, heartbeat: PostgresListener.Settings = PostgresListener.Settings(),
        revalidateAfter: Duration = .seconds(5),
        report: @escaping @Sendable (PostgresError) -> Void = { _ in },
        reportFlaw: @escaping @Sendable (DurabilityFlaw) -> Void = { _ in }
    ) async throws(StoreError) -> PostgresRecordStore {
        let lineage = LineageWatch(usesPooler: configuration.usesPooler, report: report)
        let sessions = SessionCheck(usesPooler: configuration.usesPooler)
        let pool = PostgresPool(configuration, on: loop, resolver: resolver) {
            connection, deadline throws(PostgresError) in
            try await sessions.ask(connection, until: deadline)
            try await lineage.ask(connection, until: deadline)
        }
        let source: PostgresConfiguration?
        var notifier: CommitNotifier? = CommitNotifier(pool, timeout: configuration.statementTimeout)
        switch listening {
        case .automatic: source = configuration.usesPooler ? nil : configuration
        case .through(let direct): source = direct
        case .off: (source, notifier) = (nil, nil)
        }
        let feed = CommitFeed(on: pool.executor, report: report) { notify in
            source.map { source in
                PostgresListener(source, channel: Statements.channel, settings: heartbeat, on: loop, resolver: resolver)
                {
                    payload, deadline throws(PostgresError) in
                    _ = try await pool.execute(Statements.notify, [.text(payload)], until: deadline)
                } hear: {
                    notify($0)
                }
            }
        }
        let store = PostgresRecordStore(
            StoreDatabase(pool: pool, timeout: configuration.statementTimeout, report: report),
            revalidateAfter: revalidateAfter, feed: feed, lineage: lineage,
            durability: StoreDurability(report: reportFlaw), notifier: notifier)
        do throws(StoreError) {
            try await store.prepareSchema(migrates: migrates)
        } catch {
            await store.close()
            throw error
        }
        do throws(StoreError) {
            for flaw in try await store.durabilityFlaws() { reportFlaw(flaw) }
        } catch {
            // Reported. A server that does not tell its settings can still be used.
        }
        return store
    }

    private init(
        _ database: StoreDatabase, revalidateAfter: Duration?, feed: CommitFeed, lineage: LineageWatch,
        durability: StoreDurability, notifier: CommitNotifier?
    ) {
        self.database = database
        self.revalidateAfter = revalidateAfter
        self.feed = feed
        lineageWatch = lineage
        self.notifier = notifier
        log = PostgresLog(database: database, lineageWatch: lineage)
        committer = PostgresCommitter(
            database: database, lineageWatch: lineage, durability: durability, notifier: notifier)
    }

    // MARK: Reading

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try await readOne(by: Statements.read, with: PostgresCommit.names(id)) { row throws(PostgresError) in
            try StoreRows.record(id.kind, row)
        }
    }

    package func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )? {
        try await readOne(
            by: Statements.readWithVersions, with: PostgresCommit.names(id) + Self.names(others)
        ) { row throws(PostgresError) in
            guard let versions = try StoreRows.versionsBesideRecord(row), versions.count == others.count else {
                throw Self.otherCount
            }
            return (try StoreRows.record(id.kind, row), versions)
        }
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try await readOne(by: Statements.find, with: [.text(kind.rawValue), .bytes(lookup)]) {
            row throws(PostgresError) in
            try StoreRows.record(kind, row)
        }
    }

    /// Reads one record in a pipeline with other such reads. The look-up in a unique index takes the server so little
    /// time that no read of the pipeline waits long for another one.
    private func readOne<R>(
        by statement: PostgresStatement, with parameters: [PostgresValue],
        _ record: (PostgresResult.Row) throws(PostgresError) -> R
    ) async throws(StoreError) -> R? {
        let deadline = database.deadline
        let result = try await database.repeating { () async throws(PostgresError) in
            try await database.pool.read(statement, parameters, until: deadline)
        }
        return try database.reading { () throws(PostgresError) in
            try result.first.map { row throws(PostgresError) in try record(row) }
        }
    }

    /// The parameters for the records' kinds, tenants and keys.
    private static func names(_ ids: [RecordID]) -> [PostgresValue] {
        [.texts(ids.map(\.kind.rawValue)), .texts(ids.map(\.tenant.description)), .texts(ids.map(\.key))]
    }

    private static let otherCount = PostgresError.unexpectedResult(
        "the number of versions differs from the number of records")

    /// Not in a pipeline with other reads: the statement takes the server as long as hundreds of them.
    package func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        if ids.isEmpty { return [] }
        return try await database.query(Statements.versions, with: Self.names(ids)) { result throws(PostgresError) in
            guard let versions = try result.first?.integers(0), versions.count == ids.count else {
                throw Self.otherCount
            }
            return versions
        }
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        // No tenant has an empty name, so the empty pair sorts before every record.
        var parameters: [PostgresValue] = [
            .text(kind.rawValue), .text(after?.tenant.description ?? ""), .text(after?.key ?? ""),
            .integer(Int64(max(0, limit))),
        ]
        guard let tenant else { return try await select(kind, by: Statements.list, with: parameters) }
        parameters.append(.text(tenant.description))
        return try await select(kind, by: Statements.listOfTenant, with: parameters)
    }

    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        try await select(
            kind, by: Statements.due,
            with: [.text(kind.rawValue), .integer(now.milliseconds), .integer(Int64(max(0, limit)))])
    }

    private func select(
        _ kind: RecordKind, by statement: PostgresStatement, with parameters: [PostgresValue]
    ) async throws(StoreError) -> [StoredRecord] {
        try await database.query(statement, with: parameters) { result throws(PostgresError) in
            try StoreRows.records(kind, result)
        }
    }

    package func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try await database.query(Statements.nextDue, with: [.text(kind.rawValue)]) { result throws(PostgresError) in
            try result.first?.integer(0).map { Timestamp(milliseconds: $0) }
        }
    }

    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        let parameters: [PostgresValue] = [
            .text(tenant.description), .integer(now.milliseconds), .integer(Int64(max(0, limit))),
        ]
        return try await database.query(Statements.countDue(kind), with: parameters) { result throws(PostgresError) in
            guard let count = try result.first?.integer(0) else { throw .unexpectedResult("a count is missing") }
            return Int(count)
        }
    }

    package func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await database.query(
            Statements.lapsed, with: [.text(kind.rawValue), .integer(Int64(max(0, limit)))]
        ) { result throws(PostgresError) in
            try result.rows.map { row throws(PostgresError) in try StoreRows.lapsedLease(kind, row) }
        }
    }

    package func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {
        lineageWatch.watch(notify)
        feed.watch(notify)
    }

    // MARK: Writing

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        if changes.isEmpty { return }
        if changes.contains(where: \.audits) { privileges.noteAudit() }
        // In a task of its own, which the cancellation of the caller does not reach: a cancelled commit would have an
        // unknown outcome. The deadlines of the commit end the task.
        let outcome = await Task(executorPreference: database.pool.executor) { () async -> Result<Void, StoreError> in
            do throws(StoreError) {
                if try await committer.commit(changes) { return .success(()) }
                switch try await self.outcome(of: changes) {
                case .carriedOut: return .success(())
                // This commit or another one has changed the record.
                case .overtaken: return .failure(.conflict)
                // A second try names the same versions, so the two cannot both succeed. For entries alone the caller has to
                // choose between none and two.
                case .unknown: return .failure(.unavailable)
                }
            } catch {
                return .failure(error)
            }
        }.value
        try outcome.get()
    }

    /// One transaction, which locks the records in the order in which commits do; see `PostgresCommitter.inLockOrder`.
    package func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int {
        if changes.isEmpty { return 0 }
        let updates = changes.map { change in
            switch change.item {
            case .record(let record):
                PostgresCommand(
                    Statements.resealRecord,
                    PostgresCommit.names(record.id) + [
                        .integer(record.version), .bytes(record.sealed), .bytes(change.sealed),
                    ])
            case .entry(let placed):
                PostgresCommand(
                    Statements.resealEntry,
                    [.integer(placed.sequence), .bytes(placed.entry.sealed), .bytes(change.sealed)])
            }
        }
        let commands = [PostgresCommand(Statements.begin)] + updates + StoreDurability.commit
        let deadline = database.deadline
        let results = try await database.repeating { () async throws(PostgresError) in
            try await database.transaction(commands, until: deadline)
        }
        return results.dropFirst().prefix(updates.count).count { $0.affectedRows == 1 }
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await database.translating { () async throws(PostgresError) in
            try await database.pool.execute(
                Statements.removeExpired, [.integer(now.milliseconds), .integer(Int64(max(0, limit)))],
                until: database.deadline
            ).affectedRows
        }
    }

    // MARK: The log

    package func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        try await log.entries(after: sequence, tenant: tenant, limit: limit)
    }

    package func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool { try await log.contains(entry) }

    package func logBounds() async throws(StoreError) -> LogBounds { try await log.assignSequences() }

    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try await log.trim(before: time, keeping: count, limit: limit)
    }

    // MARK: The audit log

    package func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        let limit = max(1, limit)
        let (statement, parameters): (PostgresStatement, [PostgresValue]) =
            switch order {
            // The first text behind a text has one more character, the least that PostgreSQL stores.
            case .byName: (Statements.auditChains, [.text(place.map { $0.chain + "\u{1}" } ?? "")])
            case .newestFirst:
                (
                    Statements.newestAuditChains,
                    [.integer(place?.begun.milliseconds ?? .max), .text(place?.chain ?? "")]
                )
            }
        return try await database.query(statement, with: parameters + [.integer(Int64(limit))]) {
            result throws(PostgresError) in
            let chains = try result.rows.map { row throws(PostgresError) in try StoreRows.auditChain(row) }
            return AuditPage(
                chains: chains.filter { chain in since.map { chain.written >= $0 } ?? true },
                next: chains.count == limit ? chains.last?.place : nil)
        }
    }

    package func auditBlocks(
        of chain: String, after first: Int64, limit: Int
    ) async throws(StoreError) -> [AuditBlock] {
        let parameters: [PostgresValue] = [.text(chain), .integer(first), .integer(Int64(max(0, limit)))]
        return try await database.query(Statements.auditBlocks, with: parameters) { result throws(PostgresError) in
            try result.rows.map { row throws(PostgresError) in try StoreRows.auditBlock(row) }
        }
    }

    package func removeAuditChain(_ chain: String) async throws(StoreError) {
        let deadline = database.deadline
        _ = try await database.repeating { () async throws(PostgresError) in
            try await database.transaction(
                [
                    PostgresCommand(Statements.begin), PostgresCommand(Statements.permitAuditRemoval),
                    PostgresCommand(Statements.removeAuditChain, [.text(chain)]),
                ] + StoreDurability.commit, until: deadline)
        }
    }

    // MARK: The store as a whole

    package func clock() async throws(StoreError) -> Timestamp? {
        try await database.query(Statements.time) { result throws(PostgresError) in
            guard let milliseconds = try result.first?.integer(0) else {
                throw .unexpectedResult("the server does not return its time")
            }
            return Timestamp(milliseconds: milliseconds)
        }
    }

    package func lineage() async throws(StoreError) -> StoreLineage? {
        let deadline = database.deadline
        return try await database.translating { () async throws(PostgresError) in
            try await database.pool.withConnection(until: deadline) { connection throws(PostgresError) in
                try await lineageWatch.ask(connection, until: deadline)
            }
        }
    }

    /// Why commits may be gone after a crash of the server.
    package func durabilityFlaws() async throws(StoreError) -> [DurabilityFlaw] {
        try await StoreDurability.flaws(in: database)
    }

    package func resumeLog() async throws(StoreError) {
        lineageWatch.noteEarlierLoss()
        _ = try await log.assignSequences()
    }

    package func check() async throws(StoreError) {
        let deadline = database.deadline
        let (isWritable, schema) = try await database.translating { () async throws(PostgresError) in
            try await database.pool.withConnection(until: deadline) { connection throws(PostgresError) in
                let state = try await connection.execute(Statements.state, until: deadline).first
                // Closes the connections to a standby. A primary that is read-only for a while answers reads.
                guard try state?.boolean(0) == false else { throw .server(sqlstate: "25006") }
                let isReadOnly = try state?.text(1)
                if let lack = try await privileges.lack(of: connection, until: deadline) { throw .misconfigured(lack) }
                return (isReadOnly == "off", try await Migrations.state(of: connection, until: deadline))
            }
        }
        if !isWritable { throw database.storeError(.server(sqlstate: "25006")) }
        try Self.checkSchema(schema)
    }

    package func close() async {
        await feed.close()
        await notifier?.close()
        await database.pool.close()
    }

    private func prepareSchema(migrates: Bool) async throws(StoreError) {
        let schema = try await database.opening { () async throws(PostgresError) in
            if migrates {
                return try await Migrations.apply(through: database.pool, until: .after(Self.migrationTimeout))
            }
            let deadline = database.deadline
            return try await database.pool.withConnection(until: deadline) { connection throws(PostgresError) in
                try await Migrations.state(of: connection, until: deadline)
            }
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
}

extension RecordChange {
    fileprivate var audits: Bool {
        if case .audit = self { return true }
        return false
    }
}
