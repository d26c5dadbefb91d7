import BrokerTesting
import CredentialStore
import Cryptography
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Requests of apps that waited in the sockets of a process which stood still, while the apps went on elsewhere.
@Suite struct `Late requests of apps` {
    private static let tenant = TenantName("t1")!

    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient()
        return broker
    }

    private static func causes(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.events(named: "session.ended", of: tenant).compactMap { $0["cause"]?.text }
    }

    /// How long after its replacement the token came, and whether the app is answered.
    @Test(arguments: [(-30, true), (0, true), (10, true), (11, false)])
    func `a token that came in time and waited for a minute is answered, and ends nothing`(
        _ seconds: Int, _ isAnswered: Bool
    ) async throws {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        let second = try #require(await broker.refresh(first).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(60))
        let answer = await broker.refresh(first, waited: .seconds(60 - seconds))
        if isAnswered {
            #expect(answer.json["refresh_token"]?.text == second, "\(answer.text)")
            #expect(await broker.refresh(second).status == 200)
        } else {
            #expect(answer.json["error"]?.text == "invalid_grant")
        }
        #expect(try await Self.causes(broker) == (isAnswered ? [] : ["replay"]))
    }

    @Test func `a code that came before it was used elsewhere ends no session`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        broker.time.advance(by: .seconds(30))
        let token = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(30))
        let late = await broker.exchange(code, waited: .seconds(45))
        #expect(late.json["error"]?.text == "invalid_grant")
        #expect(await broker.refresh(token).status == 200)
        #expect(try await Self.causes(broker) == [])
    }

    @Test func `a code that came after it was used ends the session, also when it waited`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        let token = try #require(await broker.exchange(code).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(30))
        _ = await broker.exchange(code, waited: .seconds(15))
        #expect(await broker.refresh(token).status == 400)
        #expect(try await Self.causes(broker) == ["replay"])
    }

    @Test func `a token that lets another app in, and waited, ends nothing`() async throws {
        let broker = try await Self.broker()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        let first = await broker.appSession()
        let second = try #require(await broker.refresh(first).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(60))
        _ = await broker.app(
            "/oauth2/token",
            [
                ("grant_type", "urn:authgear:params:oauth:grant-type:app2app"), ("client_id", "app"), ("jwt", "x"),
                ("refresh_token", first), ("redirect_uri", BrokerHarness.appRedirect),
                ("code_challenge", BrokerHarness.appChallenge), ("code_challenge_method", "S256"),
            ], waited: .seconds(60))
        #expect(await broker.refresh(second).status == 200)
    }

    /// The app presents its token to a replica that stands still, gives up, and goes on at another one.
    @Test(arguments: [true, false])
    func `a replica that stood still tells the others that it does not know what came meanwhile`(
        isTold: Bool
    ) async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        await one.makeTenant()
        await one.makeClient()
        let reports = two.broker.core.apps.sessions.deferralReports
        for broker in [one, two] { await broker.broker.core.apps.sessions.deferralReports.report() }
        let first = await one.appSession()
        let second = try #require(await one.refresh(first).json["refresh_token"]?.text)
        let began = two.time.now.advanced(by: .seconds(1))
        one.time.advance(by: .seconds(30))
        if isTold { reports.noteStandstill(since: began) }
        await reports.report()
        let answer = await one.refresh(first)
        #expect(answer.json["refresh_token"]?.text == (isTold ? second : nil))
        #expect(try await Self.causes(one) == (isTold ? [] : ["replay"]))
    }

    @Test(arguments: [(69, true), (70, false)])
    func `a replica tells for seventy seconds that it stood still`(_ seconds: Int, _ isTold: Bool) async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(60))
        let reports = two.broker.core.apps.sessions.deferralReports
        let began = two.time.now
        reports.noteStandstill(since: began)
        one.time.advance(by: .seconds(seconds))
        await reports.report()
        let sealed = try #require(
            try await one.broker.core.vault.listSealed(
                .process, tenant: .broker, after: RecordID(.process, .broker), limit: 10
            ).first)
        let report = try #require(DeferralReport(try one.broker.core.vault.open(sealed).content.revealedBytes))
        #expect(report.restSince == (isTold ? began : nil))
    }
}
