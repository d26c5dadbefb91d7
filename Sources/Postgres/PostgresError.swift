/// Why an operation on PostgreSQL failed.
///
/// `description` may be shown to anyone. `debugDescription` is for operators: it adds libpq's message about a
/// connection that could not be made (host names, file names). Neither contains SQL, a value, a password or the
/// connection string.
package enum PostgresError: Error, Equatable, Sendable {
    /// The server refused a statement. Appendix A of PostgreSQL's manual lists the states. Whether a retry helps
    /// depends on the state. An open transaction can only be rolled back.
    case server(sqlstate: String)
    /// No connection could be made: refused, unreachable, TLS or authentication failed. Retrying may help unless
    /// `sqlstate` says otherwise (class 28 needs an operator). `detail` is libpq's message.
    case connectionFailed(sqlstate: String?, detail: String)
    /// The server asked for the password in clear or as an MD5 digest, on a connection that does not prove the server's
    /// identity. Nothing was sent. An operator must configure SCRAM at the server, or TLS with `verify-full`.
    case insecureAuthentication
    /// The connection ended while it was in use. The outcome of the statement in flight is unknown.
    case connectionLost
    /// The deadline passed. The connection is closed, and the outcome of the statement in flight is unknown.
    case timedOut
    /// The calling task was cancelled. The connection is closed, and the outcome of the statement in flight is unknown.
    case cancelled
    /// All connections of the pool stayed in use, or its queue is full. Nothing was sent. Retrying later may help.
    case exhausted
    /// This process has closed the pool or the connection.
    case closed
    /// The configuration cannot be used. Retrying cannot help; an operator must correct it.
    case misconfigured(String)
    /// The server's answer does not fit the statement; a column has another type, for example.
    case unexpectedResult(String)

    /// The SQLSTATE that the server reported, if any.
    package var sqlstate: String? {
        switch self {
        case .server(let sqlstate): sqlstate
        case .connectionFailed(let sqlstate, _): sqlstate
        default: nil
        }
    }

    /// Whether the server may have gone, been replaced or been demoted, so that connections made before cannot be
    /// trusted: SQLSTATE class 08, 25006 (read-only), 57P01 to 57P05 (shut down, crashed, starting, dropped), a lost
    /// connection and a timeout.
    package var makesServerSuspect: Bool {
        switch self {
        case .connectionLost, .timedOut: true
        case .server(let sqlstate):
            sqlstate == "25006" || sqlstate.hasPrefix("57P0") || sqlstate.hasPrefix("08")
        default: false
        }
    }

    /// Whether a statement that failed with this error may have taken effect.
    ///
    /// True for 57P and class 08, because a server that shuts down can end a session after its commit became durable
    /// and before it reported the commit; and for 40003 (statement completion unknown).
    package var leavesOutcomeUnknown: Bool {
        switch self {
        case .connectionLost, .timedOut, .cancelled, .unexpectedResult: true
        case .server(let sqlstate):
            sqlstate == "40003" || sqlstate.hasPrefix("57P0") || sqlstate.hasPrefix("08")
        default: false
        }
    }
}

extension PostgresError: CustomStringConvertible, CustomDebugStringConvertible {
    package var description: String {
        switch self {
        case .server(let sqlstate): "PostgreSQL refused a statement (SQLSTATE \(sqlstate))"
        case .connectionFailed(let sqlstate?, _): "no connection to PostgreSQL (SQLSTATE \(sqlstate))"
        case .connectionFailed(nil, _): "no connection to PostgreSQL"
        case .insecureAuthentication:
            "PostgreSQL asks for the password in clear or as MD5 on a connection that is not authenticated: use SCRAM "
                + "or sslmode=verify-full"
        case .connectionLost: "the connection to PostgreSQL was lost"
        case .timedOut: "PostgreSQL did not answer in time"
        case .cancelled: "the task that used PostgreSQL was cancelled"
        case .exhausted: "no connection to PostgreSQL became free in time"
        case .closed: "the connections to PostgreSQL are closed"
        case .misconfigured(let text): "the configuration of PostgreSQL cannot be used: \(text)"
        case .unexpectedResult(let text): "PostgreSQL gave an unexpected result: \(text)"
        }
    }

    package var debugDescription: String {
        var text = description
        if let sqlstate, let meaning = Self.meaning(of: sqlstate) ?? Self.remedy(of: sqlstate.prefix(2)) {
            text += ", \(meaning)"
        }
        if case .connectionFailed(_, let detail) = self, !detail.isEmpty { text += ": \(detail)" }
        return text
    }

    /// The meaning of the states that keep a broker from its database. The server's own messages are not used, because
    /// they can quote statements and values.
    private static func meaning(of sqlstate: String) -> String? {
        switch sqlstate {
        case "08P01":
            "the session is refused; behind a pooler in transaction mode, such as PgBouncer, "
                + "TOKEN_BROKER_DATABASE_POOLER=true has to be set; where it is, the pooler has no connection to the server, "
                + "and its own log says why"
        case "26000", "42P05":
            "a prepared statement was lost or made by another client; behind a pooler in transaction mode, such as "
                + "PgBouncer, set TOKEN_BROKER_DATABASE_POOLER=true"
        case "28P01": "the password is wrong"
        case "28000": "the role may not log in from here; see pg_hba.conf"
        case "3D000": "there is no such database"
        case "3F000": "the schema of the tables is gone: put it back, or correct the role's search_path"
        case "42501":
            "the role lacks a privilege: grant it again what it needs on the tables, their sequences and their schema; "
                + "/readyz and token-broker doctor say which"
        case "42P01": "a table is missing: put it back, or correct the role's search_path"
        case "42703": "a column is missing: undo the change of the table"
        case "53100": "the server's disk is full: free room on it"
        case "53200": "the server is out of memory"
        case "53300": "the server has too many connections"
        case "57P01": "an administrator ended the connection or stopped the server"
        case "57P02": "the server ended the connection after a crash"
        case "57P03": "the server accepts no connections now: it is starting, stopping or recovering"
        case "57P05": "the server ended the connection because it was idle"
        case "57014": "the statement took longer than statement_timeout"
        case "25006": "the server is read-only: a standby, or default_transaction_read_only"
        default: nil
        }
    }

    /// What an operator does about the other states of a class.
    private static func remedy(of sqlstateClass: Substring) -> String? {
        switch sqlstateClass {
        case "22", "23", "P0":
            "the tables refuse a row that this build writes: remove constraints and triggers that were added to them, and undo "
                + "changes of their columns"
        case "42", "3F": "the tables are not what this build needs: undo what was changed"
        case "53", "54": "the server lacks something, or a limit is exceeded: see the server's log"
        case "55": "the tables are locked or in use: see pg_stat_activity and pg_locks"
        case "58", "XX": "the server has met a fault of its own or of its disk: see the server's log"
        default: nil
        }
    }
}
