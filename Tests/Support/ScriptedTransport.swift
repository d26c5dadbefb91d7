internal import BrokerCore
internal import ExternalText
package import HTTPCodec
package import HTTPSClient
internal import Synchronization
internal import TokenBroker

/// A provider that is a script: each request takes the next step. A request that the script does not foresee is noted
/// and answered as a connection that cannot be made.
package final class ScriptedTransport: ProviderTransport {
    package enum Step: Sendable {
        /// An answer with a JSON body.
        case json(Int, String, fields: Fields = [:])
        case failure(TransportError)
        /// No answer comes: the request ends when its own limit is over, or else after 10 s, by the clock given.
        case hang(ManualTime)
        /// Waits for the gate, then goes on with the step.
        indirect case after(Gate, Step)
        /// Decides by what was sent.
        case decide(@Sendable (Seen) -> Step)
        /// Answers as another transport would.
        case forward(@Sendable (ClientRequest) async throws(TransportError) -> ClientResponse)
    }

    /// A request as the provider saw it.
    package struct Seen: Sendable {
        package let url: String
        package let method: Method
        package let fields: Fields
        package let form: [String: String]
        package let isPinned: Bool
        package let timeLimit: Duration?
    }

    private struct State {
        var steps: [Step] = []
        var fallback: Step?
        var seen: [Seen] = []
        var unforeseen = 0
        var standing: [String: Step] = [:]
        var standingSeen: [Seen] = []
    }

    private let state = Mutex(State())

    package init() {}

    package func enqueue(_ steps: Step...) { state.withLock { $0.steps += steps } }

    /// What every request gets once the steps are used up.
    package func always(_ step: Step?) { state.withLock { $0.fallback = step } }

    /// What every request to this address gets, whatever the script says; nil leaves them to the script again.
    package func standing(at address: String, _ step: Step?) { state.withLock { $0.standing[address] = step } }

    /// The requests to such addresses, which are not among `seen`.
    package var standingSeen: [Seen] { state.withLock { $0.standingSeen } }

    package var seen: [Seen] { state.withLock { $0.seen } }

    /// How many requests came that no step was there for.
    package var unforeseen: Int { state.withLock { $0.unforeseen } }

    package var remaining: Int { state.withLock { $0.steps.count } }

    package func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        let pairs = (try? FormEncoding.decode(String(decoding: request.body, as: UTF8.self))) ?? []
        let seen = Seen(
            url: request.url.description, method: request.method, fields: request.fields,
            form: Dictionary(pairs.map { ($0.name.text, $0.value.text) }) { $1 }, isPinned: request.pins != nil,
            timeLimit: request.timeLimit)
        let step = state.withLock { state -> Step? in
            if let standing = state.standing[seen.url] {
                state.standingSeen.append(seen)
                return standing
            }
            state.seen.append(seen)
            if !state.steps.isEmpty { return state.steps.removeFirst() }
            if state.fallback == nil { state.unforeseen += 1 }
            return state.fallback
        }
        guard let step else { throw .connectFailed }
        return try await perform(step, seen, request)
    }

    private func perform(
        _ step: Step, _ seen: Seen, _ request: ClientRequest
    ) async throws(TransportError) -> ClientResponse {
        switch step {
        case .json(let status, let body, let fields):
            return ClientResponse(status: Status(status), fields: fields, body: Array(body.utf8))
        case .failure(let error): throw error
        case .hang(let time):
            do throws(CancellationError) {
                try await time.sleep(for: seen.timeLimit ?? .seconds(10))
            } catch {
                throw .cancelled
            }
            throw .timedOut(.firstByte, requestSent: true)
        case .after(let gate, let next):
            gate.arrive()
            await gate.opened()
            return try await perform(next, seen, request)
        case .decide(let choose): return try await perform(choose(seen), seen, request)
        case .forward(let answer): return try await answer(request)
        }
    }
}

/// Holds tasks until it is opened, and lets a test wait until one has arrived.
package final class Gate: Sendable {
    private struct State {
        var isOpen = false
        var arrived = 0
        var held: [CheckedContinuation<Void, Never>] = []
        var watchers: [(count: Int, continuation: CheckedContinuation<Void, Never>)] = []
    }

    private let state = Mutex(State())

    package init() {}

    package func open() {
        let held = state.withLock { state in
            state.isOpen = true
            defer { state.held = [] }
            return state.held
        }
        for continuation in held { continuation.resume() }
    }

    package func arrive() {
        let watchers = state.withLock { state in
            state.arrived += 1
            let due = state.watchers.filter { $0.count <= state.arrived }
            state.watchers.removeAll { $0.count <= state.arrived }
            return due
        }
        for watcher in watchers { watcher.continuation.resume() }
    }

    package func opened() async {
        await withCheckedContinuation { continuation in
            let isOpen = state.withLock { state in
                if state.isOpen { return true }
                state.held.append(continuation)
                return false
            }
            if isOpen { continuation.resume() }
        }
    }

    /// Suspends until `count` tasks have come to the gate.
    package func arrivals(_ count: Int = 1) async {
        await withCheckedContinuation { continuation in
            let areThere = state.withLock { state in
                if state.arrived >= count { return true }
                state.watchers.append((count, continuation))
                return false
            }
            if areThere { continuation.resume() }
        }
    }
}
