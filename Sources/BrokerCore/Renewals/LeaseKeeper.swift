import CredentialStore
import OAuth
import Reactor
import Synchronization

/// Extends the leases of attempts that wait for a provider. So a lease can be short, and other replicas soon notice that its
/// holder has died.
final class LeaseKeeper: Sendable {
    /// When the last extension was sent that the store has carried out, in nanoseconds of the monotonic clock; 0 for none.
    final class Extension: Sendable {
        fileprivate let sent = Atomic<Int64>(0)

        var last: MonotonicInstant? {
            let sent = sent.load(ordering: .relaxed)
            return sent == 0 ? nil : MonotonicInstant(nanoseconds: sent)
        }
    }

    /// A lease that is to be extended.
    struct Held: Sendable {
        let record: RecordID
        let version: Int64
        /// Extends the lease, and takes no lease from another holder. So it does no harm when it arrives late.
        let claim: LeaseClaim
        let interval: Duration
        let extended: Extension
    }

    private struct Entry {
        let held: Held
        var due: MonotonicInstant
        var isUnderWay = false
    }

    private struct State {
        var entries: [UInt64: Entry] = [:]
        var lastToken: UInt64 = 0
        var isAtWork = false
    }

    /// How often it looks for leases that are due to be extended.
    private static let interval: Duration = .milliseconds(250)

    let records: CredentialsRecords
    let holders: LeaseHolders
    let abandoned: AbandonedLeases
    private let time: any Time
    private let state = Mutex(State())

    init(records: CredentialsRecords, holders: LeaseHolders, abandoned: AbandonedLeases) {
        self.records = records
        self.holders = holders
        self.abandoned = abandoned
        time = records.time
    }

    /// Begins to extend a lease, first after its interval.
    /// - Returns: what `endExtending` takes.
    func beginExtending(_ held: Held) -> UInt64 {
        let due = time.monotonic.advanced(by: held.interval)
        let (token, begins) = state.withLock { state in
            state.lastToken += 1
            state.entries[state.lastToken] = Entry(held: held, due: due)
            defer { state.isAtWork = true }
            return (state.lastToken, !state.isAtWork)
        }
        if begins { TraceContext.leaving { _ = Task { await self.work() } } }
        return token
    }

    func endExtending(_ token: UInt64) {
        state.withLock { _ = $0.entries.removeValue(forKey: token) }
    }

    private func work() async {
        while true {
            await time.tick(for: Self.interval)
            let now = time.monotonic
            let due: [(token: UInt64, held: Held)]? = state.withLock { state in
                if state.entries.isEmpty {
                    state.isAtWork = false
                    return nil
                }
                var due: [(UInt64, Held)] = []
                for (token, entry) in state.entries where entry.due <= now && !entry.isUnderWay {
                    due.append((token, entry.held))
                    state.entries[token]?.due = now.advanced(by: entry.held.interval)
                    state.entries[token]?.isUnderWay = true
                }
                return due
            }
            guard let due else { return }
            // In tasks of their own, so that a row that another transaction has locked does not delay the other leases. There
            // is one statement for each call that waits for a provider, and the providers' places bound those calls.
            for entry in due { Task { await self.extend(entry.held, entry.token) } }
        }
    }

    private func extend(_ held: Held, _ token: UInt64) async {
        defer { state.withLock { $0.entries[token]?.isUnderWay = false } }
        let sent = time.monotonic
        do throws(StoreError) {
            try await records.commit([.claim(held.record, version: held.version, held.claim)])
            held.extended.sent.store(sent.nanoseconds, ordering: .relaxed)
        } catch .conflict {
            // Another attempt has the lease, or the record was replaced. Whether the grant still counts is decided when it is
            // stored.
            endExtending(token)
        } catch {
            // The next interval tries again. Should the lease run out meanwhile, other replicas still give this one its turn.
        }
    }
}
