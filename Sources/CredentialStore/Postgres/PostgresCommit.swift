import OAuth
import Postgres
import Reactor

/// The statements for a commit, in as few round trips as detecting conflicts allows.
///
/// A statement in conflict affects no row. It does not fail, because the server writes errors to its log.
///
/// The notification of the other replicas follows behind the COMMIT, in the same message. Inside the transaction it
/// would serialize commits: the server holds a global lock while it commits a transaction that has notified, including
/// the flush of the write-ahead log. The server has received the notification when it commits, so it is sent even if
/// this process dies. When its outcome is unknown, `CommitNotifier` sends a replacement.
enum PostgresCommit {
    /// One statement, which is a transaction by itself with the one that makes it durable. It affects one row, or is in
    /// conflict.
    case alone(PostgresCommand)
    /// A whole transaction, with its COMMIT at `end`, behind `makeDurable`. The statement at `decisive` returns or affects one row,
    /// or is in conflict; then the other statements have no effect. With nil no conflict is possible.
    case inOne([PostgresCommand], decisive: Int?, end: Int)
    /// The beginning of a transaction, in which each statement of `decisive` must affect one row or is in conflict; and
    /// the rest, with the COMMIT at `end`, behind `makeDurable`.
    case inTwo(first: [PostgresCommand], decisive: [Int], last: [PostgresCommand], end: Int)

    private static let begin = PostgresCommand(Statements.begin)

    /// - Parameters:
    ///   - changes: in lock order.
    ///   - notice: the payload of the notification; nil for no notification.
    init(_ changes: [RecordChange], notice: String?) {
        if let statement = Self.statement(changes) {
            guard let notice else {
                self = .alone(statement)
                return
            }
            self = .inOne(
                [Self.begin, statement] + StoreDurability.commit + [Self.notify(notice, of: changes)], decisive: 1,
                end: 3)
            return
        }
        var first: [PostgresCommand] = []
        var decisive: [Int] = []
        var clearing: [PostgresCommand] = []
        var appends: [PostgresCommand] = []
        for change in changes {
            switch change {
            case .append(let entry): appends.append(PostgresCommand(Statements.append, Self.values(entry)))
            case .audit(let block): appends.append(PostgresCommand(Statements.appendAudit, Self.values(block)))
            case .removeAll(let tenant):
                let parameters: [PostgresValue] = [.text(tenant.description), .text(RecordKind.tenant.rawValue)]
                first.append(PostgresCommand(Statements.removeTenant, parameters))
                first.append(PostgresCommand(Statements.removeTenantRecords, parameters))
                // Under the log's lock, so that no reader assigns sequences to the entries meanwhile. It comes after
                // all statements that may wait for other transactions, because readers wait for this lock.
                if clearing.isEmpty { clearing.append(PostgresCommand(Statements.lockLog)) }
                clearing.append(PostgresCommand(Statements.removeTenantEntries, [.text(tenant.description)]))
            case .require(let id):
                decisive.append(first.count + 1)
                first.append(PostgresCommand(Statements.require, Self.names(id)))
            default:
                guard let (row, parameters) = Self.rowChange(change) else { continue }
                decisive.append(first.count + 1)
                first.append(PostgresCommand(Statements.alone(row), parameters))
            }
        }
        let rest = clearing + appends
        let notices = notice.map { [PostgresCommand(Statements.notify, [.text($0)])] } ?? []
        first = [Self.begin] + first
        if decisive.isEmpty {
            self = .inOne(
                first + rest + StoreDurability.commit + notices, decisive: nil, end: first.count + rest.count + 1)
        } else {
            self = .inTwo(
                first: first, decisive: decisive, last: rest + StoreDurability.commit + notices, end: rest.count + 1)
        }
    }

    /// The same commit with a query as its second statement.
    func asking(_ query: PostgresStatement) -> PostgresCommit {
        let query = PostgresCommand(query)
        func withQuery(_ commands: [PostgresCommand]) -> [PostgresCommand] {
            commands.prefix(1) + [query] + commands.dropFirst()
        }
        switch self {
        case .alone(let command):
            return .inOne([Self.begin, query, command] + StoreDurability.commit, decisive: 2, end: 4)
        case .inOne(let commands, let decisive, let end):
            return .inOne(withQuery(commands), decisive: decisive.map { $0 + 1 }, end: end + 1)
        case .inTwo(let first, let decisive, let last, let end):
            return .inTwo(first: withQuery(first), decisive: decisive.map { $0 + 1 }, last: last, end: end)
        }
    }

    /// The notification behind the COMMIT of a transaction with one decisive statement. When that statement was in
    /// conflict, the transaction has changed nothing. The record shows that, so the notification depends on the
    /// record's version or lease. For other changes a superfluous notification that the log has grown does no harm.
    private static func notify(_ notice: String, of changes: [RecordChange]) -> PostgresCommand {
        func unless(_ id: RecordID, before version: Int64) -> PostgresCommand {
            PostgresCommand(Statements.notifyUnless, [.text(notice)] + names(id) + [.integer(version)])
        }
        for change in changes {
            switch change {
            case .insert(let record), .replace(let record, _, _): return unless(record.id, before: record.version)
            case .remove(let id, _): return unless(id, before: .max)
            case .claim(let id, _, let claim):
                return PostgresCommand(Statements.notifyIfHeld, [.text(notice)] + names(id) + [.text(claim.holder)])
            default: continue
            }
        }
        return PostgresCommand(Statements.notify, [.text(notice)])
    }

