import DevelopmentProvider
import ExternalText

/// What the records of readers and writers and the provider's ledger say together.
struct ChaosVerdict {
    enum Rule: String, CaseIterable {
        case lost = "a user was lost"
        case unseen = "a login was not seen for too long"
        case presentedAgain = "a refresh token was presented again without need"
        case reuse = "the provider saw a reuse and revoked the family"
        case short = "a token was served with less time left than was asked for"
        case expired = "a token was served that had expired by the provider's clock"
        case dead = "a token was served that the provider does not accept"
        case foreign = "a token was served that belongs to another user"
        case overstated = "more time was promised than the token had left"
        case wentBack = "a version went back at one replica or in one stream of events"
        case stale = "a version that others had left behind was served for too long"
        case sameVersion = "one version stood for two tokens"
        case resurrected = "an ended session came back"
        case eventMissing = "a version was served that no event tells of"
        case eventTwice = "one version has two events"
        case eventOrder = "a stream of events repeated, lost or reordered some"
        case appLost = "an app's session ended without a logout or a revocation"
        case appAnswer = "an app got an answer that it should not get"
        case late = "a user had no token in time after a fault"
        case notHealed = "not everything was well at the end"
    }

    struct Violation {
        let rule: Rule
        let user: Int
        let at: Moment
        let text: String
    }

    /// One use of a refresh token at the provider.
    struct Presentation {
        let request: RequestRecord
        let user: Int
        let family: Int
        let generation: Int
    }

    var violations: [Violation] = []
    /// Presentations of a token that was presented before, by what explains them.
    private(set) var repeats: [String: Int] = [:]
    private(set) var refreshes = 0
    private(set) var presentations: [Presentation] = []
    /// One for each session that ended though no user wanted that, in the order of time.
    private(set) var losses: [Loss] = []

    let state: ChaosRecords.State
    /// How long the provider takes a refresh token that was used already.
    let grace: Moment
    /// Whether a user without a token in time after a fault is a violation.
    let judgesRecovery: Bool
    private let familyUsers: [Int: Int]
    private let readsByUser: [Int: [Read]]
    private let writesByUser: [Int: [Write]]
    private let unknownOutcomes: [String: [Moment]]
    private let polling: Set<Int>

    /// What clocks of whole seconds lose.
    private static let rounding: Moment = 1000
    /// How old what a replica serves may be while it hears of changes, and while it does not.
    private static let staleness: Moment = 2500
    private static let stalenessWithoutFeed: Moment = 6500
    /// How long after a disturbance its consequences last.
    private static let aftermath: Moment = 3000
    /// How long one renewal takes at most: six tries, between which it waits 15.5 s in all.
    private static let longestRenewal: Moment = 16_000

    /// - Parameters:
    ///   - unknownOutcomes: when a broker said that it would try a token again, by the storage key's digest.
    ///   - polling: the replicas that hear of no changes.
    ///   - userOfName: a user's number, from the name at the provider.
    ///   - graceSeconds: how long the provider takes a refresh token that was used already.
    ///   - judgesRecovery: whether a user without a token in time after a fault is a violation.
    init(
        _ records: ChaosRecords.State, provider: DevelopmentProvider, unknownOutcomes: [String: [Moment]],
        polling: Set<Int>, userOfName: [String: Int], graceSeconds: Int, judgesRecovery: Bool
    ) {
        var state = records
        state.nameVersionsOfApps()
        self.state = state
        self.judgesRecovery = judgesRecovery
        grace = Moment(graceSeconds) * 1000
        self.polling = polling
        self.unknownOutcomes = unknownOutcomes
        readsByUser = Dictionary(grouping: state.reads, by: \.user)
        writesByUser = Dictionary(grouping: state.writes, by: \.user)
        let ledger = provider.ledger
        var places: [String: (user: Int, family: Int, generation: Int)] = [:]
        var familyUsers: [Int: Int] = [:]
        for entry in ledger.users {
            guard let user = userOfName[entry.user.name] else { continue }
            for family in entry.families {
                familyUsers[family.family.id] = user
                for token in family.refreshTokens {
                    places[token.digest] = (user, family.family.id, token.generation)
                }
            }
        }
        self.familyUsers = familyUsers
        let spending = [GrantType.refreshToken.rawValue, GrantType.updateClient.rawValue]
        for request in provider.requests where request.grant.map(spending.contains) ?? false {
            guard let digest = request.parameters["refresh_token"]?.dropFirst("sha256:".count),
                let place = places[String(digest)]
            else { continue }
            presentations.append(
                Presentation(
                    request: request, user: place.user, family: place.family, generation: place.generation))
        }
        checkPresentations()
        checkFamilies(ledger)
        for (user, reads) in readsByUser { checkReads(user, reads.sorted { $0.begun < $1.begun }) }
        checkEvents()
        checkApps()
        checkRecoveries()
        losses.sort { $0.at < $1.at }
        violations.sort { $0.at < $1.at }
    }

