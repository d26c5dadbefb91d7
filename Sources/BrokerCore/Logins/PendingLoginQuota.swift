import Containers
import CredentialStore
import OAuth
import Reactor
import Synchronization
import Waiting

/// Bounds how many logins of a tenant are pending, over all replicas.
///
/// The store counts the records with a due mark in the future. A count is used for `interval`. The logins that this process has
/// begun since are added to it; logins that have ended since are not subtracted. So the replicas together exceed the limit by no
/// more than what the other replicas begin within `interval`.
final class PendingLoginQuota: Sendable {
    private struct Count {
        let checked: MonotonicInstant
        var pending: Int
    }

    /// For how long a count of the store is used.
    static let interval: Duration = .seconds(2)
    /// The `Retry-After` of a refusal. It is not known how soon a login ends.
    private static let retryAfter: Duration = .seconds(10)
    private let kind: RecordKind
    private let quota: Quota
    /// Nil for no limit.
    private let limit: Int?
    private let vault: Vault
    private let time: any Time
    /// One count of a tenant at a time, for all callers.
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
    /// - Throws: `too_many_requests` where the tenant has as many as it may have, and the errors of the store.
    func admit(_ tenant: TenantName) async throws(BrokerError) {
        guard let limit else { return }
        if let isAdmitted = begin(tenant, limit) {
            if isAdmitted { return }
            throw quota.exceeded(retryAfter: Self.retryAfter)
        }
        let run = await counting.run(tenant, within: nil) { () async -> Result<Count, StoreError> in
            // Before the store is asked, so that no count is used for longer than `interval`.
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

    /// Suspends until no count is under way.
    func finish() async {
        await counting.finish()
    }

    /// Counts one more login. False where that is too many, nil where there is no count that is new enough.
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

    /// Counts one more login on top of a new count, however long that took. False where that is too many.
    private func begin(_ tenant: TenantName, _ limit: Int, with counted: Count) -> Bool {
        counts.withLock { counts in
            var count = counted
            // Callers that waited for the same count have stored it here already, with their logins added.
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
