import HTTPCodec
import Reactor
import Synchronization

/// One worker's counts. The loop's thread writes them, and any thread may read them. Each worker has its own, so that
/// counting a request never waits for another processor's cache.
final class WorkerCounters: Sendable {
    let accepted = Atomic<Int>(0)
    let stalled = Atomic<Int>(0)
    let evicted = Atomic<Int>(0)
    let requests = Atomic<Int>(0)
    private let overload = Atomic<Int>(0)
    private let connections = Atomic<Int>(0)
    private let source = Atomic<Int>(0)
    private let displacement = Atomic<Int>(0)
    private let contents = Atomic<Int>(0)
    private let answers = Atomic<Int>(0)
    private let faults = Mutex<[Status: Int]>([:])

    func countFault(_ status: Status) {
        faults.withLock { $0[status, default: 0] += 1 }
    }

    func countRefusal(_ refusal: Refusal) {
        switch refusal {
        case .overload: overload.add(1, ordering: .relaxed)
        case .connections: connections.add(1, ordering: .relaxed)
        case .source: source.add(1, ordering: .relaxed)
        case .displacement: displacement.add(1, ordering: .relaxed)
        case .contents: contents.add(1, ordering: .relaxed)
        case .answers: answers.add(1, ordering: .relaxed)
        }
    }

    /// The counts now, without `connectionsOpen`, which is the server's.
    var snapshot: ServerStatistics {
        var statistics = ServerStatistics()
        statistics.connectionsAccepted = accepted.load(ordering: .relaxed)
        statistics.refusals = [
            .overload: overload.load(ordering: .relaxed), .connections: connections.load(ordering: .relaxed),
            .source: source.load(ordering: .relaxed), .displacement: displacement.load(ordering: .relaxed),
            .contents: contents.load(ordering: .relaxed), .answers: answers.load(ordering: .relaxed),
        ]
        statistics.connectionsEvicted = evicted.load(ordering: .relaxed)
        statistics.connectionsStalled = stalled.load(ordering: .relaxed)
        statistics.requests = requests.load(ordering: .relaxed)
        statistics.faults = faults.withLock { $0 }
        return statistics
    }
}

/// How many connections a whole server has, and how many of them each source has.
final class ConnectionCount: Sendable {
    private struct Sources {
        var counts: [NetworkSource: Int] = [:]
        /// The sources with more than their share. With a share of a tenth there are at most ten.
        var overShare: Set<NetworkSource> = []
    }

    private let open = Atomic<Int>(0)
    private let sources = Mutex(Sources())
    /// How many connections of a full server one source may have before it has to make room for others.
    let share: Int

    init(share: Int) {
        self.share = share
    }

    var value: Int { open.load(ordering: .relaxed) }

    /// Counts one more and returns how many there are now, in all and of the source.
    /// - Parameter source: nil for a connection that counts for no source; `ofSource` is 0 then.
    func add(_ source: NetworkSource?) -> (total: Int, ofSource: Int) {
        let total = open.add(1, ordering: .relaxed).newValue
        guard let source else { return (total, 0) }
        let ofSource = sources.withLock { sources in
            let count = sources.counts[source, default: 0] + 1
            sources.counts[source] = count
            if count == share + 1 { sources.overShare.insert(source) }
            return count
        }
        return (total, ofSource)
    }

    func remove(_ source: NetworkSource?) {
        open.subtract(1, ordering: .relaxed)
        guard let source else { return }
        sources.withLock { sources in
            let count = sources.counts[source, default: 1] - 1
            sources.counts[source] = count == 0 ? nil : count
            if count == share { sources.overShare.remove(source) }
        }
    }

    /// The sources that have more than their share.
    var sourcesOverShare: Set<NetworkSource> { sources.withLock { $0.overShare } }
}
