import Postgres
import Reactor
import Synchronization

/// Asks each new session whether its server is the primary, before the session is lent.
///
/// libpq asks that by `target_session_attrs`, except through a pooler, which keeps sessions of a server that was demoted
/// since. Such a session would answer reads with what it had, and refuse the first commit.
final class SessionCheck: Sendable {
    /// Whether the server has refused the question, because it has no standbys of this kind.
    private let isRefused = Atomic<Bool>(false)
    /// Whether the role may not end the sessions of a pooler.
    private let mayNotEnd = Atomic<Bool>(false)
    private let usesPooler: Bool

    init(usesPooler: Bool) {
        self.usesPooler = usesPooler
    }

    /// - Throws: `.connectionFailed` with the state 25006 at a standby.
    func ask(_ connection: PostgresConnection, until deadline: MonotonicInstant) async throws(PostgresError) {
        if isRefused.load(ordering: .relaxed) { return }
        let endsSession = usesPooler && !mayNotEnd.load(ordering: .relaxed)
        do throws(PostgresError) {
            let statement = endsSession ? Statements.endSessionAtStandby : Statements.isStandby
            if try await connection.execute(statement, until: deadline).first?.boolean(0) != true { return }
        } catch {
            switch error {
            case .server(let sqlstate) where LineageWatch.isRefusal(sqlstate):
                // Without the privilege to end it, the session of a standby is not used, but the pooler may lend it again.
                if endsSession {
                    mayNotEnd.store(true, ordering: .relaxed)
                    return try await ask(connection, until: deadline)
                }
                return isRefused.store(true, ordering: .relaxed)
            // A pooler passes on why the server has ended the session, or closes the connection.
            case .server("57P01") where usesPooler, .server("08P01") where usesPooler, .connectionLost where usesPooler:
                break
            default: throw error
            }
        }
        throw .connectionFailed(sqlstate: "25006", detail: "the session's server is a standby")
    }
}
