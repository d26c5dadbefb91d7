import CredentialStore
import OAuth
import Reactor
import Synchronization

/// How many refreshes of each tenant succeed, at all replicas. Each counts its own in memory, and tells the others by a record in
/// the store (`WaveReport`) only where a wave may begin, or is on: a refresh writes nothing by itself.
///
/// A wave may begin where the refusals, which all replicas have counted, are a wave by the successes of the replica that met the
/// last one. Then that replica asks (`WaveQuestion`), waits for `patience`, and adds what the others have answered. A replica whose
/// answer comes too late, or that has not heard of the question, is not counted; a wave that begins for this reason ends as every
/// wave does that the provider's successes refute (`proven`).
final class WaveTallies: Sendable {
    /// What a replica wants to know of the others.
    struct Inquiry: Sendable {
        let tenant: TenantName
        let question: WaveQuestion
        /// Whether there is time to ask; false has the answers count that are there.
        let mayWait: Bool
    }

    /// What is known of the other replicas' refreshes.
    enum Elsewhere {
        case known(Int)
        /// They were asked, and have so long to answer.
        case asked(Duration)
    }

    /// The sets that this replica has refreshed in a wave, and whose refresh tokens had been granted before it.
    private struct Proven {
        let wave: Int64
        var count = 0
        /// The count that other replicas know.
        var reported = 0
        var reportedAt: MonotonicInstant?
    }

    private struct State {
        /// The tenants about which a question is still to be answered.
        var asked: Set<TenantName> = []
        /// For each tenant with a wave that this replica has refreshed sets in.
        var proven: [TenantName: Proven] = [:]
    }

    /// The longest time that replicas have to answer.
    static let longestPatience: Duration = .seconds(2)
    /// By how much the asking replica's clock may be ahead of this one's.
    private static let mostSkew: Duration = .seconds(5)
    /// The shortest time between two reports about a wave.
    private static let reportInterval: Duration = .seconds(5)

    private let records: CredentialsRecords
    private let time: any Time
    /// Names this replica.
    private let process = RefreshID().text
    private let counts = RenewalCounts()
    private let state = Mutex(State())

    init(records: CredentialsRecords) {
        self.records = records
        time = records.time
    }

    // MARK: Counting

    /// A refresh has succeeded.
    /// - Parameter wave: the tenant's wave, where the refresh token had been granted before that; nil elsewhere.
    func add(_ tenant: TenantName, _ window: Duration, provingAgainst wave: Int64?) {
        counts.add(tenant, window, at: time.now)
        guard let wave else { return }
        state.withLock { state in
            var proven = state.proven[tenant].flatMap { $0.wave == wave ? $0 : nil } ?? Proven(wave: wave)
            proven.count += 1
            state.proven[tenant] = proven
        }
    }

    /// The tenant has no wave any more.
    func forgetWave(_ tenant: TenantName) { state.withLock { _ = $0.proven.removeValue(forKey: tenant) } }

    /// How many refreshes of the tenant this replica has seen succeed.
    func renewed(_ tenant: TenantName, _ window: Duration, since beginning: Timestamp) -> Int {
        counts.count(tenant, window, since: beginning, at: time.now)
    }

    // MARK: All replicas

    /// For how long an asking replica waits: a short window leaves less time.
    private static func patience(_ window: Duration) -> Duration { min(longestPatience, window / 4) }

    /// How many refreshes the other replicas have seen succeed, by their answers to a question of the last half of the window. Asks
    /// them where there is none.
    /// - Throws: `.conflict` where another replica asks at the same time, or the tenant was removed.
    func renewedElsewhere(_ inquiry: Inquiry) async throws(StoreError) -> Elsewhere {
        let (question, tenant) = (inquiry.question, inquiry.tenant)
        let known = try await records.waveQuestion(tenant)
        let patience = Self.patience(question.window)
        if let known, let last = known.question {
            let age = last.time.duration(to: question.time)
            if age >= .zero - Self.mostSkew, age < question.window / 2 || !inquiry.mayWait {
                if inquiry.mayWait, age < patience { return .asked(min(patience, patience - age)) }
                let answers = try await records.reports(tenant, exceptOf: process)
                return .known(answers.reduce(0) { $1.question == known.version ? $0 + $1.renewed : $0 })
            }
        }
        guard inquiry.mayWait else { return .known(0) }
        try await records.commit(records.changes(asking: question, tenant, over: known?.version))
        noteQuestion(about: tenant)
        return .asked(patience)
    }

    /// How many sets all replicas have refreshed in the wave whose refresh tokens had been granted before it.
    func proven(_ tenant: TenantName, in wave: Int64) async throws(StoreError) -> Int {
        let own = state.withLock { $0.proven[tenant].map { $0.wave == wave ? $0.count : 0 } ?? 0 }
        return try await records.reports(tenant, exceptOf: process).reduce(own) {
            $1.wave == wave ? $0 + $1.proven : $0
        }
    }

    // MARK: This replica's reports

    /// A replica has asked about the tenant. `report` answers.
    func noteQuestion(about tenant: TenantName) { state.withLock { _ = $0.asked.insert(tenant) } }

    /// Tells the other replicas what they ask for, and of waves what they do not know yet.
    func report() async throws(StoreError) {
        let now = time.monotonic
        let due = state.withLock { state in
            defer { state.asked = [] }
            return state.asked.union(
                state.proven.filter { _, proven in
                    proven.count > proven.reported
                        && proven.reportedAt.map { $0.duration(to: now) >= Self.reportInterval } ?? true
                }.keys)
        }
        var left = due
        do throws(StoreError) {
            for tenant in due {
                try await report(tenant, at: now)
                left.remove(tenant)
            }
        } catch {
            state.withLock { $0.asked.formUnion(left) }
            throw error
        }
    }

    private func report(_ tenant: TenantName, at now: MonotonicInstant) async throws(StoreError) {
        var report = WaveReport()
        if let known = try await records.waveQuestion(tenant), let question = known.question {
            report.question = known.version
            report.renewed = renewed(tenant, question.window, since: question.since)
        }
        if let proven = state.withLock({ $0.proven[tenant] }) {
            (report.wave, report.proven) = (proven.wave, proven.count)
        }
        if report.isEmpty { return }
        do throws(StoreError) {
            let version = try await records.vault.version(of: CredentialsRecords.reportID(tenant, process))
            try await records.commit(records.changes(telling: report, tenant, by: process, over: version))
        } catch .conflict {
            // The tenant was removed.
            return
        }
        state.withLock { state in
            guard state.proven[tenant]?.wave == report.wave else { return }
            state.proven[tenant]?.reported = report.proven
            state.proven[tenant]?.reportedAt = now
        }
    }
}
