import OAuth
import Postgres
import Reactor
import Synchronization

/// Removes the entries of the log in PostgreSQL that are too many; see `RecordStore.trimLog` and `LogShares`.
///
/// It counts the entries of each tenant, and decides for each tenant that loses some up to which sequence. It then removes
/// them in pieces, over as many calls as that takes, without counting again. A sequence, unlike a number of entries, stays
/// right when another replica removes the same ones: no tenant loses more because two do so at once.
///
/// The count reads the whole index by tenant, in slices, so that no statement is long and no lock or snapshot is held
/// meanwhile. It is not made while the log cannot have too many entries by what is known.
final class PostgresThinning: Sendable {
    /// The end of what a tenant loses.
    private struct Cut: Sendable, Equatable {
        let tenant: TenantName
        let last: Int64
    }

    private struct State {
        /// What is to be removed still, and how many entries are to be kept by it.
        var cuts: [Cut] = []
        var kept = 0
        /// How many entries up to a sequence there are at most when the cuts are made; nil before the first count.
        var known: (count: Int, last: Int64)?
        /// Before this time there is no other count.
        var rested = MonotonicInstant.now
    }

    /// The entries of a tenant as they were counted.
    private struct Tally {
        let first: Int64
        /// In order: the numbers of the entries in the slices, and the last sequence in each.
        var slices: [(count: Int, last: Int64)] = []
        /// Whether the first entry is a marker.
        var isMarked = false

        /// How many there are, without the marker where it is known.
        var count: Int { slices.reduce(isMarked ? -1 : 0) { $0 + $1.count } }
    }

    /// How many entries are counted by one statement.
    static let slice = 100_000
    /// A count that takes longer than the first is followed by a rest that is longer than the count by the second. So the
    /// counts of a process take a twentieth of its time at most, however many entries the log keeps.
    private static let (longCount, restFactor) = (Duration.seconds(3), 20)

    private let database: StoreDatabase
    private let slice: Int
    private let state = Mutex(State())

    init(_ database: StoreDatabase, slice: Int = slice) {
        self.database = database
        self.slice = slice
    }

    /// Removes up to `limit` entries. Returns how many.
    /// - Parameter bounds: those of the log, a moment ago.
    func remove(keeping count: Int, limit: Int, of bounds: LogBounds) async throws(StoreError) -> Int {
        var removed = 0
        var hasCounted = false
        while removed < limit {
            guard let cut = nextCut(keeping: count) else {
                if hasCounted || !mayHaveTooMany(keeping: count, bounds) { break }
                hasCounted = true
                try await decide(keeping: count, bounds)
                continue
            }
            let most = limit - removed
            let (number, last) = try await make(cut, limit: most)
            removed += number
            if number < most || last.map({ $0 >= cut.last }) ?? true { finish(cut) }
        }
        return removed
    }

    private func nextCut(keeping count: Int) -> Cut? {
        state.withLock { $0.kept == count ? $0.cuts.first : nil }
    }

    private func finish(_ cut: Cut) {
        state.withLock { state in state.cuts.removeAll { $0 == cut } }
    }

    private func mayHaveTooMany(keeping count: Int, _ bounds: LogBounds) -> Bool {
        state.withLock { state in
            guard state.rested <= .now, bounds.last - bounds.trimmed > count else { return false }
            guard let known = state.known, known.last <= bounds.last else { return true }
            return Int64(known.count) + bounds.last - known.last > count
        }
    }

    // MARK: Deciding

    private func decide(keeping count: Int, _ bounds: LogBounds) async throws(StoreError) {
        let start = MonotonicInstant.now
        var tallies = try await self.count()
        var total = Self.total(of: tallies)
        var cuts: [Cut] = []
        if total > count {
            for tenant in try await markedTenants(tallies) { tallies[tenant]?.isMarked = true }
            total = Self.total(of: tallies)
            let surplus = LogShares.surplus(of: tallies.mapValues(\.count), keeping: count)
            for (tenant, number) in surplus.sorted(by: { ($1.value, $0.key) < ($0.value, $1.key) }) {
                guard let tally = tallies[tenant] else { continue }
                if let last = try await end(of: tenant, tally, keeping: tally.count - number) {
                    cuts.append(Cut(tenant: tenant, last: last))
                }
            }
        }
        let took = start.duration(to: .now)
        state.withLock { state in
            (state.cuts, state.kept) = (cuts, count)
            state.known = (min(total, count), bounds.last)
            if took > Self.longCount { state.rested = .after(took * Self.restFactor) }
        }
    }