    /// A single statement for the change of one record, with at most the requirement of a tenant and a few entries; nil
    /// for other commits. The requirement of another record is not included, because it may come after the change in
    /// the order in which all commits lock records.
    private static func statement(_ changes: [RecordChange]) -> PostgresCommand? {
        var row: (change: Statements.RowChange, parameters: [PostgresValue])?
        var requirement: RecordID?
        var entries: [StoredLogEntry] = []
        var block: AuditBlock?
        for change in changes {
            switch change {
            case .append(let entry): entries.append(entry)
            case .audit(let added): block = added
            case .require(let id):
                guard requirement == nil else { return nil }
                requirement = id
            case .removeAll: return nil
            default:
                guard row == nil else { return nil }
                row = rowChange(change)
            }
        }
        guard let row else {
            guard entries.isEmpty, block == nil || requirement == nil else { return nil }
            if let block { return PostgresCommand(Statements.appendAudit, values(block)) }
            return requirement.map { PostgresCommand(Statements.require, names($0)) }
        }
        if let requirement, requirement.kind != .tenant || row.parameters[0] == .text(RecordKind.tenant.rawValue) {
            return nil
        }
        if requirement == nil, entries.isEmpty, block == nil {
            return PostgresCommand(Statements.alone(row.change), row.parameters)
        }
        let shape = Statements.CommitShape(
            hasRequirement: requirement != nil, entryCount: entries.count, isAudited: block != nil)
        guard let statement = Statements.complete(row.change, shape) else { return nil }
        return PostgresCommand(
            statement,
            row.parameters + (requirement.map { names($0) } ?? []) + entries.flatMap { values($0) }
                + (block.map { values($0) } ?? []))
    }

    /// The statement and the parameters for the change of one record; nil for another change.
    private static func rowChange(
        _ change: RecordChange
    ) -> (change: Statements.RowChange, parameters: [PostgresValue])? {
        switch change {
        case .insert(let record): (Statements.insert, values(record))
        case .replace(let record, let version, .ended): (Statements.replace, values(record) + [.integer(version)])
        case .replace(let record, let version, .fenced(let holder)):
            (Statements.replaceFenced, values(record) + [.integer(version), .text(holder)])
        case .replace(let record, let version, .kept):
            (Statements.replaceKeepingLease, values(record) + [.integer(version)])
        case .remove(let id, let version): (Statements.remove, names(id) + [.integer(version)])
        case .settleDue(let id, let version, let due, let next):
            (
                Statements.settleDue,
                names(id) + [.integer(version), .integer(due?.milliseconds), .integer(next?.milliseconds)]
            )
        case .claim(let id, let version, let claim):
            (
                Statements.claim,
                names(id) + [
                    .integer(version), .text(claim.holder), .text(claim.replacing),
                    .integer(claim.duration.milliseconds), .integer(claim.replacesStanding ? 1 : 0),
                    .integer(claim.marksUse ? claim.restartsUse ? 2 : 1 : 0),
                    .integer(claim.isOpen ? Statements.LeaseState.isOpen : 0),
                    .integer(claim.notAfter?.milliseconds), .integer(claim.overdue.milliseconds),
                ]
            )
        case .release(let id, let version, let holder, let release):
            if let end = leaseEnd(release) {
                (Statements.endLease, names(id) + [.integer(version), .text(holder)] + end)
            } else {
                (Statements.release, names(id) + [.integer(version), .text(holder)])
            }
        case .require, .removeAll, .append, .audit: nil
        }
    }

    /// The parameters for ending a lease that is kept; nil when the lease is removed.
    private static func leaseEnd(_ release: LeaseRelease) -> [PostgresValue]? {
        let (lapse, state): (Duration?, Int64)
        switch release.outcome {
        case .settled:
            if release.failure == nil { return nil }
            (lapse, state) = (nil, Statements.LeaseState.wasGivenUp | Statements.LeaseState.isSettled)
        case .unknown(let recovery): (lapse, state) = (recovery, Statements.LeaseState.wasGivenUp)
        case .open: (lapse, state) = (.zero, Statements.LeaseState.isOpen)
        }
        return [
            .integer(lapse?.milliseconds), .integer(state), .text(release.failure?.code),
            .integer(release.failure?.remaining.milliseconds),
        ]
    }

    // MARK: Values

    static func names(_ id: RecordID) -> [PostgresValue] {
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

    private static func values(_ block: AuditBlock) -> [PostgresValue] {
        [
            .text(block.chain), .integer(block.first), .integer(block.last), .integer(block.time.milliseconds),
            .text(String(decoding: block.body, as: UTF8.self)), .bytes(block.hash), .bytes(block.signature),
        ]
    }
}
