internal import BrokerCore
internal import BrokerTesting
internal import ExternalText
internal import HTTPCodec
internal import Reactor
internal import Testing
internal import TokenBroker

/// Logins that browsers without a key begin at `/oauth2/authorize`.
@Suite(.timeLimit(.minutes(1))) struct `Logins that strangers begin` {
    private static func broker(
        _ adjust: @Sendable (inout CredentialsBroker.Settings) -> Void
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness { adjust(&$0.core) }
        await broker.makeTenant()
        await broker.makeClient()
        return broker
    }

    /// Whether a browser of that address may log in.
    private static func begins(_ broker: BrokerHarness, from number: UInt8?) async -> Bool {
        let source = number.map { NetworkSource(NetworkAddress(.v4([10, 0, 0, $0]))) } ?? .unknown
        let answer = await broker.call(
            .get, BrokerHarness.authorization(), key: nil, fields: ["Accept": BrokerHarness.browserAccept],
            source: source)
        let location = answer.fields["Location"]?.text ?? ""
        if location.contains("/login/start/") { return true }
        #expect(answer.status == 303 && location.contains("error=temporarily_unavailable"), "\(location)")
        return false
    }

    @Test func `are bounded for each address and in all, and leave the tenant's callers theirs`() async throws {
        let broker = try await Self.broker {
            $0.pendingLogins = 1
            $0.pendingAppLogins = 20
        }
        for number in UInt8(1)...9 {
            for _ in 0..<2 { #expect(await Self.begins(broker, from: number)) }
            #expect(await !Self.begins(broker, from: number))
        }
        for _ in 0..<2 { #expect(await Self.begins(broker, from: nil)) }
        #expect(await !Self.begins(broker, from: nil))
        #expect(await !Self.begins(broker, from: 10))
        #expect(await broker.metric(#"token_broker_quota_refusals_total{quota="pending_app_logins"}"#) == 11)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 201)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 429)
        broker.time.advance(by: .seconds(600))
        #expect(await Self.begins(broker, from: 1))
    }

    @Test func `that fail in a crowd are told of by so many events only, and counted`() async throws {
        let broker = try await Self.broker { _ in }
        for _ in 0..<110 {
            let target = BrokerHarness.authorization()
            _ = await broker.logIn(app: target, token: nil, response: "error=access_denied")
        }
        let told = try await broker.events().count { $0.kind == .loginFailed }
        let untold = await broker.metric("token_broker_login_failures_untold_total") ?? 0
        #expect(told + untold == 110 && untold >= 5, "\(told) \(untold)")
        // A caller's are told of all the same.
        let login = await broker.beginLogin()
        _ = await broker.callback("error=access_denied&state=\(login.state)")
        #expect(try await broker.events().count { $0.kind == .loginFailed } == told + 1)
    }

    @Test func `count until their browsers have come back`() async throws {
        let broker = try await Self.broker { $0.pendingAppLogins = 1 }
        for _ in 0..<2 { _ = await broker.appCode() }
        #expect(await Self.begins(broker, from: nil))
        #expect(await !Self.begins(broker, from: nil))
    }
}