    mutating func add(_ violation: Violation) { violations.append(violation) }

    /// Whether the session of that family ended in a way that no replica could have prevented.
    func isLostForGood(_ family: Int?) -> Bool {
        losses.contains { $0.family == family && !$0.isAvoidable }
    }

    // MARK: The provider's side

    private mutating func checkPresentations() {
        struct Token: Hashable {
            let family: Int
            let generation: Int
        }
        var earlier: [Token: Presentation] = [:]
        for presentation in presentations {
            if [.rotated, .graceReplay].contains(presentation.request.refresh?.outcome) { refreshes += 1 }
            let token = Token(family: presentation.family, generation: presentation.generation)
            if let first = earlier.updateValue(presentation, forKey: token) {
                if let reason = reason(for: presentation, after: first) {
                    repeats[reason, default: 0] += 1
                } else {
                    violations.append(
                        Violation(
                            rule: .presentedAgain, user: presentation.user, at: presentation.request.receivedAt,
                            text: "generation \(presentation.generation) of family \(presentation.family) came "
                                + "\(presentation.request.receivedAt - first.request.receivedAt) ms after it had come "
                                + "and been answered"))
                }
            }
        }
    }

    /// Why the token was presented again; nil where nothing explains it. Either the provider itself failed the call
    /// before, or that was an upgrade, or the broker says that it could not know of that call's outcome, which a fault at
    /// the broker's side must have brought about.
    private func reason(for presentation: Presentation, after first: Presentation) -> String? {
        guard let finished = first.request.finishedAt else { return "no answer of the provider" }
        let received = first.request.receivedAt
        let isLate = finished - received > Moment(ChaosCluster.providerTimeoutSeconds) * 1000 - 500
        if isLate { return "a late answer" }
        // A good answer that came a little late is a good answer.
        if let fault = first.request.fault, fault != .answer || first.request.outcome != .answered(status: 200) {
            return "the provider's \(fault.rawValue)"
        }
        // No refusal of an upgrade is final: an upgrade has six tries whatever they are answered.
        let upgrade = GrantType.updateClient.rawValue
        if first.request.grant == upgrade, first.request.outcome == .answered(status: 400) {
            return "a refused upgrade"
        }
        // A refusal says nothing about the session if the tenant was configured anew while the broker asked: the new
        // registration is asked with.
        let isReconfigured = state.disturbances.contains {
            [.secrets, .scopes].contains($0.kind) && $0.overlaps(received - Self.longestRenewal, finished)
        }
        if isReconfigured, first.request.outcome == .answered(status: 400) {
            return "a refusal under an earlier configuration"
        }
        let at = presentation.request.receivedAt
        let isAnnounced = (unknownOutcomes[ChaosCluster.digest(presentation.user)] ?? []).contains {
            // Logs tell whole seconds.
            (at - 3000...at + 250).contains($0)
        }
        let isCutOff = state.disturbances.contains {
            $0.kind == .link && $0.overlaps(received - 500, finished + 500)
        }
        if isCutOff { return "a disturbed way to the provider" }
        let cause = state.disturbances.first { disturbance in
            disturbance.kind != .listen && disturbance.kind != .provider
                // A replica that is connecting to the database again cannot store what it was granted, and another one asks again.
                && disturbance.overlaps(
                    received - (disturbance.kind.takesDatabase ? Self.aftermath : 500), finished + 1500)
        }
        guard isAnnounced, let cause else { return nil }
        return "an unknown outcome (\(cause.kind.rawValue))"
    }

