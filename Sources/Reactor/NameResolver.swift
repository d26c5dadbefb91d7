internal import Synchronization

/// Why a host name has no address.
package enum ResolutionError: Error, Equatable, Sendable {
    /// The name does not exist or has no address of a usable family. Retrying soon does not help.
    case notFound
    /// The resolver could not be asked, did not answer, or has too many names waiting. Retrying may help.
    case temporary
}

/// Looks host names up with getaddrinfo(3), which blocks and cannot be interrupted, on threads of its own.
///
/// - Callers that want the same name at the same time share one look-up.
/// - A look-up occupies its thread until the name servers answer or the system's resolver gives up, which takes 10 s and
///   more for a zone whose servers are down. Names whose look-ups were slow therefore share a few of the threads, names
///   that have not been looked up yet share most of them, and the rest is for names that were found promptly before.
///   See `LookUpQueue`.
/// - A failure is remembered for some seconds, so that not every caller of a dead name asks for it again.
/// - An address that was found is not remembered. getaddrinfo(3) does not tell for how long it may be used, connections are
///   kept and used again anyway, and a remembered address could belong to another server by now. Caches that know the
///   lifetime (the system's resolver, a cluster's name server) are asked each time.
///
/// May be used from any loop. Its threads are started when they are needed and end with it.
package final class NameResolver: Sendable {
    /// What is found under a name: its addresses, in the resolver's order of preference and without repetition.
    package typealias LookUp = @Sendable (_ host: String) throws(ResolutionError) -> [SocketAddress.IP]

    package struct Limits: Sendable, Equatable {
        /// Look-ups that are made at the same time, at least 1. Default 16.
        package var threads = 16
        /// Of these, how many may be of names that were not found promptly before. At least 1. Default 12.
        package var unprovenThreads = 12
        /// Of these again, how many may be of names whose last look-up was slow. At least 1. Default 4.
        package var slowThreads = 4
        /// How long a look-up may take before its name counts as slow. Default 1 s.
        package var slowAfter: Duration = .seconds(1)
        /// Names that may wait for a thread; a caller that wants one more is told `.temporary` at once. Default 256.
        package var waitingNames = 256
        /// For how long callers are told of a failure without another look-up. Default 3 s.
        package var failureMemory: Duration = .seconds(3)

        package init() {}

        /// For the hosts of one database, of which there are a few.
        package static var database: Limits {
            var limits = Limits()
            limits.threads = 4
            limits.unprovenThreads = 3
            limits.slowThreads = 2
            return limits
        }
    }

    private let lookUps: LookUps

    /// - Parameters:
    ///   - name: of the threads, for tools that show them.
    ///   - lookUp: may block; called from several threads at the same time, with different names.
    ///   - now: the time, for measuring look-ups and forgetting failures.
    /// - Throws: when the system gives no thread.
    package init(
        name: String = "resolver", limits: Limits = Limits(),
        lookUp: @escaping LookUp = { (host) throws(ResolutionError) in try SystemResolver.addresses(of: host) },
        now: @escaping @Sendable () -> MonotonicInstant = { .now }
    ) throws(SystemError) {
        lookUps = LookUps(name: name, limits: limits, now: now, lookUp: lookUp)
        try lookUps.startFirstThread()
    }

    deinit {
        lookUps.stop()
    }

    /// The addresses of `host`, each with the given port. A numeric host needs no look-up.
    ///
    /// The wait ends at the deadline and with the cancellation of the task, whatever becomes of the look-up. A look-up that
    /// is not under way yet is not made when the last of its callers has left.
    /// - Precondition: the caller runs on `loop`.
    package func addresses(
        of host: String, port: UInt16, on loop: EventLoop, until deadline: MonotonicInstant,
        isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) -> Result<[SocketAddress], ResolutionError> {
        if let numeric = SocketAddress(numericHost: host, port: port) { return .success([numeric]) }
        let expectation = Expectation<LookUps.Answer>()
        let answer: LookUps.Answer
        if let known = lookUps.ask(for: host, expectation) {
            answer = known
        } else {
            do throws(WaitInterrupted) {
                answer = try await expectation.wait(on: loop, until: deadline)
            } catch {
                lookUps.leave(host, expectation)
                throw error
            }
        }
        return answer.map { $0.map { SocketAddress(ip: $0, port: port) } }
    }
}

