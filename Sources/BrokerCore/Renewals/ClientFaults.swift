internal import Containers
internal import CredentialStore
internal import ExternalText
internal import OAuth
internal import Reactor
internal import Synchronization

/// Which clients their providers do not accept, as when a secret has expired. That hits all users at once and says nothing
/// about their sessions, so that the provider is asked again once in 30 s for all of them, and at once when the tenant is put
/// again.
///
/// Of the client that the tenant has now the replicas share it through a record of the tenant's: one of them asks, and one of
/// them tells listeners. What is about the client credentials grant alone, and what is about a client that the tenant had
/// before, each replica keeps for itself.
final class ClientFaults: Sendable {
    private struct Key: Hashable {
        let tenant: TenantName
        let client: ClientIdentity
        let scope: ClientRefusalScope
    }

    private struct Entry {
        /// The tenant's version: a tenant that is put again has another one.
        let configuration: Int64
        let error: BrokerError
        /// When the provider first refused it, at whichever replica.
        var since: Timestamp
        /// When it last refused it here.
        let last: Timestamp
        var until: MonotonicInstant
        /// Whether the call under way is the one that the last pause's end has allowed.
        var isTrial = false
        /// Whether the tenant's record has the fault.
        var isShared = false

        /// Whether the next refusal is of the same fault.
        func isKnown(at now: MonotonicInstant) -> Bool { until.advanced(by: ClientFault.memory) > now }

        /// What callers are told who are not let through.
        func refusal(for rest: Duration) -> BrokerError {
            var refusal = error.retrying(after: rest)
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

    init(records: CredentialsRecords, bus: EventBus, time: any Time, log: Log) {
        self.records = records
        self.time = time
        self.log = log
        bus.onChange(of: .trouble) { [suspects] id, version in
            if version != nil, CredentialsRecords.isClientFault(id) { suspects.insert(id.tenant) }
        }
    }

    /// The tenants of whose clients the store may have a fault: the next renewal that goes well looks, and ends it. A fault
    /// that is not looked for is found over when a list shows a later renewal.
    private final class Suspects: Sendable {
        private let tenants = Mutex(BoundedTable<TenantName, Void>(capacity: 16_384))

        func insert(_ tenant: TenantName) {
            tenants.withLock { _ = $0.setNewest((), forKey: tenant) }
        }

        /// - Returns: whether it was one.
        func remove(_ tenant: TenantName) -> Bool { tenants.withLock { $0.removeValue(forKey: tenant) != nil } }
    }

    /// What callers are told without the provider's being asked; nil where it may be.
    func standing(_ use: ClientUse, of tenant: Tenant) -> BrokerError? {
        for key in Self.keys(use, tenant) {
            if let error = standing(key, tenant) { return error }
        }
        return nil
    }

    /// The same just before a call, which nil allows. Where the pause is over, one call is allowed and the next pause begins.
    func admit(_ use: ClientUse, of tenant: Tenant) async -> BrokerError? {
        // A turn is not taken for a call that another fault stands in the way of.
        if let error = standing(use, of: tenant) { return error }
        for key in Self.keys(use, tenant) {
            if let error = await admit(key, tenant) { return error }
        }
        return nil
    }

    private static func keys(_ use: ClientUse, _ tenant: Tenant) -> [Key] {
        [ClientRefusalScope.client, .grant(use.grant)].map { Key(tenant: tenant.name, client: use.client, scope: $0) }
    }

    /// Whether it is about the client that the tenant has now, and about its users.
    private static func concernsUsers(_ key: Key, _ tenant: Tenant) -> Bool {
        key.client == ClientIdentity(tenant.terms.client) && key.scope != .grant(.clientCredentials)
    }

    private func standing(_ key: Key, _ tenant: Tenant) -> BrokerError? {
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
            guard let standing = try await records.clientFault(tenant.name), var fault = standing.fault,
                fault.isOf(tenant)
            else {
                // Another replica has found the client accepted: the next refusal is of a new fault.
                if entry.isShared { forget([key], tenant) }
                return nil
            }
            let rest = fault.rest(at: time.now)
            if rest > .zero {
                postpone(key, by: rest)
                return entry.refusal(for: rest)
            }
            fault.last = time.now
            try await records.commit([records.change(of: fault, tenant.name, over: standing.version)])
            return nil
        } catch {
            // Another replica has taken its turn. Where the store is away, the claim of the lease decides whether the provider is asked.
            return error == .conflict ? standing(key, tenant) : nil
        }
    }

