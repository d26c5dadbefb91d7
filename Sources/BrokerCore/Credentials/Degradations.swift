internal import Containers
internal import OAuth
internal import Reactor
internal import Synchronization

/// Renewals that failed or took too long while the present token was valid. Further callers get that token at once, and the
/// provider is not asked for a few seconds.
final class Degradations: Sendable {
    private struct Entry {
        let version: Int64
        /// The version of the tenant: a new configuration may have corrected the cause.
        let configuration: Int64
        let degradation: Degradation
        let until: MonotonicInstant
    }

    /// For how long callers get the token at once, unless the failure names a time.
    private static let pause: Duration = .seconds(5)

    /// A renewal that is forgotten is tried once more than needed.
    private let entries = Mutex(BoundedTable<CredentialsID, Entry>(capacity: 16_384))

    /// What callers get with the token; nil where a renewal is to be tried.
    func current(
        _ id: CredentialsID, _ version: Int64, of tenant: Tenant, now: MonotonicInstant
    ) -> Degradation? {
        entries.withLock { entries in
            guard let entry = entries[id], entry.version == version, entry.configuration == tenant.version,
                entry.until > now
            else { return nil }
            return entry.degradation
        }
    }

    func note(
        _ error: BrokerError, _ id: CredentialsID, _ version: Int64, of tenant: Tenant,
        at clocks: (now: Timestamp, monotonic: MonotonicInstant)
    ) -> Degradation {
        let pause = error.retryAfter.map { Duration.seconds($0) } ?? Self.pause
        return entries.withLock { entries in
            let known = entries[id].flatMap { $0.version == version ? $0.degradation.since : nil }
            let degradation = Degradation(
                since: min(known ?? clocks.now, error.since ?? clocks.now), code: error.code,
                retryAt: clocks.now.advanced(by: pause))
            let entry = Entry(
                version: version, configuration: tenant.version, degradation: degradation,
                until: clocks.monotonic.advanced(by: pause))
            entries.setNewest(entry, forKey: id)
            return degradation
        }
    }
}
