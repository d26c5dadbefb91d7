internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Synchronization

/// The right to renew one set of credentials, which one renewal has at a time among all the replicas of a store.
///
/// It stands in the record's own row and is measured by the store's clock, so no connection is held for it and no
/// replica's clock counts. It lasts longer than a call to the provider may take and is extended before each further
/// one: a holder that the store has lost sight of has given up its call by the time when another one may begin.
///
/// A holder that dies leaves the lease behind, which then runs out: nobody knows whether the provider has exchanged the
/// refresh token. Whoever takes such a lease over tries the stored refresh token again, for which providers have a
/// grace period, and knows that a refusal need not be a revocation.
final class RenewalLease: Sendable {
    /// By how much a lease outlasts the call that is made under it.
    static let margin: Duration = .seconds(2)

    private struct State {
        /// By this process's clock, counted from before the store was asked; nil without a claim.
        var end: MonotonicInstant?
        var isUncertain: Bool
        var claim = Claim.notMade
    }

    /// What became of the claim.
    enum Claim: Sendable {
        case notMade
        /// The record is another one, or another's.
        case refused
        /// The store did not take it.
        case failed
        case made
    }

    let id: CredentialsID
    let refreshID: RefreshID
    private let version: Int64
    private let replaced: Lease?
    private let callLimit: Duration
    private let records: CredentialsRecords
    private let time: any Time
    private let stop: Signals<Int>
    private let state: Mutex<State>

    /// - Parameters:
    ///   - version: the record's, 0 for one that is not there yet. That has no row, so that nothing is claimed.
    ///   - standing: the lease on the record as it was read, which must have run out.
    ///   - spendsRefreshToken: whether the provider is asked to exchange the refresh token.
    ///   - callLimit: the longest that one call to the provider takes.
    ///   - stop: closed when the broker is about to stop.
    init(
        _ id: CredentialsID, version: Int64, over standing: Lease?, as refreshID: RefreshID,
        spendsRefreshToken: Bool, callLimit: Duration, records: CredentialsRecords, time: any Time,
        stop: Signals<Int>
    ) {
        self.id = id
        self.version = version
        self.refreshID = refreshID
        self.callLimit = callLimit
        self.records = records
        self.time = time
        self.stop = stop
        replaced = standing
        state = Mutex(State(end: nil, isUncertain: standing != nil && spendsRefreshToken))
    }

    private var span: Duration { callLimit + Self.margin }

    /// The name under which what was brought is to be stored; nil where nothing was claimed.
    var holder: String? { state.withLock { $0.end } == nil ? nil : refreshID.text }

    /// Whether the refresh token may have been exchanged by a call whose answer nobody has seen.
    var isUncertain: Bool { state.withLock { $0.isUncertain } }

    var claim: Claim { state.withLock { $0.claim } }

    /// Takes the lease, in one commit with the events that tell of the renewal's beginning.
    /// - Throws: `.conflict` where somebody else was faster, or the tenant is gone.
    func claim(telling events: [BrokerEvent]) async throws(StoreError) {
        let start = time.monotonic
        var changes: [VaultChange] = []
        if version > 0 { changes.append(change(replacing: replaced?.holder)) }
        do throws(StoreError) {
            try await records.tell(events, of: id, with: changes)
        } catch {
            state.withLock { $0.claim = error == .conflict ? .refused : .failed }
            throw error
        }
        state.withLock { state in
            state.claim = .made
            if version > 0 { state.end = start.advanced(by: span) }
        }
    }

    /// Makes sure that the lease outlasts a call that begins now.
    ///
    /// Where the refresh token may have been spent by an earlier call already, its successor is to be had for some seconds
    /// only, and not from a store that is away just then: while the lease stands, which nobody else can take before its
    /// end, the call is made all the same.
    func prepareCall() async throws(TokenEndpoint.Failure) {
        var tries = 0
        while let end = state.withLock({ $0.end }), end < time.monotonic.advanced(by: callLimit) {
            tries += 1
            do throws(StoreError) {
                // A store that takes longer for it than the margin is too slow for what a call would bring.
                guard tries <= 3 else { throw .unavailable }
                try await extend()
            } catch .conflict {
                throw .overtaken
            } catch {
                if isUncertain, end > time.monotonic { return }
                throw .failed(BrokerError(error))
            }
        }
    }

    /// A call has ended that may have exchanged the refresh token without our having what it brought, or has not.
    func callEnded(isUncertain: Bool) {
        if isUncertain { state.withLock { $0.isUncertain = true } }
    }

    /// Waits, and keeps the lease meanwhile. Not longer at a time than its span: others notice soon when this process
    /// dies.
    /// - Throws: also where the broker is about to stop: another replica, or the next process, makes the tries that are
    ///   left, and sooner than this one could.
    func wait(for duration: Duration) async throws(CancellationError) {
        var remaining = duration
        while remaining > .zero {
            let step = min(remaining, span - .seconds(1))
            if let end = state.withLock({ $0.end }), end < time.monotonic.advanced(by: step + .seconds(1)) {
                // A store that is away or a lease that is lost shows before the next call.
                _ = try? await extend()
            }
            await stop.wait(for: 0, since: stop.ticket(0)) { try? await self.time.sleep(for: step) }
            if Task.isCancelled || stop.isClosed { throw CancellationError() }
            remaining -= step
        }
    }

    private func extend() async throws(StoreError) {
        let start = time.monotonic
        try await records.commit([change(replacing: nil)])
        state.withLock { $0.end = start.advanced(by: span) }
    }

    /// What gives the lease back. Where the outcome is not known, a mark of that stays.
    ///
    /// Whoever is cut short had tries left, which others are to make at once: the lease runs out then, as when the
    /// process dies, but now.
    func release() -> [VaultChange] {
        guard let holder else { return [] }
        if isUncertain, Task.isCancelled || stop.isClosed { return [change(replacing: nil, for: .zero)] }
        return [
            .release(
                CredentialsRecords.recordID(id), version: version, holder: holder, isSettled: !isUncertain)
        ]
    }

    private func change(replacing previous: String?, for duration: Duration? = nil) -> VaultChange {
        .claim(
            CredentialsRecords.recordID(id), version: version, holder: refreshID.text, replacing: previous,
            for: duration ?? span)
    }
}
