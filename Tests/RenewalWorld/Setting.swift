import Renewal

/// What is the same in all states of a world.
package struct Setting: Sendable {
    package enum Successor: String, CaseIterable, Sendable { case same, another }

    /// What can go wrong. Each happening counts as one fault, however long its consequences last.
    package enum Fault: String, CaseIterable, Sendable {
        case requestLost, answerLost, answerLate, answerUnreadable
        case statementLost, statementAnswerLost, statementLate
        case crash, pause, cut, storeAway, storeGoesBack, clockStep
    }

    /// What a user does, once, at any time.
    package enum Act: String, CaseIterable, Sendable { case none, logout, login }

    /// What earlier rules did otherwise.
    package enum OldRule: String, CaseIterable, Sendable {
        /// An answer that cannot be read ended the attempt, and its lease was given back.
        case unreadableAnswerEnds
        /// A lease lasted for a call and two seconds more.
        case longLease
        /// A call lasted as long as any, however short the grace.
        case fullCallLimit
        /// A lease that had ended was taken over as soon as the store answered.
        case noTurn
        /// A lease that had run out was taken over although its holder had extended it since it was read.
        case takesExtended
        /// A claim had no deadline.
        case lateClaims
        /// A replica without the store said of a user whom it had last seen logged out that there is no login.
        case saysLoggedOut
        /// A replica went by its machine's clock.
        case ownClock
        /// What was served from the journal had the version after that of what it was exchanged for.
        case journalVersions
        /// What was put into the journal was served although the process knew of a later change.
        case journalHidesChange
        /// A store that has just gone back was not told what new credentials were exchanged for.
        case hidesExchange
        /// What was granted was stored although the process itself knew of a later change, which the store had lost.
        case forgetsOwnChange
        /// What was granted was not stored over another's lease in a store that has just gone back.
        case heedsLostLease
        /// A claim that was the first to meet a store which had gone back was given back as if no token had been presented.
        case settlesWithheld
        /// The time in which others store again what a store has lost went on while it was away.
        case holdsWhileAway
        /// Nothing that a store which went back had lost was stored again, and no token waited for that.
        case noGrantMemory
    }

    package var replicas = 2
    /// For how many seconds after its first use the provider takes a refresh token again.
    package var grace = 3
    /// The longest that a call takes, in seconds.
    package var callLimit = 2
    /// How many faults happen at most.
    package var faults = 3
    package var allowed = Set(Fault.allCases)
    package var hasJournal = true
    /// What the provider does with a spent refresh token within the grace.
    package var successor = Successor.same
    package var act = Act.none
    /// Whether it is heeded what each replica would answer that is asked at any time.
    package var isServed = false
    package var oldRules: Set<OldRule> = []
    /// For how many seconds one replica has to be able to renew, without any fault, within the grace and after the token's
    /// first use, so that the session has to be kept; nil for as long as the rules need.
    package var window: Int?

    package init() {}
}

extension Setting {
    /// For how long a process that has a successor has its turn, and for how long no token is presented after the store
    /// has gone back.
    static let turn = 3
    /// The same within the grace.
    static let turnWithinGrace = 1
    /// A standby is behind for so long at most.
    static let lag = 2
    /// For how long the first access token is good where clocks are heeded.
    static let life = 2

    var rules: RenewalRules {
        var rules = RenewalRules(
            grace: .seconds(grace), callLimit: .seconds(callLimit), waits: [.seconds(1), .seconds(2)],
            transit: .zero, turn: .seconds(oldRules.contains(.noTurn) ? 0 : Self.turn))
        // The network takes no time.
        (rules.turnWithinGrace, rules.takeover) = (.seconds(Self.turnWithinGrace), .zero)
        if oldRules.contains(.longLease) { rules.span = .seconds(callLimit + 2) }
        return rules
    }
}
