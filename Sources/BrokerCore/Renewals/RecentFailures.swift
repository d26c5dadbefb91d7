import Containers
import CredentialStore
import HTTPCodec
package import OAuth
package import Reactor
import Synchronization

/// What has failed lately with one set of credentials, so that the provider is not asked about it again at once.
///
/// In memory. A failure that is forgotten costs one call more than needed. `shared` and `read` carry failures to
/// other replicas, through the row of the lease.
package final class RecentFailures: Sendable {
    /// Which failures are asked about.
    package struct Kinds: OptionSet, Sendable {
        package let rawValue: Int

        package init(rawValue: Int) { self.rawValue = rawValue }

        /// An early renewal failed or brought little: that version is not renewed early for a while.
        package static let early = Kinds(rawValue: 1)
        /// All tries of an upgrade failed: callers get the failure for a while.
        package static let upgrade = Kinds(rawValue: 2)
        /// A renewal failed or took too long while the present token was valid: callers get that token at once for a while.
        package static let degraded = Kinds(rawValue: 4)
        /// `LeaseRecovery` failed: it tries again later. Callers still renew, since the provider's grace may be running.
        package static let recovery = Kinds(rawValue: 8)
    }

    /// A failure that lasts.
    package struct Current: Sendable {
        package enum Failure: Sendable {
            case early
            /// With what callers get.
            case upgrade(BrokerError)
            /// With what callers get beside the token.
            case degraded(Degradation)
            case recovery
        }

        package let failure: Failure
        package let until: MonotonicInstant
    }

    /// A failure and what it concerns.
    private struct Entry<Content: Sendable>: Sendable {
        /// The version of the credentials; nil for any.
        var version: Int64?
        /// The version of the tenant: a new configuration may have corrected the cause. Nil for any.
        var configuration: Int64?
        let until: MonotonicInstant
        let content: Content

        func holds(_ version: Int64, _ configuration: Int64, at now: MonotonicInstant) -> Bool {
            until > now && (self.version ?? version) == version
                && (self.configuration ?? configuration) == configuration
        }
    }

    private struct Upgrade {
        let grant: TokenRequest.Grant?
        let error: BrokerError
    }

    /// The failures of one set of credentials. One kind does not displace another one.
    private struct Row {
        var early: Entry<Void>?
        var upgrade: Entry<Upgrade>?
        var degraded: Entry<Degradation>?
    }

    private struct State {
        var rows = BoundedTable<CredentialsID, Row>(capacity: 16_384)
        /// How often each recovery has failed in a row. The failures of calls, of which there may be many more, displace none.
        var recoveries = BoundedTable<CredentialsID, Entry<Int>>(capacity: 10_000)

        mutating func note(_ id: CredentialsID, _ change: (inout Row) -> Void) {
            var row = rows[id] ?? Row()
            change(&row)
            rows.setNewest(row, forKey: id)
        }
    }

    /// For how long a version is not renewed early after an early renewal has failed.
    static let earlyPause: Duration = .seconds(30)
    /// For how long, at least, an upgrade is not tried again after all its tries have failed.
    private static let upgradePause: Duration = .seconds(30)
    /// For how long callers get the present token at once, unless the failure names a time.
    private static let degradedPause: Duration = .seconds(5)
    /// For how long other replicas count any failure as their own. Those that have waited for it read it within a second.
    private static let sharing: Duration = .seconds(2)

    /// Whether other replicas write to the store.
    private let isShared: Bool
    private let time: any Time
    private let state = Mutex(State())

    package init(isShared: Bool, time: any Time) {
        self.isShared = isShared
        self.time = time
    }

    // MARK: The question

    /// The failure of one of these kinds that lasts; nil for none. Of several: degraded, upgrade, recovery, early.
    /// - Parameters:
    ///   - version: of the credentials; a failed recovery counts for any.
    ///   - configuration: the version of the tenant; it counts for `.upgrade` and `.degraded`.
    ///   - grant: what the provider would be asked for; it counts for `.upgrade`.
    package func current(
        _ id: CredentialsID, _ kinds: Kinds, version: Int64 = 0, configuration: Int64 = 0,
        grant: TokenRequest.Grant? = nil
    ) -> Current? {
        let now = time.monotonic
        let (row, recovery) = state.withLock { ($0.rows[id] ?? Row(), $0.recoveries[id]) }
        if kinds.contains(.degraded), let entry = row.degraded, entry.holds(version, configuration, at: now) {
            return Current(failure: .degraded(entry.content), until: entry.until)
        }
        if kinds.contains(.upgrade), let entry = row.upgrade, entry.content.grant == grant,
            entry.holds(version, configuration, at: now)
        {
            let error = entry.content.error.retrying(after: now.duration(to: entry.until))
            return Current(failure: .upgrade(error), until: entry.until)
        }
        if kinds.contains(.recovery), let entry = recovery, entry.holds(version, configuration, at: now) {
            return Current(failure: .recovery, until: entry.until)
        }
        if kinds.contains(.early), let entry = row.early, entry.holds(version, configuration, at: now) {
            return Current(failure: .early, until: entry.until)
        }
        return nil
    }

    // MARK: Failures

    /// Has that version of the credentials not renewed early for `pause` from now on.
    package func noteEarly(_ id: CredentialsID, version: Int64, for pause: Duration) {
        let until = time.monotonic.advanced(by: pause)
        state.withLock { $0.note(id) { $0.early = Entry(version: version, until: until, content: ()) } }
    }

    /// For how long an upgrade is not tried again that failed with this error: longer where the provider has asked for it.
    static func pause(after error: BrokerError) -> Duration { max(upgradePause, .seconds(error.retryAfter ?? 0)) }

    /// Keeps the failure of an upgrade after all its tries have failed.
    /// - Parameter pause: for how long the upgrade is not tried again.
    package func noteUpgrade(
        _ error: BrokerError, _ id: CredentialsID, version: Int64, configuration: Int64, grant: TokenRequest.Grant,
        for pause: Duration
    ) {
        let until = time.monotonic.advanced(by: pause)
        let upgrade = Upgrade(grant: grant, error: error.withoutAnotherTry)
        state.withLock {
            $0.note(id) {
                $0.upgrade = Entry(version: version, configuration: configuration, until: until, content: upgrade)
            }
        }
    }

    /// Has callers get the present token at once, for as long as the error says, else for 5 s.
    /// - Returns: what they get with it. The same version's later failures keep the time of the first.
    package func noteDegraded(
        _ error: BrokerError, _ id: CredentialsID, version: Int64, configuration: Int64
    ) -> Degradation {
        let clocks = time.clocks
        let pause = error.retryAfter.map { Duration.seconds($0) } ?? Self.degradedPause
        let until = clocks.monotonic.advanced(by: pause)
        return state.withLock { state in
            let known = state.rows[id]?.degraded.flatMap { $0.version == version ? $0.content.since : nil }
            let degradation = Degradation(
                since: min(known ?? clocks.now, error.since ?? clocks.now), code: error.code,
                retryAt: clocks.now.advanced(by: pause))
            state.note(id) {
                $0.degraded = Entry(
                    version: version, configuration: configuration, until: until, content: degradation)
            }
            return degradation
        }
    }

    /// Has `LeaseRecovery` wait before it tries these credentials again: 1, 2, 4, ... 64 seconds.
    /// - Parameter isFirst: whether the failures before do not count.
    package func noteRecovery(_ id: CredentialsID, isFirst: Bool) {
        let now = time.monotonic
        state.withLock { state in
            let count = isFirst ? 1 : (state.recoveries[id]?.content ?? 0) + 1
            let until = now.advanced(by: .seconds(1 << min(count - 1, 6)))
            state.recoveries.setNewest(Entry(until: until, content: count), forKey: id)
        }
    }

    /// These credentials were recovered.
    package func endRecovery(_ id: CredentialsID) {
        state.withLock { _ = $0.recoveries.removeValue(forKey: id) }
    }

    /// Nothing is left to recover.
    package func endRecoveries() { state.withLock { $0.recoveries.removeAll() } }

    /// Whether a recovery has failed of credentials that were not recovered since.
    package var hasRecoveries: Bool { state.withLock { $0.recoveries.count > 0 } }

    // MARK: Other replicas

    /// What other replicas are to know of a failure; nil for nothing.
    /// - Parameter pauses: whether the upgrade is not tried again for a while, unless the tenant is configured anew.
    func shared(_ error: BrokerError, pauses: Bool, of tenant: Tenant) -> LeaseFailure? {
        guard isShared else { return nil }
        if !pauses { return LeaseFailure(code: error.code.rawValue, remaining: Self.sharing) }
        return LeaseFailure(
            code: "\(error.withoutAnotherTry.code.rawValue)@\(tenant.version)", remaining: Self.pause(after: error))
    }

    /// What a caller of this replica gets because of another replica's failure; nil if the failure is of another
    /// configuration, or of an upgrade when this is none. If all tries of an upgrade have failed there, the failure is kept here
    /// as well, so that no caller waits while the upgrade is tried again in the background.
    func read(
        _ failure: LeaseFailure, _ id: CredentialsID, version: Int64, grant: TokenRequest.Grant, isUpgrade: Bool,
        of tenant: Tenant
    ) -> BrokerError? {
        guard let (error, isKept) = Self.meaning(of: failure, isUpgrade: isUpgrade, of: tenant) else { return nil }
        if isKept {
            noteUpgrade(
                error, id, version: version, configuration: tenant.version, grant: grant, for: failure.remaining)
        }
        return error
    }

    /// What another replica's failure says, and whether it is an upgrade's that is not tried again for a while; nil if it does
    /// not count here.
    static func meaning(
        of failure: LeaseFailure, isUpgrade: Bool, of tenant: Tenant
    ) -> (error: BrokerError, isKept: Bool)? {
        let parts = failure.code.utf8.split(separator: UInt8(ascii: "@"), maxSplits: 1).compactMap { String($0) }
        if parts.count == 2, !isUpgrade || Int64(parts[1]) != tenant.version { return nil }
        guard let code = parts.first else { return nil }
        let error = BrokerError(sharedFailure: LeaseFailure(code: code, remaining: failure.remaining))
        return (error, parts.count == 2)
    }
}

extension BrokerError {
    /// The failure of another replica's renewal. A code of a newer build counts as an error for which a retry may help.
    init(sharedFailure failure: LeaseFailure) {
        let code = Code(rawValue: failure.code) ?? .retryableError
        self.init(
            code, "Another replica has just tried to renew the credentials, and failed. Its log has the reason.",
            retryAfter: code.status == .serviceUnavailable ? Self.seconds(failure.remaining) : nil)
    }

    /// What callers get while the provider is not asked because of this error.
    var withoutAnotherTry: BrokerError { BrokerError(.retryableError, detail, errorCode: errorCode) }
}
