import Renewal

/// Replicas, a store and a provider as one value of bytes, for a search of everything that can happen to it. Time goes in
/// seconds; the network takes none, unless a fault says so.
///
/// All times are lengths up to or from now, and a length that is so long that nothing depends on how long it is counts as
/// the shortest such. So a world that waits for nothing is the same a second later, and outages may last for ever.
struct World {
    struct Row: Equatable {
        var version: UInt8 = 1
        /// The refresh token: the first one is 0, what it was exchanged for is 1 to 6.
        var token = Token.first
        /// Whether it was the refusal of the first token that ended the session.
        var isRefused: UInt8 = 0
        /// Of the lease.
        var holder = Holder.none
        var remaining: Int8 = 0
        /// Since the first use.
        var age: UInt8 = 0
        /// As in `Outcome.Lease`: given up, open.
        var flags: UInt8 = 0
        /// Of a row that a standby has: for how long it has received nothing, and one more; 0 for no such row.
        var lag: UInt8 = 0
        /// Whether it says that its token was exchanged for the first one.
        var isExchanged: UInt8 = 0

        mutating func endLease() { (holder, remaining, age, flags) = (Holder.none, 0, 0, 0) }
    }

    enum Token {
        static let (first, none, ended, loggedOut, login): (Int8, Int8, Int8, Int8, Int8) = (0, -3, -1, -2, 7)
    }

    /// A replica in the upper four bits, or 3 for a process that is gone without a trace, and a number below.
    enum Holder { static let none: UInt8 = 0xFF }

    enum Call { static let (none, request, at, late): (UInt8, UInt8, UInt8, UInt8) = (0, 1, 2, 3) }

    enum Flag {
        static let (up, paused, cut, waiting): (UInt8, UInt8, UInt8, UInt8) = (1, 2, 4, 8)
        /// Its clock is behind.
        static let behind: UInt8 = 16
        /// What is in its journal is served.
        static let serves: UInt8 = 32
        /// It has noticed that the store has gone back.
        static let noticed: UInt8 = 64
        /// It has stored itself what it remembers.
        static let own: UInt8 = 128
    }

    struct Replica: Equatable {
        var attempt: UInt16 = 0
        /// 1 where another's lease has kept its attempt, or its last one, from storing what that was granted.
        var heeded: UInt16 = 0
        var flags = Flag.up
        /// For how long it is down, paused or cannot reach the store, and one more; 0 where it can.
        var blocked: UInt8 = 0
        /// How long ago it came back last after longer than a turn, and one more; 0 for not.
        var returned: UInt8 = 0
        /// How long ago a statement of its failed.
        var failed = UInt8(Setting.turn)
        /// Of its attempt.
        var number: UInt8 = 0
        var call = Call.none
        /// When the outcome comes, or when the caller gives up.
        var due: UInt8 = 0
        var outcome: UInt8 = 0
        var lateGrant = Token.none
        /// What it is at.
        var kind = Step.Kind.none
        var version: UInt8 = 0
        var flag: UInt8 = 0
        var latest: UInt8 = 0
        var duration: UInt8 = 0
        /// The holder whose lease it takes over.
        var over = Holder.none
        /// Time since its last look at the record, or since its last wait began after it has handed its lease over; and when
        /// its step began.
        var clock: UInt8 = 0
        var asked: UInt8 = 0
        /// What the attempt was granted.
        var grant = Token.none
        /// What is in the journal, and over which version.
        var journal = Token.none
        var journalOver: UInt8 = 0
        /// The newest record that it knows, and the tokens that came before; version 0 for none.
        var known: UInt8 = 0
        var knownToken = Token.none
        var knownBefore: UInt8 = 0
        /// For how long it presents no token.
        var hold: UInt8 = 0
        /// The last version that it has answered with, and its token.
        var served: UInt8 = 0
        var servedToken = Token.none
        /// For how long it has been able to renew without any fault.
        var calm: UInt8 = 0
        /// How long ago another process took its lease over, and one more; 0 for not.
        var lost: UInt8 = 0
        /// How long ago it took the lease from another process, or where there was none, and one more; 0 for not.
        var claimed: UInt8 = 0
        /// 1 where it has handed its lease over and counts the time since.
        var counts: UInt8 = 0

        var isUp: Bool { flags & Flag.up != 0 }
        var isPaused: Bool { flags & Flag.paused != 0 }
        var isCut: Bool { flags & Flag.cut != 0 }
        /// Whether it runs and can reach the store, as far as it is up to it.
        var isFree: Bool { flags & (Flag.up | Flag.paused | Flag.cut) == Flag.up }
        func has(_ flag: UInt8) -> Bool { flags & flag != 0 }
        mutating func set(_ flag: UInt8, _ isSet: Bool) { flags = isSet ? flags | flag : flags & ~flag }
    }

