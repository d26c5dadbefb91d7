import Containers
import CredentialStore
import ExternalText
import OAuth
import Reactor
import Synchronization

/// Which clients their providers do not accept, as when a secret has expired. That concerns all users at once and says nothing
/// about their sessions. So the provider is asked again once in 30 s for all users together, and at once when the tenant is
/// configured anew.
///
/// The replicas share a fault of the tenant's present client through a record of the tenant: one replica asks, and one replica
/// notifies listeners. Each replica keeps for itself what concerns only the client credentials grant, or a client that the
/// tenant had before.
final class ClientFaults: Sendable {
    private typealias Key = ProviderHealths.FaultKey

    private let records: CredentialsRecords
    /// Has what this replica has met.
    private let health: ProviderHealths
    private let time: any Time
    private let log: Log
    private let suspects = Suspects()

    init(records: CredentialsRecords, health: ProviderHealths) {
        self.records = records
        self.health = health
        (time, log) = (records.time, records.log)
        records.bus.onChange(of: .trouble) { [suspects] id, version in
            if version != nil, CredentialsRecords.isClientFault(id) { suspects.insert(id.tenant) }
        }
    }

    /// The tenants of which the store may have a fault. The next successful renewal of such a tenant reads the record and
    /// removes it. A fault of another tenant ends when a list shows a renewal that was later than the fault.
    private final class Suspects: Sendable {
        private let tenants = Mutex(BoundedTable<TenantName, Void>(capacity: 16_384))

        func insert(_ tenant: TenantName) {
            tenants.withLock { _ = $0.setNewest((), forKey: tenant) }
        }

        /// - Returns: whether the tenant was among them.
        func remove(_ tenant: TenantName) -> Bool { tenants.withLock { $0.removeValue(forKey: tenant) != nil } }
    }

    /// What callers get of a request that is no token request, if the provider refuses the client whatever it asks for; nil if
    /// it may be called.
    func refusal(ofClientOf tenant: Tenant) -> BrokerError? {
        let subject = ProviderHealths.Subject(tenant, ClientIdentity(tenant.terms.client), nil)
        return health.refusal(subject, .fault).map(health.error)
    }

    /// Says whether this replica makes the call that tries whether the provider accepts the client again. The record of the
    /// fault lets one replica make it.
    /// - Returns: what callers get if another one has just made it; nil if this one makes it.
    func confirm(_ trial: ProviderHealth.Trial, of use: ClientUse, _ tenant: Tenant) async -> BrokerError? {
        let keys = Self.keys(use, tenant).filter {
            trial.contains($0.scope == .client ? .client : .grant) && Self.concernsUsers($0, tenant)
        }
        guard records.isShared, !keys.isEmpty else { return nil }
        do throws(StoreError) {
            guard let shared = try await records.clientFault(tenant.name), var fault = shared.fault,
                fault.isOf(tenant)
            else {
                // Another replica has found that the provider accepts the client: the next refusal is a new fault.
                forget(keys.filter { health.fault($0, tenant.version)?.isShared == true }, tenant)
                return nil
            }
            let pause = fault.remainingPause(at: time.now)
            if pause > .zero {
                for key in keys { postpone(key, by: pause) }
                return refusal(use, tenant)
            }
            fault.last = time.now
            try await records.commit([records.change(of: fault, tenant.name, over: shared.version)])
            return nil
        } catch {
            // With a conflict, another replica has taken the turn. If the store does not answer, the claim of the lease decides
            // whether the provider is asked.
            return error == .conflict ? refusal(use, tenant) : nil
        }
    }

    private func refusal(_ use: ClientUse, _ tenant: Tenant) -> BrokerError? {
        health.refusal(ProviderHealths.Subject(tenant, use), .fault).map(health.error)
    }

    private static func keys(_ use: ClientUse, _ tenant: Tenant) -> [Key] {
        [ClientRefusalScope.client, .grant(use.grant)].map { Key(tenant: tenant.name, client: use.client, scope: $0) }
    }

    /// Whether the fault concerns the tenant's present client and its users.
    private static func concernsUsers(_ key: Key, _ tenant: Tenant) -> Bool {
        key.client == ClientIdentity(tenant.terms.client) && key.scope != .grant(.clientCredentials)
    }

    /// The provider does not accept the client. Listeners are notified of a new fault.
    /// - Returns: since when the provider does not accept it.
    func note(
        _ error: BrokerError, _ scope: ClientRefusalScope, of use: ClientUse, _ tenant: Tenant
    ) async -> Timestamp {
        let key = Key(tenant: tenant.name, client: use.client, scope: scope)
        let (today, now) = (time.now, time.monotonic)
        let known = health.refused(error, key, tenant.version)
        var fields: [LogField] = [
            .tenant(tenant.name), .provider(tenant.configuration.preset), .code(error.code),
        ]
        if key.client != ClientIdentity(tenant.terms.client) { fields.append(.reason("earlier_registration")) }
        if known == nil { log.error("client_refused", fields) }
        // Calls that were under way together with the first one are refused because of the same fault.
        if Self.concernsUsers(key, tenant), known.map({ $0.isTrial || $0.until <= now }) ?? true {
            let isNew = await share(error, key, tenant)
            if isNew, known?.isShared == true { log.error("client_refused", fields) }
        }
        return health.fault(key, tenant.version)?.since ?? today
    }

