import Reactor
import Synchronization

/// Milliseconds since 1970: the one clock of all records, the provider's too.
typealias Moment = Int64

func rightNow() -> Moment { WallClock.milliseconds }

/// One answer of `GET /credentials`, or that there was none.
struct Read: Sendable {
    enum Outcome: Hashable, Sendable {
        /// 200 with a user's token.
        case user
        /// 200 with a lower level: the caller is told that no user is logged in.
        case lower
        /// Another answer: its status and code.
        case refused(Int, String)
        /// No answer: the replica is not there, or went away.
        case unreachable
    }

    let user: Int
    let replica: Int
    let begun: Moment
    var ended: Moment = 0
    var outcome = Outcome.unreachable
    /// 0 where the answer had no entity tag: what is not stored yet has none.
    var version: Int64 = 0
    var expiresIn: Int64?
    /// Whether the answer said that the token could not be renewed in time, which may live shorter then than was asked for.
    var isDegraded = false
    var hasVersion: Bool { version != 0 }
    /// How long the token is to be good at least, in milliseconds.
    var wanted: Moment = 60_000
    /// Of the token; nil for one that the provider never issued.
    var family: Int?
    /// By the provider's clock.
    var expiresAt: Moment = 0
    /// Whether its family had been revoked when the answer came.
    var isRevoked = false
    /// Whether it was issued to another user.
    var isForeign = false
    /// Tells tokens apart.
    var token = 0
    /// Whether it is the answer of `/oauth2/token` to an app, which tells no version.
    var isByApp = false
    /// When the app presented the refresh token first, if it was repeated; 0 for a reader.
    var presented: Moment = 0
    /// For how long the answer may have been known already: a repeated request gets the same one.
    var age: Moment { isByApp ? begun - presented : 0 }
}

/// A login or a logout, done by calling one replica after the other until one says that it is done.
struct Write: Sendable {
    enum Kind: String, Sendable {
        case login
        case logout
    }

    let user: Int
    let kind: Kind
    let begun: Moment
    /// When it was answered with success; nil as long as that has not happened.
    var done: Moment?
    var replica: Int?
    /// Of logins: each attempt stores a session of its own, since it is not known of an attempt without an answer
    /// whether it stored its session, and whether that has been refreshed since. The last one holds.
    var families: [Int] = []
    var version: Int64?
}

/// Something that was done to the system.
struct Disturbance: Sendable {
    let kind: FaultKind
    /// Nil where it concerns all.
    let replica: Int?
    let begun: Moment
    var ended: Moment
    let text: String

    /// Whether that replica could not use the database, or not hear of changes.
    func parts(_ replica: Int) -> Bool {
        if kind.takesDatabase { return true }
        return [.cut, .stop, .oneway, .late].contains(kind) && self.replica == replica
    }

    func overlaps(_ from: Moment, _ to: Moment) -> Bool { begun <= to && ended >= from }
}

/// The database has gone back to what a standby had received.
struct Failover: Sendable {
    /// When the standby was cut off from what the server committed.
    let cutOff: Moment
    /// When the server had ended.
    let ended: Moment
    /// The versions of the users' records in the promoted server, before any replica had reached it.
    let versions: [Int: Int64]
    /// The last sequence in its log of events, likewise.
    let lastSequence: Int64

    /// How far behind the last sequence that a replica knows the log goes on.
    private static let sequencesSkipped: Int64 = 10_000
    /// How long before its commit a version may have been given to it: the longest that a statement takes.
    private static let longestStatement: Moment = 5000
    /// How far a replica's time may be off the database's.
    private static let clockDifference: Moment = 200

    /// Whether the commit of that version of the user's record was lost: the promoted server did not have it, and the
    /// time that it begins with (microseconds of the database's clock) is that of the lost commits.
    func hasLost(_ version: Int64, of user: Int) -> Bool {
        let given = version / 1000
        return version > versions[user] ?? 0 && given >= cutOff - Self.longestStatement
            && given <= ended + Self.clockDifference
    }

    /// Whether an event of that version may be told in two places of the log: its commit was not lost, and that of its
    /// sequence was, which is given later and by another commit. So it has got another one.
    func hasRenumbered(_ version: Int64, of user: Int, from earlier: Int64, to later: Int64) -> Bool {
        let next = lastSequence + Self.sequencesSkipped
        return version <= versions[user] ?? 0 && earlier > lastSequence && earlier < next && later >= next
    }
}

/// How long after a fault one user was given a token again by one replica.
struct Recovery: Sendable {
    let kinds: [FaultKind]
    let user: Int
    let replica: Int
    /// The end of the fault, or of the last of several.
    let from: Moment
    /// Nil where there was no token within the time that was waited.
    var took: Moment?
}

/// An event as a listener was given it.
struct Heard: Sendable {
    let listener: Int
    let at: Moment
    let id: String
    let name: String
    /// Kept of the kinds that the verdict is drawn from.
    let data: String?
}

/// What happened, as far as it can be seen from outside the brokers.
final class ChaosRecords: Sendable {
    struct State: Sendable {
        var reads: [Read] = []
        var uses: [AppUse] = []
        var writes: [Write] = []
        var disturbances: [Disturbance] = []
        var recoveries: [Recovery] = []
        var heard: [Heard] = []
        var failovers: [Failover] = []
        /// The numbers of those that listen to events.
        var listeners: [Int] = []
    }

    private let state = Mutex(State())

    var all: State { state.withLock { $0 } }

    func add(_ read: Read) { state.withLock { $0.reads.append(read) } }

    func add(_ use: AppUse) { state.withLock { $0.uses.append(use) } }

    func add(_ recovery: Recovery) { state.withLock { $0.recoveries.append(recovery) } }

    func add(_ failover: Failover) { state.withLock { $0.failovers.append(failover) } }

    func add(listener: Int) { state.withLock { $0.listeners.append(listener) } }

    func add(_ event: Heard) { state.withLock { $0.heard.append(event) } }

    /// Gives the write's place, for `change`.
    func begin(_ write: Write) -> Int {
        state.withLock { state in
            state.writes.append(write)
            return state.writes.count - 1
        }
    }

    func change(_ place: Int, _ body: (inout Write) -> Void) { state.withLock { body(&$0.writes[place]) } }

    /// From now until `end`.
    func begin(_ kind: FaultKind, replica: Int? = nil, _ text: String) -> Int {
        let now = rightNow()
        return state.withLock { state in
            state.disturbances.append(
                Disturbance(kind: kind, replica: replica, begun: now, ended: .max, text: text))
            return state.disturbances.count - 1
        }
    }

    func end(_ place: Int) {
        let now = rightNow()
        state.withLock { $0.disturbances[place].ended = now }
    }

    /// Does what a disturbance is, and writes it down.
    func during(
        _ kind: FaultKind, replica: Int? = nil, _ text: String, _ body: () async throws -> Void
    ) async throws {
        let place = begin(kind, replica: replica, text)
        defer { end(place) }
        try await body()
    }
}
