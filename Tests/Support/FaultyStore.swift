package import BrokerCore
package import CredentialStore
package import OAuth
import Synchronization

/// A store that fails where a test says so, and counts what it is asked.
package final class FaultyStore: ForwardingStore {
    /// What becomes of a commit.
    package enum CommitStep: Sendable {
        /// Reaches the store.
        case pass
        /// Changes nothing.
        case refuse(StoreError)
        /// Reaches the store, and is reported as unavailable all the same: its answer was lost.
        case loseAnswer
        /// Waits for the gate and then reaches the store.
        case hold(Gate)
        /// Reaches the store; the answer waits for the gate.
        case holdAnswer(Gate)
    }

    private struct State {
        var isDown = false
        var steps: [RecordKind: [CommitStep]] = [:]
        var heldReads: [RecordKind: Gate] = [:]
        var heldCount: Gate?
        var check: CommitStep = .pass
        var checks = 0
        var reads = 0
        var commits = 0
    }

    package let inner: any RecordStore
    package let revalidateAfter: Duration?
    private let time: (any Time)?
    private let state = Mutex(State())

    /// - Parameters:
    ///   - inner: where the records are; shared by the stores of several replicas.
    ///   - revalidateAfter: nil for a store with one writer.
    ///   - time: the store's clock; nil for a store without one.
    package init(
        _ inner: any RecordStore = MemoryRecordStore(), revalidateAfter: Duration? = nil, time: (any Time)? = nil
    ) {
        self.inner = inner
        self.revalidateAfter = revalidateAfter
        self.time = time
    }

    package func clock() async throws(StoreError) -> Timestamp? {
        try admit()
        if let time { return time.now }
        return try await inner.clock()
    }

    /// While down, every call is unavailable.
    package func setDown(_ isDown: Bool) { state.withLock { $0.isDown = isDown } }

    /// What becomes of the next commits that write or remove a record of that kind. A removal of a whole tenant counts
    /// as one of its tenant record.
    package func onCommit(of kind: RecordKind, _ steps: CommitStep...) {
        state.withLock { $0.steps[kind, default: []] += steps }
    }

    /// The next read of a record of that kind is made, and its answer waits for the gate.
    package func holdNextRead(of kind: RecordKind, _ gate: Gate) { state.withLock { $0.heldReads[kind] = gate } }

    /// The next count of due records is made, and its answer waits for the gate.
    package func holdNextCount(_ gate: Gate) { state.withLock { $0.heldCount = gate } }

    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try admit()
        let count = try await inner.countDue(kind, tenant: tenant, after: now, limit: limit)
        if let gate = state.withLock({ $0.heldCount.take() }) {
            gate.arrive()
            await gate.opened()
        }
        return count
    }

    /// What becomes of checks.
    package func onCheck(_ step: CommitStep) { state.withLock { $0.check = step } }

    package var checks: Int { state.withLock { $0.checks } }

    /// Calls so far but commits and checks.
    package var reads: Int { state.withLock { $0.reads } }

    /// Commits asked for so far, those that failed included.
    package var commits: Int { state.withLock { $0.commits } }

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try admit()
        let record = try await inner.read(id)
        await pass(id.kind)
        return record
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try admit()
        let record = try await inner.find(kind, lookup: lookup)
        await pass(kind)
        return record
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        let step = state.withLock { state -> CommitStep in
            state.commits += 1
            if state.isDown { return .refuse(.unavailable) }
            for kind in changes.compactMap(Self.kind) where state.steps[kind]?.isEmpty == false {
                return state.steps[kind]!.removeFirst()
            }
            return .pass
        }
        switch step {
        case .pass: try await inner.commit(changes)
        case .refuse(let error): throw error
        case .loseAnswer:
            try await inner.commit(changes)
            throw .unavailable
        case .hold(let gate):
            gate.arrive()
            await gate.opened()
            try await inner.commit(changes)
        case .holdAnswer(let gate):
            try await inner.commit(changes)
            gate.arrive()
            await gate.opened()
        }
    }

    package func check() async throws(StoreError) {
        let (isDown, step) = state.withLock { state in
            state.checks += 1
            return (state.isDown, state.check)
        }
        if isDown { throw .unavailable }
        switch step {
        case .pass: try await inner.check()
        case .refuse(let error): throw error
        case .loseAnswer: throw .unavailable
        case .hold(let gate), .holdAnswer(let gate):
            gate.arrive()
            await gate.opened()
        }
    }

    package func admit() throws(StoreError) {
        let isDown = state.withLock { state in
            state.reads += 1
            return state.isDown
        }
        if isDown { throw .unavailable }
    }

    private func pass(_ kind: RecordKind) async {
        guard let gate = state.withLock({ $0.heldReads.removeValue(forKey: kind) }) else { return }
        gate.arrive()
        await gate.opened()
    }

    private static func kind(_ change: RecordChange) -> RecordKind? {
        switch change {
        case .insert(let record), .replace(let record, _, _): record.id.kind
        case .remove(let id, _), .settleDue(let id, _, _, _): id.kind
        case .removeAll: .tenant
        case .require, .claim, .release, .append, .audit: nil
        }
    }
}
