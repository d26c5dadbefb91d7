internal import Containers
internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

/// Bounds how many logins of a tenant are pending, over all replicas.
///
/// The store counts the records that have a due mark in the future. A count is used for a moment, and what this process
/// has begun since is added to it; what has ended since is not taken off. So replicas together exceed the limit by no more
/// than what the others begin within `interval`.
final class PendingLoginQuota: Sendable {
    private struct Count {
        let checked: MonotonicInstant
        var pending: Int
    }

    /// How long a count of the store is used.
    static let interval: Duration = .seconds(2)
    /// When a refused caller is told to come again: how soon a login ends is not known.
    private static let retryAfter: Duration = .seconds(10)
    private let kind: RecordKind
    private let quota: Quota
    /// Nil for no limit.
    private let limit: Int?
    private let vault: Vault
    private let time: any Time
    /// One count of a tenant at a time, for all who ask meanwhile.
    private let counting = SingleFlight<TenantName, Result<Count, StoreError>>()
    /// A count that is forgotten is asked for again.
    private let counts = Mutex(BoundedTable<TenantName, Count>(capacity: 4096))

    init(_ kind: RecordKind, _ quota: Quota, limit: Int?, vault: Vault, time: any Time) {
        self.kind = kind
        self.quota = quota
        self.limit = limit
        self.vault = vault
        self.time = time
    }

    /// To be called before a login is begun.
    /// - Throws: `too_many_requests` where the tenant has as many as it may have; what the store throws.
    func admit(_ tenant: TenantName) async throws(BrokerError) {
        guard let limit else { return }
        if let isAdmitted = begin(tenant, limit) {
            if isAdmitted { return }
            throw quota.exceeded(retryAfter: Self.retryAfter)
        }
        let run = await counting.run(tenant, within: nil) { () async -> Result<Count, StoreError> in
            // Before the store is asked, so that no count is used longer than it says.
            let checked = self.time.monotonic
            do throws(StoreError) {
                let pending = try await self.vault.countDue(
                    self.kind, tenant: tenant, after: self.time.now, limit: limit)
                return .success(Count(checked: checked, pending: pending))
            } catch {
                return .failure(error)
            }
        }
        let count: Count
        switch run?.value {
        case .success(let counted)?: count = counted
        case .failure(let error)?: throw BrokerError(error)
        case nil: throw BrokerError(.retryableError, "The request ended before the login was begun.", retryAfter: 1)
        }
        guard begin(tenant, limit, with: count) else { throw quota.exceeded(retryAfter: Self.retryAfter) }
    }

    /// Suspends until nothing is being counted.
    func finish() async {
        await counting.finish()
    }

    /// Counts one more; false where that is too many, nil where the count is too old or missing.
    private func begin(_ tenant: TenantName, _ limit: Int) -> Bool? {
        let now = time.monotonic
        return counts.withLock { counts in
            guard var count = counts[tenant], isInUse(count, at: now) else { return nil }
            if count.pending >= limit { return false }
            count.pending += 1
            counts[tenant] = count
            return true
        }
    }

    /// Counts one more on what the store has just counted, however long that took. False where that is too many.
    private func begin(_ tenant: TenantName, _ limit: Int, with counted: Count) -> Bool {
        counts.withLock { counts in
            var count = counted
            // Callers that waited for the same count have put it here, and their logins on it.
            if let other = counts[tenant], isInUse(other, at: counted.checked), other.pending > count.pending {
                count = other
            }
            let isAdmitted = count.pending < limit
            if isAdmitted { count.pending += 1 }
            counts.setNewest(count, forKey: tenant)
            return isAdmitted
        }
    }

    private func isInUse(_ count: Count, at now: MonotonicInstant) -> Bool {
        count.checked.advanced(by: Self.interval) > now
    }
}
