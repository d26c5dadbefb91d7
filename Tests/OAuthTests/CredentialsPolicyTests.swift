import ExternalText
import OAuth
import Testing

@Suite struct `Credentials policy` {
    typealias Policy = CredentialsQuery.Policy

    func terms(
        secret: Bool = false, canUpgrade: Bool = false, leadTime: Duration? = nil,
        client: ClientConfiguration = Sample.client(),
        providers: AcceptedProviders = AcceptedProviders(issuer: nil, tokenEndpoint: "https://p.example/token")
    ) -> CredentialsPolicy.Terms {
        CredentialsPolicy.Terms(
            client: client.fingerprint, canObtainClientCredentials: secret, canUpgrade: canUpgrade,
            leadTime: leadTime, providers: providers)
    }

    func decide(
        _ held: HeldCredentials?, version: Int64 = 7, _ terms: CredentialsPolicy.Terms,
        _ query: CredentialsQuery = .init()
    ) -> CredentialsDecision {
        CredentialsPolicy().decide(held, version: version, terms: terms, query: query, now: Sample.now)
    }

    /// Decides with an unchanged registration at a provider without an upgrade.
    func decide(
        _ held: HeldCredentials?, version: Int64 = 7, secret: Bool = false, _ query: CredentialsQuery = .init()
    ) -> CredentialsDecision {
        decide(held, version: version, terms(secret: secret), query)
    }

    func user(
        left: Duration = .seconds(3600), refreshToken: String? = "r", by client: ClientConfiguration = Sample.client(),
        grantedBy provider: GrantingProvider? = nil
    ) -> HeldCredentials {
        Sample.held(
            .user, refreshToken: refreshToken, expires: Sample.now.advanced(by: left),
            obtainedWith: client.fingerprint, grantedBy: provider)
    }

    func client(
        left: Duration = .seconds(3600), by client: ClientConfiguration = Sample.client()
    ) -> HeldCredentials {
        Sample.held(
            .client, refreshToken: nil, expires: Sample.now.advanced(by: left), userID: nil,
            obtainedWith: client.fingerprint)
    }

    /// The tenant's lead time, the lifetime that a query names, and whether a query without parameters asks for the same.
    static let namedLifetimes: [(Duration?, Duration?, Bool)] = [
        (nil, nil, true), (nil, .seconds(59), false), (nil, .seconds(60), true), (nil, .seconds(61), false),
        (.seconds(45), nil, true), (.seconds(45), .seconds(44), false), (.seconds(45), .seconds(45), true),
        (.seconds(45), .seconds(46), false), (.seconds(45), .seconds(60), false), (.seconds(300), .seconds(60), true),
        (.zero, .zero, true), (.zero, .seconds(1), false),
    ]

    @Test(arguments: namedLifetimes)
    func `a query that names the tenant's own lifetime is the query without parameters`(
        leadTime: Duration?, named: Duration?, isDefault: Bool
    ) {
        let terms = terms(leadTime: leadTime)
        let query = CredentialsQuery(minimumLifetime: named)
        #expect(query.isDefault(usualLifetime: terms.minimumLifetime) == isDefault)
        guard isDefault else { return }
        for left in Self.minute.map(\.0) + [.seconds(44), .seconds(45), .seconds(46), .seconds(300)] {
            for held in [user(left: left), user(left: left, refreshToken: nil), client(left: left)] {
                #expect(decide(held, terms, query) == decide(held, terms), "\(left)")
            }
        }
        for other in [
            CredentialsQuery(policy: .local, minimumLifetime: named),
            CredentialsQuery(minimumLifetime: named, lowestLevel: .user),
            CredentialsQuery(minimumLifetime: named, refusedByAPI: true),
            CredentialsQuery(minimumLifetime: named, renewedPast: 1),
        ] {
            #expect(!other.isDefault(usualLifetime: terms.minimumLifetime))
        }
    }

    // MARK: The minute

    static let minute: [(Duration, Bool)] = [
        (.seconds(120), true), (.seconds(61), true), (.milliseconds(60_001), true), (.seconds(60), true),
        (.milliseconds(59_999), false), (.seconds(59), false), (.seconds(30), false), (.milliseconds(1), false),
        (.zero, false), (.milliseconds(-1), false), (.seconds(-3600), false),
    ]

