internal import Postgres
internal import Reactor
internal import Synchronization

/// Finds out whether a PostgreSQL lacks commits that this process may have seen: after a failover to an asynchronous
/// standby, a recovery to a point in time, or the return of an old copy of its files.
///
/// Each new connection is asked for its lineage before it is lent, and is compared with what was known before the
/// question was sent. So no statement reaches a database that has gone back before that was told. Where a connection can
/// come to lead to another server without being made anew, behind a pooler or on a standby that is promoted, the claims of
/// leases ask as well, in their own round trip.
///
/// A server that does not tell its lineage, because its functions or the role's rights are others, is asked no more.
final class LineageWatch: Sendable {
    private struct State {
        var lineage: StoreLineage?
        /// The highest sequence of the log of events that was seen.
        var sequence: Int64 = 0
        var isSilent = false
        var hasMetStandby = false
        var hear: (@Sendable (StoreNews) -> Void)?
    }

    private let state = Mutex(State())
    private let usesPooler: Bool
    private let report: @Sendable (PostgresError) -> Void

    init(usesPooler: Bool, report: @escaping @Sendable (PostgresError) -> Void) {
        self.usesPooler = usesPooler
        self.report = report
    }

    /// Has `hear` told when the store has gone back.
    func watch(_ hear: @escaping @Sendable (StoreNews) -> Void) { state.withLock { $0.hear = hear } }

    /// What was known before something was asked.
    struct Known: Sendable {
        fileprivate let lineage: StoreLineage?
        fileprivate let sequence: Int64
    }

    func known() -> Known { state.withLock { Known(lineage: $0.lineage, sequence: $0.sequence) } }

    /// Whether connections may come to lead to another history while they stand.
    var asksWithClaims: Bool {
        state.withLock { state in !state.isSilent && (usesPooler || state.hasMetStandby) }
    }

    private var isSilent: Bool { state.withLock { $0.isSilent } }

    /// Asks on a connection. Nil where the server does not tell, and where it is a standby.
    @discardableResult
    func ask(_ connection: PostgresConnection, until deadline: MonotonicInstant) async throws(PostgresError)
        -> StoreLineage?
    {
        if isSilent { return nil }
        let known = known()
        let result: PostgresResult
        do throws(PostgresError) {
            result = try await connection.execute(Statements.lineage, until: deadline)
        } catch {
            guard case .server(let sqlstate) = error, Self.isRefusal(sqlstate) else { throw error }
            state.withLock { $0.isSilent = true }
            report(error)
            return nil
        }
        return try note(result, since: known)
    }

    /// An undefined function, one that the role may not call, and one that the server does not have although it names it.
    private static func isRefusal(_ sqlstate: String) -> Bool {
        sqlstate.utf8.starts(with: "42".utf8) || sqlstate.utf8.starts(with: "0A".utf8)
    }

    /// Takes in what a connection has told.
    @discardableResult
    func note(_ result: PostgresResult, since known: Known) throws(PostgresError) -> StoreLineage? {
        guard let row = result.first, let system = try row.integer(0) else { return nil }
        guard let timeline = try row.text(1).flatMap({ Int64($0, radix: 16) }), let position = try row.integer(2) else {
            state.withLock { $0.hasMetStandby = true }
            return nil
        }
        let lineage = StoreLineage(system: system, timeline: timeline, position: position)
        let hear = state.withLock { state -> (@Sendable (StoreNews) -> Void)? in
            guard let last = state.lineage else {
                state.lineage = lineage
                return nil
            }
            let hasGoneBack = known.lineage.map { !$0.isContinued(by: lineage) } ?? false
            // Another connection may have told the same already.
            if hasGoneBack, !last.isContinued(by: lineage) {
                state.lineage = lineage
                return state.hear
            }
            // An answer that was under way when another connection told of the next history is of the past.
            if last.isContinued(by: lineage) { state.lineage = lineage }
            return nil
        }
        hear?(.wentBack)
        return lineage
    }

    /// Takes in how far the log of events reaches.
    /// - Returns: how far it is to be moved on, where it has gone back: so that no sequence is given twice, and who has read
    ///   up to one misses nothing.
    func note(sequence: Int64, since known: Known) -> Int64? {
        let (highest, hear) = state.withLock { state -> (Int64, (@Sendable (StoreNews) -> Void)?) in
            state.sequence = max(state.sequence, sequence)
            return (state.sequence, state.hear)
        }
        guard sequence < known.sequence else { return nil }
        hear?(.wentBack)
        return highest + Self.sequencesSkipped
    }

    /// Other replicas may have read further than this one.
    private static let sequencesSkipped: Int64 = 10_000
}
