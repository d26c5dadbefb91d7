import OAuth
import Reactor

/// The provider: users' sessions, whose refresh tokens rotate, and each of which it ends where a spent token is presented
/// after its grace.
///
/// It knows which process has been told what, and so is the judge's witness.
///
/// Unchecked: everything of a world runs on one thread.
final class SimulatedProvider: @unchecked Sendable {
    enum Successor: String { case same, another }

    /// A refresh token; its place in its session is its name.
    struct Token {
        /// The one that it was given for; nil for a login's.
        let parent: Int?
        /// Since when it is spent; nil for a token that is not.
        var firstUse: Int64?
        /// When the call was sent that spent it: a call may take seconds to arrive.
        var firstSent: Int64?
        /// Whether one of its successors was presented, which ends the grace.
        var isConfirmed = false
        var successors: [Int] = []
        /// The processes that an answer with it has reached.
        var holders: [SimulatedProcess] = []
        /// How often a call that presented it brought nothing, by what that costs of the grace.
        var losses = 0
        /// The calls of processes that were cut off from the provider, as long as they took.
        var vainCalls: [VainCall] = []
        /// When an answer with one of its successors reached a process first.
        var firstDelivery: Int64?
    }

    struct VainCall {
        let process: SimulatedProcess
        let from: Int64
        let to: Int64
    }

    struct Session {
        let user: Int
        var tokens: [Token]
        /// A spent refresh token was presented too late.
        var isEnded = false
    }

    enum Outcome {
        case granted(refresh: Int, access: String)
        case refused
    }

    private let executor: Executor
    private let judge: Judge
    let grace: Int64
    let successor: Successor
    let lifetimeSeconds: Int64
    private(set) var sessions: [Session] = []
    private var lastAccess = 0
    private(set) var grants = 0

    init(_ executor: Executor, judge: Judge, grace: Duration, successor: Successor, lifetimeSeconds: Int64) {
        self.executor = executor
        self.judge = judge
        self.grace = grace.nanoseconds
        self.successor = successor
        self.lifetimeSeconds = lifetimeSeconds
    }

    static func refreshToken(_ session: Int, _ token: Int) -> String { "r.\(session).\(token)" }

    /// The numbers in a token's text.
    static func numbers(_ text: String) -> [Int] { text.split(separator: ".").dropFirst().compactMap { Int($0) } }

    /// A user logs in.
    func open(for user: Int, holder: SimulatedProcess) -> Int {
        sessions.append(Session(user: user, tokens: [Token(parent: nil)]))
        sessions[sessions.count - 1].tokens[0].holders.append(holder)
        return sessions.count - 1
    }

    /// A token for a user, good from now on for the provider's lifetime: `a.USER.SESSION.NUMBER.EXPIRY`, the expiry in
    /// milliseconds of the world's time.
    func accessToken(of session: Int) -> String {
        lastAccess += 1
        let expiry = SimulatedTime.time(at: executor.now).milliseconds + lifetimeSeconds * 1000
        return "a.\(sessions[session].user).\(session).\(lastAccess).\(expiry)"
    }

    /// A call for the exchange of a refresh token.
    /// - Parameter sent: when the call was sent.
    func refresh(_ session: Int, _ token: Int, by process: SimulatedProcess, sent: Int64) -> Outcome {
        guard session < sessions.count, token < sessions[session].tokens.count, !sessions[session].isEnded else {
            return .refused
        }
        let now = executor.now
        if let parent = sessions[session].tokens[token].parent {
            sessions[session].tokens[parent].isConfirmed = true
        }
        if let firstUse = sessions[session].tokens[token].firstUse {
            let presented = sessions[session].tokens[token]
            if presented.isConfirmed || now - firstUse >= grace {
                sessions[session].isEnded = true
                judge.sessionEnded(session, token, by: process, sent: sent)
                return .refused
            }
            if successor == .same, let next = presented.successors.first { return grant(session, next) }
        }
        if sessions[session].tokens[token].firstUse == nil {
            (sessions[session].tokens[token].firstUse, sessions[session].tokens[token].firstSent) = (now, sent)
        }
        sessions[session].tokens.append(Token(parent: token))
        let next = sessions[session].tokens.count - 1
        sessions[session].tokens[token].successors.append(next)
        return grant(session, next)
    }

    private func grant(_ session: Int, _ token: Int) -> Outcome {
        grants += 1
        return .granted(refresh: token, access: accessToken(of: session))
    }

    /// An answer with the token has reached the process.
    func delivered(_ session: Int, _ token: Int, to process: SimulatedProcess) {
        sessions[session].tokens[token].holders.append(process)
        if let parent = sessions[session].tokens[token].parent,
            sessions[session].tokens[parent].firstDelivery == nil
        {
            sessions[session].tokens[parent].firstDelivery = executor.now
        }
    }

    /// A call that presented the token has brought nothing, whatever the cause.
    func noteLoss(_ session: Int, _ token: Int, weight: Int) {
        guard session < sessions.count, token < sessions[session].tokens.count else { return }
        sessions[session].tokens[token].losses += weight
    }

    /// A process presents the token and waits, although it is cut off from the provider.
    func noteVainCall(_ session: Int, _ token: Int, by process: SimulatedProcess, until end: Int64) {
        guard session < sessions.count, token < sessions[session].tokens.count else { return }
        sessions[session].tokens[token].vainCalls.append(VainCall(process: process, from: executor.now, to: end))
    }

    /// Whether another answer about that token may be lost on the provider's side: none within the grace may lose so many
    /// that the tries there is time for are used up.
    func mayLoseAnswer(_ session: Int, _ token: Int, weight: Int) -> Bool {
        if grace == 0 { return true }
        let limit = grace >= 30_000_000_000 ? 3 : 2
        guard session < sessions.count, token < sessions[session].tokens.count else { return false }
        guard sessions[session].tokens[token].losses + weight <= limit else { return false }
        sessions[session].tokens[token].losses += weight
        return true
    }
}
