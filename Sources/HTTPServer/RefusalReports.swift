internal import HTTPCodec
internal import Reactor

/// Counts what a worker refuses, tells the handler of it once a second, and keeps the answers to refusals, which are all
/// alike. On the loop's thread only.
final class RefusalReports {
    private let loop: EventLoop
    private let handler: any RequestHandler
    private let counters: WorkerCounters
    private let retryAfterSeconds: Int
    /// What each kind of refusal is answered with, once there was one.
    private var answers = [Response?](repeating: nil, count: Refusal.allCases.count)
    /// Refusals that the handler has not been told of, and whether it is going to be.
    private var untold = [Int](repeating: 0, count: Refusal.allCases.count)
    private var willTell = false

    private static let interval = Duration.seconds(1)

    init(loop: EventLoop, handler: any RequestHandler, counters: WorkerCounters, retryAfterSeconds: Int) {
        self.loop = loop
        self.handler = handler
        self.counters = counters
        self.retryAfterSeconds = retryAfterSeconds
    }

    func note(_ refusal: Refusal) {
        counters.countRefusal(refusal)
        untold[refusal.rawValue] += 1
        if willTell { return }
        willTell = true
        loop.schedule(at: .after(Self.interval)) { self.tell() }
    }

    /// Tells the handler now.
    func tell() {
        willTell = false
        for refusal in Refusal.allCases where untold[refusal.rawValue] > 0 {
            handler.refused(refusal, count: untold[refusal.rawValue])
            untold[refusal.rawValue] = 0
        }
    }

    func answer(to refusal: Refusal) -> Response {
        if let answer = answers[refusal.rawValue] { return answer }
        var answer = handler.response(to: refusal)
        if answer.fields["Retry-After"] == nil { answer.fields.append("Retry-After", String(retryAfterSeconds)) }
        answers[refusal.rawValue] = answer
        return answer
    }
}