    /// The provider accepts the client.
    func lift(_ use: ClientUse, of tenant: Tenant) async {
        let lifted = forget(Self.keys(use, tenant), tenant)
        // Client credentials do not disprove a fault of the store's record, which may concern refreshes only.
        let isSuspect =
            use.grant == .refreshToken && use.client == ClientIdentity(tenant.terms.client)
            && suspects.remove(tenant.name)
        guard isSuspect || lifted.contains(where: { Self.concernsUsers($0, tenant) }) else { return }
        do throws(StoreError) {
            // A newer configuration's client is another one.
            guard let shared = try await records.clientFault(tenant.name),
                shared.fault.map({ $0.configuration <= tenant.version }) ?? true
            else { return }
            await remove(tenant.name, version: shared.version)
        } catch {
            suspects.insert(tenant.name)
            log.storeFailed(error, [.tenant(tenant.name)])
        }
    }

    /// - Returns: the keys that had a fault.
    @discardableResult
    private func forget(_ keys: [Key], _ tenant: Tenant) -> [Key] {
        let forgotten = keys.filter { health.accepted($0) }
        if !forgotten.isEmpty {
            log.info("client_accepted", [.tenant(tenant.name), .provider(tenant.configuration.preset)])
        }
        return forgotten
    }

    private func postpone(_ key: Key, by duration: Duration) {
        let until = time.monotonic.advanced(by: duration)
        health.changeFault(key) { fault in (fault.until, fault.isTrial) = (until, false) }
    }

    // MARK: For all replicas

    /// The fault of the tenant's present client, at any replica; nil for none. Where the store does not answer, only faults
    /// that this replica has met itself are known.
    func current(of tenant: Tenant) async -> ClientFault? {
        let own = own(tenant)
        do throws(StoreError) {
            guard let fault = try await records.clientFault(tenant.name)?.fault, fault.isOf(tenant) else {
                // Another replica has removed the record since the provider accepts the client, unless the store has never taken
                // this replica's fault.
                return own.flatMap { $0.isShared ? nil : $0.fault }
            }
            suspects.insert(tenant.name)
            return fault
        } catch {
            log.storeFailed(error, [.tenant(tenant.name)])
            return own?.fault
        }
    }

    private func own(_ tenant: Tenant) -> (fault: ClientFault, isShared: Bool)? {
        for scope in [ClientRefusalScope.client, .grant(.refreshToken)] {
            let key = Key(tenant: tenant.name, client: ClientIdentity(tenant.terms.client), scope: scope)
            if let own = health.fault(key, tenant.version) {
                return (fault(own.error, tenant, since: own.since, last: own.last), own.isShared)
            }
        }
        return nil
    }

    /// A user's credentials show that the provider has accepted the client since the fault.
    func lift(_ fault: ClientFault, of tenant: Tenant) async {
        let client = ClientIdentity(tenant.terms.client)
        _ = forget(
            [ClientRefusalScope.client, .grant(.refreshToken)].map {
                Key(tenant: tenant.name, client: client, scope: $0)
            }, tenant)
        if let version = fault.version { await remove(tenant.name, version: version) }
    }

    private func remove(_ tenant: TenantName, version: Int64) async {
        do throws(StoreError) {
            try await records.commit([records.changeRemovingClientFault(tenant, version: version)])
        } catch {
            // The next successful renewal removes the record. Until then other replicas ask once in 30 s only, and users are
            // listed as degraded.
            if error != .conflict { log.storeFailed(error, [.tenant(tenant)]) }
        }
    }

    private func fault(_ error: BrokerError, _ tenant: Tenant, since: Timestamp, last: Timestamp) -> ClientFault {
        ClientFault(
            configuration: tenant.version, since: since, last: last, code: error.code.rawValue,
            errorCode: error.errorCode)
    }

    /// Writes the record of the fault, together with its event, unless another replica has done so.
    /// - Returns: whether the fault is new.
    private func share(_ error: BrokerError, _ key: Key, _ tenant: Tenant) async -> Bool {
        do throws(StoreError) {
            let (shared, now) = (try await records.clientFault(tenant.name), time.now)
            let known = shared?.fault.flatMap { $0.isOf(tenant) ? $0 : nil }
            let isNew = known.map { $0.until.advanced(by: ClientFault.memory) <= now } ?? true
            if !isNew, let known, known.remainingPause(at: now) > .zero {
                markShared(key, since: known.since)
                return false
            }
            let fault = fault(error, tenant, since: known?.since ?? now, last: now)
            var changes = [
                VaultChange.require(RecordID(.tenant, tenant.name)),
                records.change(of: fault, tenant.name, over: shared?.version),
            ]
            if isNew {
                let event = BrokerEvent.providerDegraded(
                    tenant.name, error, by: .clientRefused, retryAt: fault.until, at: now)
                changes.append(BrokerEvent.entry([event], of: tenant.name, key: "", at: now))
            }
            try await records.commit(changes, of: tenant.name)
            markShared(key, since: fault.since)
            return isNew
        } catch {
            // With a conflict, another replica has written it, or the tenant was removed.
            if error != .conflict { log.warning("event_not_stored", [.tenant(tenant.name), .store(error)]) }
            return false
        }
    }

    private func markShared(_ key: Key, since: Timestamp) {
        health.changeFault(key) { fault in (fault.isShared, fault.since) = (true, since) }
    }
}
