internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
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
        var until: MonotonicInstant
        /// Whether the call under way is the one that the last pause's end has allowed.
        var isTrial = false
        /// Whether the tenant's record has the fault.
        var isShared = false

        /// Whether the next refusal is of the same fault.
        func isKnown(at now: MonotonicInstant) -> Bool { until.advanced(by: ClientFaults.memory) > now }
    }

    /// For how long the provider is not asked again.
    static let pause: Duration = .seconds(30)
    /// A fault that no replica has met for so long after its last pause is a new one when it is met again.
    private static let memory: Duration = .seconds(600)
    private static let limit = 16_384

    private let records: CredentialsRecords
    private let time: any Time
    private let log: Log
    private let entries = Mutex<[Key: Entry]>([:])

    init(records: CredentialsRecords, time: any Time, log: Log) {
        self.records = records
        self.time = time
        self.log = log
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
            return entry.error.retrying(after: now.duration(to: entry.until))
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
            entries[key]?.until = now.advanced(by: Self.pause)
            entries[key]?.isTrial = true
            return (entry, true)
        }
        guard let entry else { return nil }
        guard isTurn else { return entry.error.retrying(after: now.duration(to: entry.until)) }
        guard Self.concernsUsers(key, tenant), records.isShared else { return nil }
        do throws(StoreError) {
            guard let standing = try await shared(tenant.name), let content = standing.content, content.isOf(tenant)
            else {
                // Another replica has found the client accepted: the next refusal is of a new fault.
                if entry.isShared { forget([key], tenant) }
                return nil
            }
            let rest = content.rest(at: time.now)
            if rest > .zero {
                postpone(key, by: rest)
                return entry.error.retrying(after: rest)
            }
            try await records.commit([
                change(of: self.content(tenant, since: content.since), tenant.name, over: standing.version)
            ])
            return nil
        } catch {
            // Another replica has taken its turn. Where the store is away, the claim of the lease decides whether the provider is asked.
            return error == .conflict ? standing(key, tenant) : nil
        }
    }

    /// The provider does not accept the client. Listeners are told where that is new.
    func note(_ error: BrokerError, _ scope: ClientRefusalScope, of use: ClientUse, _ tenant: Tenant) async {
        let key = Key(tenant: tenant.name, client: use.client, scope: scope)
        let now = time.monotonic
        let standing = entries.withLock { entries -> Entry? in
            if entries.count >= Self.limit { entries = entries.filter { $0.value.until > now } }
            let standing = entries[key].flatMap { $0.configuration == tenant.version && $0.isKnown(at: now) ? $0 : nil }
            entries[key] = Entry(
                configuration: tenant.version, error: error, until: now.advanced(by: Self.pause),
                isShared: standing?.isShared ?? false)
            return standing
        }
        var fields: [LogField] = [
            .tenant(tenant.name), .provider(tenant.configuration.preset), .code(error.code),
        ]
        if key.client != ClientIdentity(tenant.terms.client) { fields.append(.reason("earlier_registration")) }
        if standing == nil { log.error("client_refused", fields) }
        // Calls that were under way together with the first one bring no news.
        guard Self.concernsUsers(key, tenant), standing.map({ $0.isTrial || $0.until <= now }) ?? true else { return }
        let isNew = await tell(error, key, tenant)
        if isNew, standing?.isShared == true { log.error("client_refused", fields) }
    }

    /// The provider accepts the client.
    func lift(_ use: ClientUse, of tenant: Tenant) async {
        let lifted = forget(Self.keys(use, tenant), tenant)
        guard lifted.contains(where: { Self.concernsUsers($0, tenant) }) else { return }
        do throws(StoreError) {
            guard let standing = try await shared(tenant.name) else { return }
            try await records.commit([.remove(Self.id(tenant.name), version: standing.version)])
        } catch {
            // It expires by itself; until then another replica may ask once in 30 s only.
            if error != .conflict { log.storeFailed(error, [.tenant(tenant.name)]) }
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

    private struct Content {
        var configuration: Int64
        var since: Timestamp
        var until: Timestamp

        func isOf(_ tenant: Tenant) -> Bool { configuration == tenant.version }

        /// How long the provider is not asked again; zero or less for over. No pause leaves more than `ClientFaults.pause`
        /// to wait for: the clock that it was written by was another.
        func rest(at now: Timestamp) -> Duration {
            let rest = now.duration(to: until)
            return rest > ClientFaults.pause ? .zero : rest
        }
    }

    private func content(_ tenant: Tenant, since: Timestamp?) -> Content {
        let now = time.now
        return Content(configuration: tenant.version, since: since ?? now, until: now.advanced(by: Self.pause))
    }

    /// Writes the fault down, together with the event that tells of it, unless another replica has met it already.
    /// - Returns: whether the fault is a new one, and is told of.
    private func tell(_ error: BrokerError, _ key: Key, _ tenant: Tenant) async -> Bool {
        do throws(StoreError) {
            let standing = try await shared(tenant.name)
            let isNew =
                standing?.content.map { !$0.isOf(tenant) || $0.until.advanced(by: Self.memory) <= time.now } ?? true
            if !isNew, let content = standing?.content, content.rest(at: time.now) > .zero {
                markShared(key)
                return false
            }
            let content = content(tenant, since: isNew ? nil : standing?.content?.since)
            var changes = [
                VaultChange.require(RecordID(.tenant, tenant.name)),
                change(of: content, tenant.name, over: standing?.version),
            ]
            if isNew {
                let event = BrokerEvent.providerDegraded(tenant.name, error, retryAt: content.until, at: time.now)
                changes.append(BrokerEvent.entry([event], of: tenant.name, key: "", at: time.now))
            }
            try await records.commit(changes, of: tenant.name)
            markShared(key)
            return isNew
        } catch {
            // Another replica was faster, or the tenant is gone.
            if error != .conflict { log.warning("event_not_stored", [.tenant(tenant.name), .store(error)]) }
            return false
        }
    }

    private func markShared(_ key: Key) { entries.withLock { $0[key]?.isShared = true } }

    private static func id(_ tenant: TenantName) -> RecordID { RecordID(.trouble, tenant) }

    private func shared(_ tenant: TenantName) async throws(StoreError) -> (content: Content?, version: Int64)? {
        guard let stored = try await records.note(Self.id(tenant)) else { return nil }
        guard let json = stored.content.flatMap({ try? JSONValue(parsing: $0.revealedBytes) }),
            let configuration = json["configuration"]?.integer, let since = json["since"]?.integer,
            let until = json["until"]?.integer
        else { return (nil, stored.version) }
        return (
            Content(
                configuration: configuration, since: Timestamp(milliseconds: since),
                until: Timestamp(milliseconds: until)), stored.version
        )
    }

    private func change(of content: Content, _ tenant: TenantName, over version: Int64?) -> VaultChange {
        let bytes = JSONWriter.object { json in
            json.member("configuration", content.configuration)
            json.member("since", content.since.milliseconds)
            json.member("until", content.until.milliseconds)
        }
        return records.change(
            ofNote: bytes, Self.id(tenant), until: content.until.advanced(by: Self.memory), over: version)
    }
}
