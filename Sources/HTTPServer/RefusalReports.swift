import HTTPCodec
import Reactor

/// Counts what a worker refuses, reports it to the handler once a second, and caches the answers to refusals. On the
/// loop's thread only.
final class RefusalReports {
    private let loop: EventLoop
    private let handler: any RequestHandler
    private let counters: WorkerCounters
    private let retryAfterSeconds: Int
    /// The answer to each kind of refusal; nil before the first refusal of that kind.
    private var answers = [Response?](repeating: nil, count: Refusal.allCases.count)
    /// The refusals that are not reported to the handler yet, and whether a report is scheduled.
    private var unreported = [Int](repeating: 0, count: Refusal.allCases.count)
    private var isScheduled = false

    private static let interval = Duration.seconds(1)

    init(loop: EventLoop, handler: any RequestHandler, counters: WorkerCounters, retryAfterSeconds: Int) {
        self.loop = loop
        self.handler = handler
        self.counters = counters
        self.retryAfterSeconds = retryAfterSeconds
    }

    func note(_ refusal: Refusal) {
        counters.countRefusal(refusal)
        unreported[refusal.rawValue] += 1
        if isScheduled { return }
        isScheduled = true
        loop.schedule(after: Self.interval) { self.report() }
    }

    /// Reports to the handler now.
    func report() {
        isScheduled = false
        for refusal in Refusal.allCases where unreported[refusal.rawValue] > 0 {
            handler.refused(refusal, count: unreported[refusal.rawValue])
            unreported[refusal.rawValue] = 0
        }
    }

    /// - Parameter path: of the request; nil for a connection.
    func answer(to refusal: Refusal, path: String? = nil) -> Response {
        if let path, let answer = handler.response(to: refusal, path: path) { return completed(answer) }
        if let answer = answers[refusal.rawValue] { return answer }
        let answer = completed(handler.response(to: refusal))
        answers[refusal.rawValue] = answer
        return answer
    }

    private func completed(_ answer: Response) -> Response {
        var answer = answer
        if answer.fields["Retry-After"] == nil { answer.fields.append("Retry-After", String(retryAfterSeconds)) }
        return answer
    }
}
