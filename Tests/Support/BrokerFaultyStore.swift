package import CredentialStore
import Synchronization

/// A store whose commits go wrong as a test says; every call fails while it is away.
package final class BrokerFaultyStore: ForwardingStore {
    package enum Fault: Sendable {
        /// Nothing is changed, and the caller hears that the store is unavailable.
        case refuse
        /// The changes are made, and the caller hears that the store is unavailable.
        case loseAnswer
        /// The caller hears that the store is unavailable, and the changes are made just before those of the next commit.
        case landLate
        /// Nothing is changed, and the caller hears that the store is damaged.
        case damage
        /// Waits for the gate first. As with a database, a caller that was cancelled meanwhile does not learn that the
        /// changes were made.
        case hold(Gate)
    }

    private struct Trap: Sendable {
        let fault: Fault
        let concerns: @Sendable (RecordChange) -> Bool
    }

    private struct State {
        var traps: [Trap] = []
        var late: [RecordChange] = []
        var isAway = false
    }

    package let inner: any RecordStore
    private let state = Mutex(State())
    package let revalidateAfter: Duration?

    /// - Parameter revalidateAfter: not nil makes it look like a store that other replicas write to as well.
    package init(_ base: any RecordStore = MemoryRecordStore(), revalidateAfter: Duration? = nil) {
        inner = base
        self.revalidateAfter = revalidateAfter
    }

    /// Disturbs the next commits that have a change which `concerns` picks, one fault for each.
    package func disturb(_ faults: [Fault], where concerns: @escaping @Sendable (RecordChange) -> Bool) {
        state.withLock { $0.traps += faults.map { Trap(fault: $0, concerns: concerns) } }
    }

    /// Whether every call fails.
    package var isAway: Bool {
        get { state.withLock { $0.isAway } }
        set { state.withLock { $0.isAway = newValue } }
    }

    /// The faults that have not struck yet.
    package var remainingFaults: Int { state.withLock { $0.traps.count } }

    package func admit() throws(StoreError) {
        if isAway { throw .unavailable }
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try admit()
        let late = state.withLock { state in
            defer { state.late = [] }
            return state.late
        }
        if !late.isEmpty { try await inner.commit(late) }
        let fault = state.withLock { state -> Fault? in
            guard let index = state.traps.firstIndex(where: { changes.contains(where: $0.concerns) }) else {
                return nil
            }
            return state.traps.remove(at: index).fault
        }
        switch fault {
        case nil: try await inner.commit(changes)
        case .refuse?: throw .unavailable
        case .loseAnswer?:
            try await inner.commit(changes)
            throw .unavailable
        case .landLate?:
            state.withLock { $0.late = changes }
            throw .unavailable
        case .damage?: throw .damaged("a table is not what it was")
        case .hold(let gate)?:
            gate.arrive()
            await gate.opened()
            try await inner.commit(changes)
            if Task.isCancelled { throw .unavailable }
        }
    }
}

extension RecordChange {
    /// Whether this writes a record of that kind over another one.
    package func replaces(_ kind: RecordKind) -> Bool {
        if case .replace(let record, _, _) = self { record.id.kind == kind } else { false }
    }

    /// Whether this writes a record of that kind, new or over another one.
    package func writes(_ kind: RecordKind) -> Bool {
        switch self {
        case .insert(let record), .replace(let record, _, _): record.id.kind == kind
        case .remove, .require, .removeAll, .settleDue, .claim, .release, .append, .audit: false
        }
    }
}
