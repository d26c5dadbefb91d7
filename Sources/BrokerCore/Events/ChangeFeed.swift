internal import CredentialStore
internal import OAuth

/// Hears what a shared store tells of everybody's commits, and has everything in memory heed it: what was read is
/// forgotten or trusted, and those are woken who wait for something to change.
///
/// What is told of a commit comes after the commit itself can be read. So whoever reads before hearing of it is kept from
/// taking in what was read, and whoever reads afterwards finds the change.
final class ChangeFeed: Sendable {
    private let bus: EventBus
    private let time: any Time
    private let log: Log

    init(bus: EventBus, time: any Time, log: Log) {
        self.bus = bus
        self.time = time
        self.log = log
    }

    /// Listens to the store until that is closed. Once at most.
    func listen(to vault: Vault) {
        vault.watch(hear)
    }

    private func hear(_ news: StoreNews) {
        let now = time.monotonic
        switch news {
        case .following:
            bus.trust.follow(now)
            // What was committed meanwhile was announced to nobody.
            bus.announceGrowth()
            log.info("change_feed_following", [])
        case .alive: bus.trust.beAlive(now)
        case .lost:
            bus.trust.lose()
            log.warning("change_feed_lost", [])
        case .unknown:
            bus.trust.distrust(now)
            bus.announceGrowth()
        case .wentBack: bus.announceRollback()
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
