import Reactor
import Synchronization

/// Counts the requests that a worker answers at once, and reports the counts to the handler at the end of a turn. On the
/// loop's thread only.
final class QuickAnswers {
    private let loop: EventLoop
    private let handler: any RequestHandler
    private let counters: WorkerCounters
    /// How many were answered since the last report.
    private(set) var count = 0
    /// The earliest time at which the connection of one of these requests became ready.
    private var firstReady = MonotonicInstant(nanoseconds: 0)
    /// The kind of the last answer, and how many of it are not in `counts` yet.
    private var lastKind = 0
    private var lastCount = 0
    /// The counts by kind, and a bit for each kind that occurred.
    private var counts = [Int](repeating: 0, count: NowAnswer.kinds)
    private var kinds: UInt64 = 0

    init(_ loop: EventLoop, _ handler: any RequestHandler, _ counters: WorkerCounters) {
        self.loop = loop
        self.handler = handler
        self.counters = counters
    }

    /// A request was answered in the turn that began at `time`.
    func add(_ kind: Int, at time: MonotonicInstant) {
        if count == 0 { firstReady = time }
        count += 1
        if kind != lastKind {
            note()
            lastKind = kind
        }
        lastCount += 1
    }

    private func note() {
        if lastCount == 0 { return }
        counts[lastKind] += lastCount
        kinds |= 1 << UInt64(lastKind)
        lastCount = 0
    }

    /// The connection of one of these requests became ready at `time`.
    func becameReady(at time: MonotonicInstant) {
        if time < firstReady { firstReady = time }
    }

    func report() {
        if count == 0 { return }
        note()
        while kinds != 0 {
            let kind = kinds.trailingZeroBitCount
            kinds &= kinds - 1
            handler.answeredNow(counts[kind], kind: kind)
            counts[kind] = 0
        }
        counters.requests.add(count, ordering: .relaxed)
        handler.turnEnded(answers: count, took: firstReady.duration(to: loop.now))
        count = 0
    }
}
