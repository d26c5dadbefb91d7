import BrokerCore
import BrokerTesting
import ExternalText
import OAuth
import Reactor
import Testing

/// What is known of one client at one endpoint, without calls: who is refused, who tries, and until when.
@Suite struct `Provider health` {
    private static let today = Timestamp(milliseconds: 1_795_000_000_000)

    private static func at(_ milliseconds: Int64) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 1).advanced(by: .milliseconds(milliseconds))
    }

    private static func user(_ name: String) throws -> CredentialsID {
        CredentialsID(tenant: try #require(TenantName("t1")), storageKey: try #require(StorageKey(name)))
    }

    private static func fault(_ code: String = "invalid_client", at milliseconds: Int64 = 0) -> ProviderHealth.Fault {
        ProviderHealth.Fault(
            BrokerError(.illegalConfiguration, "The client is refused.", errorCode: code), after: nil,
            at: (today.advanced(by: .milliseconds(milliseconds)), at(milliseconds)))
    }

    /// With a circuit that has opened at the beginning.
    private static func silent() -> ProviderHealth {
        var health = ProviderHealth()
        for _ in 0..<ProviderCircuit.threshold { _ = health.circuit.fail(.unreachable, at: at(0)) }
        return health
    }

    private static let all: ProviderHealth.Aspects = [.fault, .pause, .circuit]

    /// The answer in a word, and until when it counts, in milliseconds.
    private static func admit(
        _ health: inout ProviderHealth, _ aspects: ProviderHealth.Aspects = all, at milliseconds: Int64
    ) -> String {
        switch health.admit(aspects, at: at(milliseconds), jitter: .zero) {
        case .yes: "yes"
        case .trial(let trial):
            "trial"
                + [(ProviderHealth.Trial.client, " client"), (.grant, " grant"), (.circuit, " circuit")]
                .filter { trial.contains($0.0) }.map(\.1).joined()
        case .no(let refusal): shown(refusal)
        }
    }

    private static func shown(_ refusal: ProviderHealth.Refusal) -> String {
        let reason =
            switch refusal.reason {
            case .clientRefused(let fault): "refused \(fault.error.errorCode ?? "")"
            case .providerAskedToWait: "asked to wait"
            case .circuitOpen: "open"
            }
        return "\(reason) until \(at(0).duration(to: refusal.until).milliseconds)"
    }

    @Test func `says yes if nothing is known`() {
        var health = ProviderHealth()
        #expect(Self.admit(&health, at: 0) == "yes")
        #expect(health == ProviderHealth())
    }

    // MARK: One reason

    @Test(
        arguments: [
            (0, "refused invalid_client until 30000"), (29_999, "refused invalid_client until 30000"),
            (30_000, "trial client"), (30_001, "trial client"), (629_999, "trial client"), (630_000, "yes"),
            (630_001, "yes"),
        ] as [(Int64, String)])
    func `asks again of a client that was refused after 30 seconds, and has forgotten that after ten minutes more`(
        time: Int64, answer: String
    ) {
        var health = ProviderHealth()
        health.fault = Self.fault()
        #expect(Self.admit(&health, at: time) == answer)
        #expect((health.fault == nil) == (answer == "yes"))
    }

    @Test func `begins the next pause of a refused client with its trial`() {
        var health = ProviderHealth()
        health.fault = Self.fault()
        #expect(Self.admit(&health, at: 40_000) == "trial client")
        #expect(health.fault?.isTrial == true)
        #expect(Self.admit(&health, at: 40_000) == "refused invalid_client until 70000")
        #expect(health.fault?.since == Self.today)
    }

    @Test(
        arguments: [(29_999, true), (30_000, true), (629_999, true), (630_000, false), (630_001, false)]
            as [(Int64, Bool)])
    func `counts the next refusal as the same fault while that is known`(time: Int64, isSame: Bool) {
        var first = Self.fault()
        first.isShared = true
        let clocks = (now: Self.today.advanced(by: .milliseconds(time)), monotonic: Self.at(time))
        let second = ProviderHealth.Fault(BrokerError(.illegalConfiguration, ""), after: first, at: clocks)
        #expect(second.since == (isSame ? first.since : clocks.now))
        #expect(second.isShared == isSame)
        #expect((second.last, second.until) == (clocks.now, Self.at(time + 30_000)))
    }

    @Test(
        arguments: [(999, "asked to wait until 1000"), (1000, "yes"), (1001, "yes")] as [(Int64, String)])
    func `waits for as long as the provider has asked for`(time: Int64, answer: String) throws {
        var health = ProviderHealth()
        health.askedToWait(try Self.user("one"), for: .seconds(1), at: Self.at(0))
        #expect(Self.admit(&health, at: time) == answer)
    }

    @Test(
        arguments: [(999, "open until 1000"), (1000, "trial circuit"), (1001, "trial circuit")]
            as [(Int64, String)])
    func `lets one call through to a provider that does not answer`(time: Int64, answer: String) {
        var health = Self.silent()
        #expect(Self.admit(&health, at: time) == answer)
        if answer != "open until 1000" { #expect(Self.admit(&health, at: time) == "open until \(time + 1500)") }
    }

    // MARK: Several reasons

    /// What a call heeds of all that stands against it.
    @Test(
        arguments: [
            (Self.all, "refused invalid_client until 30000"), ([.fault], "refused invalid_client until 30000"),
            ([.pause, .circuit], "asked to wait until 5000"), ([.circuit], "open until 1000"), ([], "yes"),
        ] as [(ProviderHealth.Aspects, String)])
    func `says the reason that has least to do with this call`(
        aspects: ProviderHealth.Aspects, answer: String
    ) throws {
        var health = Self.silent()
        health.fault = Self.fault()
        health.grantFault = Self.fault("unauthorized_client", at: 10)
        health.askedToWait(try Self.user("one"), for: .seconds(5), at: Self.at(0))
        #expect(health.refusal(aspects, at: Self.at(500)).map(Self.shown) == (answer == "yes" ? nil : answer))
        #expect(Self.admit(&health, aspects, at: 500) == answer)
    }

    @Test(
        arguments: [(30_000, "refused unauthorized_client until 30010"), (30_010, "trial client grant")]
            as [(Int64, String)])
    func `does not use up a trial for a call that something else forbids`(time: Int64, answer: String) {
        var health = ProviderHealth()
        health.fault = Self.fault()
        health.grantFault = Self.fault("unauthorized_client", at: 10)
        #expect(Self.admit(&health, at: time) == answer)
        #expect(health.fault?.isTrial == (answer == "trial client grant"))
    }

    @Test func `makes one call the trial of client and circuit`() {
        var health = Self.silent()
        health.fault = Self.fault()
        #expect(Self.admit(&health, at: 30_000) == "trial client circuit")
    }

    // MARK: Whom a pause concerns

    /// What the first user was told, and for how long each of the two is paused.
    @Test(arguments: [(1, 1, 1), (4, 4, 4), (5, 5, 5), (6, 6, 5), (3600, 3600, 5)] as [(Int64, Int64, Int64)])
    func `the first answer pauses its user for as long as it says, and others for five seconds at most`(
        asked: Int64, own: Int64, others: Int64
    ) throws {
        var one = ProviderHealth()
        one.askedToWait(try Self.user("one"), for: .seconds(asked), at: Self.at(0))
        var two = one
        two.userPause = nil
        #expect(one.refusal(.pause, at: Self.at(0))?.until == Self.at(own * 1000))
        #expect(two.refusal(.pause, at: Self.at(0))?.until == Self.at(others * 1000))
        #expect(two.refusal(.pause, at: Self.at(others * 1000)) == nil)
        #expect(one.refusal(.pause, at: Self.at(own * 1000)) == nil)
    }

    /// When a second answer comes, for whom, and for how long the others are paused then.
    @Test(
        arguments: [
            (6, "two", 100), (59, "two", 100), (60, "two", 5), (6, "one", 5),
        ] as [(Int64, String, Int64)])
    func `another user's answer while that pause lasts pauses all for as long as it says`(
        second: Int64, name: String, others: Int64
    ) throws {
        var health = ProviderHealth()
        health.askedToWait(try Self.user("one"), for: .seconds(60), at: Self.at(0))
        if name != "one" { health.userPause = nil }
        health.askedToWait(try Self.user(name), for: .seconds(100), at: Self.at(second * 1000))
        health.userPause = nil
        #expect(health.refusal(.pause, at: Self.at(second * 1000))?.until == Self.at((second + others) * 1000))
    }

    @Test func `an answer to a call without stored credentials pauses such calls, and no user`() {
        var other = ProviderHealth()
        for second in 0..<3 { other.askedToWait(nil, for: .seconds(100), at: Self.at(Int64(second) * 1000)) }
        #expect(other.pause == nil)
        #expect(other.refusal(.pause, at: Self.at(2000))?.until == Self.at(102_000))
    }

    @Test(arguments: [(1, 60), (59, 60), (60, 60), (61, 61)] as [(Int64, Int64)])
    func `a shorter pause does not end a longer one`(second: Int64, end: Int64) {
        var health = ProviderHealth()
        health.askedAllToWait(for: .seconds(60), at: Self.at(0))
        health.askedAllToWait(for: .seconds(second), at: Self.at(0))
        health.askedUserToWait(for: .seconds(1), at: Self.at(0))
        #expect(health.refusal(.pause, at: Self.at(0))?.until == Self.at(end * 1000))
    }

    // MARK: Many clients

    private static let client = ProviderClient(
        ClientConfiguration(clientID: "c1", clientSecret: nil, clientUniqueKey: nil, scopes: .empty),
        at: AuthorizationServer(
            preset: .oidc, authorizationEndpoint: "https://id.example/a", tokenEndpoint: "https://id.example/t",
            revocationEndpoint: nil, issuer: nil, announcesIssuerInResponses: false, clientAuthentication: .none,
            pinnedCertificates: []))

    private let time = ManualTime()
    private let healths: ProviderHealths

    init() {
        healths = ProviderHealths(
            time: time, metrics: Metrics(), log: Log(threshold: .error, time: time) { _ in })
    }

    private func remaining(_ name: String?) throws -> Duration? {
        let user = ProviderClient.User(try name.map(Self.user), of: Self.client)
        return healths.refusal(user).map { time.monotonic.duration(to: $0.until) }
    }

    @Test func `keeps the pauses of users apart`() throws {
        healths.pause(ProviderClient.User(try Self.user("one"), of: Self.client), for: .seconds(60))
        #expect(try remaining("one") == .seconds(60))
        #expect(try remaining("two") == .seconds(5))
        #expect(try remaining(nil) == .seconds(5))
        time.advance(by: .seconds(5))
        #expect(try remaining("one") == .seconds(55))
        #expect(try remaining("two") == nil)
    }

    @Test func `a new configuration ends the pauses of the client and of all its users`() throws {
        for name in ["one", "two"] {
            healths.pause(ProviderClient.User(try Self.user(name), of: Self.client), for: .seconds(60))
        }
        healths.lift(Self.client)
        #expect(try [remaining("one"), remaining("two"), remaining(nil)].allSatisfy { $0 == nil })
    }
}
