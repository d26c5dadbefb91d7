internal import Containers
internal import CredentialStore
internal import HTTPCodec
internal import OAuth
internal import Reactor
internal import Synchronization

/// The failures that further callers get for a short time without another call to the provider: those of upgrades in this
/// process, from this table, and those of all renewals in other replicas, through the row of the lease.
final class RenewalFailures: Sendable {
    private struct Entry {
        let version: Int64
        /// The version of the tenant.
        let configuration: Int64
        let grant: TokenRequest.Grant
        let error: BrokerError
        let until: MonotonicInstant
    }

    /// For how long, at least, an upgrade is not tried again after all its tries have failed.
    private static let pause: Duration = .seconds(30)
    /// For how long other replicas count any failure as their own. Those that have waited for it read it within a second.
    private static let sharing: Duration = .seconds(2)

    /// Whether other replicas write to the store.
    private let isShared: Bool
    /// An upgrade whose failure is forgotten is tried once more than needed.
    private let entries = Mutex(BoundedTable<CredentialsID, Entry>(capacity: 16_384))

    init(isShared: Bool) {
        self.isShared = isShared
    }

    /// For how long an upgrade is not tried again that failed with this error: longer where the provider has asked for it.
    static func pause(after error: BrokerError) -> Duration { max(pause, .seconds(error.retryAfter ?? 0)) }

    /// Keeps the failure of an upgrade after all its tries have failed.
    /// - Parameter pause: for how long the upgrade is not tried again.
    func remember(
        _ error: BrokerError, _ id: CredentialsID, _ version: Int64, _ grant: TokenRequest.Grant, of tenant: Tenant,
        for pause: Duration, now: MonotonicInstant
    ) {
        entries.withLock { entries in
            let entry = Entry(
                version: version, configuration: tenant.version, grant: grant, error: error.withoutAnotherTry,
                until: now.advanced(by: pause))
            entries.setNewest(entry, forKey: id)
        }
    }

    /// The failure that a caller gets; nil where the provider is to be asked. `LeaseRecovery` does not look here, since a refresh
    /// token that may be spent is tried again while the provider's grace lasts.
    func current(
        _ id: CredentialsID, _ version: Int64, _ grant: TokenRequest.Grant?, of tenant: Tenant,
        _ now: MonotonicInstant
    ) -> BrokerError? {
        entries.withLock { entries in
            guard let entry = entries[id] else { return nil }
            guard entry.until > now, entry.version == version else {
                entries[id] = nil
                return nil
            }
            guard entry.grant == grant, entry.configuration == tenant.version else { return nil }
            return entry.error.retrying(after: now.duration(to: entry.until))
        }
    }

    /// What other replicas are to know of a failure; nil for nothing.
    /// - Parameter pauses: whether the upgrade is not tried again for a while, unless the tenant is configured anew.
    func shared(_ error: BrokerError, pauses: Bool, of tenant: Tenant) -> LeaseFailure? {
        guard isShared else { return nil }
        if !pauses { return LeaseFailure(code: error.code.rawValue, remaining: Self.sharing) }
        return LeaseFailure(
            code: "\(error.withoutAnotherTry.code.rawValue)@\(tenant.version)", remaining: Self.pause(after: error))
    }

    /// What a caller of this replica gets because of another replica's failure; nil where the failure is of another
    /// configuration. If all tries have failed there, the failure is kept here as well, so that no caller waits while the
    /// upgrade is tried again in the background.
    func read(
        _ failure: LeaseFailure, _ id: CredentialsID, _ version: Int64, _ grant: TokenRequest.Grant, isUpgrade: Bool,
        of tenant: Tenant, _ now: MonotonicInstant
    ) -> BrokerError? {
        let parts = failure.code.utf8.split(separator: UInt8(ascii: "@"), maxSplits: 1).compactMap { String($0) }
        if parts.count == 2, !isUpgrade || Int64(parts[1]) != tenant.version { return nil }
        guard let code = parts.first else { return nil }
        let error = BrokerError(sharedFailure: LeaseFailure(code: code, remaining: failure.remaining))
        if parts.count == 2 { remember(error, id, version, grant, of: tenant, for: failure.remaining, now: now) }
        return error
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

    /// The same error with another time after which to ask again.
    func retrying(after duration: Duration) -> BrokerError {
        BrokerError(code, detail, errorCode: errorCode, retryAfter: Self.seconds(duration))
    }

    private static func seconds(_ duration: Duration) -> Int { max(1, Int((duration.milliseconds + 999) / 1000)) }
}
