import Containers
import CredentialStore
import Cryptography
package import OAuth
package import Reactor
import Synchronization
import Waiting

/// Limits how many requests the endpoints of apps take in a minute from one address, and the token endpoint for one user, over all
/// replicas.
///
/// The minutes are those of the shared time, so all replicas begin a new count together. Each replica counts up to a quarter of a
/// limit by itself: the usual app costs no access to the store. From there on it adds its requests to a record that all replicas
/// share, and goes by their sum. So a replica that has not counted up to its quarter is not in the sum: all replicas together
/// exceed a limit by a quarter for each of them but one, at most.
///
/// A store that fails refuses no request: each replica then goes by what it knows, and does not ask for five seconds.
///
/// Safe to use from any task.
package final class TokenEndpointLimits: Sendable {
    /// The most requests of a minute; nil for any number.
    package struct Limits: Sendable {
        /// From each address, or from each /64 prefix of IPv6, to each of the four endpoints. Default 120.
        package var perAddress: Int? = 120
        /// For each user of a tenant, by the storage key. Default 60.
        package var perUser: Int? = 60

        package init() {}
    }

    /// What a request without an API key asks for. Each is counted by itself.
    package enum Purpose: String, Sendable {
        case token
        case revocation
        case authorization
        case challenge
    }

    private enum Subject: Hashable, Sendable {
        case address(NetworkSource, Purpose)
        case user(CredentialsID)

        /// Two subjects have two texts: names have no spaces.
        var text: String {
            switch self {
            case .address(let source, .token): "address \(source)"
            case .address(let source, let purpose): "address \(source) \(purpose.rawValue)"
            case .user(let id): "user \(id.tenant) \(id.storageKey)"
            }
        }
    }

    /// A subject in one minute.
    private struct Counted: Hashable, Sendable {
        let subject: Subject
        /// The minute's number since 1970.
        let minute: Int64
    }

    private struct Count {
        let minute: Int64
        /// The admitted requests of this minute here, and those that wait for the sum.
        var here = 0
        /// How many of them are in the sum.
        var reported = 0
        /// The sum over all replicas, as this one knows it.
        var sum = 0

        /// How many requests the other replicas are known to have counted. A write that was lost may lack in the sum.
        var elsewhere: Int { max(0, sum - reported) }
    }

    private struct State {
        var counts: BoundedTable<Subject, Count>
        /// Until then the store is not asked.
        var asksAgain = MonotonicInstant(nanoseconds: 0)
    }

    private enum Decision {
        case admitted
        case refused
        /// Only the sum over all replicas tells.
        case open
    }

    private static let minute: Int64 = 60_000
    /// The part of a limit that each replica counts by itself.
    private static let share = 4
    /// The most subjects with a count of their own, of each kind. The oldest count is forgotten first.
    package static let capacity = 65_536
    /// For how long the store is not asked after it has failed.
    private static let pause: Duration = .seconds(5)
    /// For how long a record is kept after its minute: by more than two replicas' times differ.
    private static let memory: Duration = .seconds(60)
    /// How often a write is tried that another replica overtakes.
    private static let tries = 16

    private let limits: Limits
    private let vault: Vault
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let addresses = Mutex(State(counts: BoundedTable(capacity: capacity)))
    private let users = Mutex(State(counts: BoundedTable(capacity: capacity)))
    /// One report of a subject at a time, for all its requests that wait. The value is whether the store has answered.
    private let reports = SingleFlight<Counted, Bool>()

    init(_ limits: Limits, vault: Vault, instruments: Instruments) {
        self.limits = limits
        self.vault = vault
        (time, metrics, log) = (instruments.time, instruments.metrics, instruments.log)
    }

    /// Counts a request from an address. A request without a known address is not counted.
    /// - Throws: `x_rate_limited` beyond the limit. Retrying helps after `retryAfter`.
    package func admit(_ source: NetworkSource, for purpose: Purpose) async throws(AppError) {
        guard let limit = limits.perAddress, source != .unknown else { return }
        guard await isAdmitted(.address(source, purpose), limit) else { throw refusal(over: .appRequestsPerAddress) }
    }

    /// Counts a request for a user.
    /// - Throws: `x_rate_limited` beyond the limit. Retrying helps after `retryAfter`.
    package func admit(_ user: CredentialsID) async throws(AppError) {
        guard let limit = limits.perUser else { return }
        guard await isAdmitted(.user(user), limit) else { throw refusal(over: .appRequestsPerUser) }
    }

    /// Suspends until no report is under way.
    func finish() async {
        await reports.finish()
    }

    private func refusal(over quota: Quota) -> AppError {
        metrics.refused(over: quota)
        let now = time.now.milliseconds
        return AppError(quota.exceeded(retryAfter: .milliseconds(Self.minute - now % Self.minute)))
    }

    private func isAdmitted(_ subject: Subject, _ limit: Int) async -> Bool {
        let counted = Counted(subject: subject, minute: time.now.milliseconds / Self.minute)
        guard let place = place(of: counted, limit) else { return false }
        if place <= limit / Self.share { return true }
        // The first report may have begun before this request was counted.
        for _ in 0..<3 {
            let run = await reports.run(counted, within: nil) { await self.report(counted, limit) }
            // Without the sum, what is known here has admitted the request.
            guard run?.value ?? false else { return true }
            switch decision(on: place, of: counted, limit) {
            case .admitted: return true
            case .refused: return false
            case .open: continue
            }
        }
        return true
    }

    /// Counts a request.
    /// - Returns: which one of this replica it is; nil where it exceeds the limit by what is known here.
    private func place(of counted: Counted, _ limit: Int) -> Int? {
        withState(of: counted.subject) { state in
            guard var count = state.counts[counted.subject], count.minute == counted.minute else {
                var count = Count(minute: counted.minute)
                count.here = 1
                state.counts.setNewest(count, forKey: counted.subject)
                return 1
            }
            guard count.here + count.elsewhere < limit else { return nil }
            count.here += 1
            state.counts[counted.subject] = count
            return count.here
        }
    }

    /// What the sum says of a request.
    private func decision(on place: Int, of counted: Counted, _ limit: Int) -> Decision {
        withState(of: counted.subject) { state in
            // A count that was forgotten says nothing.
            guard let count = state.counts[counted.subject], count.minute == counted.minute else { return .admitted }
            if place + count.elsewhere > limit { return .refused }
            return place <= count.reported ? .admitted : .open
        }
    }

    /// Adds the requests that are not in the sum yet.
    /// - Returns: whether the store has answered.
    private func report(_ counted: Counted, _ limit: Int) async -> Bool {
        let end = Timestamp(milliseconds: (counted.minute + 1) * Self.minute)
        let message = Array("\(counted.subject.text) \(counted.minute)".utf8)
        // An authentication code tells a reader of the store no address.
        let id = RecordID(
            .requestCount, .broker,
            key: Base64URL.encode(vault.authenticationCode(of: message, label: "request count", count: 32)))
        for _ in 0..<Self.tries {
            guard let count = unreported(counted) else { return false }
            guard count.here > count.reported else { return true }
            var isWriting = false
            do throws(StoreError) {
                let record = try await vault.read(id)
                let sum = record.flatMap { Int($0.content.revealedText) } ?? 0
                guard sum < limit else {
                    note(counted, reported: count.reported, sum: sum)
                    return true
                }
                let next = sum + count.here - count.reported
                let content = OpenRecord(
                    id: id, version: (record?.version ?? 0) + 1,
                    // Requests beyond the limit are refused, so they are not in the sum.
                    content: SecretBytes(utf8: String(min(next, limit))), expires: end.advanced(by: Self.memory))
                isWriting = true
                try await vault.commit([
                    record.map { .replace(content, version: $0.version) } ?? .insert(content)
                ])
                note(counted, reported: count.here, sum: next)
                return true
            } catch .conflict {
                continue
            } catch {
                log.storeFailed(error)
                // The store may have carried the write out: counted once too little is better than once too often.
                if isWriting { note(counted, reported: count.here, sum: count.elsewhere + count.here) }
                pause(counted.subject)
                return false
            }
        }
        return false
    }

    /// The count that is to be reported; nil where there is none, or the store is not to be asked.
    private func unreported(_ counted: Counted) -> Count? {
        withState(of: counted.subject) { state in
            guard state.asksAgain <= time.monotonic else { return nil }
            return state.counts[counted.subject].flatMap { $0.minute == counted.minute ? $0 : nil }
        }
    }

    private func note(_ counted: Counted, reported: Int, sum: Int) {
        withState(of: counted.subject) { state in
            guard var count = state.counts[counted.subject], count.minute == counted.minute else { return }
            (count.reported, count.sum) = (reported, sum)
            state.counts[counted.subject] = count
        }
    }

    private func pause(_ subject: Subject) {
        withState(of: subject) { $0.asksAgain = time.monotonic.advanced(by: Self.pause) }
    }

    private func withState<Value: Sendable>(of subject: Subject, _ body: (inout State) -> Value) -> Value {
        switch subject {
        case .address: addresses.withLock { body(&$0) }
        case .user: users.withLock { body(&$0) }
        }
    }
}
