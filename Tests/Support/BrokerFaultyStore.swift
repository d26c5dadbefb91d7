package import CredentialStore
package import OAuth
internal import Synchronization

/// A store whose commits go wrong as a test says; reads fail while it is away.
package final class BrokerFaultyStore: RecordStore {
    package enum Fault: Sendable {
        /// Nothing is changed, and the caller hears that the store is unavailable.
        case refuse
        /// The changes are made, and the caller hears that the store is unavailable.
        case loseAnswer
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
        var isAway = false
    }

    private let base: any RecordStore
    private let state = Mutex(State())
    package let revalidateAfter: Duration?

    /// - Parameter revalidateAfter: not nil makes it look like a store that other replicas write to as well.
    package init(_ base: any RecordStore = MemoryRecordStore(), revalidateAfter: Duration? = nil) {
        self.base = base
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

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        if isAway { throw .unavailable }
        return try await base.read(id)
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        if isAway { throw .unavailable }
        return try await base.find(kind, lookup: lookup)
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        if isAway { throw .unavailable }
        return try await base.list(kind, tenant: tenant, after: after, limit: limit)
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        if isAway { throw .unavailable }
        let fault = state.withLock { state -> Fault? in
            guard let index = state.traps.firstIndex(where: { changes.contains(where: $0.concerns) }) else {
                return nil
            }
            return state.traps.remove(at: index).fault
        }
        switch fault {
        case nil: try await base.commit(changes)
        case .refuse?: throw .unavailable
        case .loseAnswer?:
            try await base.commit(changes)
            throw .unavailable
        case .hold(let gate)?:
            gate.arrive()
            await gate.opened()
            try await base.commit(changes)
            if Task.isCancelled { throw .unavailable }
        }
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await base.removeExpired(before: now, limit: limit)
    }

    package func check() async throws(StoreError) {
        if isAway { throw .unavailable }
        try await base.check()
    }

    package func close() async { await base.close() }
}

extension RecordChange {
    /// Whether this writes a record of that kind over another one.
    package func replaces(_ kind: RecordKind) -> Bool {
        if case .replace(let record, _) = self { record.id.kind == kind } else { false }
    }

    /// Whether this writes a record of that kind, new or over another one.
    package func writes(_ kind: RecordKind) -> Bool {
        switch self {
        case .insert(let record), .replace(let record, _): record.id.kind == kind
        case .remove, .require, .removeAll: false
        }
    }
}