    private static func total(of tallies: [TenantName: Tally]) -> Int { tallies.values.reduce(0) { $0 + $1.count } }

    /// The entries of each tenant.
    private func count() async throws(StoreError) -> [TenantName: Tally] {
        var tallies: [TenantName: Tally] = [:]
        // No tenant has an empty name.
        var (tenant, sequence) = ("", Int64(0))
        while true {
            let parameters: [PostgresValue] = [.text(tenant), .integer(sequence), .integer(Int64(slice))]
            let rows = try await database.query(Statements.countEntries, with: parameters) {
                result throws(PostgresError) in
                try result.rows.map { row throws(PostgresError) in try Self.tally(row) }
            }
            for row in rows {
                tallies[row.tenant, default: Tally(first: row.first)].slices.append((row.count, row.last))
                (tenant, sequence) = (row.tenant.description, row.last)
            }
            if rows.reduce(0, { $0 + $1.count }) < slice { return tallies }
        }
    }

    private static func tally(
        _ row: PostgresResult.Row
    ) throws(PostgresError) -> (tenant: TenantName, count: Int, first: Int64, last: Int64) {
        guard let tenant = try row.text(0).flatMap(TenantName.init(stored:)), let count = try row.integer(1),
            let first = try row.integer(2), let last = try row.integer(3)
        else { throw .unexpectedResult("a number of entries of the log has no tenant or sequence") }
        return (tenant, Int(count), first, last)
    }

    /// The tenants that have a marker. It is the oldest entry of its tenant.
    private func markedTenants(_ tallies: [TenantName: Tally]) async throws(StoreError) -> [TenantName] {
        let sequences = tallies.values.map { String($0.first) }
        return try await database.query(Statements.markedTenants, with: [.texts(sequences)]) {
            result throws(PostgresError) in
            try result.rows.map { row throws(PostgresError) in
                guard let tenant = try row.text(0).flatMap(TenantName.init(stored:)) else {
                    throw .unexpectedResult("an entry of the log has no tenant")
                }
                return tenant
            }
        }
    }

    /// The sequence up to which the tenant loses entries, when it keeps so many of those that were counted; nil when they
    /// are gone. It is looked for from the end of a slice: a look from its beginning would go too far when another replica
    /// has removed entries there.
    private func end(
        of tenant: TenantName, _ tally: Tally, keeping count: Int
    ) async throws(StoreError) -> Int64? {
        var rest = count
        for slice in tally.slices.reversed() {
            if rest >= slice.count {
                rest -= slice.count
                continue
            }
            let parameters: [PostgresValue] = [
                .text(tenant.description), .integer(slice.last), .integer(Int64(rest)),
            ]
            return try await database.query(Statements.entryBefore, with: parameters) {
                result throws(PostgresError) in
                try result.first?.integer(0)
            }
        }
        return nil
    }

    // MARK: Removing

    /// Returns how many entries were removed, and the sequence of the tenant's marker; nil where there is none.
    private func make(_ cut: Cut, limit: Int) async throws(StoreError) -> (count: Int, last: Int64?) {
        let tenant = PostgresValue.text(cut.tenant.description)
        let first = [
            PostgresCommand(Statements.begin), PostgresCommand(Statements.lockLog),
            PostgresCommand(Statements.surplus, [tenant, .integer(cut.last), .integer(Int64(limit))]),
        ]
        let deadline = database.deadline
        let removed = Mutex((count: 0, last: Int64?.none))
        return try await database.repeating { () async throws(PostgresError) in
            _ = try await database.transaction(beginning: first, until: deadline) { results throws(PostgresError) in
                guard let row = results[2].first, let count = try row.integer(0) else {
                    throw .unexpectedResult("the number of the surplus entries of the log is missing")
                }
                let last = try row.integer(1)
                removed.withLock { $0 = (Int(count), last) }
                guard count > 0, let last else { return nil }
                return [
                    PostgresCommand(Statements.removeBefore, [tenant, .integer(last)]),
                    PostgresCommand(Statements.mark, [tenant, .integer(last)]),
                ] + StoreDurability.commit
            }
            return removed.withLock { $0 }
        }
    }
}
