import Postgres
import Reactor
import Synchronization

/// Asks the database which privileges the role lacks, for operators: without one, every call that needs it fails, and the
/// server's answer does not say which one it is.
final class PrivilegeCheck: Sendable {
    /// Whether the server has refused the question.
    private let isRefused = Atomic<Bool>(false)
    /// Whether this process has written to the audit log. Otherwise its table is not needed.
    private let usesAudit = Atomic<Bool>(false)

    /// The audit log is used.
    func noteAudit() { usesAudit.store(true, ordering: .relaxed) }

    /// What is to be granted or made; nil where nothing is missing.
    func lack(of connection: PostgresConnection, until deadline: MonotonicInstant) async throws(PostgresError)
        -> String?
    {
        if isRefused.load(ordering: .relaxed) { return nil }
        let audit = usesAudit.load(ordering: .relaxed) ? "SELECT INSERT" : ""
        let result: PostgresResult
        do throws(PostgresError) {
            result = try await connection.execute(Statements.missingPrivileges, [.text(audit)], until: deadline)
        } catch {
            guard case .server(let sqlstate) = error, LineageWatch.isRefusal(sqlstate) else {
                throw error
            }
            isRefused.store(true, ordering: .relaxed)
            return nil
        }
        var lacks: [String] = []
        for row in result.rows {
            guard let table = try row.text(0), let isMissing = try row.boolean(1), let role = try row.text(2) else {
                throw .unexpectedResult("a privilege has no name")
            }
            if !isMissing, let privileges = try row.text(3) {
                lacks.append("GRANT \(privileges) ON \(table) TO \(role)")
            } else if isMissing, !audit.isEmpty || !table.utf8.elementsEqual("token_broker_audit".utf8) {
                lacks.append(
                    "\(table) is missing or not visible: run token-broker migrate, or GRANT USAGE ON SCHEMA … TO \(role)"
                )
            }
        }
        return lacks.isEmpty ? nil : lacks.joined(separator: "; ")
    }
}
