import BrokerCore
import ExternalText
import HTTPCodec
import HTTPSClient
import Reactor

/// One process's way to the provider, whose answers come late, damaged, or not at all.
///
/// Unchecked: everything of a world runs on one thread.
final class ProviderLink: ProviderTransport, @unchecked Sendable {
    private enum Fate: String {
        case passes
        case notConnected = "cannot be made"
        case requestLost = "does not arrive"
        case slow = "takes seconds to arrive"
        case unavailable = "is answered 503"
        case rateLimited = "is answered 429"
        // The provider has done what it was asked.
        case connectionLost = "is done, and the connection lost"
        case answerLost = "is done, and its answer lost"
        case answerLate = "is done, and its answer seconds late"
        case failed = "is done, and answered 502"
        case truncated = "is done, and its answer cut off"
        case malformed = "is done, and its answer not HTTP"
        case unreadable = "is done, and answered with a page"
        case unservable = "is done, and answered with a refresh token only"

        static let undone: [Fate] = [.notConnected, .requestLost, .slow, .unavailable, .rateLimited]
        static let done: [Fate] = [
            .connectionLost, .answerLost, .answerLate, .failed, .truncated, .malformed, .unreadable, .unservable,
        ]

        /// How much of the grace it takes until the caller knows that there is nothing to come.
        var weight: Int { self == .answerLost ? 2 : 1 }
    }

    /// What the transport's limit is for a call (`CredentialsBroker.Settings.providerTimeout`).
    static let timeout: Duration = .seconds(10)

    private let world: World
    private let process: SimulatedProcess
    private let replica: Replica

    init(_ world: World, _ replica: Replica, _ process: SimulatedProcess) {
        self.world = world
        self.replica = replica
        self.process = process
    }

    /// Resumes the caller once.
    ///
    /// Unchecked: everything of a world runs on one thread.
    @safe private final class Exchange: @unchecked Sendable {
        var continuation: UnsafeContinuation<Result<ClientResponse, TransportError>, Never>?
        var isOver = false

        func end(_ result: Result<ClientResponse, TransportError>) {
            isOver = true
            unsafe continuation?.resume(returning: result)
            unsafe continuation = nil
        }
    }

