package import CredentialStore
package import OAuth
internal import Synchronization
package import Waiting

/// Tells of commits: that the log of events has grown, when something of it falls due, and which records were changed.
/// Those of this process are announced by whoever made them, those of other replicas by the change feed, which tells of
/// our own a second time.
///
/// Whoever announces is in the middle of serving a caller, so those who hear of it return at once.
package final class EventBus: Sendable {
    private struct Hearers {
        var growth: (@Sendable (TenantName) -> Void)?
        var anyGrowth: (@Sendable () -> Void)?
        var due: (@Sendable (Timestamp) -> Void)?
        var changes: [RecordKind: [@Sendable (RecordID, Int64?) -> Void]] = [:]
        var removals: [@Sendable (TenantName) -> Void] = []
        var revocation: (@Sendable (TenantName) -> Void)?
        var rollback: (@Sendable () -> Void)?
        var older: (@Sendable (CredentialsID) -> Void)?
    }

    /// Says whether what was read from the store may still be believed.
    package let trust: Trust
    /// Wakes whoever waits for credentials to be changed by another replica.
    package let changes = KeyedSignal<CredentialsID>()
    private let hearers = Mutex(Hearers())

    package init(trust: Trust) {
        self.trust = trust
    }

    /// Something of the tenant's was committed to the log.
    package func announce(_ tenant: TenantName) {
        hearers.withLock { $0.growth }?(tenant)
    }

    /// The log may have grown by anything.
    func announceGrowth() {
        hearers.withLock { $0.anyGrowth }?()
    }

    /// A record with that due mark was committed.
    package func announce(due: Timestamp) {
        hearers.withLock { $0.due }?(due)
    }

    /// Somebody's commit changed the record.
    /// - Parameter version: nil where the record was removed.
    package func announce(_ id: RecordID, version: Int64?) {
        for hear in hearers.withLock({ $0.changes[id.kind] }) ?? [] { hear(id, version) }
        // Last, so that whoever is woken finds nothing in memory that is older than what woke it.
        if id.kind == .credentials, let id = CredentialsID(id) { changes.signal(id) }
        if id.kind == .apiKey, version == nil { hearers.withLock { $0.revocation }?(id.tenant) }
    }

    /// A cache has an entry of another version than the store: the change was announced to no cache.
    /// - Parameter stored: the store's version; nil where the record was removed. One that is lower than the entry's is a
    ///   version that the store has gone back to.
    func announce(missedBy entry: RenewableEntry, stored: Int64?) {
        if let stored, stored < entry.version, entry.id.kind == .credentials, let id = CredentialsID(entry.id) {
            return announce(older: id)
        }
        announce(entry.id, version: stored.flatMap { $0 > entry.version ? $0 : nil })
    }

    /// Somebody's commit removed the tenant with everything under it.
    func announce(removalOf tenant: TenantName) {
        for hear in hearers.withLock({ $0.removals }) { hear(tenant) }
        hearers.withLock { $0.revocation }?(tenant)
    }

    /// The store may have lost its last commits.
    func announceRollback() {
        hearers.withLock { $0.rollback }?()
    }

    /// The store has an older version of these credentials than was read or written before.
    func announce(older id: CredentialsID) {
        hearers.withLock { $0.older }?(id)
    }

    /// Has `hear` called when the store may have lost its last commits, and `hearOlder` with the credentials in which that
    /// shows; nobody else.
    func onRollback(
        _ hear: @escaping @Sendable () -> Void, orOlder hearOlder: @escaping @Sendable (CredentialsID) -> Void
    ) {
        hearers.withLock { ($0.rollback, $0.older) = (hear, hearOlder) }
    }

    /// Has `hear` called after each commit to the log from now on, and `hearAny` where nobody knows what was committed;
    /// nobody else.
    func onGrowth(_ hear: @escaping @Sendable (TenantName) -> Void, orAny hearAny: @escaping @Sendable () -> Void) {
        hearers.withLock { ($0.growth, $0.anyGrowth) = (hear, hearAny) }
    }

    /// Has `hear` called after each commit of a due mark from now on, and nobody else.
    func onDue(_ hear: @escaping @Sendable (Timestamp) -> Void) {
        hearers.withLock { $0.due = hear }
    }

    /// Has `hear` called with each record of that kind that the change feed tells of, with its version; nil for none.
    package func onChange(of kind: RecordKind, _ hear: @escaping @Sendable (RecordID, Int64?) -> Void) {
        hearers.withLock { $0.changes[kind, default: []].append(hear) }
    }

    /// Has `hear` called with the tenant after an API key of the tenant or the tenant itself was removed
    /// and every cache has heard of that.
    func onRevocation(_ hear: @escaping @Sendable (TenantName) -> Void) {
        hearers.withLock { $0.revocation = hear }
    }

    /// Has `hear` called with each tenant whose removal the change feed tells of.
    package func onRemoval(_ hear: @escaping @Sendable (TenantName) -> Void) {
        hearers.withLock { $0.removals.append(hear) }
    }
}

extension CredentialsID {
    /// Nil where the record's key is no storage key.
    init?(_ id: RecordID) {
        guard let storageKey = StorageKey(id.key) else { return nil }
        self.init(tenant: id.tenant, storageKey: storageKey)
    }
}
