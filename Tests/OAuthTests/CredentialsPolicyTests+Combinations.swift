import ExternalText
import OAuth
import Testing

/// The rules that hold for every combination of credentials, configuration and query.
extension `Credentials policy` {
    // MARK: Every combination

    @Test func `the laws hold for every combination`() {
        let lifetimes: [Duration] = [
            .seconds(61), .seconds(60), .milliseconds(59_999), .seconds(10), .milliseconds(9999), .zero, .seconds(-1),
        ]
        var all: [HeldCredentials?] = [nil]
        for left in lifetimes {
            all += [user(left: left), user(left: left, refreshToken: nil), client(left: left)]
            all.append(user(left: left, grantedBy: Self.other))
            all.append(user(left: left, refreshToken: nil, grantedBy: Self.other))
        }
        var everyTerms: [CredentialsPolicy.Terms] = []
        for secret in [false, true] {
            for canUpgrade in [false, true] {
                for leadTime in [nil, Duration.zero, .seconds(61)] {
                    for client in [Sample.client(), Sample.client(scopes: ["a"]), Sample.client(id: "client-2")] {
                        for renewsLate in [false, true] {
                            var terms = terms(
                                secret: secret, canUpgrade: canUpgrade, leadTime: leadTime, client: client)
                            terms.renewsLate = renewsLate
                            everyTerms.append(terms)
                        }
                    }
                }
            }
        }
        var count = 0
        for held in all {
            for terms in everyTerms {
                for query in Self.everyQuery {
                    expectLaws(held, terms, query)
                    count += 1
                }
            }
        }
        #expect(count == 248_832)
    }

    static let everyQuery: [CredentialsQuery] = Policy.allCases.flatMap { policy in
        CredentialsLevel.allCases.flatMap { lowest in
            [false, true].flatMap { isRefused in
                ([nil, 6, 7, 8] as [Int64?]).map { renewedPast in
                    CredentialsQuery(
                        policy: policy, lowestLevel: lowest, refusedByAPI: isRefused, renewedPast: renewedPast)
                }
            }
        }
    }

    func expectLaws(
        _ held: HeldCredentials?, _ terms: CredentialsPolicy.Terms, _ query: CredentialsQuery
    ) {
        let decision = decide(held, terms, query)
        if !keepsLaws(decision, held, terms, query) {
            let left = held.map { Sample.now.duration(to: $0.expires) }
            Issue.record("\(held?.level.rawValue ?? "nothing") \(left ?? .zero) \(terms) \(query): \(decision)")
        }
    }

    func keepsLaws(
        _ decision: CredentialsDecision, _ held: HeldCredentials?, _ terms: CredentialsPolicy.Terms,
        _ query: CredentialsQuery
    ) -> Bool {
        let secret = terms.canObtainClientCredentials
        let isLate = terms.renewsLate && held?.refreshToken != nil
        let minimum = isLate ? min(terms.minimumLifetime, .seconds(10)) : terms.minimumLifetime
        let isValid = held.map { $0.expires > Sample.now && $0.expires >= Sample.now.advanced(by: minimum) } ?? false
        let isChanged = held.map { $0.obtainedWith != terms.client } ?? false
        let isOurs = held?.obtainedWith.clientID == terms.client.clientID
        let isPlain = !query.refusedByAPI && query.policy != .localForceRefresh
        let isElsewhere = held?.grantedBy == Self.other
        // Without a refresh token nothing can be upgraded.
        let canUpgrade = terms.canUpgrade && held?.refreshToken != nil
        let isKept = held?.isLoggedIn(at: Sample.now) == true && (isElsewhere || !isOurs && !canUpgrade)
        let next: CredentialsLevel = secret ? .client : .basic
        if query.policy == .local, ![.serve, .missing, .levelNotAvailable].contains(decision) { return false }
        // Valid credentials are served, unless they can be improved and the means for that exist.
        let isWithoutSecret = held?.level == .client && !secret && query.policy != .local
        if let held, isValid, isPlain, held.level >= query.lowestLevel, !isChanged || !terms.canUpgrade && !secret,
            !isWithoutSecret, decision != .serve, decision != .refresh(isEarly: true)
        {
            return false
        }
        switch decision {
        case .serve:
            return held.map { $0.level >= query.lowestLevel } == true && (isValid || query.policy == .local)
                && !isWithoutSecret
        case .serveBasic: return (held == nil || isKept) && !secret && query.lowestLevel == .basic
        case .refresh(let isEarly):
            return held?.refreshToken != nil && held?.level == .user && isOurs && !(isChanged && terms.canUpgrade)
                && (!isEarly || isValid && terms.leadTime > .zero && !isLate) && !isElsewhere
        case .upgrade:
            return held?.refreshToken != nil && held?.level == .user && isChanged && terms.canUpgrade && !isElsewhere
        case .kept:
            return isKept && secret && query.lowestLevel <= .client && (!isValid || !isPlain)
        case .obtainClientCredentials(let isUpgrade):
            return secret && query.lowestLevel <= .client && held?.level != .user && isUpgrade == isChanged
        case .retire:
            // After the credentials are removed, the next decision must not be to remove them again.
            return held != nil && held?.refreshToken == nil && !isKept && decide(nil, terms, query) != .retire
        case .missing:
            if held == nil { return query.policy == .local || query.policy == .localForceRefresh }
            return held?.level == .user && held?.refreshToken == nil && query.policy == .localForceRefresh
        case .createAccount: return false
        // No provider names a time for the next refresh here.
        case .tooEarly: return false
        // Only credentials from a renewal can be expired on arrival.
        case .expiredOnArrival: return false
        // No set waits for its verification here.
        case .verify: return false
        case .levelNotAvailable: return (isKept ? next : held?.level ?? next) < query.lowestLevel
        }
    }
}
