import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing

@Suite struct `The terms of a grant` {
    private static let earliest = Sample.now.advanced(by: .seconds(1800))

    private static func held(_ terms: GrantTerms?) -> HeldCredentials {
        var held = Sample.held()
        held.terms = terms
        return held
    }

    private static func decide(
        _ terms: GrantTerms?, refusesEarly: Bool = false, lead: Duration? = nil, _ query: CredentialsQuery,
        at age: Duration
    ) -> CredentialsDecision {
        var policy = CredentialsPolicy.Terms(
            client: Sample.client().fingerprint, canObtainClientCredentials: false, canUpgrade: false, leadTime: lead,
            providers: AcceptedProviders(issuer: nil, tokenEndpoint: nil))
        policy.refusesEarlyRefresh = refusesEarly
        return CredentialsPolicy().decide(
            held(terms), version: 1, terms: policy, query: query, now: Sample.now.advanced(by: age))
    }

    private static let plain = CredentialsQuery()
    private static let long = CredentialsQuery(minimumLifetime: .seconds(86_400))
    private static let forced = CredentialsQuery(policy: .localForceRefresh)
    private static let refused = CredentialsQuery(refusedByAPI: true)
    private static let replaced = CredentialsQuery(policy: .localForceRefresh, renewedPast: 0)

    @Test(
        arguments: [
            (plain, 0, .serve), (long, 0, .serve), (long, 1799, .serve), (long, 1800, .refresh(isEarly: false)),
            (forced, 0, .tooEarly(until: earliest)), (forced, 1799, .tooEarly(until: earliest)),
            (forced, 1800, .refresh(isEarly: false)), (refused, 1799, .tooEarly(until: earliest)),
            (refused, 1800, .refresh(isEarly: false)),
            // What the caller wants replaced has been replaced.
            (replaced, 0, .serve), (plain, 3600, .refresh(isEarly: false)),
        ] as [(CredentialsQuery, Int, CredentialsDecision)])
    func `hold back a refresh until their time`(query: CredentialsQuery, age: Int, decision: CredentialsDecision) {
        #expect(Self.decide(GrantTerms(earliestRefresh: Self.earliest), query, at: .seconds(age)) == decision)
    }

    @Test(
        arguments: [
            (nil, long, 3599, .serve), (nil, forced, 3599, .tooEarly(until: Sample.now.advanced(by: .seconds(3600)))),
            (nil, plain, 3600, .refresh(isEarly: false)), (30, plain, 3569, .serve),
            (30, plain, 3570, .refresh(isEarly: true)), (30, long, 3570, .refresh(isEarly: false)),
            (30, forced, 3569, .tooEarly(until: Sample.now.advanced(by: .seconds(3570)))),
        ] as [(Int64?, CredentialsQuery, Int, CredentialsDecision)])
    func `of a provider that renews at the end only`(
        lead: Int64?, query: CredentialsQuery, age: Int, decision: CredentialsDecision
    ) {
        let lead = lead.map { Duration.seconds($0) }
        #expect(Self.decide(nil, refusesEarly: true, lead: lead, query, at: .seconds(age)) == decision)
    }

    @Test func `have a login's token exchanged before anything else`() {
        for query in [Self.plain, Self.long, Self.forced, Self.refused] {
            #expect(Self.decide(GrantTerms(awaitsExchange: true), query, at: .zero) == .refresh(isEarly: false))
        }
        let local = CredentialsQuery(policy: .local)
        #expect(Self.decide(GrantTerms(awaitsExchange: true), local, at: .zero) == .serve)
    }

    @Test(arguments: [
        nil, GrantTerms(awaitsExchange: true), GrantTerms(earliestRefresh: earliest),
        GrantTerms(earliestRefresh: earliest, refreshTokenEnds: Sample.now, consentEnds: .latest),
        GrantTerms(relogin: Sample.now),
    ])
    func `are stored with the credentials`(terms: GrantTerms?) {
        let record = CredentialRecord(held: Self.held(terms))
        #expect(CredentialRecord(decoding: record.encoded) == record)
    }

    @Test func `that say nothing are none`() { #expect(GrantTerms() == nil) }
}

@Suite struct `A request in the provider's own form` {
    private static func read(_ json: String) throws -> (template: RequestTemplate, faults: Int) {
        var reader = ObjectReader(try JSONValue(parsing: Array(json.utf8)))
        let template = RequestTemplate(&reader) { $0.string("endpoint").flatMap { AddressTemplate($0) } }
        reader.refuseUnknown()
        return (template, reader.faultCount)
    }

    @Test(
        arguments: [
            (#"{"parameters": {"a": "{access_token}"}}"#, true),
            (#"{"parameters": {"a": "{access_token}/{scope}"}}"#, true),
            (#"{"parameters": {"r": "{refresh_token}", "a": "{access_token}"}}"#, false),
            (#"{"parameters": {"r": "{refresh_token}"}}"#, false), (#"{"method": "GET"}"#, false),
        ])
    func `presents the access token in place of a refresh token, or does not`(json: String, isOwn: Bool) throws {
        let (template, faults) = try Self.read(json)
        #expect(template.usesAccessToken == isOwn && faults == 0)
    }

    @Test(arguments: [
        #"{"parameters": {"a": "{token}"}}"#, #"{"parameters": {"a": "{access_token"}}"#, #"{"parameters": {}}"#,
        #"{"parameters": {"a b": "c"}}"#, #"{"method": "get", "parameters": {"a": "b"}}"#, #"{"body": "x"}"#,
    ])
    func `is refused where it is wrong`(json: String) throws { #expect(try Self.read(json).faults == 1) }

    @Test func `leaves out what has no value, and keeps what it is given as it is`() throws {
        let (template, _) = try Self.read(
            #"{"method": "GET", "parameters": {"b": "{client_secret}", "a": "{refresh_token}//{access_token}", "c": "{client_id}"}}"#
        )
        var server = Sample.oidc
        server.own = OwnRequests(refresh: .init(address: "https://id.example/r", template: template), exchange: nil)
        let request = TokenRequest.refresh(SecretBytes(utf8: "r/"), accessToken: SecretBytes(utf8: "/a"))
        let form = try #require(request.ownForm(for: Sample.client(secret: nil), at: server))
        #expect(form.address == "https://id.example/r" && form.format == .query)
        #expect(form.pairs.map(\.name.text) == ["a", "c"])
        #expect(form.pairs.map(\.value.text) == ["r////a", "client-1"])
        #expect(TokenRequest.clientCredentials.ownForm(for: Sample.client(), at: server) == nil)
        let exchange = TokenRequest.exchange(
            accessToken: SecretBytes(utf8: "a"), refreshToken: SecretBytes(utf8: "r"))
        #expect(exchange.ownForm(for: Sample.client(), at: server) == nil && exchange.grant == .refreshToken)
    }
}
