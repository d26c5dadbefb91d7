import BrokerTesting
import CredentialStore
import OAuth
import Synchronization

/// A memory store that takes one more commit, and answers nothing from then on.
final class VanishingStore: ForwardingStore {
    let inner: any RecordStore = MemoryRecordStore()
    let revalidateAfter: Duration? = nil
    private let state = Mutex<(kind: RecordKind?, isAway: Bool)>((nil, false))

    func vanishAfterNextCommit(of kind: RecordKind) { state.withLock { $0.kind = kind } }

    func comeBack() { state.withLock { $0 = (nil, false) } }

    func admit() throws(StoreError) {
        if state.withLock({ $0.isAway }) { throw .unavailable }
    }

    func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try admit()
        return try await inner.read(id)
    }

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try admit()
        try await inner.commit(changes)
        let isLast = changes.contains { change in
            switch change {
            case .insert(let record), .replace(let record, _, _): state.withLock { $0.kind == record.id.kind }
            default: false
            }
        }
        if isLast {
            state.withLock { $0.isAway = true }
            throw .unavailable
        }
    }
}