    /// A claim that takes effect although its sender has given up.
    struct LateClaim: Equatable {
        var holder = Holder.none
        var version: UInt8 = 0
        var over = Holder.none
        var isOpen: UInt8 = 0
        /// Since when it is under way.
        var age: UInt8 = 0
        var overdue: UInt8 = 0
    }

    var row = Row()
    /// What a standby has that is behind.
    var behind = Row(version: 0)
    var replicas = InlineArray<3, Replica>(repeating: Replica())
    var lateClaims = InlineArray<3, LateClaim>(repeating: LateClaim())
    /// How long ago the first token was used first; 255 for never.
    var used: UInt8 = 255
    var isRevoked: UInt8 = 0
    var isStoreUp: UInt8 = 1
    var faults: UInt8 = 0
    /// The highest version that was given.
    var highest: UInt8 = 1
    /// How long the first access token is good.
    var life: UInt8 = 0
    var marks = Mark.none
    /// How long ago a replica noticed that the store has gone back.
    var noticed: UInt8 = 255
    /// The highest version that any replica has answered with.
    var served: UInt8 = 0
    /// The version that has to be known so that nothing is lost of what the store has lost.
    var newest: UInt8 = 0

    // What follows is no part of the state.

    /// What the replicas are called in a timeline.
    var names: (UInt8, UInt8, UInt8) = (0, 1, 2)
    var violation: Violation = .none

    enum Mark {
        static let none: UInt8 = 0
        /// The user has done what there was to do.
        static let acted: UInt8 = 1
        /// The user has logged out.
        static let loggedOut: UInt8 = 2
        /// The store has gone back.
        static let wentBack: UInt8 = 4
        /// What the first token was exchanged for was stored, and the store has lost it.
        static let lostStored: UInt8 = 8
        /// No process that lives and no journal knows what the store has lost.
        static let lostKnowledge: UInt8 = 16
        /// A replica was able to renew for long enough within the grace.
        static let hadTime: UInt8 = 32
        /// The store has lost the logout, and no process that lives and no journal knows of it; or the one that does has read
        /// the token that it put away, and does not know what that was exchanged for.
        static let lostLogout: UInt8 = 64
        /// The store has lost the claim under which the first token was used.
        static let lostClaim: UInt8 = 128
    }

    enum Violation: UInt8 {
        case none, lost, presentsOther, lateClaim, letsGo, undoesLogout, versionBack, versionTwice, saysLoggedOut,
            expired
        case afterLogout, notStored

        var text: String {
            switch self {
            case .none: "nothing"
            case .lost: "the session is lost"
            case .presentsOther: "a token is presented later than the grace, and a process that lives has its successor"
            case .lateClaim: "a claim took effect when its sender had given up"
            case .letsGo: "an attempt ends, and what it was granted is not stored"
            case .undoesLogout: "a logout is undone"
            case .versionBack: "a replica serves a lower version than before"
            case .versionTwice: "one version is served with two tokens"
            case .saysLoggedOut: "a replica says that nobody is logged in, and the user is"
            case .expired: "an expired token is served"
            case .afterLogout: "a token is served by a replica that knows of the logout"
            case .notStored: "a version that was served is not stored"
            }
        }
    }

    func has(_ mark: UInt8) -> Bool { marks & mark != 0 }

    static func holder(_ index: Int, _ number: UInt8) -> UInt8 { UInt8(index) << 4 | number }
    func holder(_ index: Int) -> UInt8 { Self.holder(index, replicas[index].number) }
}

/// A setting, and what follows from it.
final class Context {
    let setting: Setting
    let attempts: Attempts
    let count: Int
    let grace: UInt8
    let span: Int8
    /// An attempt's clock goes on for so long after its step began.
    let patience: UInt8
    let window: UInt8
    /// Whether replicas remember what they have stored and read.
    let remembers: Bool
    let heedsClocks: Bool
    let old: Set<Setting.OldRule>
    private let isAllowed: [Bool]

    init(_ setting: Setting) {
        self.setting = setting
        attempts = Attempts(setting.rules)
        count = setting.replicas
        grace = UInt8(setting.grace)
        span = Int8(setting.rules.leaseSpan.wholeSeconds)
        patience = grace + UInt8(span) + 2
        window = UInt8(setting.window ?? Int(span) + Setting.turn)
        remembers = setting.isServed || setting.allowed.contains(.storeGoesBack)
        heedsClocks = setting.isServed && setting.allowed.contains(.clockStep)
        old = setting.oldRules
        isAllowed = Setting.Fault.allCases.map { setting.allowed.contains($0) }
        journalVersions = old.contains(.journalVersions)
    }

    let journalVersions: Bool

    func isAllowed(_ fault: Setting.Fault) -> Bool { setting.allowed.contains(fault) }
}
