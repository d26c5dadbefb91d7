package import CredentialStore
import OAuth
package import Reactor
import Synchronization
import Testing

/// Readers and writers of a store that go on through every fault, and notice what must never be: a call that takes too
/// long, an error that is none of the store's answers to a fault, a write that was acknowledged and is gone.
package final class PostgresTraffic: Sendable {
    package struct Outcome: Sendable {
        package let began: MonotonicInstant
        package let ended: MonotonicInstant
        package let isWrite: Bool
        package let error: StoreError?
    }

    private let store: any RecordStore
    private let limit: Duration
    private let isOver = Atomic<Bool>(false)
    private let stream: AsyncStream<Outcome>
    private let continuation: AsyncStream<Outcome>.Continuation
    private let task = Mutex<Task<Void, Never>?>(nil)

    private static let tenant = TenantName("traffic")!

    /// Begins.
    /// - Parameter limit: the longest that a call may take.
    package init(_ store: any RecordStore, workers: Int = 4, limit: Duration) {
        self.store = store
        self.limit = limit
        (stream, continuation) = AsyncStream.makeStream()
        let running = Task {
            await withTaskGroup(of: Void.self) { group in
                for worker in 0..<workers { group.addTask { await self.work(worker) } }
            }
            continuation.finish()
        }
        task.withLock { $0 = running }
    }

    /// How long it took from `start` to the end of the first call that began afterwards and came to that; nil where
    /// there is none within a minute.
    package func time(
        from start: MonotonicInstant, toWrite isWrite: Bool, failing: Bool = false
    ) async -> Duration? {
        for await outcome in stream {
            if outcome.began >= start, outcome.isWrite == isWrite, (outcome.error != nil) == failing {
                return start.duration(to: outcome.ended)
            }
            if start.duration(to: outcome.ended) > .seconds(60) { return nil }
        }
        return nil
    }

    package func stop() async {
        isOver.store(true, ordering: .relaxed)
        await task.withLock { $0 }?.value
    }

    private func work(_ worker: Int) async {
        let id = RecordID(.credentials, Self.tenant, key: "\(worker)")
        var acknowledged: Int64 = 0
        var found: StoredRecord?
        while !isOver.load(ordering: .relaxed) {
            let read = await call(isWrite: false) { () async throws(StoreError) in try await self.store.read(id) }
            if case .success(let record) = read {
                found = record
                #expect(record?.version ?? 0 >= acknowledged, "an acknowledged write is gone")
                let version = (record?.version ?? 0) + 1
                let next = StoredRecord(id: id, version: version, sealed: Array("\(worker) \(version)".utf8))
                let change: RecordChange = found == nil ? .insert(next) : .replace(next, version: version - 1)
                let write = await call(isWrite: true) { () async throws(StoreError) in
                    try await self.store.commit([change])
                }
                if case .success = write { acknowledged = version }
            }
            // A pace, so that the pool's refusals do not come by the thousand.
            try? await Task.sleep(for: .milliseconds(5))
        }
    }

    private func call<Value: Sendable>(
        isWrite: Bool, _ body: () async throws(StoreError) -> Value
    ) async -> Result<Value, StoreError> {
        let began = MonotonicInstant.now
        let result: Result<Value, StoreError>
        do throws(StoreError) {
            result = .success(try await body())
        } catch {
            result = .failure(error)
        }
        let ended = MonotonicInstant.now
        var failure: StoreError?
        if case .failure(let error) = result { failure = error }
        #expect(began.duration(to: ended) < limit, "a call took too long")
        #expect(failure == nil || failure == .unavailable || (isWrite && failure == .conflict))
        continuation.yield(Outcome(began: began, ended: ended, isWrite: isWrite, error: failure))
        return result
    }
}
