import ExternalText
import OAuth
import Testing

/// Decisions after a change of the registration or the provider, and early refreshes.
extension `Credentials policy` {
    // MARK: Another registration

    /// The four ways in which a registration can change, and two of them together.
    static let changes: [(name: String, client: ClientConfiguration)] = [
        ("client_id", Sample.client(id: "client-2")), ("client_secret", Sample.client(secret: "secret-2")),
        ("no client_secret", Sample.client(secret: nil)), ("client_unique_key", Sample.client(uniqueKey: "k")),
        ("scopes", Sample.client(scopes: ["a"])), ("client_id and scopes", Sample.client(id: "client-2", scopes: [])),
    ]

    static let lifetimes: [Duration] = [.seconds(3600), .seconds(60), .milliseconds(59_999), .zero, .seconds(-3600)]

    // T47
    @Test(arguments: changes.indices, lifetimes)
    func `a user's session is moved to the new registration, expired or not`(index: Int, left: Duration) {
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

    @Test(arguments: changes.indices, lifetimes)
    func `without a refresh token a session cannot be moved`(index: Int, left: Duration) {
        let client = Self.changes[index].client
        let terms = terms(secret: true, canUpgrade: true, client: client)
        let held = user(left: left, refreshToken: nil)
        // What is left of it is kept for its own client.
        let isKept = client.clientID != Sample.client().clientID && left > .zero
        #expect(decide(held, terms) == (left >= .seconds(60) ? .serve : isKept ? .kept : .retire))
        #expect(decide(held, terms, .init(refusedByAPI: true)) == (isKept ? .kept : .retire))
        #expect(decide(held, terms, .init(policy: .localForceRefresh)) == .missing)
    }

    @Test(arguments: changes.indices, lifetimes)
    func `without an upgrade the same client refreshes when a refresh is due, and for another client the set is kept`(
        index: Int, left: Duration
    ) {
        let client = Self.changes[index].client
        let isSameClient = client.clientID == Sample.client().clientID
        let isValid = left >= .seconds(60)
        for secret in [false, true] {
            let terms = terms(secret: secret, client: client)
            let besideUser: CredentialsDecision = secret ? .kept : .serveBasic
            let renewal: CredentialsDecision = isSameClient ? .refresh(isEarly: false) : besideUser
            #expect(decide(user(left: left), terms) == (isValid ? .serve : renewal))
            #expect(decide(user(left: left), terms, .init(refusedByAPI: true)) == renewal)
            let forced: CredentialsDecision = isSameClient || !isValid ? renewal : .serve
            #expect(decide(user(left: left), terms, .init(policy: .localForceRefresh)) == forced)
            #expect(decide(user(left: left), terms, .init(policy: .local)) == .serve)
        }
    }

    @Test(arguments: changes.indices, lifetimes)
    func `the client's credentials are obtained anew for the new registration, expired or not`(
        index: Int, left: Duration
    ) {
        for canUpgrade in [false, true] {
            let terms = terms(secret: true, canUpgrade: canUpgrade, client: Self.changes[index].client)
            for policy in [Policy.localValid, .localForceRefresh, .createIfNeeded] {
                let decision = decide(client(left: left), terms, .init(policy: policy))
                #expect(decision == .obtainClientCredentials(isUpgrade: true))
            }
            #expect(decide(client(left: left), terms, .init(policy: .local)) == .serve)
        }
    }

    @Test(arguments: lifetimes)
    func `the client's credentials are not served when the secret is no longer configured`(left: Duration) {
        for client in [Sample.client(secret: nil), Sample.client(id: "client-2", secret: nil)] {
            let terms = terms(secret: false, canUpgrade: true, client: client)
            #expect(decide(self.client(left: left), terms) == .retire)
            #expect(decide(self.client(left: left), terms, .init(policy: .local)) == .serve)
        }
    }

    @Test func `the same registration in another spelling is not another one`() {
        for client in [Sample.client(scopes: ["a", "b", "b"]), Sample.client(uniqueKey: "")] {
            let terms = terms(secret: true, canUpgrade: true, client: client)
            #expect(decide(user(), terms) == .serve)
            #expect(decide(self.client(), terms) == .serve)
            #expect(decide(user(left: .zero), terms) == .refresh(isEarly: false))
            #expect(decide(self.client(left: .zero), terms) == .obtainClientCredentials(isUpgrade: false))
        }
    }

    @Test func `a query for a level that is not available moves no session`() {
        let terms = terms(secret: true, canUpgrade: true, client: Sample.client(id: "client-2"))
        #expect(decide(client(), terms, .init(lowestLevel: .user)) == .levelNotAvailable)
        #expect(decide(nil, terms, .init(lowestLevel: .user)) == .levelNotAvailable)
        #expect(decide(nil, terms) == .obtainClientCredentials(isUpgrade: false))
    }

    @Test func `credentials granted to the new registration match it`() {
        let new = Sample.client(id: "client-2")
        let terms = terms(secret: true, canUpgrade: true, client: new)
        #expect(decide(user(by: new), terms) == .serve)
        #expect(decide(client(by: new), terms) == .serve)
    }

    /// A client that another one has been mistaken for, by every way to ask, with and without a refresh token.
    @Test(arguments: lifetimes, [Optional("r"), nil])
    func `no query removes what is left of another client's session`(left: Duration, refreshToken: String?) {
        let held = user(left: left, refreshToken: refreshToken)
        let isOver = refreshToken == nil && left <= .zero
        for secret in [false, true] {
            for hasLowerLevels in [false, true] {
                var terms = terms(secret: secret, client: Sample.client(id: "client-2"))
                (terms.hasLowerLevels, terms.canCreateAccounts) = (hasLowerLevels, true)
                for query in Self.everyQuery {
                    let decision = decide(held, terms, query)
                    #expect((decision == .retire) == (isOver && query.policy != .local && decision != .missing))
                    #expect(decision != .createAccount && decision != .obtainClientCredentials(isUpgrade: false))
                    // Put back, it serves or is refreshed as before.
                    if refreshToken != nil, query.policy == .localValid, !query.refusedByAPI {
                        let expected: CredentialsDecision = left >= .seconds(60) ? .serve : .refresh(isEarly: false)
                        #expect(decide(held, self.terms(secret: secret), query) == expected)
                    }
                }
            }
        }
    }

    @Test func `another client's session is kept for the level that is asked for`() {
        let held = user(left: .zero)
        for (secret, lowest, decision) in [
            (false, .basic, .serveBasic), (false, .client, .levelNotAvailable), (false, .user, .levelNotAvailable),
            (true, .basic, .kept), (true, .client, .kept), (true, .user, .levelNotAvailable),
        ] as [(Bool, CredentialsLevel, CredentialsDecision)] {
            let terms = terms(secret: secret, client: Sample.client(id: "client-2"))
            for policy in [Policy.localValid, .localForceRefresh, .createIfNeeded] {
                #expect(decide(held, terms, .init(policy: policy, lowestLevel: lowest)) == decision)
            }
        }
    }

    // MARK: Another provider

    static let own = AcceptedProviders(issuer: "https://own.example", tokenEndpoint: "https://own.example/token")
    static let other = GrantingProvider(issuer: nil, tokenEndpoint: "https://other.example/token")

    /// The decisions for a query while another provider is configured than the one that granted the held credentials.
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
                        policy: policy, left: left, withoutSecret: .serveBasic, withSecret: .kept)
                } + [
                    Elsewhere(
                        policy: policy, isRefused: true, withoutSecret: .serveBasic, withSecret: .kept),
                    Elsewhere(
                        policy: policy, left: .zero, lowest: .client, withoutSecret: .levelNotAvailable,
                        withSecret: .kept),
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
    func `a session of another provider is served until its token expires, and never renewed or removed`(
        row: Elsewhere
    ) {
        let query = CredentialsQuery(policy: row.policy, lowestLevel: row.lowest, refusedByAPI: row.isRefused)
        for client in [Sample.client()] + Self.changes.map(\.client) {
            for canUpgrade in [false, true] {
                for leadTime in [nil, Duration.seconds(60), .seconds(86_400)] {
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

    @Test func `at a provider without lower levels, another provider's session is kept and nothing is served`() {
        var terms = terms(secret: true, providers: Self.own)
        terms.hasLowerLevels = false
        let held = user(left: .zero, grantedBy: Self.other)
        for policy in [Policy.localValid, .localForceRefresh, .createIfNeeded] {
            for lowest in CredentialsLevel.allCases {
                let query = CredentialsQuery(policy: policy, lowestLevel: lowest)
                #expect(decide(held, terms, query) == .kept)
            }
        }
    }

    /// The policy, and the decisions without and with account creation.
    @Test(
        arguments: [
            (.local, .missing, .missing), (.localValid, .missing, .missing), (.localForceRefresh, .missing, .missing),
            (.createIfNeeded, .missing, .createAccount),
        ] as [(Policy, CredentialsDecision, CredentialsDecision)])
    func `without lower levels nothing stored is nothing to serve, and an account is created if that is asked for`(
        policy: Policy, without: CredentialsDecision, with: CredentialsDecision
    ) {
        for lowest in CredentialsLevel.allCases {
            for (canCreate, decision) in [(false, without), (true, with)] {
                var terms = terms()
                (terms.hasLowerLevels, terms.canCreateAccounts) = (false, canCreate)
                let query = CredentialsQuery(policy: policy, lowestLevel: lowest)
                #expect(decide(nil, terms, query) == decision)
                #expect(
                    CredentialsPolicy().serves(renewed: nil, terms: terms, query: query, now: Sample.now) == .missing)
            }
        }
        var terms = terms()
        terms.canCreateAccounts = true
        #expect(decide(user(left: .zero, refreshToken: nil), terms, .init(policy: .createIfNeeded)) == .retire)
    }

    @Test func `a token is served until its expiry when the caller accepts that`() {
        let held = user(left: .milliseconds(1), grantedBy: Self.other)
        #expect(decide(held, terms(providers: Self.own), .init(minimumLifetime: .zero)) == .serve)
    }

    @Test func `a session of an accepted provider is renewed as usual`() {
        var providers = Self.own
        providers.previousTokenEndpoints = ["https://other.example/token"]
        let held = user(left: .zero, grantedBy: Self.other)
        #expect(decide(held, terms(providers: providers)) == .refresh(isEarly: false))
        let moved = terms(canUpgrade: true, client: Sample.client(id: "client-2"), providers: providers)
        #expect(decide(held, moved) == .upgrade)
        #expect(decide(user(left: .zero), terms(providers: Self.own)) == .refresh(isEarly: false))
    }

    @Test func `credentials of another provider without a refresh token are replaced`() {
        let held = user(left: .zero, refreshToken: nil, grantedBy: Self.other)
        #expect(decide(held, terms(secret: true, providers: Self.own)) == .retire)
        // Not while something is left of them.
        let living = user(left: .milliseconds(1), refreshToken: nil, grantedBy: Self.other)
        #expect(decide(living, terms(secret: true, providers: Self.own)) == .kept)
        let refused = CredentialsQuery(refusedByAPI: true)
        let whole = user(refreshToken: nil, grantedBy: Self.other)
        #expect(decide(whole, terms(secret: true, providers: Self.own), refused) == .kept)
        #expect(decide(whole, terms(secret: false, providers: Self.own), refused) == .serveBasic)
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
            (.seconds(59), .milliseconds(59_001), .serve), (.seconds(59), .seconds(59), .refresh(isEarly: true)),
            (.seconds(59), .milliseconds(58_999), .refresh(isEarly: false)),
            (.zero, .milliseconds(1), .serve),
            (.zero, .seconds(60), .serve), (.zero, .zero, .refresh(isEarly: false)),
            (.seconds(Int64.max), .seconds(3600), .refresh(isEarly: true)),
        ] as [(Duration, Duration, CredentialsDecision)])
    func `a refresh is due by the lead time, and optional while the token satisfies the query`(
        leadTime: Duration, left: Duration, decision: CredentialsDecision
    ) {
        #expect(decide(user(left: left), terms(leadTime: leadTime)) == decision)
        let changed = terms(leadTime: leadTime, client: Sample.client(scopes: ["a"]))
        #expect(decide(user(left: left), changed) == decision)
    }

    @Test func `a query for a shorter lifetime does not delay an early refresh`() {
        let terms = terms(leadTime: .seconds(600))
        let query = CredentialsQuery(minimumLifetime: .zero)
        #expect(decide(user(left: .seconds(1)), terms, query) == .refresh(isEarly: true))
        #expect(decide(user(left: .zero), terms, query) == .refresh(isEarly: false))
    }

    @Test func `only credentials with a refresh token of this client are refreshed early`() {
        let terms = terms(secret: true, leadTime: .seconds(600))
        #expect(decide(user(left: .seconds(300), refreshToken: nil), terms) == .serve)
        #expect(decide(user(left: .seconds(300), by: Sample.client(id: "client-2")), terms) == .serve)
        #expect(decide(client(left: .seconds(300)), terms) == .serve)
        #expect(decide(user(left: .seconds(300)), terms, .init(policy: .local)) == .serve)
        #expect(decide(user(left: .seconds(300)), terms, .init(refusedByAPI: true)) == .refresh(isEarly: false))
    }

    @Test func `the held credentials satisfy a query when the refresh is an early one`() {
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

    // MARK: A provider that ends the token at its refresh

    /// The time that is left, the query's `min_ttl`, the lead time, and whether the token is renewed.
    static let lateRenewals: [(Duration, Duration?, Duration?, Bool)] = [
        (.seconds(3600), .seconds(86_400), nil, false), (.seconds(60), nil, .seconds(86_400), false),
        (.milliseconds(10_001), .seconds(3600), .seconds(600), false), (.seconds(10), nil, nil, false),
        (.milliseconds(9999), nil, nil, true), (.milliseconds(9999), .seconds(3600), .seconds(600), true),
        (.milliseconds(9999), .seconds(10), nil, true), (.seconds(9), .seconds(9), nil, false),
        (.milliseconds(1), .zero, nil, false), (.zero, .zero, nil, true),
    ]

    @Test(arguments: lateRenewals)
    func `a token that ends at its refresh is renewed ten seconds before its end, whatever a caller wants`(
        left: Duration, minimum: Duration?, lead: Duration?, isRenewed: Bool
    ) {
        var terms = terms(leadTime: lead)
        terms.renewsLate = true
        let query = CredentialsQuery(minimumLifetime: minimum)
        #expect(decide(user(left: left), terms, query) == (isRenewed ? .refresh(isEarly: false) : .serve))
        // An API that has refused it is a reason at any time.
        #expect(
            decide(user(left: left), terms, CredentialsQuery(minimumLifetime: minimum, refusedByAPI: true))
                == .refresh(isEarly: false))
    }

    @Test func `a client's token is renewed as ever where a user's ends at its refresh`() {
        var terms = terms(secret: true)
        terms.renewsLate = true
        #expect(decide(client(left: .seconds(59)), terms) == .obtainClientCredentials(isUpgrade: false))
        let query = CredentialsQuery(minimumLifetime: .seconds(3601))
        #expect(decide(client(), terms, query) == .obtainClientCredentials(isUpgrade: false))
    }

    // MARK: A token that lives shorter than a caller wants

    /// When the token was renewed, seconds ago; what is left of it; the query's `min_ttl`; and whether it is renewed.
    static let shortLives: [(Int64, Int64, Int64, Bool)] = [
        (0, 3600, 7200, false), (1799, 1801, 7200, false), (1800, 1800, 7200, true), (1801, 1799, 7200, true),
        (1, 3599, 3600, false), (1, 3599, 3599, false), (2, 3598, 3599, true), (14, 16, 60, false),
        (15, 15, 60, true), (1, 0, 60, true),
    ]

    @Test(arguments: shortLives)
    func `a token that lives shorter than a caller wants is not renewed before half of its life is over`(
        age: Int64, left: Int64, minimum: Int64, isRenewed: Bool
    ) {
        let (held, query) = (user(left: .seconds(left)), CredentialsQuery(minimumLifetime: .seconds(minimum)))
        let renewed = CredentialRecord(held: held, renewed: Sample.now.advanced(by: .seconds(-age)))
        func decide(_ record: CredentialRecord, _ query: CredentialsQuery) -> CredentialsDecision {
            CredentialsPolicy().decide(record, version: 7, terms: terms(), query: query, now: Sample.now)
        }
        #expect(decide(renewed, query) == (isRenewed ? .refresh(isEarly: false) : .serve))
        // The life of a token that a login brought is not known.
        if left < minimum { #expect(decide(CredentialRecord(held: held), query) == .refresh(isEarly: false)) }
        var refused = query
        refused.refusedByAPI = true
        #expect(decide(renewed, refused) == .refresh(isEarly: false))
    }
}