    // T23 T25 T54 K40
    @Test(arguments: minute)
    func `a user's token is served when a minute is left, otherwise refreshed`(
        left: Duration, isServed: Bool
    ) {
        #expect(decide(user(left: left)) == (isServed ? .serve : .refresh(isEarly: false)))
        #expect(decide(user(left: left), secret: true) == (isServed ? .serve : .refresh(isEarly: false)))
    }

    // T42
    @Test(arguments: minute)
    func `a user's token that cannot be refreshed is served when a minute is left, otherwise removed`(
        left: Duration, isServed: Bool
    ) {
        #expect(decide(user(left: left, refreshToken: nil)) == (isServed ? .serve : .retire))
        #expect(decide(user(left: left, refreshToken: nil), secret: true) == (isServed ? .serve : .retire))
    }

    @Test(arguments: minute)
    func `the client's token is served when a minute is left, otherwise obtained anew`(left: Duration, isServed: Bool) {
        #expect(
            decide(client(left: left), secret: true) == (isServed ? .serve : .obtainClientCredentials(isUpgrade: false))
        )
    }

    @Test(arguments: minute)
    func `the client's token is removed when the secret is no longer configured`(left: Duration, _: Bool) {
        #expect(decide(client(left: left), secret: false) == .retire)
    }

    @Test(
        arguments: [
            (.zero, .milliseconds(1), true), (.zero, .zero, false), (.zero, .milliseconds(-1), false),
            (.seconds(1), .seconds(1), true),
            (.seconds(1), .milliseconds(999), false), (.seconds(300), .seconds(301), true),
            (.seconds(300), .seconds(300), true), (.seconds(300), .milliseconds(299_999), false),
            (.seconds(86_400), .seconds(3600), false), (.seconds(Int64.max), .seconds(3600), false),
        ] as [(Duration, Duration, Bool)])
    func `the caller chooses the minimum lifetime`(minimum: Duration, left: Duration, isServed: Bool) {
        #expect(
            decide(user(left: left), .init(minimumLifetime: minimum)) == (isServed ? .serve : .refresh(isEarly: false)))
    }

    @Test(arguments: [(0, 0), (1, 1), (45, 45), (59, 59), (60, 60), (61, 60), (86_400, 60)])
    func `without a choice of the caller's it is a minute, or the lead time where that is less`(
        leadTime: Int, minimum: Int
    ) {
        #expect(terms(leadTime: .seconds(leadTime)).minimumLifetime == .seconds(minimum))
    }

    @Test func `the default minimum lifetime is a minute`() {
        #expect(CredentialsQuery() == CredentialsQuery(policy: .localValid, minimumLifetime: nil))
        #expect(CredentialsQuery.defaultMinimumLifetime == .seconds(60))
        #expect(terms().minimumLifetime == .seconds(60))
    }

    // MARK: Nothing held

    // T24 T43
    @Test(
        arguments: [
            (.local, false, .missing), (.local, true, .missing), (.localForceRefresh, false, .missing),
            (.localForceRefresh, true, .missing), (.localValid, false, .serveBasic),
            (.localValid, true, .obtainClientCredentials(isUpgrade: false)), (.createIfNeeded, false, .serveBasic),
            (.createIfNeeded, true, .obtainClientCredentials(isUpgrade: false)),
        ] as [(Policy, Bool, CredentialsDecision)])
    func `with nothing stored the configuration decides the level`(
        policy: Policy, secret: Bool, decision: CredentialsDecision
    ) {
        #expect(decide(nil, version: 0, secret: secret, .init(policy: policy)) == decision)
        #expect(decide(nil, version: 9, secret: secret, .init(policy: policy, refusedByAPI: true)) == decision)
    }

    @Test(
        arguments: [
            (.basic, false, .serveBasic), (.client, false, .levelNotAvailable), (.user, false, .levelNotAvailable),
            (.basic, true, .obtainClientCredentials(isUpgrade: false)),
            (.client, true, .obtainClientCredentials(isUpgrade: false)),
            (.user, true, .levelNotAvailable),
        ] as [(CredentialsLevel, Bool, CredentialsDecision)])
    func `with nothing stored a level that is not configured is not available`(
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
    func `a level below the lowest accepted one is refused`(
        lowest: CredentialsLevel, withUser: CredentialsDecision, withClient: CredentialsDecision
    ) {
        for policy in Policy.allCases where policy != .localForceRefresh {
            let query = CredentialsQuery(policy: policy, lowestLevel: lowest)
            #expect(decide(user(), secret: true, query) == withUser)
            #expect(decide(client(), secret: true, query) == withClient)
        }
    }

    // T44
    @Test func `an expired user's token is refreshed rather than replaced by the client's`() {
        #expect(decide(user(left: .zero), secret: true, .init(lowestLevel: .user)) == .refresh(isEarly: false))
        #expect(decide(user(left: .zero, refreshToken: nil), secret: true, .init(lowestLevel: .user)) == .retire)
        #expect(decide(client(left: .zero), secret: true, .init(lowestLevel: .user)) == .levelNotAvailable)
    }

    // MARK: Policies

    @Test(arguments: [Duration.seconds(3600), .zero, .seconds(-3600)])
    func `the policy local serves the stored credentials, whatever else is requested`(left: Duration) {
        for held in [user(left: left), user(left: left, refreshToken: nil), client(left: left)] {
            for renewedPast in [nil, 6, 7, 8] as [Int64?] {
                let query = CredentialsQuery(
                    policy: .local, minimumLifetime: .seconds(7200), refusedByAPI: true, renewedPast: renewedPast)
                #expect(decide(held, query) == .serve)
                #expect(decide(held, secret: true, query) == .serve)
            }
        }
    }

    @Test func `force renews credentials that could be served`() {
        let force = CredentialsQuery(policy: .localForceRefresh)
        #expect(decide(user(), force) == .refresh(isEarly: false))
        #expect(decide(client(), secret: true, force) == .obtainClientCredentials(isUpgrade: false))
    }

    @Test func `force cannot renew credentials without a refresh token or secret`() {
        let force = CredentialsQuery(policy: .localForceRefresh)
        for left in [Duration.seconds(3600), .zero, .seconds(-1)] {
            #expect(decide(user(left: left, refreshToken: nil), secret: true, force) == .missing)
            #expect(decide(client(left: left), secret: false, force) == .retire)
        }
        // A version that has been replaced since is decided as without force.
        let since = CredentialsQuery(policy: .localForceRefresh, renewedPast: 6)
        #expect(decide(user(refreshToken: nil), secret: true, since) == .serve)
        // Nor does an API's refusal make a refresh token.
        let refused = CredentialsQuery(policy: .localForceRefresh, refusedByAPI: true)
        #expect(decide(user(refreshToken: nil), secret: true, refused) == .missing)
    }

    // MARK: Refusals by the API

    // T26
    @Test func `a refusal by the API renews credentials that could be served`() {
        let refused = CredentialsQuery(refusedByAPI: true)
        #expect(decide(user(), refused) == .refresh(isEarly: false))
        #expect(decide(user(), secret: true, refused) == .refresh(isEarly: false))
        #expect(decide(client(), secret: true, refused) == .obtainClientCredentials(isUpgrade: false))
    }

    @Test func `a refusal by the API removes credentials that cannot be renewed`() {
        let refused = CredentialsQuery(refusedByAPI: true)
        #expect(decide(user(refreshToken: nil), refused) == .retire)
        #expect(decide(user(refreshToken: nil), secret: true, refused) == .retire)
        #expect(decide(client(), secret: false, refused) == .retire)
    }

    @Test(arguments: [(6, false), (7, true), (8, true)] as [(Int64, Bool)], [Policy.localValid, .localForceRefresh])
    func `a complaint about an older version is ignored`(complaint: (renewedPast: Int64, isOpen: Bool), policy: Policy)
    {
        let query = CredentialsQuery(policy: policy, refusedByAPI: true, renewedPast: complaint.renewedPast)
        #expect(decide(user(), version: 7, query) == (complaint.isOpen ? .refresh(isEarly: false) : .serve))
        let over: CredentialsDecision = policy == .localForceRefresh ? .missing : .retire
        #expect(decide(user(refreshToken: nil), version: 7, query) == (complaint.isOpen ? over : .serve))
        #expect(
            decide(client(), version: 7, secret: true, query)
                == (complaint.isOpen ? .obtainClientCredentials(isUpgrade: false) : .serve))
    }

    @Test(arguments: [6, 7, 8] as [Int64])
    func `an ignored complaint does not make an expired token valid`(renewedPast: Int64) {
        let query = CredentialsQuery(refusedByAPI: true, renewedPast: renewedPast)
        #expect(decide(user(left: .seconds(59)), version: 7, query) == .refresh(isEarly: false))
        #expect(decide(user(left: .seconds(59), refreshToken: nil), version: 7, query) == .retire)
    }

    @Test(arguments: [6, 7, 8] as [Int64])
    func `a version without a complaint does not renew`(renewedPast: Int64) {
        #expect(decide(user(), version: 7, .init(renewedPast: renewedPast)) == .serve)
    }

    // MARK: After a renewal

    @Test(
        arguments: [
            (.seconds(3600), .serve), (.seconds(59), .serve), (.milliseconds(1), .serve), (.zero, .expiredOnArrival),
            (.seconds(-1), .expiredOnArrival),
        ] as [(Duration, CredentialsDecision)])
    func `renewed credentials are served until they expire, however short their lifetime`(
        left: Duration, decision: CredentialsDecision
    ) {
        let policy = CredentialsPolicy()
        for query in [CredentialsQuery(), .init(policy: .localForceRefresh), .init(refusedByAPI: true)] {
            #expect(
                policy.serves(
                    renewed: user(left: left), terms: terms(secret: true), query: query, now: Sample.now)
                    == decision)
        }
    }

    // T33
    @Test(
        arguments: [
            (.basic, true, .obtainClientCredentials(isUpgrade: false)), (.basic, false, .serveBasic),
            (.client, true, .obtainClientCredentials(isUpgrade: false)), (.client, false, .levelNotAvailable),
            (.user, true, .levelNotAvailable), (.user, false, .levelNotAvailable),
        ] as [(CredentialsLevel, Bool, CredentialsDecision)])
    func `when a renewal ended the session the next level is served`(
        lowest: CredentialsLevel, secret: Bool, decision: CredentialsDecision
    ) {
        for policy in Policy.allCases {
            let query = CredentialsQuery(policy: policy, lowestLevel: lowest, refusedByAPI: true)
            #expect(
                CredentialsPolicy().serves(
                    renewed: nil, terms: terms(secret: secret), query: query, now: Sample.now) == decision)
        }
    }

    @Test func `renewed credentials below the lowest accepted level are refused`() {
        #expect(
            CredentialsPolicy().serves(
                renewed: client(), terms: terms(secret: true), query: .init(lowestLevel: .user),
                now: Sample.now)
                == .levelNotAvailable)
    }

    // MARK: While a renewal brings nothing

    @Test(
        arguments: [
            (.milliseconds(59_999), true), (.milliseconds(1), true), (.zero, false), (.seconds(-1), false),
        ] as [(Duration, Bool)])
    func `a valid token may be served while its renewal fails`(left: Duration, isGiven: Bool) {
        func isSpared(
            _ held: HeldCredentials?, _ decision: CredentialsDecision, _ query: CredentialsQuery = .init()
        ) -> Bool {
            CredentialsPolicy().serves(
                whileRenewing: held, version: 7, decision: decision, query: query, now: Sample.now)
        }
        let refresh = CredentialsDecision.refresh(isEarly: false)
        #expect(isSpared(user(left: left), refresh) == isGiven)
        #expect(isSpared(user(left: left), .refresh(isEarly: true)) == isGiven)
        #expect(isSpared(user(left: left), refresh, .init(minimumLifetime: .seconds(7200))) == isGiven)
        #expect(isSpared(user(left: left), refresh, .init(lowestLevel: .user)) == isGiven)
        #expect(isSpared(client(left: left), .obtainClientCredentials(isUpgrade: false)) == isGiven)
        // The complaint is about an older version.
        #expect(isSpared(user(left: left), refresh, .init(refusedByAPI: true, renewedPast: 6)) == isGiven)
        for query in [
            CredentialsQuery(refusedByAPI: true), .init(refusedByAPI: true, renewedPast: 7),
            .init(policy: .localForceRefresh),
        ] {
            #expect(!isSpared(user(left: left), refresh, query))
        }
        #expect(
            !isSpared(client(left: left), .obtainClientCredentials(isUpgrade: false), .init(lowestLevel: .user)))
        for decision in [CredentialsDecision.upgrade, .obtainClientCredentials(isUpgrade: true), .retire] {
            #expect(!isSpared(user(left: left), decision))
        }
        #expect(!isSpared(nil, .obtainClientCredentials(isUpgrade: false)))
    }
}