    /// The provider does not accept the client. Listeners are told where that is new.
    /// - Returns: since when it does not.
    func note(
        _ error: BrokerError, _ scope: ClientRefusalScope, of use: ClientUse, _ tenant: Tenant
    ) async -> Timestamp {
        let key = Key(tenant: tenant.name, client: use.client, scope: scope)
        let (today, now) = (time.now, time.monotonic)
        let standing = entries.withLock { entries -> Entry? in
            let standing = entries[key].flatMap { $0.configuration == tenant.version && $0.isKnown(at: now) ? $0 : nil }
            let entry = Entry(
                configuration: tenant.version, error: error, since: standing?.since ?? today, last: today,
                until: now.advanced(by: ClientFault.pause), isShared: standing?.isShared ?? false)
            entries.setNewest(entry, forKey: key)
            return standing
        }
        var fields: [LogField] = [
            .tenant(tenant.name), .provider(tenant.configuration.preset), .code(error.code),
        ]
        if key.client != ClientIdentity(tenant.terms.client) { fields.append(.reason("earlier_registration")) }
        if standing == nil { log.error("client_refused", fields) }
        // Calls that were under way together with the first one bring no news.
        if Self.concernsUsers(key, tenant), standing.map({ $0.isTrial || $0.until <= now }) ?? true {
            let isNew = await tell(error, key, tenant)
            if isNew, standing?.isShared == true { log.error("client_refused", fields) }
        }
        return entries.withLock { $0[key]?.since } ?? today
    }

    /// The provider accepts the client.
    func lift(_ use: ClientUse, of tenant: Tenant) async {
        let lifted = forget(Self.keys(use, tenant), tenant)
        // What the store has may be that the client may not refresh, which its own token does not disprove.
        let isSuspect =
            use.grant == .refreshToken && use.client == ClientIdentity(tenant.terms.client)
            && suspects.remove(tenant.name)
        guard isSuspect || lifted.contains(where: { Self.concernsUsers($0, tenant) }) else { return }
        do throws(StoreError) {
            // A newer configuration's client is another one.
            guard let standing = try await records.clientFault(tenant.name),
                standing.fault.map({ $0.configuration <= tenant.version }) ?? true
            else { return }
            await remove(tenant.name, version: standing.version)
        } catch {
            suspects.insert(tenant.name)
            log.storeFailed(error, [.tenant(tenant.name)])
        }
    }

    /// - Returns: those of which there was a fault.
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

    /// The fault of the client that the tenant has now, whichever replica has met it; nil for none.
    ///
    /// Where the store does not answer, that is what this replica has met itself.
    func current(of tenant: Tenant) async -> ClientFault? {
        let own = own(tenant)
        do throws(StoreError) {
            guard let fault = try await records.clientFault(tenant.name)?.fault, fault.isOf(tenant) else {
                // Another replica has found the client accepted, unless the store did not take what this one has met.
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
            // Another replica may ask once in 30 s only, and the users count as degraded, until a renewal goes well again.
            if error != .conflict { log.storeFailed(error, [.tenant(tenant)]) }
        }
    }

    private func fault(_ error: BrokerError, _ tenant: Tenant, since: Timestamp, last: Timestamp) -> ClientFault {
        ClientFault(
            configuration: tenant.version, since: since, last: last, code: error.code.rawValue,
            errorCode: error.errorCode)
    }

    /// Writes the fault down, together with the event that tells of it, unless another replica has met it already.
    /// - Returns: whether the fault is a new one, and is told of.
    private func tell(_ error: BrokerError, _ key: Key, _ tenant: Tenant) async -> Bool {
        do throws(StoreError) {
            let (standing, now) = (try await records.clientFault(tenant.name), time.now)
            let known = standing?.fault.flatMap { $0.isOf(tenant) ? $0 : nil }
            let isNew = known.map { $0.until.advanced(by: ClientFault.memory) <= now } ?? true
            if !isNew, let known, known.rest(at: now) > .zero {
                markShared(key, since: known.since)
                return false
            }
            let fault = fault(error, tenant, since: known?.since ?? now, last: now)
            var changes = [
                VaultChange.require(RecordID(.tenant, tenant.name)),
                records.change(of: fault, tenant.name, over: standing?.version),
            ]
            if isNew {
                let event = BrokerEvent.providerDegraded(tenant.name, error, retryAt: fault.until, at: now)
                changes.append(BrokerEvent.entry([event], of: tenant.name, key: "", at: now))
            }
            try await records.commit(changes, of: tenant.name)
            markShared(key, since: fault.since)
            return isNew
        } catch {
            // Another replica was faster, or the tenant is gone.
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
