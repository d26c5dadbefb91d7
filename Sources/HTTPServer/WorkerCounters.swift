internal import HTTPCodec
internal import Synchronization

/// One worker's counts. Its loop's thread alone writes; anybody reads. Each worker has its own, so that counting a
/// request never waits for another processor's cache.
final class WorkerCounters: Sendable {
    let accepted = Atomic<Int>(0)
    let stalled = Atomic<Int>(0)
    let requests = Atomic<Int>(0)
    private let overload = Atomic<Int>(0)
    private let connections = Atomic<Int>(0)
    private let contents = Atomic<Int>(0)
    private let faults = Mutex<[Status: Int]>([:])

    func countFault(_ status: Status) {
        faults.withLock { $0[status, default: 0] += 1 }
    }

    func countRefusal(_ refusal: Refusal) {
        switch refusal {
        case .overload: overload.add(1, ordering: .relaxed)
        case .connections: connections.add(1, ordering: .relaxed)
        case .contents: contents.add(1, ordering: .relaxed)
        }
    }

    /// The counts now, without `connectionsOpen`, which is the server's.
    var snapshot: ServerStatistics {
        var statistics = ServerStatistics()
        statistics.connectionsAccepted = accepted.load(ordering: .relaxed)
        statistics.refusals = [
            .overload: overload.load(ordering: .relaxed), .connections: connections.load(ordering: .relaxed),
            .contents: contents.load(ordering: .relaxed),
        ]
        statistics.connectionsStalled = stalled.load(ordering: .relaxed)
        statistics.requests = requests.load(ordering: .relaxed)
        statistics.faults = faults.withLock { $0 }
        return statistics
    }
}

/// The connections of a whole server, which its limit is about.
final class ConnectionCount: Sendable {
    private let open = Atomic<Int>(0)

    var value: Int { open.load(ordering: .relaxed) }

    /// Counts one more and returns how many there are now.
    func increment() -> Int { open.add(1, ordering: .relaxed).newValue }

    func decrement() { open.subtract(1, ordering: .relaxed) }
}
