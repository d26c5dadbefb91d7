import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Reactor
import Testing

/// Two brokers on one PostgreSQL, of which one is killed between the provider's grant and the commit that stores it.
@Suite(.timeLimit(.minutes(5)))
struct `An app's login whose broker is killed` {
    /// What the provider has done when the broker is killed.
    enum Moment: String, CaseIterable {
        /// It has granted, and its answer is under way.
        case answering
        /// The broker has the answer, and its commit does not reach the database.
        case committing
    }

    private static let redirectURI = "http://127.0.0.1:7/callback"

    // B06
    @Test(arguments: Moment.allCases)
    func `is begun again at the other one, and nothing that was granted stays unused`(moment: Moment) async throws {
        var configuration = ProviderConfiguration(
            profile: .rfc, clients: [ProviderClient("broker", secret: "the secret", scopes: ["r_usr"])])
        configuration.rotation = .rotate(grace: .seconds(10))
        let delays = ProviderClock()
        let provider = try RunningProvider(configuration, clock: delays)
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let loop = try EventLoop(name: "relay")
        let relay = try PostgresRelay(to: server.port, on: loop)
        await relay.start()
        let (firstPort, secondPort) = (try PostgresServer.freePort(), try PostgresServer.freePort())
        func start(_ port: UInt16, _ address: String) async throws -> TestProcess {
            try await BrokerProcess.start(
                port: port,
                [
                    "DATABASE_URL": address, "MASTER_KEYS": BrokerHarness.masterKeys,
                    "ALLOW_INSECURE_PROVIDERS": "true", "PUBLIC_BASE_URL": "http://127.0.0.1:\(firstPort)",
                    // Soon after this, six times over and 30 s, the other one presents the code. The first one gives up
                    // after this, once: the test kills it before.
                    "PROVIDER_TIMEOUT": "2",
                ])
        }
        let first = try await start(firstPort, server.uri(database: database, port: relay.port))
        let second = try await start(secondPort, server.uri(database: database))
        let brokers = [try BrokerClient(port: firstPort), try BrokerClient(port: secondPort)]
        try await Self.prepare(brokers[1], at: provider)

        var browser = AppBrowser([brokers[0]], at: provider)
        let callback = try await browser.begin(app: "player", redirectURI: Self.redirectURI, as: "alice")
        let question = try await browser.bring(callback)
        provider.provider.script(Fault(.token, grant: .authorizationCode, answerDelay: .seconds(1)))
        let pressing = Task { [browser] in
            var browser = browser
            return try await browser.confirm(question, redirectURI: Self.redirectURI)
        }
        // Until the provider has granted.
        await delays.waitForSleepers(1)
        if moment == .committing {
            await relay.freezeAll()
            delays.advance(by: .seconds(1))
            try await Task.sleep(for: .milliseconds(300))
        }
        await first.kill()
        if moment == .answering { delays.advance(by: .seconds(1)) }
        await #expect(throws: (any Error).self) { try await pressing.value }
        #expect(provider.provider.ledger.users.flatMap(\.families).count == 1)

        // A reload finds no session, and says what to do.
        let again = try await brokers[1].call(
            .get, BrokerHarness.path(of: question), key: nil, fields: ["Accept": BrokerHarness.browserAccept])
        #expect((400..<500).contains(again.status), "\(again.text)")
        #expect(again.text.contains("<h1>"))
        #expect(try await brokers[1].call(.get, "/tenants/t1/sessions").json["sessions"]?.array?.isEmpty == true)
        // The user begins again.
        var other = AppBrowser([brokers[1]], at: provider)
        let code = try await other.logIn(to: "player", redirectURI: Self.redirectURI, as: "alice")
        let answer = try await brokers[1].exchange(code, of: "player", redirectURI: Self.redirectURI)
        #expect(answer.status == 200, "\(answer.text)")
        let session = try #require(answer.json["refresh_token"]?.text)

        // In the end each grant is the login's, or revoked.
        let token = try #require(answer.json["access_token"]?.text)
        let used = try #require(provider.provider.record(ofAccessToken: token)?.family)
        let deadline = MonotonicInstant.after(.seconds(120))
        func unused() -> [Family] {
            provider.provider.ledger.users.flatMap(\.families).map(\.family).filter {
                $0.id != used && $0.revocation == nil
            }
        }
        while !unused().isEmpty, MonotonicInstant.now < deadline { try await Task.sleep(for: .milliseconds(500)) }
        #expect(unused().isEmpty)
        #expect(provider.provider.introspect(accessToken: token) != nil)
        let refreshed = try await brokers[1].refresh(session, of: "player")
        #expect(refreshed.status == 200, "\(refreshed.text)")

        #expect(await second.terminate() == 0)
        for broker in brokers { await broker.close() }
        await provider.close()
        loop.shutDown()
    }

    private static func prepare(_ broker: BrokerClient, at provider: RunningProvider) async throws {
        let tenant = try await broker.call(
            .put, "/tenants/t1",
            body: #"""
                {"provider": "oidc", "issuer": "\#(provider.baseURL)", "client_id": "broker",
                 "client_secret": "the secret", "scopes": ["r_usr"]}
                """#)
        #expect(tenant.status == 201, "\(tenant.text)")
        let registered = try await broker.call(
            .put, "/tenants/t1/clients/player",
            body: #"{"redirect_uris": ["http://127.0.0.1/callback"], "storage_key": "default"}"#)
        #expect(registered.status == 201, "\(registered.text)")
    }
}