    private mutating func checkFamilies(_ ledger: Ledger) {
        let byFamily = Dictionary(grouping: presentations, by: \.family)
        for family in ledger.users.flatMap(\.families) {
            let id = family.family.id
            guard let revocation = family.family.revocation, let user = familyUsers[id] else { continue }
            // What was granted for the code of a login that has failed is to be revoked.
            let isTold = (writesByUser[user] ?? []).contains { $0.families.contains(id) }
            if !isTold, revocation.cause == .codeReuse { continue }
            let loss = Loss(
                of: family, revocation, user: user, presentations: byFamily[id] ?? [], state.disturbances,
                grace: grace)
            if isCurrent(id, of: user, at: revocation.at) { losses.append(loss) }
            if loss.isAvoidable {
                violations.append(Violation(rule: .reuse, user: user, at: revocation.at, text: loss.text))
            }
        }
    }

    /// Whether it is the session that the user has at that time, as far as it is told.
    private func isCurrent(_ family: Int, of user: Int, at moment: Moment) -> Bool {
        let writes = (writesByUser[user] ?? []).filter { $0.begun < moment }
        guard let last = writes.last, last.kind == .login else { return false }
        return last.families.last == family
    }

    // MARK: The readers' side

    private func wasDisturbed(_ replica: Int, _ from: Moment, _ to: Moment) -> Bool {
        state.disturbances.contains { disturbance in
            (disturbance.replica == nil || disturbance.replica == replica)
                && ![.provider, .link, .scopes, .secrets].contains(disturbance.kind)
                && disturbance.overlaps(from - Self.aftermath, to)
        }
    }

    private func wasParted(_ replica: Int, _ from: Moment, _ to: Moment) -> Bool {
        state.disturbances.contains { $0.parts(replica) && $0.overlaps(from - Self.aftermath, to) }
    }

    /// The time before which the read's replica must know everything that any reader or listener was told; nil where a
    /// replica that could not reach the database serves what it has.
    private func horizon(of read: Read) -> Moment? {
        if read.age > 0 {
            // A repeated request gets the answer that it got first, which any replica may have made.
            let horizon = read.begun - read.age - Self.stalenessWithoutFeed
            let wasParted = state.disturbances.contains {
                $0.parts($0.replica ?? 0) && $0.overlaps(horizon - Self.aftermath, read.ended)
            }
            return wasParted ? nil : horizon
        }
        if wasParted(read.replica, read.begun - Self.stalenessWithoutFeed, read.ended) { return nil }
        let isDisturbed = polling.contains(read.replica) || wasDisturbed(read.replica, read.begun - 10_000, read.ended)
        return read.begun - (isDisturbed ? Self.stalenessWithoutFeed : Self.staleness)
    }

    /// - Parameter reads: in the order in which they began.
    private mutating func checkReads(_ user: Int, _ reads: [Read]) {
        let writes = writesByUser[user] ?? []
        var order: [Int: Int] = [:]
        for (place, write) in writes.enumerated() { for family in write.families { order[family] = place } }
        let byEnd = reads.filter { $0.outcome == .user && $0.family != nil }.sorted { $0.ended < $1.ended }
        var tokens: [Int64: Int] = [:]
        for read in byEnd where read.hasVersion {
            if let token = tokens.updateValue(read.token, forKey: read.version), token != read.token {
                report(.sameVersion, read, "version \(read.version)")
            }
        }
        var known = Known()
        for read in reads {
            known.take(byEnd, before: read.begun)
            checkAgainstWrites(read, writes, order, byEnd)
            guard read.outcome == .user else { continue }
            guard let family = read.family else {
                report(.dead, read, "version \(read.version), expires_in \(read.expiresIn ?? -1)")
                continue
            }
            if read.isForeign {
                report(.foreign, read, "version \(read.version) of family \(family)")
                continue
            }
            if read.isRevoked, !isLostForGood(family) {
                report(.dead, read, "version \(read.version), family \(family) was revoked")
            }
            if read.expiresAt + read.age <= read.begun {
                report(.expired, read, "version \(read.version), over for \(read.begun - read.expiresAt) ms")
            } else if !read.isDegraded, read.expiresAt - read.begun + read.age < read.wanted - Self.rounding {
                report(.short, read, "\(read.expiresAt - read.ended) ms left, expires_in \(read.expiresIn ?? -1)")
            }
            if let promised = read.expiresIn,
                read.ended + promised * 1000 > read.expiresAt + read.age + 2000 + read.ended - read.begun
            {
                report(.overstated, read, "\(promised) s promised, \(read.expiresAt - read.ended) ms left")
            }
            // A repeated request gets the answer that it got first, at whichever replica.
            if !read.hasVersion || read.age > 0 { continue }
            if let here = known.newest(nil, at: read.replica, before: read.begun), here > read.version {
                report(.wentBack, read, "version \(read.version) after \(here)")
            } else if let horizon = horizon(of: read), let seen = known.newest(family, at: nil, before: horizon),
                seen > read.version
            {
                report(.stale, read, "version \(read.version) when \(seen) had been served elsewhere")
            }
        }
    }

