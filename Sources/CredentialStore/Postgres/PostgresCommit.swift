internal import OAuth
internal import Postgres
internal import Reactor

/// How the changes of a commit are put to the server: in as few round trips as their conflicts allow.
///
/// A conflict is a row that a statement does not touch, never an error: the server writes errors into its log.
enum PostgresCommit {
    /// One statement, which is a transaction by itself. It returns or touches one row, or is in conflict.
    case statement(PostgresCommand)
    /// All of a transaction, which no conflict can stop.
    case whole([PostgresCommand])
    /// The beginning of a transaction, what of it must touch one row lest it be in conflict, and its end.
    case parts(first: [PostgresCommand], decisive: [Int], last: [PostgresCommand])

    /// - Parameters:
    ///   - changes: in lock order.
    ///   - notice: what the other replicas are told when the commit takes place.
    init(_ changes: [RecordChange], notice: String?) {
        let notices = notice.map { [PostgresCommand(Statements.notify, [.text($0)])] } ?? []
        if let statement = Self.statement(changes, notice) {
            self = .statement(statement)
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
                decisive.append(first.count)
                first.append(PostgresCommand(Statements.require, Self.names(id)))
            default:
                guard let (row, parameters) = Self.rowChange(change) else { continue }
                decisive.append(first.count)
                first.append(PostgresCommand(Statements.alone(row), parameters))
            }
        }
        let begin = PostgresCommand(Statements.begin)
        let last = clearing + appends + notices
        if first.isEmpty {
            // Without BEGIN what a pipeline does is one transaction all the same, and entries need no level of it.
            self = .whole(last)
        } else if decisive.isEmpty {
            self = .whole([begin] + first + last + [PostgresCommand(Statements.commit)])
        } else {
            self = .parts(
                first: [begin] + first, decisive: decisive.map { $0 + 1 },
                last: last + [PostgresCommand(Statements.commit)])
        }
    }

    /// One change of a record, with the requirement of a tenant and a few entries at most, needs no transaction around
    /// it; nil for anything else. A requirement of another record is left out, for it might come after the change in
    /// the order in which all commits lock records.
    private static func statement(_ changes: [RecordChange], _ notice: String?) -> PostgresCommand? {
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
            guard let requirement, entries.isEmpty, notice == nil else { return nil }
            return PostgresCommand(Statements.require, names(requirement))
        }
        if let requirement, requirement.kind != .tenant || row.parameters[0] == .text(RecordKind.tenant.rawValue) {
            return nil
        }
        if requirement == nil, entries.isEmpty, notice == nil {
            return PostgresCommand(Statements.alone(row.change), row.parameters)
        }
        let shape = Statements.CommitShape(
            change: row.change, hasRequirement: requirement != nil, entryCount: entries.count, hasNotice: notice != nil)
        guard let statement = Statements.complete(shape) else { return nil }
        let parameters =
            row.parameters + (requirement.map { names($0) } ?? []) + entries.flatMap { values($0) }
            + (notice.map { [.text($0)] } ?? [])
        return PostgresCommand(statement, parameters)
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
        case .claim(let id, let version, let holder, let replacing, let duration):
            (
                Statements.claim,
                names(id) + [.integer(version), .text(holder), .text(replacing), .integer(duration.milliseconds)]
            )
        case .release(let id, let version, let holder, let isSettled):
            (
                isSettled ? Statements.release : Statements.giveUp,
                names(id) + [.integer(version), .text(holder)]
            )
        case .require, .removeAll, .append: nil
        }
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
