import OAuth
import Testing

@Suite struct `Credentials policy` {
    typealias Policy = CredentialsQuery.Policy

    private func decide(
        _ held: HeldCredentials?, version: Int64 = 7, secret: Bool = false, _ query: CredentialsQuery = .init()
    ) -> CredentialsDecision {
        CredentialsPolicy().decide(
            held, version: version, canObtainClientCredentials: secret, query: query, now: Sample.now)
    }

    private func user(left: Duration = .seconds(3600), refreshToken: String? = "r") -> HeldCredentials {
        Sample.held(.user, refreshToken: refreshToken, expires: Sample.now.advanced(by: left))
    }

    private func client(left: Duration = .seconds(3600)) -> HeldCredentials {
        Sample.held(.client, refreshToken: nil, expires: Sample.now.advanced(by: left), userID: nil)
    }

    // MARK: The minute

    static let minute: [(Duration, Bool)] = [
        (.seconds(120), true), (.seconds(61), true), (.milliseconds(60_001), true), (.seconds(60), true),
        (.milliseconds(59_999), false), (.seconds(59), false), (.seconds(30), false), (.milliseconds(1), false),
        (.zero, false), (.milliseconds(-1), false), (.seconds(-3600), false),
    ]

    @Test(arguments: minute)
    func `a user's token is served with a minute to spare, else refreshed (T23, T25, T54)`(
        left: Duration, isServed: Bool
    ) {
        #expect(decide(user(left: left)) == (isServed ? .serve : .refresh))
        #expect(decide(user(left: left), secret: true) == (isServed ? .serve : .refresh))
    }

    @Test(arguments: minute)
    func `a user's token that cannot be refreshed is served with a minute to spare, else put away (T42)`(
        left: Duration, isServed: Bool
    ) {
        #expect(decide(user(left: left, refreshToken: nil)) == (isServed ? .serve : .retire))
        #expect(decide(user(left: left, refreshToken: nil), secret: true) == (isServed ? .serve : .retire))
    }

    @Test(arguments: minute)
    func `the client's token is served with a minute to spare, else obtained anew`(left: Duration, isServed: Bool) {
        #expect(decide(client(left: left), secret: true) == (isServed ? .serve : .obtainClientCredentials))
    }

    @Test(arguments: minute)
    func `the client's token is put away when the secret is gone and it expires`(left: Duration, isServed: Bool) {
        #expect(decide(client(left: left), secret: false) == (isServed ? .serve : .retire))
    }

    @Test(
        arguments: [
            (.zero, .milliseconds(1), true), (.zero, .zero, false), (.zero, .milliseconds(-1), false),
            (.seconds(1), .seconds(1), true),
            (.seconds(1), .milliseconds(999), false), (.seconds(300), .seconds(301), true),
            (.seconds(300), .seconds(300), true), (.seconds(300), .milliseconds(299_999), false),
            (.seconds(86_400), .seconds(3600), false), (.seconds(Int64.max), .seconds(3600), false),
        ] as [(Duration, Duration, Bool)])
    func `the caller says how long it must live`(minimum: Duration, left: Duration, isServed: Bool) {
        #expect(decide(user(left: left), .init(minimumLifetime: minimum)) == (isServed ? .serve : .refresh))
    }

    @Test func `unless it says so, a minute`() {
        #expect(CredentialsQuery() == CredentialsQuery(policy: .localValid, minimumLifetime: .seconds(60)))
        #expect(CredentialsQuery.defaultMinimumLifetime == .seconds(60))
    }

    // MARK: Nothing held

    @Test(
        arguments: [
            (.local, false, .missing), (.local, true, .missing), (.localForceRefresh, false, .missing),
            (.localForceRefresh, true, .missing), (.localValid, false, .serveBasic),
            (.localValid, true, .obtainClientCredentials), (.createIfNeeded, false, .serveBasic),
            (.createIfNeeded, true, .obtainClientCredentials),
        ] as [(Policy, Bool, CredentialsDecision)])
    func `with nothing stored the configuration decides the level (T24, T43)`(
        policy: Policy, secret: Bool, decision: CredentialsDecision
    ) {
        #expect(decide(nil, version: 0, secret: secret, .init(policy: policy)) == decision)
        #expect(decide(nil, version: 9, secret: secret, .init(policy: policy, refusedByAPI: true)) == decision)
    }

    @Test(
        arguments: [
            (.basic, false, .serveBasic), (.client, false, .levelNotAvailable), (.user, false, .levelNotAvailable),
            (.basic, true, .obtainClientCredentials), (.client, true, .obtainClientCredentials),
            (.user, true, .levelNotAvailable),
        ] as [(CredentialsLevel, Bool, CredentialsDecision)])
    func `with nothing stored no level is invented`(
        lowest: CredentialsLevel, secret: Bool, decision: CredentialsDecision
    ) {
        for policy in [Policy.localValid, .createIfNeeded] {
            #expect(decide(nil, version: 0, secret: secret, .init(policy: policy, lowestLevel: lowest)) == decision)
        }
    }

