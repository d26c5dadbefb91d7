package import CredentialStore
import Synchronization

/// A store that several replicas share, and that a test can have lose its last commits.
package final class RewindingStore: ForwardingStore {
    private struct State {
        var current: MemoryRecordStore
        var noted: MemoryRecordStore
        var lineage: StoreLineage
        var isAway = false
        var beforeCommit: (@Sendable () async -> Void)?
    }

    package let revalidateAfter: Duration? = .seconds(5)
    private let state: Mutex<State>

    package init(_ store: MemoryRecordStore = MemoryRecordStore()) {
        state = Mutex(
            State(current: store, noted: store.copy(), lineage: StoreLineage(system: 1, timeline: 1, position: 0)))
    }

    package var inner: any RecordStore { state.withLock { $0.current } }

    package func admit() throws(StoreError) {
        if state.withLock({ $0.isAway }) { throw .unavailable }
    }

    package func lineage() async throws(StoreError) -> StoreLineage? {
        try admit()
        return state.withLock { $0.lineage }
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        let replaces = changes.contains { change in
            if case .replace(let record, _, _) = change { record.id.kind == .credentials } else { false }
        }
        let body =
            !replaces
            ? nil
            : state.withLock { state in
                defer { state.beforeCommit = nil }
                return state.beforeCommit
            }
        await body?()
        try admit()
        try await inner.commit(changes)
    }

    /// Has `body` run when the next commit that replaces credentials has arrived, before that is carried out.
    package func beforeNextReplacement(_ body: @escaping @Sendable () async -> Void) {
        state.withLock { $0.beforeCommit = body }
    }

    /// Does not answer from now on, or does again.
    package func setAway(_ isAway: Bool) { state.withLock { $0.isAway = isAway } }

    /// To here it goes back.
    package func note() { state.withLock { $0.noted = $0.current.copy() } }

    /// Loses what was committed since `note`, as in a failover.
    /// - Parameter lineage: what the store says of itself from then on; nil for the next timeline.
    package func goBack(to lineage: StoreLineage? = nil) {
        state.withLock { state in
            state.current = state.noted.copy()
            state.lineage = lineage ?? Self.next(state.lineage)
        }
    }

    /// Begins a new timeline, and loses nothing, as in a planned switchover.
    package func promote() { state.withLock { $0.lineage = Self.next($0.lineage) } }

    private static func next(_ lineage: StoreLineage) -> StoreLineage {
        StoreLineage(system: lineage.system, timeline: lineage.timeline + 1, position: 0)
    }
}
