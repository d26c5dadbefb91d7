import Synchronization
import Waiting

/// Why a host name has no address.
package enum ResolutionError: Error, Equatable, Sendable {
    /// The name does not exist or has no address of a usable family. Retrying soon does not help.
    case notFound
    /// The resolver could not be reached, did not answer, or too many names wait. Retrying may help.
    case temporary
}

/// Looks up host names with getaddrinfo(3) on its own threads, since that call blocks and cannot be interrupted.
///
/// - Callers that request the same name at the same time share one look-up.
/// - A look-up occupies its thread until the name servers answer or the system's resolver gives up, which takes 10 s
///   and more for a zone whose servers are down. Therefore names whose look-ups were slow share a few of the threads,
///   names that have not been looked up yet share most of them, and the rest are for names that were found promptly
///   before. See `LookUpQueue`.
/// - A failure is remembered for some seconds, so that the callers of a name that does not resolve do not each repeat
///   its look-up.
/// - A found address is not remembered. getaddrinfo(3) does not return its lifetime, connections are reused anyway, and
///   a remembered address could belong to another server by now. The caches that know the lifetime (the system's
///   resolver, a cluster's name server) are asked each time.
///
/// Any loop may use it. Threads are started on demand and end when the resolver is released.
package final class NameResolver: Sendable {
    /// Returns the addresses of a name, in the resolver's order of preference and without repetition.
    package typealias LookUp = @Sendable (_ host: String) throws(ResolutionError) -> [SocketAddress.IP]

    package struct Limits: Sendable, Equatable {
        /// Look-ups at the same time. At least 1, default 16.
        package var threads = 16
        /// The part of `threads` for names that were not found promptly before. At least 1, default 12.
        package var unprovenThreads = 12
        /// The part of `unprovenThreads` for names whose last look-up was slow. At least 1, default 4.
        package var slowThreads = 4
        /// A name counts as slow when its look-up takes longer. Default 1 s.
        package var slowAfter: Duration = .seconds(1)
        /// Names that may wait for a thread; a further name fails with `.temporary` at once. Default 256.
        package var waitingNames = 256
        /// For this long callers get a failure again without another look-up. Default 3 s.
        package var failureMemory: Duration = .seconds(3)

        package init() {}

        /// The limits for the hosts of one database, which are few.
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
    ///   - name: the name of the threads, for tools that show threads.
    ///   - lookUp: may block. Several threads call it at the same time, with different names.
    ///   - now: returns the current time, for measuring look-ups and for forgetting failures.
    /// - Throws: when the system refuses a thread.
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

    /// The addresses of `host`, each with the given port. A numeric host is returned without a look-up.
    ///
    /// The wait ends at the deadline and when the task is cancelled; the look-up may go on. A look-up that has not
    /// started is dropped when its last caller stops waiting.
    /// - Precondition: the caller runs on `loop`.
    package func addresses(
        of host: String, port: UInt16, on loop: EventLoop, until deadline: MonotonicInstant,
        isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) -> Result<[SocketAddress], ResolutionError> {
        if let numeric = SocketAddress(numericHost: host, port: port) { return .success([numeric]) }
        let answer: LookUps.Answer
        switch lookUps.ask(for: host) {
        case .known(let known): answer = known
        case .awaited(let waiter):
            do throws(WaitInterrupted) {
                answer = try await waiter.value(on: loop, until: deadline)
            } catch {
                lookUps.stopWaiting(waiter, for: host)
                throw error
            }
        }
        return answer.map { $0.map { SocketAddress(ip: $0, port: port) } }
    }
}

/// The threads of a resolver and the callers that wait for look-ups. The threads retain this object and not the
/// resolver, so that releasing the resolver ends them.
private final class LookUps: Sendable {
    typealias Answer = Result<[SocketAddress.IP], ResolutionError>
    typealias Caller = Waiter<Result<Answer, WaitInterrupted>>

    /// What a caller finds that asks for a name.
    enum Question {
        case known(Answer)
        case awaited(Caller)
    }

    private struct State {
        var queue: LookUpQueue
        /// The callers that wait, by name, for each name that is queued or being looked up.
        var callers: [String: WaitList<Void, Result<Answer, WaitInterrupted>>] = [:]
        var threads = 0
        /// Threads that wait on `signal` and have not been woken up.
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

    /// Returns the answer if it is known. Otherwise adds the caller to those that get the look-up's outcome.
    func ask(for host: String) -> Question {
        let now = now()
        let (question, wakeUp) = state.withLock { state -> (Question, WakeUp) in
            if let caller = state.callers[host]?.enter() { return (.awaited(caller), .none) }
            if let failure = state.queue.failure(of: host, now: now) { return (.known(.failure(failure)), .none) }
            guard state.queue.append(host) else { return (.known(.failure(.temporary)), .none) }
            let caller = state.callers[host, default: WaitList()].enter()
            guard state.queue.hasNext else { return (.awaited(caller), .none) }
            if state.idleThreads > 0 {
                state.idleThreads -= 1
                return (.awaited(caller), .idleThread)
            }
            guard state.threads < maximumThreads else { return (.awaited(caller), .none) }
            state.threads += 1
            return (.awaited(caller), .newThread)
        }
        switch wakeUp {
        case .none: break
        case .idleThread: signal.signal()
        // If the system refuses a thread, the name waits for one of the running threads.
        case .newThread: try? startThread()
        }
        return question
    }

    func stopWaiting(_ caller: Caller, for host: String) {
        state.withLock { state in
            _ = state.callers[host]?.remove(caller)
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
            state.queue.finish(host, answer: answer, duration: start.duration(to: end), now: end)
            var callers = state.callers.removeValue(forKey: host)
            return callers?.removeAll() ?? []
        }
        for caller in callers { caller.resume(returning: .success(answer)) }
    }
}
