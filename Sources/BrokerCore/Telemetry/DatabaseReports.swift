import Containers
package import CredentialStore
package import Postgres
import Reactor
import Synchronization

/// Logs the errors of the database: each kind of error at once, and then once a second at most, with the number of errors since
/// its last line. While a database does not answer, every request meets the same error, and hundreds of lines a second would
/// hide the others.
///
/// Safe to use from any thread; does not block.
package final class DatabaseReports: Sendable {
    private let log: Log
    private let time: any Time
    /// Of far more kinds than there are SQLSTATEs that a database gives at a time.
    private let kinds = Mutex(BoundedTable<String, LineBound>(capacity: 100))
    private let last = Mutex<PostgresError?>(nil)
    private let flaws = Mutex<Set<DurabilityFlaw>>([])

    private static let pause: Duration = .seconds(1)

    package init(_ log: Log, time: any Time) {
        self.log = log
        self.time = time
    }

    /// Logs how the connections to the database are protected; as a warning where one does not authenticate the server.
    /// - Parameter listener: the configuration of the connection for notifications, if it is another one.
    package static func noteLinks(
        _ configuration: PostgresConfiguration, listener: PostgresConfiguration? = nil, _ log: Log
    ) {
        let listenLink = listener?.link
        let fields = [LogField.databaseLink(configuration.link)] + (listenLink.map { [.listenLink($0)] } ?? [])
        if configuration.link.isAuthenticated, listenLink?.isAuthenticated ?? true {
            log.info("database_link", fields)
        } else {
            log.warning("database_link", fields)
        }
    }

    /// Does nothing with `.cancelled`: the caller gave up, as background jobs do at a shutdown, and the database has not failed.
    package func note(_ error: PostgresError) {
        if error == .cancelled { return }
        last.withLock { $0 = error }
        let (name, now) = (error.description, time.monotonic)
        let count = kinds.withLock { kinds -> Int? in
            var kind = kinds[name] ?? LineBound()
            defer { kinds.setNewest(kind, forKey: name) }
            return kind.met(at: now, pause: Self.pause)
        }
        // The line concerns the database, and not the request that has met the error.
        if let count {
            TraceContext.leaving { log.warning("database_failed", [.database(error), .count(count)]) }
        }
    }

    /// Logs each reason why commits may be gone after a crash of the server once.
    package func note(_ flaw: DurabilityFlaw) {
        guard flaws.withLock({ $0.insert(flaw).inserted }) else { return }
        TraceContext.leaving { log.warning("database_not_durable", [.durability(flaw)]) }
    }

    /// The last error of the database, in words for operators; nil where there was none.
    package var lastReason: String? { last.withLock { $0.map { String(reflecting: $0) } } }
}
