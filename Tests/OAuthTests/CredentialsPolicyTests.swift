import ExternalText
import OAuth
import Testing

@Suite struct `Credentials policy` {
    typealias Policy = CredentialsQuery.Policy

    private func terms(
        secret: Bool = false, canUpgrade: Bool = false, leadTime: Duration = .zero,
        client: ClientConfiguration = Sample.client(),
        providers: AcceptedProviders = AcceptedProviders(issuer: nil, tokenEndpoint: "https://p.example/token")
    ) -> CredentialsPolicy.Terms {
        CredentialsPolicy.Terms(
            client: client.fingerprint, canObtainClientCredentials: secret, canUpgrade: canUpgrade,
            leadTime: leadTime, providers: providers)
    }

    private func decide(
        _ held: HeldCredentials?, version: Int64 = 7, _ terms: CredentialsPolicy.Terms,
        _ query: CredentialsQuery = .init()
    ) -> CredentialsDecision {
        CredentialsPolicy().decide(held, version: version, terms: terms, query: query, now: Sample.now)
    }

    /// With a registration that has not changed since, at a provider without an upgrade.
    private func decide(
        _ held: HeldCredentials?, version: Int64 = 7, secret: Bool = false, _ query: CredentialsQuery = .init()
    ) -> CredentialsDecision {
        decide(held, version: version, terms(secret: secret), query)
    }

    private func user(
        left: Duration = .seconds(3600), refreshToken: String? = "r", by client: ClientConfiguration = Sample.client(),
        grantedBy provider: GrantingProvider? = nil
    ) -> HeldCredentials {
        Sample.held(
            .user, refreshToken: refreshToken, expires: Sample.now.advanced(by: left),
            obtainedWith: client.fingerprint, grantedBy: provider)
    }

    private func client(
        left: Duration = .seconds(3600), by client: ClientConfiguration = Sample.client()
    ) -> HeldCredentials {
        Sample.held(
            .client, refreshToken: nil, expires: Sample.now.advanced(by: left), userID: nil,
            obtainedWith: client.fingerprint)
    }

    // MARK: The minute

    static let minute: [(Duration, Bool)] = [
        (.seconds(120), true), (.seconds(61), true), (.milliseconds(60_001), true), (.seconds(60), true),
        (.milliseconds(59_999), false), (.seconds(59), false), (.seconds(30), false), (.milliseconds(1), false),
        (.zero, false), (.milliseconds(-1), false), (.seconds(-3600), false),
    ]

    // T23 T25 T54
    @Test(arguments: minute)
    func `a user's token is served with a minute to spare, else refreshed`(
        left: Duration, isServed: Bool
    ) {
        #expect(decide(user(left: left)) == (isServed ? .serve : .refresh(isEarly: false)))
        #expect(decide(user(left: left), secret: true) == (isServed ? .serve : .refresh(isEarly: false)))
    }

    // T42
    @Test(arguments: minute)
    func `a user's token that cannot be refreshed is served with a minute to spare, else put away`(
        left: Duration, isServed: Bool
    ) {
        #expect(decide(user(left: left, refreshToken: nil)) == (isServed ? .serve : .retire))
        #expect(decide(user(left: left, refreshToken: nil), secret: true) == (isServed ? .serve : .retire))
    }

