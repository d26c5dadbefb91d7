import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor
import Synchronization

/// Tells the other replicas, through the store, which refresh tokens of apps this one could not answer in time, so that an app that
/// comes to another replica next does not pass for a thief.
///
/// Each replica writes a report every two seconds. One that has not reported for five seconds is cut off from the store or has
/// died: it may have told any app to come again. When the store was away for all replicas, each of them waits for the reports of
/// the others. Where no other process writes to the store, there are no reports.
///
/// Safe to use from any task.
package final class DeferralReports: BackgroundJob {
    /// After this time without a report, a replica counts as cut off or dead.
    static let silence: Duration = .seconds(5)
    /// For how long the last report of a replica is kept that does not report any more.
    static let memory: Duration = .seconds(300)
    /// How often the reports are read while one is to come.
    private static let poll: Duration = .milliseconds(250)
    /// How many reports are read: there are fewer replicas.
    private static let most = 1000

    private let deferred: DeferredTokens
    private let vault: Vault
    package let time: any Time
    private let log: Log
    private let isShared: Bool
    private let id = RecordID(.process, .broker, key: RefreshID().text)
    /// The version of the report in the store; nil where it is not known.
    private let version = Mutex<Int64?>(0)
    /// Until when the reports of other replicas may be missing because the store was away: it is away while this is nil.
    private let settled = Mutex<MonotonicInstant?>(MonotonicInstant(nanoseconds: .min))
    /// When this process stood still last, and until when it tells so.
    private let standstill = Mutex<(since: Timestamp, until: MonotonicInstant)?>(nil)
    /// When the last report was begun; nil before the first one.
    private let lastBegan = Mutex<(now: Timestamp, monotonic: MonotonicInstant)?>(nil)

    init(of deferred: DeferredTokens, records: CredentialsRecords) {
        self.deferred = deferred
        (vault, time, log, isShared) = (records.vault, records.time, records.log, records.isShared)
    }

    // MARK: Writing

    package func work() async -> NextTime {
        guard isShared else { return .never }
        let clocks = time.clocks
        let last = lastBegan.withLock { last in
            defer { last = (clocks.now, clocks.monotonic) }
            return last
        }
        if let last, last.monotonic.duration(to: clocks.monotonic) > Self.silence { noteStandstill(since: last.now) }
        await report()
        return .after(JobInterval.deferralReports)
    }

    /// This process stood still. Tokens that were presented to it meanwhile may be unread, or their apps may have given up.
    func noteStandstill(since began: Timestamp) {
        let end = time.monotonic.advanced(by: AppSessions.repetition + DeferredTokens.validity)
        standstill.withLock { known in
            let isOver = known.map { $0.until <= time.monotonic } ?? true
            known = (isOver ? began : min(known?.since ?? began, began), end)
        }
    }

    /// Since when tokens may have been presented that no report has; nil for no such time.
    private var unknownSince: Timestamp? {
        standstill.withLock { known in known.flatMap { $0.until > time.monotonic ? $0.since : nil } }
    }

    /// Writes the last report, so that the others do not wait for another one. To be called after the last request has its answer.
    package func finish() async {
        guard isShared else { return }
        await report(isLast: true)
    }

    /// Writes a report. Where the store fails, the next one tells the same.
    func report(isLast: Bool = false) async {
        // A request that comes after this moment may be missing in the report.
        let through = time.now
        let report = DeferralReport(of: deferred.all, through: through, isLast: isLast, restSince: unknownSince)
        do throws(StoreError) {
            let known = version.withLock { version in
                // Until the store has answered, it may have the one version or the other.
                defer { version = nil }
                return version
            }
            let stored: Int64
            if let known { stored = known } else { stored = try await vault.version(of: id) ?? 0 }
            let record = OpenRecord(
                id: id, version: stored + 1, content: SecretBytes(report.encoded),
                expires: report.through.advanced(by: Self.memory))
            try await vault.commit([stored == 0 ? .insert(record) : .replace(record, version: stored)])
            version.withLock { $0 = stored + 1 }
            settled.withLock { settled in
                if settled == nil { settled = time.monotonic.advanced(by: Self.silence) }
            }
        } catch .conflict {
            // The store has lost commits, or an earlier write was carried out after all. The next report asks.
        } catch {
            settled.withLock { $0 = nil }
            log.storeFailed(error)
        }
    }

    // MARK: Reading

    /// Whether a refresh token that was replaced may have been presented to another replica in time, and not been answered.
    /// Suspends while a replica is about to report, for five seconds at most.
    /// - Parameters:
    ///   - digest: of the token's secret.
    ///   - replaced: when it was replaced.
    ///   - isLatest: whether the token that came in its place was never exchanged, so that the app may not have it.
    /// - Throws: `.unavailable` also while the store was away a moment ago, so that the other replicas have not reported yet.
    func mayBeDeferred(_ digest: [UInt8], replaced: Timestamp, isLatest: Bool) async throws(StoreError) -> Bool {
        guard isShared else { return false }
        let end = replaced.advanced(by: AppSessions.repetition)
        let isRecent = end.advanced(by: DeferredTokens.validity) > time.now
        let limit = time.monotonic.advanced(by: Self.silence)
        while true {
            var (isComplete, isUnknown) = (true, false)
            for report in try await others() {
                switch report.answer(digest, presentedUntil: end, at: time.now) {
                case .deferred: return true
                case .unknown: isUnknown = true
                case .toCome: isComplete = false
                case .none: continue
                }
            }
            // A clock that was set back must not prolong the wait.
            if !isComplete, time.monotonic >= limit { (isComplete, isUnknown) = (true, true) }
            if isUnknown, isLatest, isRecent { return true }
            if isComplete {
                guard settled.withLock({ $0.map { $0 <= time.monotonic } ?? false }) else { throw .unavailable }
                return false
            }
            do {
                try await time.sleep(for: Self.poll)
            } catch {
                throw .unavailable
            }
        }
    }

    private func others() async throws(StoreError) -> [DeferralReport] {
        let found = try await vault.listSealed(
            .process, tenant: .broker, after: RecordID(.process, .broker), limit: Self.most)
        let now = time.now
        return found.compactMap { sealed in
            if sealed.id == id { return nil }
            // A report that this build cannot read tells it nothing.
            guard let record = try? vault.open(sealed), record.expires.map({ $0 > now }) ?? true else { return nil }
            return DeferralReport(record.content.revealedBytes)
        }
    }
}

