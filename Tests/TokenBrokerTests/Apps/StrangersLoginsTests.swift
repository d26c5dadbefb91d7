import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import Reactor
import Testing
import TokenBroker

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

    /// Whether a browser of that address may bring back a login with a code that it has made up.
    private static func brings(
        _ broker: BrokerHarness, from number: UInt8?, _ login: BrokerHarness.AppLogin? = nil
    ) async -> Bool {
        let source = number.map { NetworkSource(NetworkAddress(.v4([10, 0, 0, $0]))) } ?? .unknown
        var begun = login
        if begun == nil { begun = await broker.beginAppLogin() }
        guard let begun else { return false }
        let answer = await broker.bring(for: begun, source: source)
        let location = answer.fields["Location"]?.text ?? ""
        if location.contains("/login/confirm/") { return true }
        #expect(answer.status == 303 && location.contains("/login/ended/retryable_error?"), "\(location)")
        let page = await broker.bring(for: begun, accept: "*/*", source: source)
        #expect((page.status, page.fields["Retry-After"]) == (503, "10"))
        return false
    }

    @Test func `are bounded for each address and in all, and leave the tenant's callers theirs`() async throws {
        let broker = try await Self.broker {
            $0.pendingLogins = 1
            $0.pendingAppLogins = 20
        }
        for number in UInt8(1)...9 {
            for _ in 0..<2 { #expect(await Self.brings(broker, from: number)) }
            #expect(await !Self.brings(broker, from: number))
        }
        for _ in 0..<2 { #expect(await Self.brings(broker, from: nil)) }
        #expect(await !Self.brings(broker, from: nil))
        #expect(await !Self.brings(broker, from: 10))
        #expect(try await broker.count(.login) == 20)
        // Each refused login was brought twice.
        #expect(await broker.metric(#"token_broker_quota_refusals_total{quota="pending_app_logins"}"#) == 22)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 201)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 429)
        broker.time.advance(by: .seconds(600))
        #expect(await Self.brings(broker, from: 1))
    }

    /// A user who has it can open it again and again.
    @Test func `by the address of an ended session take none of the tenant's own`() async throws {
        let broker = try await BrokerHarness {
            $0.core.pendingLogins = 1
            $0.core.pendingAppLogins = 20
        }
        await broker.makeTenant("t1", #"{\#(BrokerHarness.oidc)"client_id": "c1"}"#)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let address = try #require(await broker.get().json["session"]?["reconnect_uri"]?.text)
        let source = NetworkSource(NetworkAddress(.v4([10, 0, 0, 1])))
        func open() async -> Int {
            await broker.call(
                .get, BrokerHarness.path(of: address), key: nil, fields: ["Accept": BrokerHarness.browserAccept],
                source: source
            ).status
        }
        for _ in 0..<2 { #expect(await open() == 303) }
        #expect(await open() == 503)
        #expect(try await broker.count(.login) == 2)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1").status == 201)
        broker.time.advance(by: .seconds(600))
        #expect(await open() == 303)
    }

    @Test func `cost nothing while they have only begun`() async throws {
        let broker = try await Self.broker { $0.pendingAppLogins = 1 }
        for _ in 0..<20 { _ = await broker.beginAppLogin() }
        #expect(await Self.brings(broker, from: 1))
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

    @Test func `count until they have succeeded`() async throws {
        let broker = try await Self.broker { $0.pendingAppLogins = 1 }
        for _ in 0..<3 { _ = await broker.appCode() }
        // A user who says no has not succeeded: a stranger can say so, too.
        _ = await broker.logIn(app: BrokerHarness.authorization(), token: nil, response: "error=access_denied")
        #expect(await !Self.brings(broker, from: nil))
    }

    @Test func `that have succeeded at another replica leave their room`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        var replicas: [BrokerHarness] = []
        for _ in 0..<2 {
            replicas.append(
                try await BrokerHarness(store: FaultyStore(records, revalidateAfter: .seconds(2)), time: time) {
                    $0.core.pendingAppLogins = 2
                })
        }
        let (one, two) = (replicas[0], replicas[1])
        await one.makeTenant()
        await one.makeClient()
        for _ in 0..<6 {
            // The first one counts it, the second one ends it.
            let login = await one.beginAppLogin()
            let asked = await one.bring(for: login)
            two.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1", userID: 42)))
            #expect(await two.confirm(asked, login).parameters["code"] != nil)
            time.advance(by: .seconds(1))
        }
        // Those that have not succeeded leave none.
        for _ in 0..<2 { #expect(await Self.brings(one, from: nil)) }
        #expect(await !Self.brings(one, from: nil))
        time.advance(by: .seconds(1))
        #expect(await !Self.brings(one, from: nil))
    }

    @Test func `count once when the store has failed, and are refused until others have ended`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store) { $0.core.pendingAppLogins = 1 }
        await broker.makeTenant()
        await broker.makeClient()
        let (login, other) = (await broker.beginAppLogin(), await broker.beginAppLogin())
        store.disturb([.refuse, .loseAnswer]) { $0.writes(.login) }
        for _ in 0..<2 {
            let location = await broker.bring(for: login).fields["Location"]?.text ?? ""
            #expect(location.contains("storage_unavailable"), "\(location)")
        }
        let asked = await broker.bring(for: login)
        #expect(await !Self.brings(broker, from: nil, other))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        #expect(await broker.confirm(asked, login).parameters["code"] != nil)
        #expect(await Self.brings(broker, from: nil, other))
    }
}