    func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        let exchange = Exchange()
        let result = await withTaskCancellationHandler {
            await unsafe withUnsafeContinuation {
                (continuation: UnsafeContinuation<Result<ClientResponse, TransportError>, Never>) in
                unsafe exchange.continuation = continuation
                if exchange.isOver || Task.isCancelled { return exchange.end(.failure(.cancelled)) }
                begin(request, exchange)
            }
        } onCancel: {
            exchange.end(.failure(.cancelled))
        }
        return try result.get()
    }

    private func begin(_ request: ClientRequest, _ exchange: Exchange) {
        let (executor, provider) = (world.executor, world.provider)
        let pairs = (try? FormEncoding.decode(request.body.span)) ?? []
        let form = Dictionary(pairs.map { ($0.name.text, $0.value.text) }) { first, _ in first }
        let named = form["refresh_token"].map(SimulatedProvider.numbers) ?? []
        guard named.count == 2 else {
            // The client's own token, which no fault is about.
            return executor.after(world.faults.chance.span(.milliseconds(10), .milliseconds(80)), process) {
                exchange.end(.success(Self.refusal("unauthorized_client")))
            }
        }
        let (session, token) = (named[0], named[1])
        let fate = fate(session, token)
        let user = session < provider.sessions.count ? provider.sessions[session].user : 0
        world.note(user) { "\(self.process.name) presents refresh token \(session).\(token), which \(fate.rawValue)" }
        let timeout = request.timeLimit.map { min($0, Self.timeout) } ?? Self.timeout
        let sent = executor.now
        world.faults.count("call", fate == .passes ? nil : fate.rawValue)
        let limit = sent + timeout.nanoseconds
        let process = process
        func timeOut(_ sent: Bool) {
            // Until then this replica makes no other call for the user; another replica can.
            replica.disturb(user, until: limit)
            // Meanwhile the lease is this replica's, and no replica can tell a provider that is silent from one that is slow.
            if replica.isCutFromProvider { world.provider.noteVainCall(session, token, by: process, until: limit) }
            executor.at(limit, process) { exchange.end(.failure(.timedOut(.firstByte, requestSent: sent))) }
        }
        var way = world.faults.chance.span(.milliseconds(3), .milliseconds(40))
        var back = world.faults.chance.span(.milliseconds(3), .milliseconds(40))
        switch fate {
        case .notConnected: return executor.after(way, process) { exchange.end(.failure(.connectFailed)) }
        case .requestLost: return timeOut(true)
        case .slow: way = world.faults.chance.span(.milliseconds(500), .seconds(5))
        case .answerLate: back = world.faults.chance.span(.milliseconds(500), .milliseconds(4500))
        default: break
        }
        executor.after(way) { [self] in
            switch fate {
            case .unavailable:
                return executor.after(back, process) {
                    exchange.end(.success(ClientResponse(status: Status(503), fields: [:], body: [])))
                }
            case .rateLimited:
                let seconds = 1 + world.faults.chance.below(3)
                return executor.after(back, process) {
                    exchange.end(
                        .success(
                            ClientResponse(status: Status(429), fields: ["Retry-After": String(seconds)], body: [])))
                }
            default: break
            }
            let outcome = provider.refresh(session, token, by: process, sent: sent)
            if replica.isCutFromProvider {
                provider.noteLoss(session, token, weight: Fate.answerLost.weight)
                return timeOut(true)
            }
            let body: String
            var granted: Int?
            switch outcome {
            case .refused:
                world.note(user) { "the provider refuses \(session).\(token)" }
                return executor.after(back, process) { exchange.end(.success(Self.refusal("invalid_grant"))) }
            case .granted(let refresh, let access):
                granted = refresh
                world.note(user) { "the provider grants \(session).\(refresh) for \(session).\(token)" }
                let token = fate == .unservable ? "null" : #""\#(access)""#
                body =
                    #"{"access_token":\#(token),"token_type":"Bearer","expires_in":\#(provider.lifetimeSeconds),"#
                    + #""refresh_token":"\#(SimulatedProvider.refreshToken(session, refresh))","#
                    + #""scope":"r_usr","user_id":\#(user)}"#
            }
            var bytes = Array(body.utf8)
            switch fate {
            case .connectionLost:
                return executor.after(back, process) { exchange.end(.failure(.connectionLost(requestSent: true))) }
            case .answerLost: return timeOut(true)
            case .malformed: return executor.after(back, process) { exchange.end(.failure(.malformedResponse)) }
            case .failed:
                return executor.after(back, process) {
                    exchange.end(.success(ClientResponse(status: Status(502), fields: [:], body: [])))
                }
            case .truncated: (bytes, granted) = (Array(bytes.prefix(bytes.count / 2)), nil)
            case .unreadable: (bytes, granted) = (Array("<html>welcome</html>".utf8), nil)
            default: break
            }
            let answer = ClientResponse(status: .ok, fields: ["Content-Type": "application/json"], body: bytes)
            executor.after(back, process) { [self] in
                if fate == .unservable { world.judge.answeredWithoutAccessToken(user) }
                if let granted, !exchange.isOver {
                    provider.delivered(session, granted, to: process)
                    world.note(user) { "\(self.process.name) gets \(session).\(granted)" }
                }
                exchange.end(.success(answer))
            }
        }
    }

    private func fate(_ session: Int, _ token: Int) -> Fate {
        let faults = world.faults
        if replica.isCutFromProvider {
            if faults.chance.happens(0.5) { return .notConnected }
            // What a replica cannot tell from a lost answer takes as much of the grace.
            world.provider.noteLoss(session, token, weight: Fate.answerLost.weight)
            return .requestLost
        }
        if faults.isProviderDown {
            if faults.chance.happens(0.5) { return .notConnected }
            world.provider.noteLoss(session, token, weight: Fate.unavailable.weight)
            return .unavailable
        }
        guard faults.strikes(.call) else { return .passes }
        if faults.chance.happens(0.3) {
            let fate = faults.chance.pick(Fate.undone)
            if fate != .requestLost || world.provider.mayLoseAnswer(session, token, weight: 2) { return fate }
            return .unavailable
        }
        let fate = faults.chance.pick(Fate.done)
        return world.provider.mayLoseAnswer(session, token, weight: fate.weight) ? fate : .passes
    }

    private static func refusal(_ error: String) -> ClientResponse {
        ClientResponse(status: Status(400), fields: [:], body: Array(#"{"error":"\#(error)"}"#.utf8))
    }
}
