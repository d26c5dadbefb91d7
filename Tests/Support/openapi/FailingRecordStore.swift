package import CredentialStore
import Synchronization

/// A store in memory that fails when it is told to.
package final class FailingRecordStore: ForwardingStore {
    package let inner: any RecordStore = MemoryRecordStore()
    private let failure = Mutex<StoreError?>(nil)

    package init() {}

    /// From now on every call fails like this; nil lets them succeed again.
    package func fail(_ error: StoreError?) { failure.withLock { $0 = error } }

    package var revalidateAfter: Duration? { nil }

    package func admit() throws(StoreError) {
        if let error = failure.withLock({ $0 }) { throw error }
    }
}
