import OAuth
import Reactor

/// The due marks of credentials.
extension CredentialsRecords {
    /// The due mark of a set that is written now; see `ExpirySchedule.firstMark`.
    func firstMark(of held: HeldCredentials, _ record: CredentialRecord, _ id: CredentialsID) -> Timestamp? {
        let configuration = tenants.inMemory(id.tenant)?.configuration
        let mark = schedule.firstMark(
            of: held, lead: proactiveLead(id), upkeep: configuration?.upkeep(of: record), now: time.now)
        // A set without a notice of expiry, of a tenant that is not cached: `ExpiryJob` moves the mark, or removes it.
        if mark == nil, configuration == nil, held.canBeRefreshed {
            return time.now.advanced(by: ExpirySchedule.shortestWait)
        }
        return mark
    }

    /// From the tenant's configuration in the cache, valid or not. Where it is not cached, `ExpiryJob` reads the configuration
    /// when the notice of expiry falls due.
    private func proactiveLead(_ id: CredentialsID) -> Duration? {
        // A token that ends at its refresh is renewed when it has ended.
        tenants.inMemory(id.tenant).flatMap { $0.terms.renewsLate ? nil : $0.configuration.proactiveRefresh }
    }
}