    @Test(arguments: minute)
    func `the client's token is served with a minute to spare, else obtained anew`(left: Duration, isServed: Bool) {
        #expect(
            decide(client(left: left), secret: true) == (isServed ? .serve : .obtainClientCredentials(isUpgrade: false))
        )
    }

    @Test(arguments: minute)
    func `the client's token is put away when the secret is gone, however long it lives`(left: Duration, _: Bool) {
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
    func `the caller says how long it must live`(minimum: Duration, left: Duration, isServed: Bool) {
        #expect(
            decide(user(left: left), .init(minimumLifetime: minimum)) == (isServed ? .serve : .refresh(isEarly: false)))
    }

    @Test func `unless it says so, a minute`() {
        #expect(CredentialsQuery() == CredentialsQuery(policy: .localValid, minimumLifetime: .seconds(60)))
        #expect(CredentialsQuery.defaultMinimumLifetime == .seconds(60))
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

    // T44
    @Test func `an expired user's token is refreshed before the client's secret is thought of`() {
        #expect(decide(user(left: .zero), secret: true, .init(lowestLevel: .user)) == .refresh(isEarly: false))
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
        #expect(decide(user(), force) == .refresh(isEarly: false))
        #expect(decide(client(), secret: true, force) == .obtainClientCredentials(isUpgrade: false))
    }

    @Test func `to force cannot renew what has nothing to be renewed with`() {
        let force = CredentialsQuery(policy: .localForceRefresh)
        for left in [Duration.seconds(3600), .zero, .seconds(-1)] {
            #expect(decide(user(left: left, refreshToken: nil), secret: true, force) == .missing)
            #expect(decide(client(left: left), secret: false, force) == .retire)
        }
        // What was renewed since is decided as ever.
        let since = CredentialsQuery(policy: .localForceRefresh, renewedPast: 6)
        #expect(decide(user(refreshToken: nil), secret: true, since) == .serve)
        // An API's refusal beside it makes no refresh token.
        let refused = CredentialsQuery(policy: .localForceRefresh, refusedByAPI: true)
        #expect(decide(user(refreshToken: nil), secret: true, refused) == .missing)
    }

    // MARK: Refusals by the API

    // T26
    @Test func `a refusal by the API renews what could be served`() {
        let refused = CredentialsQuery(refusedByAPI: true)
        #expect(decide(user(), refused) == .refresh(isEarly: false))
        #expect(decide(user(), secret: true, refused) == .refresh(isEarly: false))
        #expect(decide(client(), secret: true, refused) == .obtainClientCredentials(isUpgrade: false))
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
        #expect(decide(user(), version: 7, query) == (complaint.isOpen ? .refresh(isEarly: false) : .serve))
        let over: CredentialsDecision = policy == .localForceRefresh ? .missing : .retire
        #expect(decide(user(refreshToken: nil), version: 7, query) == (complaint.isOpen ? over : .serve))
        #expect(
            decide(client(), version: 7, secret: true, query)
                == (complaint.isOpen ? .obtainClientCredentials(isUpgrade: false) : .serve))
    }

    @Test(arguments: [6, 7, 8] as [Int64])
    func `a settled complaint does not make an expired token good`(renewedPast: Int64) {
        let query = CredentialsQuery(refusedByAPI: true, renewedPast: renewedPast)
        #expect(decide(user(left: .seconds(59)), version: 7, query) == .refresh(isEarly: false))
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
    func `when a renewal ended the session the next level is the answer`(
        lowest: CredentialsLevel, secret: Bool, decision: CredentialsDecision
    ) {
        for policy in Policy.allCases {
            let query = CredentialsQuery(policy: policy, lowestLevel: lowest, refusedByAPI: true)
            #expect(
                CredentialsPolicy().serves(
                    renewed: nil, terms: terms(secret: secret), query: query, now: Sample.now) == decision)
        }
    }

    @Test func `what a renewal brought is refused below the level asked for`() {
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
    func `a token that lives may be given while it is being renewed`(left: Duration, isGiven: Bool) {
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
        // The complaint is about an older one.
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

    // MARK: Another registration

    /// The four ways in which a registration can change, and two of them together.
    static let changes: [(name: String, client: ClientConfiguration)] = [
        ("client_id", Sample.client(id: "client-2")), ("client_secret", Sample.client(secret: "secret-2")),
        ("no client_secret", Sample.client(secret: nil)), ("client_unique_key", Sample.client(uniqueKey: "k")),
        ("scopes", Sample.client(scopes: ["a"])), ("client_id and scopes", Sample.client(id: "client-2", scopes: [])),
    ]

    static let lives: [Duration] = [.seconds(3600), .seconds(60), .milliseconds(59_999), .zero, .seconds(-3600)]

    // T47
    @Test(arguments: changes.indices, lives)
    func `a user's session is moved to it, expired or not`(index: Int, left: Duration) {
        let terms = terms(secret: true, canUpgrade: true, client: Self.changes[index].client)
        for policy in [Policy.localValid, .localForceRefresh, .createIfNeeded] {
            for isRefused in [false, true] {
                for renewedPast in [nil, 6, 7] as [Int64?] {
                    let query = CredentialsQuery(
                        policy: policy, minimumLifetime: .zero, refusedByAPI: isRefused, renewedPast: renewedPast)
                    #expect(decide(user(left: left), terms, query) == .upgrade)
                }
            }
        }
        #expect(decide(user(left: left), terms, .init(policy: .local)) == .serve)
    }

    @Test(arguments: changes.indices, lives)
    func `without a refresh token there is nothing to move`(index: Int, left: Duration) {
        let terms = terms(secret: true, canUpgrade: true, client: Self.changes[index].client)
        let held = user(left: left, refreshToken: nil)
        #expect(decide(held, terms) == (left >= .seconds(60) ? .serve : .retire))
        #expect(decide(held, terms, .init(refusedByAPI: true)) == .retire)
    }

    @Test(arguments: changes.indices, lives)
    func `without an upgrade the same client refreshes when it is due, and another one never`(
        index: Int, left: Duration
    ) {
        let client = Self.changes[index].client
        let isSameClient = client.clientID == Sample.client().clientID
        let isValid = left >= .seconds(60)
        for secret in [false, true] {
            let terms = terms(secret: secret, client: client)
            let renewal: CredentialsDecision = isSameClient ? .refresh(isEarly: false) : .retire
            #expect(decide(user(left: left), terms) == (isValid ? .serve : renewal))
            #expect(decide(user(left: left), terms, .init(refusedByAPI: true)) == renewal)
            let forced: CredentialsDecision = isSameClient || !isValid ? renewal : .serve
            #expect(decide(user(left: left), terms, .init(policy: .localForceRefresh)) == forced)
            #expect(decide(user(left: left), terms, .init(policy: .local)) == .serve)
        }
    }

    @Test(arguments: changes.indices, lives)
    func `the client's credentials are obtained anew for it, expired or not`(index: Int, left: Duration) {
        for canUpgrade in [false, true] {
            let terms = terms(secret: true, canUpgrade: canUpgrade, client: Self.changes[index].client)
            for policy in [Policy.localValid, .localForceRefresh, .createIfNeeded] {
                let decision = decide(client(left: left), terms, .init(policy: policy))
                #expect(decision == .obtainClientCredentials(isUpgrade: true))
            }
            #expect(decide(client(left: left), terms, .init(policy: .local)) == .serve)
        }
    }

    @Test(arguments: lives)
    func `the client's credentials serve no longer when the secret is gone`(left: Duration) {
        for client in [Sample.client(secret: nil), Sample.client(id: "client-2", secret: nil)] {
            let terms = terms(secret: false, canUpgrade: true, client: client)
            #expect(decide(self.client(left: left), terms) == .retire)
            #expect(decide(self.client(left: left), terms, .init(policy: .local)) == .serve)
        }
    }

    @Test func `the same registration written otherwise is no other`() {
        for client in [Sample.client(scopes: ["a", "b", "b"]), Sample.client(uniqueKey: "")] {
            let terms = terms(secret: true, canUpgrade: true, client: client)
            #expect(decide(user(), terms) == .serve)
            #expect(decide(self.client(), terms) == .serve)
            #expect(decide(user(left: .zero), terms) == .refresh(isEarly: false))
            #expect(decide(self.client(left: .zero), terms) == .obtainClientCredentials(isUpgrade: false))
        }
    }

    @Test func `a level that is not there is not moved either`() {
        let terms = terms(secret: true, canUpgrade: true, client: Sample.client(id: "client-2"))
        #expect(decide(client(), terms, .init(lowestLevel: .user)) == .levelNotAvailable)
        #expect(decide(nil, terms, .init(lowestLevel: .user)) == .levelNotAvailable)
        #expect(decide(nil, terms) == .obtainClientCredentials(isUpgrade: false))
    }

    @Test func `what is granted to the new registration is no longer another's`() {
        let new = Sample.client(id: "client-2")
        let terms = terms(secret: true, canUpgrade: true, client: new)
        #expect(decide(user(by: new), terms) == .serve)
        #expect(decide(client(by: new), terms) == .serve)
    }

    // MARK: Another provider

    static let own = AcceptedProviders(issuer: "https://own.example", tokenEndpoint: "https://own.example/token")
    static let other = GrantingProvider(issuer: nil, tokenEndpoint: "https://other.example/token")

    /// What a query comes to while another provider is configured than the one that granted what is held.
    struct Elsewhere: Sendable {
        var policy = Policy.localValid
        var left: Duration = .seconds(3600)
        var isRefused = false
        var lowest = CredentialsLevel.basic
        let withoutSecret: CredentialsDecision
        let withSecret: CredentialsDecision
    }

    static let elsewhere: [Elsewhere] =
        [Policy.localValid, .localForceRefresh, .createIfNeeded].flatMap { policy in
            [.seconds(3600), .seconds(60)].map { (left: Duration) in
                Elsewhere(policy: policy, left: left, withoutSecret: .serve, withSecret: .serve)
            }
                + [.milliseconds(59_999), .zero, .seconds(-86_400)].map { (left: Duration) in
                    Elsewhere(
                        policy: policy, left: left, withoutSecret: .serveBasic, withSecret: .keptForOtherProvider)
                } + [
                    Elsewhere(
                        policy: policy, isRefused: true, withoutSecret: .serveBasic, withSecret: .keptForOtherProvider),
                    Elsewhere(
                        policy: policy, left: .zero, lowest: .client, withoutSecret: .levelNotAvailable,
                        withSecret: .keptForOtherProvider),
                    Elsewhere(
                        policy: policy, left: .zero, lowest: .user, withoutSecret: .levelNotAvailable,
                        withSecret: .levelNotAvailable),
                    Elsewhere(policy: policy, lowest: .user, withoutSecret: .serve, withSecret: .serve),
                ]
        }
        + [.seconds(3600), .zero, .seconds(-86_400)].map { (left: Duration) in
            Elsewhere(policy: .local, left: left, isRefused: true, withoutSecret: .serve, withSecret: .serve)
        }

    @Test(arguments: elsewhere)
    func `a session of another provider is served while its token lives, and never renewed or put away`(
        row: Elsewhere
    ) {
        let query = CredentialsQuery(policy: row.policy, lowestLevel: row.lowest, refusedByAPI: row.isRefused)
        for client in [Sample.client()] + Self.changes.map(\.client) {
            for canUpgrade in [false, true] {
                for leadTime in [Duration.zero, .seconds(86_400)] {
                    for secret in [false, true] {
                        let terms = terms(
                            secret: secret, canUpgrade: canUpgrade, leadTime: leadTime, client: client,
                            providers: Self.own)
                        let decision = decide(user(left: row.left, grantedBy: Self.other), terms, query)
                        #expect(decision == (secret ? row.withSecret : row.withoutSecret))
                    }
                }
            }
        }
    }

    @Test func `a token is served to the end where the caller is content with that`() {
        let held = user(left: .milliseconds(1), grantedBy: Self.other)
        #expect(decide(held, terms(providers: Self.own), .init(minimumLifetime: .zero)) == .serve)
    }

    @Test func `a session of a provider that is accepted is renewed as ever`() {
        var providers = Self.own
        providers.previousTokenEndpoints = ["https://other.example/token"]
        let held = user(left: .zero, grantedBy: Self.other)
        #expect(decide(held, terms(providers: providers)) == .refresh(isEarly: false))
        let moved = terms(canUpgrade: true, client: Sample.client(id: "client-2"), providers: providers)
        #expect(decide(held, moved) == .upgrade)
        #expect(decide(user(left: .zero), terms(providers: Self.own)) == .refresh(isEarly: false))
    }

    @Test func `what has no refresh token is nothing to come back to, and the client's is obtained anew`() {
        let held = user(left: .zero, refreshToken: nil, grantedBy: Self.other)
        #expect(decide(held, terms(secret: true, providers: Self.own)) == .retire)
        var clients = client(left: .zero)
        clients.grantedBy = Self.other
        let decision = decide(clients, terms(secret: true, providers: Self.own))
        #expect(decision == .obtainClientCredentials(isUpgrade: false))
    }

    // MARK: Ahead of the expiry

    @Test(
        arguments: [
            (.seconds(600), .milliseconds(600_001), .serve), (.seconds(600), .seconds(600), .refresh(isEarly: true)),
            (.seconds(600), .milliseconds(599_999), .refresh(isEarly: true)),
            (.seconds(600), .seconds(60), .refresh(isEarly: true)),
            (.seconds(600), .milliseconds(59_999), .refresh(isEarly: false)),
            (.seconds(600), .zero, .refresh(isEarly: false)), (.seconds(60), .milliseconds(60_001), .serve),
            (.seconds(60), .seconds(60), .refresh(isEarly: true)),
            (.seconds(60), .milliseconds(59_999), .refresh(isEarly: false)),
            (.seconds(59), .seconds(60), .serve), (.seconds(59), .milliseconds(59_999), .refresh(isEarly: false)),
            (.zero, .seconds(60), .serve), (.zero, .zero, .refresh(isEarly: false)),
            (.seconds(Int64.max), .seconds(3600), .refresh(isEarly: true)),
        ] as [(Duration, Duration, CredentialsDecision)])
    func `a refresh is due by the lead time, and optional while the token is good enough`(
        leadTime: Duration, left: Duration, decision: CredentialsDecision
    ) {
        #expect(decide(user(left: left), terms(leadTime: leadTime)) == decision)
        let changed = terms(leadTime: leadTime, client: Sample.client(scopes: ["a"]))
        #expect(decide(user(left: left), changed) == decision)
    }

    @Test func `a caller who is content with less makes it no less due`() {
        let terms = terms(leadTime: .seconds(600))
        let query = CredentialsQuery(minimumLifetime: .zero)
        #expect(decide(user(left: .seconds(1)), terms, query) == .refresh(isEarly: true))
        #expect(decide(user(left: .zero), terms, query) == .refresh(isEarly: false))
    }

    @Test func `only what has a refresh token of this client is refreshed early`() {
        let terms = terms(secret: true, leadTime: .seconds(600))
        #expect(decide(user(left: .seconds(300), refreshToken: nil), terms) == .serve)
        #expect(decide(user(left: .seconds(300), by: Sample.client(id: "client-2")), terms) == .serve)
        #expect(decide(client(left: .seconds(300)), terms) == .serve)
        #expect(decide(user(left: .seconds(300)), terms, .init(policy: .local)) == .serve)
        #expect(decide(user(left: .seconds(300)), terms, .init(refusedByAPI: true)) == .refresh(isEarly: false))
    }

    @Test func `what is held satisfies a query that a refresh could only better`() {
        func isEarly(_ held: HeldCredentials, _ query: CredentialsQuery) -> Bool? {
            switch decide(held, terms(leadTime: .seconds(86_400)), query) {
            case .refresh(let isEarly): isEarly
            default: nil
            }
        }
        #expect(isEarly(user(left: .seconds(60)), .init()) == true)
        #expect(isEarly(user(left: .milliseconds(59_999)), .init()) == false)
        #expect(isEarly(user(left: .zero), .init(minimumLifetime: .zero)) == false)
        #expect(isEarly(user(), .init(policy: .localForceRefresh)) == false)
        #expect(isEarly(user(), .init(refusedByAPI: true, renewedPast: 7)) == false)
        #expect(isEarly(user(), .init(refusedByAPI: true, renewedPast: 6)) == true)
        #expect(isEarly(user(), .init(lowestLevel: .user)) == true)
        #expect(isEarly(client(), .init(lowestLevel: .user)) == nil)
    }

    // MARK: Every combination

    @Test func `the laws hold for every combination`() {
        let lives: [Duration] = [.seconds(61), .seconds(60), .milliseconds(59_999), .zero, .seconds(-1)]
        var all: [HeldCredentials?] = [nil]
        for left in lives {
            all += [user(left: left), user(left: left, refreshToken: nil), client(left: left)]
            all.append(user(left: left, grantedBy: Self.other))
        }
        var everyTerms: [CredentialsPolicy.Terms] = []
        for secret in [false, true] {
            for canUpgrade in [false, true] {
                for leadTime in [Duration.zero, .seconds(61)] {
                    for client in [Sample.client(), Sample.client(scopes: ["a"]), Sample.client(id: "client-2")] {
                        everyTerms.append(
                            terms(secret: secret, canUpgrade: canUpgrade, leadTime: leadTime, client: client))
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
        #expect(count == 48_384)
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

    private func expectLaws(
        _ held: HeldCredentials?, _ terms: CredentialsPolicy.Terms, _ query: CredentialsQuery
    ) {
        let decision = decide(held, terms, query)
        if !keepsLaws(decision, held, terms, query) {
            let left = held.map { Sample.now.duration(to: $0.expires) }
            Issue.record("\(held?.level.rawValue ?? "nothing") \(left ?? .zero) \(terms) \(query): \(decision)")
        }
    }

    private func keepsLaws(
        _ decision: CredentialsDecision, _ held: HeldCredentials?, _ terms: CredentialsPolicy.Terms,
        _ query: CredentialsQuery
    ) -> Bool {
        let secret = terms.canObtainClientCredentials
        let isValid = held.map { $0.expires >= Sample.now.advanced(by: .seconds(60)) } ?? false
        let isChanged = held.map { $0.obtainedWith != terms.client } ?? false
        let isOurs = held?.obtainedWith.clientID == terms.client.clientID
        let isPlain = !query.refusedByAPI && query.policy != .localForceRefresh
        let isElsewhere = held?.grantedBy == Self.other
        let next: CredentialsLevel = secret ? .client : .basic
        if query.policy == .local, ![.serve, .missing, .levelNotAvailable].contains(decision) { return false }
        // What is good is served, unless there is something to better and the means to do it.
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
        case .serveBasic: return (held == nil || isElsewhere) && !secret && query.lowestLevel == .basic
        case .refresh(let isEarly):
            return held?.refreshToken != nil && held?.level == .user && isOurs && !(isChanged && terms.canUpgrade)
                && (!isEarly || isValid && terms.leadTime > .zero) && !isElsewhere
        case .upgrade:
            return held?.refreshToken != nil && held?.level == .user && isChanged && terms.canUpgrade && !isElsewhere
        case .keptForOtherProvider:
            return isElsewhere && secret && query.lowestLevel <= .client && (!isValid || query.refusedByAPI)
        case .obtainClientCredentials(let isUpgrade):
            return secret && query.lowestLevel <= .client && held?.level != .user && isUpgrade == isChanged
        case .retire:
            // One step further there is an end.
            return held != nil && (held?.refreshToken == nil || !isOurs && !terms.canUpgrade) && !isElsewhere
                && decide(nil, terms, query) != .retire
        case .missing:
            if held == nil { return query.policy == .local || query.policy == .localForceRefresh }
            return held?.level == .user && held?.refreshToken == nil && query.policy == .localForceRefresh
        // Only what a renewal brought can be over on arrival.
        case .expiredOnArrival: return false
        case .levelNotAvailable: return (isElsewhere ? next : held?.level ?? next) < query.lowestLevel
        }
    }
}
