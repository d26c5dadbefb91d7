package import CredentialStore
package import OAuth
import Synchronization
package import Waiting

/// Announces commits within this process: that the log of events has grown, that a record falls due, that records were
/// changed. The code that makes a commit announces it; the change feed announces the commits of all replicas, this process's
/// own ones included, so that these are announced twice.
///
/// Callers wait while a commit is announced, so a subscriber returns at once.
package final class EventBus: Sendable {
    private struct Subscribers {
        var growth: (@Sendable (TenantName) -> Void)?
        var anyGrowth: (@Sendable () -> Void)?
        var due: (@Sendable (Timestamp) -> Void)?
        var changes: [RecordKind: [@Sendable (RecordID, Int64?) -> Void]] = [:]
        var removals: [@Sendable (TenantName) -> Void] = []
        var revocation: (@Sendable (TenantName) -> Void)?
        var rollback: (@Sendable () -> Void)?
        var older: (@Sendable (CredentialsID) -> Void)?
    }

    /// The version of the record of an API key that is new, so that no cache and no stream has it yet.
    static let newKeyVersion: Int64 = 1

    /// For how long the caches may use what was read from the store.
    package let cacheValidity: CacheValidity
    /// Wakes tasks that wait until another replica has changed credentials.
    package let changes = KeyedSignal<CredentialsID>()
    private let subscribers = Mutex(Subscribers())

    package init(cacheValidity: CacheValidity) {
        self.cacheValidity = cacheValidity
    }

    /// An event of the tenant was committed to the log.
    package func announce(_ tenant: TenantName) {
        subscribers.withLock { $0.growth }?(tenant)
    }

    /// Events of any tenants may have been committed to the log.
    func announceGrowth() {
        subscribers.withLock { $0.anyGrowth }?()
    }

    /// A record with that due mark was committed.
    package func announce(due: Timestamp) {
        subscribers.withLock { $0.due }?(due)
    }

    /// A commit of any replica changed the record.
    /// - Parameter version: nil where the record was removed.
    package func announce(_ id: RecordID, version: Int64?) {
        for changed in subscribers.withLock({ $0.changes[id.kind] }) ?? [] { changed(id, version) }
        // Last, so that a task that is woken finds no cache entry that is older than the change.
        if id.kind == .credentials, let id = CredentialsID(id) { changes.signal(id) }
        // A rotation ends a secret that streams may have been opened with.
        if id.kind == .apiKey, version != Self.newKeyVersion { subscribers.withLock { $0.revocation }?(id.tenant) }
    }

    /// A cache has an entry of another version than the store: the change was not announced.
    /// - Parameter stored: the store's version; nil where the record was removed. One that is lower than the entry's shows
    ///   that the store has lost commits.
    func announce(missedBy entry: RevalidationCandidate, stored: Int64?) {
        if let stored, stored < entry.version, entry.id.kind == .credentials, let id = CredentialsID(entry.id) {
            return announce(older: id)
        }
        announce(entry.id, version: stored.flatMap { $0 > entry.version ? $0 : nil })
    }

    /// A commit of any replica removed the tenant with everything under it.
    func announce(removalOf tenant: TenantName) {
        for removed in subscribers.withLock({ $0.removals }) { removed(tenant) }
        subscribers.withLock { $0.revocation }?(tenant)
    }

    /// The store may have lost its last commits.
    func announceRollback() {
        subscribers.withLock { $0.rollback }?()
    }

    /// The store has an older version of these credentials than was read or written before.
    func announce(older id: CredentialsID) {
        subscribers.withLock { $0.older }?(id)
    }

    /// Subscribes to the loss of commits. Replaces an earlier subscriber.
    /// - Parameters:
    ///   - rolledBack: called when the store may have lost its last commits.
    ///   - foundOlder: called with credentials of which the store has an older version than before.
    func onRollback(
        _ rolledBack: @escaping @Sendable () -> Void, orOlder foundOlder: @escaping @Sendable (CredentialsID) -> Void
    ) {
        subscribers.withLock { ($0.rollback, $0.older) = (rolledBack, foundOlder) }
    }

    /// Subscribes to commits to the log of events. Replaces an earlier subscriber.
    /// - Parameters:
    ///   - grew: called with the tenant after each commit to the log.
    ///   - mayHaveGrown: called where it is not known what was committed.
    func onGrowth(
        _ grew: @escaping @Sendable (TenantName) -> Void, orAny mayHaveGrown: @escaping @Sendable () -> Void
    ) {
        subscribers.withLock { ($0.growth, $0.anyGrowth) = (grew, mayHaveGrown) }
    }

    /// Subscribes to this process's commits of due marks. Replaces an earlier subscriber.
    func onDue(_ committed: @escaping @Sendable (Timestamp) -> Void) {
        subscribers.withLock { $0.due = committed }
    }

    /// Subscribes to changes of the records of one kind.
    /// - Parameter changed: called with the record and its version; nil where the record was removed.
    package func onChange(of kind: RecordKind, _ changed: @escaping @Sendable (RecordID, Int64?) -> Void) {
        subscribers.withLock { $0.changes[kind, default: []].append(changed) }
    }

    /// Subscribes to removals of API keys and of tenants. Replaces an earlier subscriber.
    /// - Parameter revoked: called with the tenant after every cache was told of the removal.
    func onRevocation(_ revoked: @escaping @Sendable (TenantName) -> Void) {
        subscribers.withLock { $0.revocation = revoked }
    }

    /// Subscribes to removals of tenants.
    package func onRemoval(_ removed: @escaping @Sendable (TenantName) -> Void) {
        subscribers.withLock { $0.removals.append(removed) }
    }
}

extension CredentialsID {
    /// Nil where the record's key is not a storage key.
    init?(_ id: RecordID) {
        guard let storageKey = StorageKey(id.key) else { return nil }
        self.init(tenant: id.tenant, storageKey: storageKey)
    }
}
