internal import OAuth
internal import Postgres
internal import Reactor

/// How the changes of a commit are put to the server: in as few round trips as their conflicts allow.
///
/// A conflict is a row that a statement does not touch, never an error: the server writes errors into its log.
///
/// What the other replicas are told follows the COMMIT, in the same message. Within the transaction it would make
/// commits wait for each other: a transaction that has notified commits under a lock of the whole server, its flush to
/// the disk included. Behind it, the notification has nothing to flush. The server has it in hand when it commits, so
/// that it is sent even if this process dies then; and where its outcome is unknown, `CommitNotifier` makes up for it.
enum PostgresCommit {
    /// One statement, which is a transaction by itself. It touches one row, or is in conflict.
    case alone(PostgresCommand)
    /// All of a transaction, with its COMMIT at `end`. The statement at `decisive` returns or touches one row, or is in
    /// conflict; then the others do nothing. Without such a one nothing can stop the commit.
    case inOne([PostgresCommand], decisive: Int?, end: Int)
    /// The beginning of a transaction, what of it must touch one row lest it be in conflict, and the rest, with the
    /// COMMIT at `end`.
    case inTwo(first: [PostgresCommand], decisive: [Int], last: [PostgresCommand], end: Int)

    private static let begin = PostgresCommand(Statements.begin)
    private static let commit = PostgresCommand(Statements.commit)

    /// - Parameters:
    ///   - changes: in lock order.
    ///   - notice: what the other replicas are told when the commit takes place.
    init(_ changes: [RecordChange], notice: String?) {
        if let statement = Self.statement(changes) {
            guard let notice else {
                self = .alone(statement)
                return
            }
            self = .inOne(
                [Self.begin, statement, Self.commit, Self.notify(notice, of: changes)], decisive: 1, end: 2)
            return
        }
        var first: [PostgresCommand] = []
        var decisive: [Int] = []
        var clearing: [PostgresCommand] = []
        var appends: [PostgresCommand] = []
        for change in changes {
            switch change {
            case .append(let entry): appends.append(PostgresCommand(Statements.append, Self.values(entry)))
            case .removeAll(let tenant):
                let parameters: [PostgresValue] = [.text(tenant.description), .text(RecordKind.tenant.rawValue)]
                first.append(PostgresCommand(Statements.removeTenant, parameters))
                first.append(PostgresCommand(Statements.removeTenantRecords, parameters))
                // Under the log's lock, so that none of the entries is being numbered; and after all that may have to
                // wait for others, for readers wait for that lock.
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
                first + rest + [Self.commit] + notices, decisive: nil, end: first.count + rest.count)
        } else {
            self = .inTwo(first: first, decisive: decisive, last: rest + [Self.commit] + notices, end: rest.count)
        }
    }

    /// The same with a question as its second statement, which changes nothing.
    func asking(_ question: PostgresStatement) -> PostgresCommit {
        let question = PostgresCommand(question)
        func withQuestion(_ commands: [PostgresCommand]) -> [PostgresCommand] {
            commands.prefix(1) + [question] + commands.dropFirst()
        }
        switch self {
        case .alone(let command):
            return .inOne([Self.begin, question, command, Self.commit], decisive: 2, end: 3)
        case .inOne(let commands, let decisive, let end):
            return .inOne(withQuestion(commands), decisive: decisive.map { $0 + 1 }, end: end + 1)
        case .inTwo(let first, let decisive, let last, let end):
            return .inTwo(first: withQuestion(first), decisive: decisive.map { $0 + 1 }, last: last, end: end)
        }
    }

    /// Told behind a COMMIT that has committed nothing if its one statement was in conflict. That shows in the record,
    /// so that no change of one is told which there was not, nor the beginning of a renewal whose claim was refused; else
    /// that the log has grown may be told for nothing.
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

    /// One change of a record, with the requirement of a tenant and a few entries at most; nil for anything else. A
    /// requirement of another record is left out, for it might come after the change in the order in which all commits
    /// lock records.
    private static func statement(_ changes: [RecordChange]) -> PostgresCommand? {
        var row: (change: Statements.RowChange, parameters: [PostgresValue])?
        var requirement: RecordID?
        var entries: [StoredLogEntry] = []
        for change in changes {
            switch change {
            case .append(let entry): entries.append(entry)
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
            guard let requirement, entries.isEmpty else { return nil }
            return PostgresCommand(Statements.require, names(requirement))
        }
        if let requirement, requirement.kind != .tenant || row.parameters[0] == .text(RecordKind.tenant.rawValue) {
            return nil
        }
        if requirement == nil, entries.isEmpty {
            return PostgresCommand(Statements.alone(row.change), row.parameters)
        }
        let shape = Statements.CommitShape(
            change: row.change, hasRequirement: requirement != nil, entryCount: entries.count)
        guard let statement = Statements.complete(shape) else { return nil }
        return PostgresCommand(
            statement, row.parameters + (requirement.map { names($0) } ?? []) + entries.flatMap { values($0) })
    }

    /// Nil for what is not the change of one record.
    private static func rowChange(
        _ change: RecordChange
    ) -> (change: Statements.RowChange, parameters: [PostgresValue])? {
        switch change {
        case .insert(let record): (Statements.insert, values(record))
        case .replace(let record, let version, nil): (Statements.replace, values(record) + [.integer(version)])
        case .replace(let record, let version, let holder?):
            (Statements.replaceFenced, values(record) + [.integer(version), .text(holder)])
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
        case .require, .removeAll, .append: nil
        }
    }

    /// The parameters of the end of a lease that stays; nil for one that goes.
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
}
