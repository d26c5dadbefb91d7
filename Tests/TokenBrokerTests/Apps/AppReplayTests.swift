import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import JSON
import OAuth
import Testing

/// Refresh tokens and codes of apps that come again or too late.
@Suite struct `Late tokens and codes of apps` {
    private static let tenant = TenantName("t1")!

    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1", #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default"}"#)
        return broker
    }

    private static func error(_ answer: BrokerHarness.Answer) -> String? { answer.json["error"]?.text }

    private static func causes(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.events(named: "session.ended", of: tenant).compactMap { $0["cause"]?.text }
    }

    @Test(arguments: [(0, true), (10, true), (11, false)])
    func `a token before the last one gets the same answer for ten seconds, too`(
        _ seconds: Int, _ isSame: Bool
    ) async throws {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        let answer = await broker.refresh(first)
        let second = try #require(answer.json["refresh_token"]?.text)
        let third = try #require(await broker.refresh(second).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(seconds))
        let again = await broker.refresh(first)
        if isSame {
            #expect(again.text == answer.text)
            // What the repeated answer has leads to the present token.
            #expect(await broker.refresh(second).json["refresh_token"]?.text == third)
            #expect(await broker.refresh(third).status == 200)
        } else {
            #expect(Self.error(again) == "invalid_grant")
            #expect(Self.error(await broker.refresh(third)) == "invalid_grant")
            #expect(try await Self.causes(broker) == ["replay"])
        }
    }

    @Test(arguments: [(15, true), (16, true), (17, false)])
    func `the last sixteen tokens that were replaced are known`(_ count: Int, _ isKnown: Bool) async throws {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        var token = first
        for _ in 0..<count { token = await broker.refresh(token).json["refresh_token"]?.text ?? "" }
        #expect((await broker.refresh(first).status == 200) == isKnown)
        #expect((await broker.refresh(token).status == 200) == isKnown)
    }

    @Test func `tokens from before the last ones are not kept for longer than they may be repeated`() async throws {
        let broker = try await Self.broker()
        let first = await broker.appSession()
        let second = try #require(await broker.refresh(first).json["refresh_token"]?.text)
        let third = try #require(await broker.refresh(second).json["refresh_token"]?.text)
        broker.time.advance(by: .seconds(71))
        #expect(await broker.refresh(third).status == 200)
        let records = try await broker.store.list(.session, tenant: Self.tenant, after: nil, limit: 10)
        let content = try broker.vault.open(try #require(records.first)).content.revealedText
        #expect(!content.contains("earlier"))
        #expect(content.contains("previous"))
    }

    @Test func `a code from before a logout stays dead after the same user's next login`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        broker.time.advance(by: .seconds(1))
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(Self.error(await broker.exchange(code)) == "invalid_grant")
        await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2", userID: 42))
        #expect(Self.error(await broker.exchange(code)) == "invalid_grant")
        #expect(await broker.sessions().isEmpty)
        let later = await broker.appCode()
        #expect(await broker.exchange(later).status == 200)
    }

    @Test func `a code outlives the same user's login on another device, and a refresh`() async throws {
        let broker = try await Self.broker()
        let code = await broker.appCode()
        broker.time.advance(by: .seconds(1))
        await broker.logIn(token: BrokerHarness.token("access-2", refresh: "refresh-2", userID: 42))
        broker.time.advance(by: .seconds(1))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-3", refresh: "refresh-3")))
        #expect(await broker.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1").status == 200)
        #expect(await broker.exchange(code).status == 200)
    }
}
