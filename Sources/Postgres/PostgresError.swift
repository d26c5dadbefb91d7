/// Why PostgreSQL did not do what was asked.
///
/// `description` may be shown to anyone. `debugDescription` is for operators: it adds libpq's own words about a
/// connection that could not be made (host names, file names). Neither ever holds SQL, a value, a password or the
/// connection string.
package enum PostgresError: Error, Equatable, Sendable {
    /// The server refused a statement; PostgreSQL, appendix A lists the states. Whether a retry helps depends on the
    /// state. A transaction in which it happened can only be rolled back.
    case server(sqlstate: String)
    /// No connection could be made: refused, unreachable, TLS or authentication failed. Retrying may help unless
    /// `sqlstate` says otherwise (class 28 is a matter for an operator). `detail` is libpq's message.
    case connectionFailed(sqlstate: String?, detail: String)
    /// The server asked for the password in clear or as an MD5 digest, on a link that does not prove who it is. Nothing was
    /// sent. An operator must have the server use SCRAM, or the link TLS with `verify-full`.
    case insecureAuthentication
    /// The connection ended while it was in use. What the statement in flight did is unknown.
    case connectionLost
    /// The deadline passed. The connection is closed, and what the statement in flight did is unknown.
    case timedOut
    /// The calling task was cancelled. The connection is closed, and what the statement in flight did is unknown.
    case cancelled
    /// Every connection of the pool stayed in use, or too many callers wait already. Nothing was sent; retrying later
    /// may help.
    case exhausted
    /// The pool or the connection has been closed by us.
    case closed
    /// The configuration cannot be used. Retrying cannot help; an operator must correct it.
    case misconfigured(String)
    /// The server answered with something that the statement cannot mean, such as another type of column.
    case unexpectedResult(String)

    /// The state that the server gave, if it gave one.
    package var sqlstate: String? {
        switch self {
        case .server(let sqlstate): sqlstate
        case .connectionFailed(let sqlstate, _): sqlstate
        default: nil
        }
    }

    /// Whether the server itself may have gone, been replaced or been demoted, so that connections which were made
    /// before cannot be trusted: SQLSTATE class 08, 25006 (read-only) and 57P01 to 57P05 (shut down, crashed,
    /// starting, dropped), a lost connection and a silent one.
    package var makesServerSuspect: Bool {
        switch self {
        case .connectionLost, .timedOut: true
        case .server(let sqlstate):
            sqlstate == "25006" || sqlstate.hasPrefix("57P0") || sqlstate.hasPrefix("08")
        default: false
        }
    }

    /// Whether a statement that met this error may have taken effect all the same.
    ///
    /// A server that shuts down can end a session after its commit became durable and before it said so, hence class
    /// 57P and 08 are on the list, as is 40003 (statement completion unknown).
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
            "PostgreSQL asks for the password in clear or as MD5 on a link that is not authenticated: use SCRAM or "
                + "sslmode=verify-full"
        case .connectionLost: "the connection to PostgreSQL was lost"
        case .timedOut: "PostgreSQL did not answer in time"
        case .cancelled: "the caller of PostgreSQL was cancelled"
        case .exhausted: "no connection to PostgreSQL became free in time"
        case .closed: "the connections to PostgreSQL are closed"
        case .misconfigured(let text): "the configuration of PostgreSQL cannot be used: \(text)"
        case .unexpectedResult(let text): "PostgreSQL gave an unexpected result: \(text)"
        }
    }

    package var debugDescription: String {
        var text = description
        if let sqlstate, let meaning = Self.meaning(of: sqlstate) { text += ", \(meaning)" }
        if case .connectionFailed(_, let detail) = self, !detail.isEmpty { text += ": \(detail)" }
        return text
    }

    /// What the states mean that keep a broker from its database: libpq has the server leave its own words out, which can
    /// quote statements and values.
    private static func meaning(of sqlstate: String) -> String? {
        switch sqlstate {
        case "28P01": "the password is wrong"
        case "28000": "the role may not log in from here; see pg_hba.conf"
        case "3D000": "there is no such database"
        case "42501": "the role lacks a right"
        case "53100": "its disk is full"
        case "53200": "it is out of memory"
        case "53300": "it has too many connections"
        case "57P01": "it was told to end the connection"
        case "57P02": "it ends the connection after a crash"
        case "57P03": "it does not take connections now: it starts, stops or recovers"
        case "57P05": "it ended the connection for idleness"
        case "57014": "the statement took longer than statement_timeout"
        case "25006": "it is read-only: a standby, or default_transaction_read_only"
        default: nil
        }
    }
}
