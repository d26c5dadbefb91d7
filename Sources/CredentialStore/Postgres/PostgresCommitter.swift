import OAuth
import Postgres
import Reactor

/// Makes the changes of a commit in PostgreSQL.
struct PostgresCommitter: Sendable {
    let database: StoreDatabase
    let lineageWatch: LineageWatch
    let durability: StoreDurability
    /// Nil when other replicas are not notified.
    let notifier: CommitNotifier?

    private static let uniqueViolation = "23505"

    /// Makes all the changes, or none and throws `.conflict`.
    /// - Returns: false if the answer was lost, so that it is not known whether they were made.
    func commit(_ changes: [RecordChange]) async throws(StoreError) -> Bool {
        let changes = Self.inLockOrder(changes)
        let notice = notifier == nil ? nil : CommitNotice.text(changes)
        var commit = PostgresCommit(changes, notice: notice)
        let asks = changes.contains(where: \.claims) && lineageWatch.asksWithClaims
        if asks { commit = commit.asking(Statements.lineage) }
        // A requirement, a tenant's removal and a claim have the same effect when they are made twice.
        let isRepeatable = changes.allSatisfy { change in
            switch change {
            case .require, .removeAll, .claim: true
            case .insert, .replace, .remove, .settleDue, .release, .append, .audit: false
            }
        }
        let deadline = database.deadline
        for _ in 0..<StoreDatabase.attempts {
            let attempt: Result<Bool, PostgresError>
            do throws(PostgresError) {
                attempt = .success(try await apply(commit, asksForLineage: asks, until: deadline))
            } catch {
                attempt = .failure(error)
            }
            switch attempt {
            case .success(true): return true
            case .success(false): throw .conflict
            case .failure(.server(Self.uniqueViolation)):
                // An earlier commit whose outcome was not known may have stored its block late.
                for case .audit(let block) in changes {
                    if try await hasNumber(of: block) { throw .unavailable }
                }
                throw .conflict
            case .failure(.server(let sqlstate)) where StoreDatabase.transientStates.contains(sqlstate): continue
            case .failure(let error):
                guard error.leavesOutcomeUnknown else { throw database.storeError(error) }
                database.report(error)
                if notice != nil { notifier?.noticeMayBeLost() }
                if !isRepeatable { return false }
            }
        }
        throw .unavailable
    }

    /// Sorts changes into the order in which every commit locks records, so that two commits do not deadlock: existing
    /// records before new ones, and the records of tenants before the other records of the tenants.
    ///
    /// In this order the changes also have the intended meaning: an insertion can use a look-up digest that a removal
    /// has freed, the record of a tenant is checked before the tenant is removed, and entries are appended last, in
    /// their order, after the earlier entries of a removed tenant have been removed.
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
            case .audit: (6, RecordID(.tenant, .broker))
            }
        }
        // Nearly every commit has this order already.
        if zip(changes, changes.dropFirst()).allSatisfy({ !(place($1) < place($0)) }) { return changes }
        return changes.filter { !$0.appends }.sorted { place($0) < place($1) } + changes.filter(\.appends)
    }

    /// Makes the changes. Returns false, and makes none, when one of them is in conflict.
    /// - Parameter asksForLineage: whether the second statement selects the lineage.
    private func apply(
        _ commit: PostgresCommit, asksForLineage: Bool, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> Bool {
        let known = lineageWatch.known()
        switch commit {
        case .alone(let command):
            let results = try await database.pool.withConnection(until: deadline) { connection throws(PostgresError) in
                try await connection.pipeline([PostgresCommand(Statements.makeDurable), command], until: deadline)
            }
            durability.note(results[0])
            return results[1].affectedRows == 1
        case .inOne(let commands, let decisive, let end):
            let results = try await database.onConnection(until: deadline) { connection throws(PostgresError) in
                try await conclude(commands, end: end, on: connection, until: deadline)
            }
            if asksForLineage { try lineageWatch.note(results[1], since: known) }
            return decisive.map { results[$0].affectedRows == 1 } ?? true
        case .inTwo(let first, let decisive, let last, let end):
            return try await database.onConnection(until: deadline) { connection throws(PostgresError) in
                let results = try await connection.pipeline(first, until: deadline)
                if asksForLineage { try lineageWatch.note(results[1], since: known) }
                guard decisive.allSatisfy({ results[$0].affectedRows == 1 }) else {
                    _ = try await connection.execute(Statements.rollback, until: deadline)
                    return false
                }
                _ = try await conclude(last, end: end, on: connection, until: deadline)
                return true
            }
        }
    }

    /// Runs the end of a transaction: its COMMIT at `end`, and the notification behind it.
    private func conclude(
        _ commands: [PostgresCommand], end: Int, on connection: PostgresConnection, until deadline: MonotonicInstant
    ) async throws(PostgresError) -> [PostgresResult] {
        let (results, failure) = await connection.outcome(of: commands, until: deadline)
        if results.count >= end { durability.note(results[end - 1]) }
        if let failure {
            guard results.count > end else { throw failure }
            // The commit took place. Only the notification failed.
            database.report(failure)
            notifier?.noticeMayBeLost()
        }
        return results
    }

    /// Whether the chain has a block with the block's number.
    private func hasNumber(of block: AuditBlock) async throws(StoreError) -> Bool {
        let parameters: [PostgresValue] = [.text(block.chain), .integer(block.first)]
        return try await database.query(Statements.hasAudit, with: parameters) { result throws(PostgresError) in
            try result.first?.boolean(0) ?? false
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
