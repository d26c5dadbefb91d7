import DevelopmentProvider

/// A session that ended though no user wanted that, and whether anything could have been done about it.
///
/// Nothing could where the provider, or the way to it, lost every answer that brought a successor, and no second try
/// could be answered within the grace period: there is none, or the database or the provider was away for all of it but
/// two seconds. And nothing could where the replica that was given the answer was killed at that moment, and the same
/// holds of a second try. Nor could anything be done where the provider came to a call when its caller had given it up and
/// made another one, later than the grace period after that one; or when its caller had been killed, whose successor made
/// the other one.
struct Loss {
    let user: Int
    let family: Int
    let at: Moment
    let isAvoidable: Bool
    let text: String

    /// How much of a grace period is enough for a second try.
    private static let enough: Moment = 2000
    /// How long its caller waits for an answer at least.
    private static let callLimit = Moment(ChaosCluster.providerTimeoutSeconds) * 1000 - 200
    /// How long a replica takes to keep what it was given, at most.
    private static let keeping: Moment = 1000

    init(user: Int, family: Int, at: Moment, isAvoidable: Bool, text: String) {
        self.user = user
        self.family = family
        self.at = at
        self.isAvoidable = isAvoidable
        self.text = text
    }

    /// - Parameters:
    ///   - entry: a family that the provider has revoked.
    ///   - presentations: of the family's refresh tokens, in the order in which they came.
    ///   - grace: of the provider, in milliseconds.
    init(
        of entry: Ledger.FamilyEntry, _ revocation: Family.Revocation, user: Int,
        presentations: [ChaosVerdict.Presentation], _ disturbances: [Disturbance], grace: Moment
    ) {
        let family = entry.family.id
        func loss(_ isAvoidable: Bool, _ text: String) -> Loss {
            Loss(
                user: user, family: family, at: revocation.at, isAvoidable: isAvoidable,
                text: "family \(family), \(revocation.cause.rawValue): \(text)")
        }
        let fatal = presentations.last { $0.request.refresh?.outcome == .reused }
        guard let fatal, let reused = entry.refreshTokens.first(where: { $0.generation == fatal.generation }) else {
            self = loss(true, "not by the use of a refresh token")
            return
        }
        let generation = fatal.generation
        if reused.isConfirmed {
            self = loss(true, "generation \(generation) came after its successor had been used")
            return
        }
        let uses = presentations.filter { presentation in
            presentation.generation == generation && presentation.request.number < fatal.request.number
                && [.rotated, .graceReplay].contains(presentation.request.refresh?.outcome)
        }
        if let late = Self.lateness(fatal, revocation.at, presentations, disturbances, grace: grace) {
            self = loss(
                false, "the provider came to generation \(generation) \(late) ms late, after another call with it")
            return
        }
        guard let first = uses.first?.request.receivedAt else {
            self = loss(true, "generation \(generation) was not used before")
            return
        }
        let after = "generation \(generation) came \(revocation.at - first) ms after its first use"
        if uses.contains(where: { Self.wasKept($0.request, disturbances) }) {
            self = loss(true, "\(after), whose successor had been delivered")
            return
        }
        let free = Self.free(from: first, to: first + grace, uses, disturbances)
        self = loss(
            free >= Self.enough,
            "\(after), every answer was lost, and \(max(0, free)) ms of the grace period were left for another try")
    }

    /// How long the provider took for a call that its caller had given up or been killed in, where by then another call
    /// with the same token had been answered, longer ago than the grace period; nil for every other call.
    private static func lateness(
        _ fatal: ChaosVerdict.Presentation, _ moment: Moment, _ presentations: [ChaosVerdict.Presentation],
        _ disturbances: [Disturbance], grace: Moment
    ) -> Moment? {
        let received = fatal.request.receivedAt
        let isAfterAnother = presentations.contains { other in
            guard other.generation == fatal.generation, other.request.refresh?.outcome == .rotated,
                other.request.receivedAt > received, other.request.receivedAt + grace <= moment
            else { return false }
            // The answer to the first call would have been lost as well.
            return moment - received >= callLimit
                || disturbances.contains { disturbance in
                    [.kill, .holder].contains(disturbance.kind)
                        && (received...other.request.receivedAt).contains(disturbance.begun)
                }
        }
        return isAfterAnother ? moment - received : nil
    }

    /// Whether the answer reached a replica that went on.
    private static func wasKept(_ request: RequestRecord, _ disturbances: [Disturbance]) -> Bool {
        guard request.outcome == .answered(status: 200), let finished = request.finishedAt else { return false }
        if let fault = request.fault, fault != .answer { return false }
        if finished - request.receivedAt >= callLimit { return false }
        return !disturbances.contains { disturbance in
            switch disturbance.kind {
            case .link: disturbance.overlaps(request.receivedAt, finished + 100)
            case .kill, .holder: (request.receivedAt...finished + keeping).contains(disturbance.begun)
            default: false
            }
        }
    }

    /// How many of these milliseconds another try would have been answered in: the database and the provider were
    /// there, and no try was under way.
    private static func free(
        from start: Moment, to end: Moment, _ uses: [ChaosVerdict.Presentation], _ disturbances: [Disturbance]
    ) -> Moment {
        var taken: [(from: Moment, to: Moment)] = uses.map {
            ($0.request.receivedAt, $0.request.finishedAt ?? end)
        }
        taken += disturbances.filter { $0.kind.takesDatabase || [.provider, .link].contains($0.kind) }
            .map { ($0.begun, $0.ended + $0.kind.hold) }
        var free: Moment = 0
        var place = start
        for (from, to) in taken.sorted(by: { $0.from < $1.from }) {
            if from > place { free += min(from, end) - place }
            place = max(place, to)
            if place >= end { return free }
        }
        return free + end - place
    }
}
