package import BrokerCore
import ExternalText
package import Gates
package import HTTPCodec
package import HTTPSClient
import JSON
import Synchronization

/// A provider that is a script: each request gets the next answer, and is recorded. A request that the script does not
/// foresee is noted, and fails like a connection that cannot be made. `AuthEnvironment.scripted` uses it in place of the
/// network.
///
/// Any task may use it.
public final class ScriptedTransport: Sendable {
    package enum Step: Sendable {
        /// An answer with a JSON body.
        case json(Int, String, fields: Fields = [:])
        case failure(TransportError)
        /// No answer comes: the request ends when its own limit is over, or else after 10 s, by the clock given.
        case hang(any Time)
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
        /// The parameters of the form or of the JSON object, or of the URL's query where there is no form, in their order.
        package let parameters: [(name: String, value: String)]
        package let isPinned: Bool
        package let timeLimit: Duration?
        package let avoidsListedNetworks: Bool
        package let needsNewConnection: Bool
        /// The address of the request's own proxy; nil for none.
        package let proxy: String?
        /// What the client shows in TLS; nil for nothing.
        package let certificate: ClientCertificate?
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

    /// A script without answers.
    public init() {}

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
}

extension ScriptedTransport: ProviderTransport {
    package func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        let members = request.body.first == UInt8(ascii: "{") ? (try? JSONValue(parsing: request.body))?.object : nil
        let pairs =
            members.map { $0.compactMap { name, value in value.string.map { FormEncoding.Pair(name, $0) } } }
            ?? (try? FormEncoding.decode(WireText(request.body))) ?? []
        let query = WireText(request.url.pathAndQuery).split(at: "?", limit: 2).dropFirst().first ?? ""
        let parameters = request.body.isEmpty ? (try? FormEncoding.decode(query)) ?? [] : pairs
        let seen = Seen(
            url: request.url.description, method: request.method, fields: request.fields,
            form: Dictionary(pairs.map { ($0.name.text, $0.value.text) }) { $1 },
            parameters: parameters.map { ($0.name.text, $0.value.text) }, isPinned: request.pins != nil,
            timeLimit: request.timeLimit,
            avoidsListedNetworks: request.avoidsListedNetworks, needsNewConnection: request.needsNewConnection,
            proxy: request.proxy?.shownAddress, certificate: request.certificate)
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

// MARK: - For programs that use the library

extension ScriptedTransport {
    /// Appends answers to the script: each is for one request.
    public func enqueue(_ answers: ScriptedAnswer...) {
        state.withLock { $0.steps += answers.map(\.step) }
    }

    /// The answer to every request once the script is used up; nil ends that.
    public func answerAlways(_ answer: ScriptedAnswer?) { always(answer?.step) }

    /// The answer to every request to this address, whatever the script says; nil leaves the address to the script again.
    /// - Parameter address: the whole URL without a query, such as that of a JWK set.
    public func answer(at address: String, with answer: ScriptedAnswer?) { standing(at: address, answer?.step) }

    /// The requests that took an answer of the script, oldest first.
    public var requests: [ScriptedRequest] { seen.map(ScriptedRequest.init) }

    /// The requests to the addresses of `answer(at:with:)`, oldest first.
    public var requestsAtAddresses: [ScriptedRequest] { standingSeen.map(ScriptedRequest.init) }

    /// How many requests came for which there was no answer.
    public var unforeseenRequests: Int { unforeseen }

    /// How many answers of the script are left.
    public var remainingAnswers: Int { remaining }
}

/// A request as the provider saw it. It has the secrets that were sent; do not print it in logs that others read.
public struct ScriptedRequest: Sendable {
    /// The whole URL.
    public let url: String
    /// The method, in capitals.
    public let method: String
    /// The parameters of the form, or of the URL's query where there is no form, in their order.
    public let parameters: [(name: String, value: String)]
    private let fields: Fields

    init(_ seen: ScriptedTransport.Seen) {
        url = seen.url
        method = seen.method.name
        parameters = seen.parameters
        fields = seen.fields
    }

    /// The value of the last parameter of that name; nil where there is none.
    public func parameter(_ name: String) -> String? {
        parameters.last { WireText($0.name) == WireText(name) }?.value
    }

    /// The value of the first header field of that name in any case; nil where there is none.
    public func field(_ name: String) -> String? { fields.values(name).first?.text }
}
