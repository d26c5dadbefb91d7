import OAuth
import Postgres

/// Reads records and log entries from the rows that `Statements` selects.
enum StoreRows {
    static func record(_ kind: RecordKind, _ row: PostgresResult.Row) throws(PostgresError) -> StoredRecord {
        guard let name = try row.text(0), let key = try row.text(1), let version = try row.integer(2),
            let sealed = try row.bytes(3), let tenant = TenantName(stored: name)
        else { throw .unexpectedResult("a record has no name, version or content") }
        return StoredRecord(
            id: RecordID(kind, tenant, key: key), version: version, sealed: sealed, lookup: try row.bytes(4),
            expires: try row.integer(5).map { Timestamp(milliseconds: $0) },
            due: try row.integer(6).map { Timestamp(milliseconds: $0) }, lease: try lease(row))
    }

    /// Of a row of `Statements.readWithVersions`: the versions of the other records.
    static func versionsBesideRecord(_ row: PostgresResult.Row) throws(PostgresError) -> [Int64?]? {
        try row.integers(13)
    }

    static func records(_ kind: RecordKind, _ result: PostgresResult) throws(PostgresError) -> [StoredRecord] {
        try result.rows.map { row throws(PostgresError) in try record(kind, row) }
    }

    static func lapsedLease(_ kind: RecordKind, _ row: PostgresResult.Row) throws(PostgresError) -> LapsedLease {
        guard let name = try row.text(0), let key = try row.text(1), let version = try row.integer(2),
            let holder = try row.text(3), let tenant = TenantName(stored: name)
        else { throw .unexpectedResult("a lease has no name, version or holder") }
        return LapsedLease(id: RecordID(kind, tenant, key: key), version: version, holder: holder)
    }

    static func entry(_ row: PostgresResult.Row) throws(PostgresError) -> PlacedLogEntry {
        guard let sequence = try row.integer(0), let name = try row.text(1), let key = try row.text(2),
            let version = try row.integer(3), let time = try row.integer(4), let sealed = try row.bytes(5),
            let tenant = TenantName(stored: name)
        else { throw .unexpectedResult("an entry of the log has no sequence, name or content") }
        return PlacedLogEntry(
            sequence: sequence,
            entry: StoredLogEntry(
                tenant: tenant, key: key, version: version, time: Timestamp(milliseconds: time), sealed: sealed))
    }

    static func auditChain(_ row: PostgresResult.Row) throws(PostgresError) -> AuditChain {
        guard let name = try row.text(0), let last = try row.integer(1), let hash = try row.bytes(2),
            let begun = try row.integer(3), let written = try row.integer(4)
        else { throw .unexpectedResult("a chain of the audit log has no name, number or hash") }
        return AuditChain(
            end: AuditHead(chain: name, sequence: last, hash: hash), begun: Timestamp(milliseconds: begun),
            written: Timestamp(milliseconds: written))
    }

    static func auditBlock(_ row: PostgresResult.Row) throws(PostgresError) -> AuditBlock {
        guard let chain = try row.text(0), let first = try row.integer(1), let last = try row.integer(2),
            let time = try row.integer(3), let body = try row.text(4), let hash = try row.bytes(5)
        else { throw .unexpectedResult("a block of the audit log has no name, number or content") }
        return AuditBlock(
            chain: chain, first: first, last: last, time: Timestamp(milliseconds: time), body: Array(body.utf8),
            hash: hash, signature: try row.bytes(6))
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
}
