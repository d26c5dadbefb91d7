import CredentialStore
import OAuth

/// Subscribes to a shared store's notifications of all replicas' commits, and passes them on within this process: it
/// invalidates cache entries, says how long the others are valid, and wakes tasks that wait for a change.
///
/// The store sends a notification only after its commit can be read. So a reader that began before the notification does not
/// cache what it has read, and a reader that begins after it finds the change.
final class ChangeFeed: Sendable {
    private let bus: EventBus
    private let time: any Time
    private let log: Log

    init(bus: EventBus, time: any Time, log: Log) {
        self.bus = bus
        self.time = time
        self.log = log
    }

    /// Subscribes until the store is closed. To be called once at most.
    func subscribe(to vault: Vault) {
        vault.watch(received)
    }

    private func received(_ notification: StoreNotification) {
        let now = time.monotonic
        switch notification {
        case .following:
            bus.cacheValidity.feedStarted(at: now)
            // Commits that were made before were not announced.
            bus.announceGrowth()
            log.info("change_feed_following", [])
        case .alive: bus.cacheValidity.feedSeenAlive(at: now)
        case .lost:
            bus.cacheValidity.feedLost()
            log.warning("change_feed_lost", [])
        case .unknown:
            bus.cacheValidity.invalidateAll(at: now)
            bus.announceGrowth()
        case .rolledBack: bus.announceRollback()
        case .changed(let changes):
            for change in changes {
                switch change {
                case .written(let id, let version): bus.announce(id, version: version)
                case .removed(let id): bus.announce(id, version: nil)
                case .tenantRemoved(let tenant): bus.announce(removalOf: tenant)
                case .logGrown(let tenant): bus.announce(tenant)
                }
            }
        }
    }
}
