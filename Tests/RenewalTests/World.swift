import Renewal

/// Replicas, a store and a provider as one value, for a test that looks at everything that can happen to it. Time goes in
/// ticks of a second; the network takes none, unless a fault says so.
struct World: Hashable {
    /// What is the same in all states.
    struct Setting {
        var replicas = 2
        var grace = 3
        var callLimit = 2
        var faults = 3
        var hasJournal = true
        /// What the provider does with a spent refresh token within the grace.
        var successor = Successor.same
        var oldRules: Set<OldRule> = []
        /// The last tick.
        var end = 30
        var allowed = Set(Fault.allCases)
    }

    enum Successor { case same, another }

    /// What earlier rules did otherwise.
    enum OldRule: CaseIterable {
        /// An answer that cannot be read ended the attempt, and its lease was given back.
        case unreadableAnswerEnds
        /// A lease lasted for a call and two ticks more.
        case longLease
        /// A lease that had ended was taken over as soon as the store answered.
        case noTurn
        /// A call lasted as long as any, however short the grace.
        case fullCallLimit
        /// A claim had no deadline.
        case lateClaims
    }

    enum Fault: CaseIterable {
        case requestLost, answerLost, answerLate, answerUnreadable, statementLost, statementAnswerLost, statementLate
        case crash, pause, cut, storeAway
    }

    struct Lease: Hashable {
        var holder: Holder
        var end: Int
        var firstUse: Int
        var isGivenUp = false
        var isOpen = false
    }

    struct Holder: Hashable {
        var replica: Int8
        var number: Int8
        var name: String { "\(replica).\(number)" }
    }

    struct Row: Hashable {
        var version = 1
        /// The refresh token; nil where the session has ended.
        var token: Int8? = 0
        /// The token whose refusal ended the session.
        var refused: Int8?
        var lease: Lease?
    }

    struct Provider: Hashable {
        /// For each token that it has issued: the one that it was exchanged for, and when it was first presented.
        var parents: [Int8] = [-1]
        var firstUses: [Int8] = [-1]
        var isRevoked = false
    }

    enum Call: Hashable {
        case none
        /// On its way.
        case request(RenewalAttempt.Step)
        /// Back.
        case answer(RenewalAttempt.Outcome)
        /// Comes at that time.
        case at(Int, RenewalAttempt.Outcome)
        /// May come at any time until then, when the caller gives up.
        case late(until: Int, RenewalAttempt.Outcome, grant: Int8?)
    }

    struct Journal: Hashable {
        var token: Int8
        var spent: Int8
        var version: Int
        var holder: Holder
    }

    struct Replica: Hashable {
        var isUp = true
        var isPaused = false
        var isCut = false
        /// Since when it is down, paused or cannot reach the store.
        var blockedSince: Int?
        /// When it came back last after longer than a turn.
        var returned: Int?
        /// When its attempt took the lease.
        var claimed = 0
        /// When a statement of its failed last.
        var failedAt = -100
        var attempts: Int8 = 0
        var attempt: RenewalAttempt?
        var call = Call.none
        /// Whether it waits for news of the record.
        var isWaiting = false
        var asked = 0
        /// What the attempt presents, and what it was granted for it.
        var presents: Int8 = -1
        var grant: Int8?
        var journal: Journal?
    }

    /// A statement that takes effect although its sender has given up.
    struct LateClaim: Hashable {
        var holder: Holder
        var version: Int
        var over: Holder?
        var isOpen: Bool
        var sent: Int
        var deadline: Int
    }

    var now = 0
    var row = Row()
    var provider = Provider()
    var replicas: [Replica]
    var isStoreUp = true
    var faults = 0
    var lateClaims: [LateClaim] = []
    /// Whether a session was lost that no rule could have kept.
    var isLossExcused = false
    var violation: String?

    init(_ setting: Setting) {
        replicas = Array(repeating: Replica(), count: setting.replicas)
    }
}