    // MARK: Levels

    @Test(
        arguments: [
            (.basic, .serve, .serve), (.client, .serve, .serve), (.user, .serve, .levelNotAvailable),
        ] as [(CredentialsLevel, CredentialsDecision, CredentialsDecision)])
    func `a lower level than asked for is refused`(
        lowest: CredentialsLevel, withUser: CredentialsDecision, withClient: CredentialsDecision
    ) {
        for policy in Policy.allCases where policy != .localForceRefresh {
            let query = CredentialsQuery(policy: policy, lowestLevel: lowest)
            #expect(decide(user(), secret: true, query) == withUser)
            #expect(decide(client(), secret: true, query) == withClient)
        }
    }

    @Test func `an expired user's token is refreshed before the client's secret is thought of (T44)`() {
        #expect(decide(user(left: .zero), secret: true, .init(lowestLevel: .user)) == .refresh)
        #expect(decide(user(left: .zero, refreshToken: nil), secret: true, .init(lowestLevel: .user)) == .retire)
        #expect(decide(client(left: .zero), secret: true, .init(lowestLevel: .user)) == .levelNotAvailable)
    }

    // MARK: Policies

    @Test(arguments: [Duration.seconds(3600), .zero, .seconds(-3600)])
    func `local is as stored, whatever is asked beside it`(left: Duration) {
        for held in [user(left: left), user(left: left, refreshToken: nil), client(left: left)] {
            for renewedPast in [nil, 6, 7, 8] as [Int64?] {
                let query = CredentialsQuery(
                    policy: .local, minimumLifetime: .seconds(7200), refusedByAPI: true, renewedPast: renewedPast)
                #expect(decide(held, query) == .serve)
                #expect(decide(held, secret: true, query) == .serve)
            }
        }
    }

    @Test func `to force renews what could be served`() {
        let force = CredentialsQuery(policy: .localForceRefresh)
        #expect(decide(user(), force) == .refresh)
        #expect(decide(client(), secret: true, force) == .obtainClientCredentials)
    }

    @Test func `to force cannot renew what has nothing to be renewed with`() {
        let force = CredentialsQuery(policy: .localForceRefresh)
        #expect(decide(user(refreshToken: nil), secret: true, force) == .serve)
        #expect(decide(client(), secret: false, force) == .serve)
        #expect(decide(user(left: .zero, refreshToken: nil), secret: true, force) == .retire)
        #expect(decide(client(left: .zero), secret: false, force) == .retire)
    }

    // MARK: Refusals by the API

    @Test func `a refusal by the API renews what could be served (T26)`() {
        let refused = CredentialsQuery(refusedByAPI: true)
        #expect(decide(user(), refused) == .refresh)
        #expect(decide(user(), secret: true, refused) == .refresh)
        #expect(decide(client(), secret: true, refused) == .obtainClientCredentials)
    }

    @Test func `a refusal by the API ends what cannot be renewed`() {
        let refused = CredentialsQuery(refusedByAPI: true)
        #expect(decide(user(refreshToken: nil), refused) == .retire)
        #expect(decide(user(refreshToken: nil), secret: true, refused) == .retire)
        #expect(decide(client(), secret: false, refused) == .retire)
    }

