package import CredentialStore
internal import Synchronization

/// A store that several replicas share, and that a test can have lose its last commits.
package final class RewindingStore: ForwardingStore {
    private struct State {
        var current: MemoryRecordStore
        var noted: MemoryRecordStore
        var lineage: StoreLineage
        var isAway = false
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

    /// Does not answer from now on, or does again.
    package func setAway(_ isAway: Bool) { state.withLock { $0.isAway = isAway } }

    /// To here it goes back.
    package func note() { state.withLock { $0.noted = $0.current.copy() } }

    /// Loses what was committed since `note`, as in a failover.
    package func goBack() {
        state.withLock { state in
            state.current = state.noted.copy()
            state.lineage = StoreLineage(system: 1, timeline: state.lineage.timeline + 1, position: 0)
        }
    }
}