/// The threads of a resolver and the callers who wait for them. The threads keep it alive, not its resolver.
private final class LookUps: Sendable {
    typealias Answer = Result<[SocketAddress.IP], ResolutionError>

    private struct State {
        var queue: LookUpQueue
        /// Those who wait for each name that is queued or being looked up.
        var callers: [String: [Expectation<Answer>]] = [:]
        var threads = 0
        /// Threads that wait for a signal which has not been given yet.
        var idleThreads = 0
        var isStopping = false
    }

    private enum WakeUp {
        case none
        case idleThread
        case newThread
    }

    private enum Step {
        case lookUp(String)
        case wait
        case end
    }

    private let name: String
    private let maximumThreads: Int
    private let now: @Sendable () -> MonotonicInstant
    private let lookUp: NameResolver.LookUp
    private let state: Mutex<State>
    private let signal = Semaphore()

    init(
        name: String, limits: NameResolver.Limits, now: @escaping @Sendable () -> MonotonicInstant,
        lookUp: @escaping NameResolver.LookUp
    ) {
        self.name = name
        maximumThreads = max(1, limits.threads)
        self.now = now
        self.lookUp = lookUp
        state = Mutex(State(queue: LookUpQueue(limits: limits)))
    }

    func startFirstThread() throws(SystemError) {
        state.withLock { $0.threads += 1 }
        try startThread()
    }

    func stop() {
        let idleThreads = state.withLock { state in
            state.isStopping = true
            defer { state.idleThreads = 0 }
            return state.idleThreads
        }
        for _ in 0..<idleThreads { signal.signal() }
    }

    /// Has `caller` told of the look-up's outcome, or returns what is known at once.
    func ask(for host: String, _ caller: Expectation<Answer>) -> Answer? {
        let now = now()
        let (answer, wakeUp) = state.withLock { state -> (Answer?, WakeUp) in
            if state.callers[host] != nil {
                state.callers[host]?.append(caller)
                return (nil, .none)
            }
            if let failure = state.queue.failure(of: host, now: now) { return (.failure(failure), .none) }
            guard state.queue.append(host) else { return (.failure(.temporary), .none) }
            state.callers[host] = [caller]
            guard state.queue.hasNext else { return (nil, .none) }
            if state.idleThreads > 0 {
                state.idleThreads -= 1
                return (nil, .idleThread)
            }
            guard state.threads < maximumThreads else { return (nil, .none) }
            state.threads += 1
            return (nil, .newThread)
        }
        switch wakeUp {
        case .none: break
        case .idleThread: signal.signal()
        // Where there is no thread to be had, the name waits for one of those that there are.
        case .newThread: try? startThread()
        }
        return answer
    }

    func leave(_ host: String, _ caller: Expectation<Answer>) {
        state.withLock { state in
            state.callers[host]?.removeAll { $0 === caller }
            if state.callers[host]?.isEmpty == true, state.queue.remove(host) { state.callers[host] = nil }
        }
    }

    private func startThread() throws(SystemError) {
        do throws(SystemError) {
            try Thread.start(name: name) { self.run() }.detach()
        } catch {
            state.withLock { $0.threads -= 1 }
            throw error
        }
    }

    private func run() {
        while true {
            switch next() {
            case .lookUp(let host): perform(host)
            case .wait: signal.wait()
            case .end: return
            }
        }
    }

    private func next() -> Step {
        state.withLock { state in
            if state.isStopping { return .end }
            if let host = state.queue.takeNext() { return .lookUp(host) }
            state.idleThreads += 1
            return .wait
        }
    }

    private func perform(_ host: String) {
        let start = now()
        let answer: Answer
        do throws(ResolutionError) {
            answer = .success(try lookUp(host))
        } catch {
            answer = .failure(error)
        }
        let end = now()
        let callers = state.withLock { state in
            state.queue.finish(host, answer, took: start.duration(to: end), now: end)
            return state.callers.removeValue(forKey: host) ?? []
        }
        for caller in callers { caller.fulfil(answer) }
    }
}
