internal import Containers
internal import CredentialStore
internal import ExternalText
internal import OAuth
internal import Reactor
internal import Synchronization

/// Which clients their providers do not accept, as when a secret has expired. That concerns all users at once and says nothing
/// about their sessions. So the provider is asked again once in 30 s for all users together, and at once when the tenant is
/// configured anew.
///
/// The replicas share a fault of the tenant's present client through a record of the tenant: one replica asks, and one replica
/// notifies listeners. Each replica keeps for itself what concerns only the client credentials grant, or a client that the
/// tenant had before.
final class ClientFaults: Sendable {
    private struct Key: Hashable {
        let tenant: TenantName
        let client: ClientIdentity
        let scope: ClientRefusalScope
    }

    private struct Entry {
        /// The version of the tenant, which changes when the tenant is configured anew.
        let configuration: Int64
        let error: BrokerError
        /// When the provider first refused the client, at any replica.
        var since: Timestamp
        /// When the provider last refused the client at this replica.
        let last: Timestamp
        var until: MonotonicInstant
        /// Whether a call is under way that was admitted because the last pause had ended.
        var isTrial = false
        /// Whether the tenant's record has the fault.
        var isShared = false

        /// Whether the next refusal counts as the same fault.
        func isKnown(at now: MonotonicInstant) -> Bool { until.advanced(by: ClientFault.memory) > now }

        /// What callers get while the provider is not asked.
        func refusal(for pause: Duration) -> BrokerError {
            var refusal = error.retrying(after: pause)
            refusal.since = since
            return refusal
        }
    }

    private let records: CredentialsRecords
    private let time: any Time
    private let log: Log
    /// For a fault that is forgotten, the provider is asked once more than needed.
    private let entries = Mutex(BoundedTable<Key, Entry>(capacity: 16_384))
    private let suspects = Suspects()

    init(records: CredentialsRecords) {
        self.records = records
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

    /// What callers get without a call to the provider; nil where it may be called.
    func refusal(of use: ClientUse, _ tenant: Tenant) -> BrokerError? {
        for key in Self.keys(use, tenant) {
            if let error = refusal(key, tenant) { return error }
        }
        return nil
    }

    /// The same for a request that is no token request: whether the provider refuses the client whatever it asks for.
    func refusal(ofClientOf tenant: Tenant) -> BrokerError? {
        refusal(Key(tenant: tenant.name, client: ClientIdentity(tenant.terms.client), scope: .client), tenant)
    }

    /// The same just before a call, which nil admits. Where a pause has ended, one call is admitted and the next pause begins.
    func admit(_ use: ClientUse, of tenant: Tenant) async -> BrokerError? {
        // First, so that no turn is used up by a call that another fault forbids.
        if let error = refusal(of: use, tenant) { return error }
        for key in Self.keys(use, tenant) {
            if let error = await admit(key, tenant) { return error }
        }
        return nil
    }

    private static func keys(_ use: ClientUse, _ tenant: Tenant) -> [Key] {
        [ClientRefusalScope.client, .grant(use.grant)].map { Key(tenant: tenant.name, client: use.client, scope: $0) }
    }

    /// Whether the fault concerns the tenant's present client and its users.
    private static func concernsUsers(_ key: Key, _ tenant: Tenant) -> Bool {
        key.client == ClientIdentity(tenant.terms.client) && key.scope != .grant(.clientCredentials)
    }

    private func refusal(_ key: Key, _ tenant: Tenant) -> BrokerError? {
        let now = time.monotonic
        return entries.withLock { entries in
            guard let entry = entries[key], entry.configuration == tenant.version, entry.until > now else { return nil }
            return entry.refusal(for: now.duration(to: entry.until))
        }
    }

    private func admit(_ key: Key, _ tenant: Tenant) async -> BrokerError? {
        let now = time.monotonic
        let (entry, isTurn) = entries.withLock { entries -> (Entry?, Bool) in
            guard let entry = entries[key], entry.configuration == tenant.version else { return (nil, false) }
            if entry.until > now { return (entry, false) }
            guard entry.isKnown(at: now) else {
                entries[key] = nil
                return (nil, false)
            }
            entries[key]?.until = now.advanced(by: ClientFault.pause)
            entries[key]?.isTrial = true
            return (entry, true)
        }
        guard let entry else { return nil }
        guard isTurn else { return entry.refusal(for: now.duration(to: entry.until)) }
        guard Self.concernsUsers(key, tenant), records.isShared else { return nil }
        do throws(StoreError) {
            guard let shared = try await records.clientFault(tenant.name), var fault = shared.fault,
                fault.isOf(tenant)
            else {
                // Another replica has found that the provider accepts the client: the next refusal is a new fault.
                if entry.isShared { forget([key], tenant) }
                return nil
            }
            let pause = fault.remainingPause(at: time.now)
            if pause > .zero {
                postpone(key, by: pause)
                return entry.refusal(for: pause)
            }
            fault.last = time.now
            try await records.commit([records.change(of: fault, tenant.name, over: shared.version)])
            return nil
        } catch {
            // With a conflict, another replica has taken the turn. If the store does not answer, the claim of the lease decides
            // whether the provider is asked.
            return error == .conflict ? refusal(key, tenant) : nil
        }
    }

    /// The provider does not accept the client. Listeners are notified of a new fault.
    /// - Returns: since when the provider does not accept it.
    func note(
        _ error: BrokerError, _ scope: ClientRefusalScope, of use: ClientUse, _ tenant: Tenant
    ) async -> Timestamp {
        let key = Key(tenant: tenant.name, client: use.client, scope: scope)
        let (today, now) = (time.now, time.monotonic)
        let known = entries.withLock { entries -> Entry? in
            let known = entries[key].flatMap { $0.configuration == tenant.version && $0.isKnown(at: now) ? $0 : nil }
            let entry = Entry(
                configuration: tenant.version, error: error, since: known?.since ?? today, last: today,
                until: now.advanced(by: ClientFault.pause), isShared: known?.isShared ?? false)
            entries.setNewest(entry, forKey: key)
            return known
        }
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
        return entries.withLock { $0[key]?.since } ?? today
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
        let forgotten = entries.withLock { entries in keys.filter { entries.removeValue(forKey: $0) != nil } }
        if !forgotten.isEmpty {
            log.info("client_accepted", [.tenant(tenant.name), .provider(tenant.configuration.preset)])
        }
        return forgotten
    }

    private func postpone(_ key: Key, by duration: Duration) {
        let until = time.monotonic.advanced(by: duration)
        entries.withLock { entries in
            entries[key]?.until = until
            entries[key]?.isTrial = false
        }
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
        let (client, now) = (ClientIdentity(tenant.terms.client), time.monotonic)
        return entries.withLock { entries in
            for scope in [ClientRefusalScope.client, .grant(.refreshToken)] {
                let key = Key(tenant: tenant.name, client: client, scope: scope)
                if let entry = entries[key], entry.configuration == tenant.version, entry.isKnown(at: now) {
                    return (fault(entry.error, tenant, since: entry.since, last: entry.last), entry.isShared)
                }
            }
            return nil
        }
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
        entries.withLock { entries in
            entries[key]?.isShared = true
            entries[key]?.since = since
        }
    }
}