/// What one replica has told of the requests that it could not answer in time.
struct DeferralReport: Equatable, Sendable {
    enum Answer: Equatable, Sendable {
        /// The token was presented in time.
        case deferred
        /// It may have been.
        case unknown
        /// A later report will tell.
        case toCome
        case none
    }

    /// The most deferrals in a report: those that came last.
    static let most = 512
    /// How many octets of a digest are in it. Two digests that begin alike are of one token.
    private static let digestLength = 16
    private static let length = digestLength + 8

    /// It tells of all requests that came until then.
    let through: Timestamp
    /// Whether the process has ended since.
    let isLast: Bool
    private(set) var deferrals: [Deferral] = []
    /// When the first of the requests came that are not in it; nil for none.
    private(set) var restSince: Timestamp?

    /// - Parameter restSince: since when further requests may have come; nil for none.
    init(of deferrals: [Deferral], through: Timestamp, isLast: Bool, restSince: Timestamp? = nil) {
        (self.through, self.isLast) = (through, isLast)
        self.deferrals = deferrals.suffix(Self.most).map {
            Deferral(digest: Array($0.digest.prefix(Self.digestLength)), arrival: $0.arrival)
        }
        let left = deferrals.dropLast(Self.most).map(\.arrival).min()
        self.restSince = [left, restSince].compactMap(\.self).min()
    }

    /// What it tells of a token that is known if it was presented until `end`.
    func answer(_ digest: [UInt8], presentedUntil end: Timestamp, at now: Timestamp) -> Answer {
        if deferrals.contains(where: { digest.starts(with: $0.digest) && $0.arrival <= end }) { return .deferred }
        if let restSince, restSince <= end { return .unknown }
        if isLast || through >= end { return .none }
        return through.duration(to: now) < DeferralReports.silence ? .toCome : .unknown
    }

    var encoded: [UInt8] {
        var octets: [UInt8] = []
        octets.reserveCapacity(deferrals.count * Self.length)
        for deferral in deferrals {
            octets += deferral.digest
            let milliseconds = UInt64(bitPattern: deferral.arrival.milliseconds)
            octets += (0..<8).map { UInt8(truncatingIfNeeded: milliseconds >> (56 - 8 * $0)) }
        }
        return JSONWriter.object { json in
            json.member("through", through.milliseconds)
            json.member("last", isLast)
            json.member("deferrals", Base64URL.encode(octets))
            json.memberIfPresent("rest_since", restSince?.milliseconds)
        }
    }

    /// Nil where this build cannot read it.
    init?(_ bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let through = json["through"]?.integer,
            let isLast = json["last"]?.bool,
            let octets = json["deferrals"]?.string.flatMap({ Base64URL.decode($0.text) }),
            octets.count.isMultiple(of: Self.length)
        else { return nil }
        (self.through, self.isLast) = (Timestamp(milliseconds: through), isLast)
        restSince = json["rest_since"]?.integer.map { Timestamp(milliseconds: $0) }
        deferrals = stride(from: 0, to: octets.count, by: Self.length).map { start in
            let arrival = octets[(start + Self.digestLength)..<(start + Self.length)].reduce(UInt64(0)) {
                $0 << 8 | UInt64($1)
            }
            return Deferral(
                digest: Array(octets[start..<(start + Self.digestLength)]),
                arrival: Timestamp(milliseconds: Int64(bitPattern: arrival)))
        }
    }
}
