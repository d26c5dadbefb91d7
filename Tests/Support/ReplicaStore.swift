package import CredentialStore
import Synchronization

/// One replica's way to a store that several share: commits of any of them are told to all, the committer included, as
/// PostgreSQL does it, and as far as the test lets the news through.
package final class ReplicaStore: ForwardingStore {
    /// What becomes of news on their way to this replica.
    package enum Delivery: Sendable {
        case passes
        /// They wait for `release`.
        case waits
        /// They are lost without an error.
        case fails
    }

    /// The replicas of one store.
    package final class Group: Sendable {
        fileprivate let replicas = Mutex<[ReplicaStore]>([])

        package init() {}

        fileprivate func tell(_ news: StoreNotification) {
            for replica in replicas.withLock({ $0 }) { replica.deliver(news) }
        }
    }

    private struct State {
        var notify: (@Sendable (StoreNotification) -> Void)?
        var delivery = Delivery.passes
        var waiting: [StoreNotification] = []
        var lineage: StoreLineage?
    }

    package let inner: any RecordStore
    package let revalidateAfter: Duration?
    private let group: Group
    private let state = Mutex(State())

    /// - Parameters:
    ///   - inner: the store that the group shares.
    ///   - revalidateAfter: as with any shared store.
    package init(_ inner: any RecordStore, in group: Group, revalidateAfter: Duration = .seconds(5)) {
        self.inner = inner
        self.group = group
        self.revalidateAfter = revalidateAfter
        group.replicas.withLock { $0.append(self) }
    }

    package func admit() throws(StoreError) {}

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try await inner.commit(changes)
        let told = changes.compactMap(\.told)
        if !told.isEmpty { group.tell(.changed(told)) }
    }

    /// Tells the replica of a loss of commits before it answers, as PostgreSQL's store does.
    package func lineage() async throws(StoreError) -> StoreLineage? {
        guard let lineage = try await inner.lineage() else { return nil }
        let isOther = state.withLock { state in
            defer { state.lineage = lineage }
            return state.lineage.map { $0 != lineage } ?? false
        }
        if isOther { tell(.rolledBack) }
        return lineage
    }

    /// The feed does not begin by itself: the test says when it follows.
    package func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {
        state.withLock { $0.notify = notify }
    }

    // MARK: The feed

    /// From now on, this becomes of news.
    package func setDelivery(_ delivery: Delivery) { state.withLock { $0.delivery = delivery } }

    /// Tells what waits, in its order, and lets pass what comes.
    package func release() {
        let (notify, waiting) = state.withLock { state in
            defer { (state.delivery, state.waiting) = (.passes, []) }
            return (state.notify, state.waiting)
        }
        for news in waiting { notify?(news) }
    }

    /// The connection that tells of commits is there: everything from now on passes.
    package func follow() {
        state.withLock { ($0.delivery, $0.waiting) = (.passes, []) }
        tell(.following)
    }

    /// The connection is found to be lost, with everything that was on its way.
    package func cut() {
        state.withLock { ($0.delivery, $0.waiting) = (.fails, []) }
        tell(.lost)
    }

    /// Tells this replica alone, whatever becomes of other news.
    package func tell(_ news: StoreNotification) { state.withLock { $0.notify }?(news) }

    private func deliver(_ news: StoreNotification) {
        let notify = state.withLock { state in
            switch state.delivery {
            case .passes: return state.notify
            case .waits: state.waiting.append(news)
            case .fails: break
            }
            return nil
        }
        notify?(news)
    }
}

extension RecordChange {
    /// What a store tells of it.
    fileprivate var told: StoreChange? {
        switch self {
        case .insert(let record), .replace(let record, _, _): .written(record.id, version: record.version)
        case .remove(let id, _): .removed(id)
        case .removeAll(let tenant): .tenantRemoved(tenant)
        case .release(let id, let version, _, _): .written(id, version: version)
        case .append(let entry): .logGrown(entry.tenant)
        case .require, .settleDue, .claim, .audit: nil
        }
    }
}