    /// - Parameter answers: all that gave the user's token.
    private mutating func checkAgainstWrites(
        _ read: Read, _ writes: [Write], _ order: [Int: Int], _ answers: [Read]
    ) {
        guard read.outcome == .user || read.outcome == .lower else { return }
        guard let horizon = horizon(of: read) else { return }
        // The last write that the replica must know of, and whether another one may have had its effect.
        guard let place = writes.lastIndex(where: { $0.done.map { $0 < horizon } ?? false }) else { return }
        let isSettled = !writes[(place + 1)...].contains { $0.begun < read.ended }
        switch (read.outcome, writes[place].kind) {
        case (.lower, .login):
            guard isSettled else { return }
            let family = writes[place].families.last
            if losses.contains(where: { $0.family == family && (!$0.isAvoidable || $0.at < read.ended) }) { return }
            let isBack = answers.contains {
                $0.family == family && $0.replica == read.replica && $0.begun > read.ended
            }
            let text = "nobody was logged in, \(read.begun - (writes[place].done ?? 0)) ms after a login"
            report(isBack ? .unseen : .lost, read, text)
            if !isBack, let family {
                losses.append(
                    Loss(
                        user: read.user, family: family, at: read.begun, isAvoidable: true,
                        text: "family \(family) is alive at the provider, and replica \(read.replica) says: \(text)"))
            }
        case (.user, _):
            guard let family = read.family, let origin = order[family] else { return }
            let isEnded = origin < place || (origin == place && family != writes[place].families.last)
            if isEnded {
                report(
                    .resurrected, read,
                    "family \(family) was served \(read.begun - (writes[place].done ?? 0)) ms after a "
                        + "\(writes[place].kind.rawValue) had ended it")
            }
        default: return
        }
    }

    /// Versions that were served, by replica and by family, with the time at which each became the newest one known.
    private struct Known {
        private struct Place: Hashable {
            let family: Int?
            let replica: Int?
        }

        private var newest: [Place: [(at: Moment, version: Int64)]] = [:]
        private var taken = 0

        mutating func take(_ reads: [Read], before moment: Moment) {
            while taken < reads.count, reads[taken].ended < moment {
                let read = reads[taken]
                taken += 1
                // What an app was given may have had an earlier version then.
                guard let family = read.family, !read.isByApp else { continue }
                for place in [Place(family: nil, replica: read.replica), Place(family: family, replica: nil)]
                where read.version > newest[place]?.last?.version ?? 0 {
                    newest[place, default: []].append((read.ended, read.version))
                }
            }
        }

        func newest(_ family: Int?, at replica: Int?, before moment: Moment) -> Int64? {
            newest[Place(family: family, replica: replica)]?.last { $0.at < moment }?.version
        }
    }

    private mutating func report(_ rule: Rule, _ read: Read, _ text: String) {
        violations.append(
            Violation(
                rule: rule, user: read.user, at: read.begun, text: "replica \(read.replica): \(text)"))
    }
}
