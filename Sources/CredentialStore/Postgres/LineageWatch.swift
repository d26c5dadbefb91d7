import Postgres
import Reactor
import Synchronization

/// Detects that a PostgreSQL has lost commits that this process may have seen: after a failover to an asynchronous
/// standby, a recovery to a point in time, or a restore of an old copy of its files.
///
/// The lineage is read on each new connection before the connection is lent, and compared with the lineage that was
/// known before the query was sent. So the loss is reported before any other statement reaches the database. An
/// existing connection can come to lead to another history behind a pooler, and on a standby that is promoted; there
/// each claim of a lease also selects the lineage, in the same round trip.
///
/// A server that refuses the query, because it lacks the functions or the role lacks the privileges, is not asked
/// again.
final class LineageWatch: Sendable {
    private struct State {
        var lineage: StoreLineage?
        /// The highest sequence of the log of events that this process has seen.
        var sequence: Int64 = 0
        /// Up to which sequence the log must skip before any sequence is assigned; nil when the store has lost no commits.
        var skip: Skip?
        /// Whether the server has refused the query.
        var isRefused = false
        var hasMetStandby = false
        var notify: (@Sendable (StoreNotification) -> Void)?
    }

    private enum Skip {
        /// The next reading of the log's last sequence decides where the log goes on.
        case isDue
        case to(Int64)
    }

    // Called from the pool's loop and from any task.
    private let state = Mutex(State())
    private let usesPooler: Bool
    private let report: @Sendable (PostgresError) -> Void

    init(usesPooler: Bool, report: @escaping @Sendable (PostgresError) -> Void) {
        self.usesPooler = usesPooler
        self.report = report
    }

    /// Sets the function that is called when the store has lost commits.
    func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) { state.withLock { $0.notify = notify } }

    /// The state before a query was sent, to compare its result with.
    struct Known: Sendable {
        fileprivate let lineage: StoreLineage?
        fileprivate let sequence: Int64
    }

    func known() -> Known { state.withLock { Known(lineage: $0.lineage, sequence: $0.sequence) } }

    /// Whether claims of leases must select the lineage, because an existing connection can come to lead to another
    /// history.
    var asksWithClaims: Bool {
        state.withLock { state in !state.isRefused && (usesPooler || state.hasMetStandby) }
    }

    /// Reads the lineage on a connection; nil when the server refuses, and on a standby.
    @discardableResult
    func ask(_ connection: PostgresConnection, until deadline: MonotonicInstant) async throws(PostgresError)
        -> StoreLineage?
    {
        if state.withLock({ $0.isRefused }) { return nil }
        let known = known()
        let result: PostgresResult
        do throws(PostgresError) {
            result = try await connection.execute(Statements.lineage, until: deadline)
        } catch {
            guard case .server(let sqlstate) = error, Self.isRefusal(sqlstate) else { throw error }
            state.withLock { $0.isRefused = true }
            report(error)
            return nil
        }
        return try note(result, since: known)
    }

    /// Class 42: the function is undefined, or the role may not call it. Class 0A: the server does not support it.
    static func isRefusal(_ sqlstate: String) -> Bool {
        sqlstate.utf8.starts(with: "42".utf8) || sqlstate.utf8.starts(with: "0A".utf8)
    }

    /// Notes the result of `Statements.lineage`, and reports a loss of commits.
    /// - Returns: the lineage; nil on a standby.
    @discardableResult
    func note(_ result: PostgresResult, since known: Known) throws(PostgresError) -> StoreLineage? {
        guard let row = result.first, let system = try row.integer(0) else { return nil }
        guard let timeline = try row.text(1).flatMap({ Int64($0, radix: 16) }), let position = try row.integer(2) else {
            state.withLock { $0.hasMetStandby = true }
            return nil
        }
        let lineage = StoreLineage(system: system, timeline: timeline, position: position)
        let notify = state.withLock { state -> (@Sendable (StoreNotification) -> Void)? in
            guard let last = state.lineage else {
                state.lineage = lineage
                return nil
            }
            let hasGoneBack = known.lineage.map { !$0.isContinued(by: lineage) } ?? false
            // Another connection may have shown the same before.
            if hasGoneBack, !last.isContinued(by: lineage) {
                state.lineage = lineage
                state.skip = .isDue
                return state.notify
            }
            // A result that was under way while another connection showed the next history is outdated.
            if last.isContinued(by: lineage) { state.lineage = lineage }
            return nil
        }
        notify?(.rolledBack)
        return lineage
    }

    /// The store has lost commits before this process first asked for its lineage.
    func noteEarlierLoss() { state.withLock { $0.skip = .isDue } }

    /// Notes the last sequence of the log of events, and reports a loss of commits.
    /// - Returns: nil when sequences may be assigned; else the sequence up to which the log must skip first, so that no
    ///   sequence is assigned twice and readers that have read further miss no entry.
    func note(sequence: Int64, since known: Known) -> Int64? {
        let (end, notify) = state.withLock { state -> (Int64?, (@Sendable (StoreNotification) -> Void)?) in
            state.sequence = max(state.sequence, sequence)
            let isLoss = sequence < known.sequence
            if isLoss { state.skip = .isDue }
            if case .isDue? = state.skip { state.skip = .to(state.sequence + Self.sequencesSkipped) }
            if case .to(let end)? = state.skip, sequence < end { return (end, isLoss ? state.notify : nil) }
            state.skip = nil
            return (nil, nil)
        }
        notify?(.rolledBack)
        return end
    }

    /// How far to skip beyond the highest sequence that this replica has seen, in the store as it is now or before, because
    /// other replicas may have seen more.
    private static let sequencesSkipped: Int64 = 10_000
}