    @Test(arguments: [(6, false), (7, true), (8, true)] as [(Int64, Bool)], [Policy.localValid, .localForceRefresh])
    func `a complaint about an older version is settled`(complaint: (renewedPast: Int64, isOpen: Bool), policy: Policy)
    {
        let query = CredentialsQuery(policy: policy, refusedByAPI: true, renewedPast: complaint.renewedPast)
        #expect(decide(user(), version: 7, query) == (complaint.isOpen ? .refresh : .serve))
        #expect(decide(user(refreshToken: nil), version: 7, query) == (complaint.isOpen ? .retire : .serve))
        #expect(
            decide(client(), version: 7, secret: true, query) == (complaint.isOpen ? .obtainClientCredentials : .serve))
    }

    @Test(arguments: [6, 7, 8] as [Int64])
    func `a settled complaint does not make an expired token good`(renewedPast: Int64) {
        let query = CredentialsQuery(refusedByAPI: true, renewedPast: renewedPast)
        #expect(decide(user(left: .seconds(59)), version: 7, query) == .refresh)
        #expect(decide(user(left: .seconds(59), refreshToken: nil), version: 7, query) == .retire)
    }

    @Test(arguments: [6, 7, 8] as [Int64])
    func `a version without a complaint asks for nothing`(renewedPast: Int64) {
        #expect(decide(user(), version: 7, .init(renewedPast: renewedPast)) == .serve)
    }

    // MARK: After a renewal

    @Test(
        arguments: [
            (.seconds(3600), .serve), (.seconds(59), .serve), (.milliseconds(1), .serve), (.zero, .expiredOnArrival),
            (.seconds(-1), .expiredOnArrival),
        ] as [(Duration, CredentialsDecision)])
    func `what a renewal brought is the answer, however short it lives, while it lives`(
        left: Duration, decision: CredentialsDecision
    ) {
        let policy = CredentialsPolicy()
        for query in [CredentialsQuery(), .init(policy: .localForceRefresh), .init(refusedByAPI: true)] {
            #expect(
                policy.serves(
                    renewed: user(left: left), canObtainClientCredentials: true, query: query, now: Sample.now)
                    == decision)
        }
    }

    @Test(
        arguments: [
            (.basic, true, .obtainClientCredentials), (.basic, false, .serveBasic),
            (.client, true, .obtainClientCredentials), (.client, false, .levelNotAvailable),
            (.user, true, .levelNotAvailable), (.user, false, .levelNotAvailable),
        ] as [(CredentialsLevel, Bool, CredentialsDecision)])
    func `when a renewal ended the session the next level is the answer (T33)`(
        lowest: CredentialsLevel, secret: Bool, decision: CredentialsDecision
    ) {
        for policy in Policy.allCases {
            let query = CredentialsQuery(policy: policy, lowestLevel: lowest, refusedByAPI: true)
            #expect(
                CredentialsPolicy().serves(
                    renewed: nil, canObtainClientCredentials: secret, query: query, now: Sample.now) == decision)
        }
    }

    @Test func `what a renewal brought is refused below the level asked for`() {
        #expect(
            CredentialsPolicy().serves(
                renewed: client(), canObtainClientCredentials: true, query: .init(lowestLevel: .user),
                now: Sample.now)
                == .levelNotAvailable)
    }

    // MARK: Every combination

    @Test func `the laws hold for every combination`() {
        let lives: [Duration] = [.seconds(61), .seconds(60), .milliseconds(59_999), .zero, .seconds(-1)]
        var all: [HeldCredentials?] = [nil]
        for left in lives { all += [user(left: left), user(left: left, refreshToken: nil), client(left: left)] }
        var count = 0
        for held in all {
            for secret in [false, true] {
                for policy in Policy.allCases {
                    for lowest in CredentialsLevel.allCases {
                        for isRefused in [false, true] {
                            for renewedPast in [nil, 6, 7, 8] as [Int64?] {
                                let query = CredentialsQuery(
                                    policy: policy, lowestLevel: lowest, refusedByAPI: isRefused,
                                    renewedPast: renewedPast)
                                expectLaws(held, secret: secret, query)
                                count += 1
                            }
                        }
                    }
                }
            }
        }
        #expect(count == 3072)
    }

    private func expectLaws(_ held: HeldCredentials?, secret: Bool, _ query: CredentialsQuery) {
        let decision = decide(held, secret: secret, query)
        let isValid = held.map { $0.expires >= Sample.now.advanced(by: .seconds(60)) } ?? false
        let context: Comment = "\(held?.level.rawValue ?? "nothing") \(isValid) \(secret) \(query): \(decision)"
        switch decision {
        case .serve:
            #expect(held.map { $0.level >= query.lowestLevel } == true, context)
            #expect(isValid || query.policy == .local, context)
        case .serveBasic:
            #expect(held == nil && !secret && query.lowestLevel == .basic, context)
        case .refresh:
            #expect(held?.refreshToken != nil && held?.level == .user, context)
        case .obtainClientCredentials:
            #expect(secret && query.lowestLevel <= .client && held?.level != .user, context)
        case .retire:
            #expect(held != nil && held?.refreshToken == nil, context)
            // One step further there is an end.
            #expect(decide(nil, secret: secret, query) != .retire, context)
        case .missing:
            #expect(held == nil && (query.policy == .local || query.policy == .localForceRefresh), context)
        case .expiredOnArrival:
            Issue.record("only what a renewal brought can be over on arrival: \(context)")
        case .levelNotAvailable:
            #expect((held?.level ?? (secret ? .client : .basic)) < query.lowestLevel, context)
        }
        if query.policy == .local {
            #expect([.serve, .missing, .levelNotAvailable].contains(decision), context)
        }
        if let held, isValid, !query.refusedByAPI, query.policy != .localForceRefresh, held.level >= query.lowestLevel {
            #expect(decision == .serve, context)
        }
    }
}
