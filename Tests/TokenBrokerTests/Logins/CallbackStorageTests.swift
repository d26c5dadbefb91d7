import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Storing what a login brought` {
    private static let granted = BrokerHarness.token("access-2", refresh: "refresh-2", userID: 7)

    @Test func `takes the place of what was there`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn()
        let before = await broker.call(.get, "/credentials", tenant: "t1")
        await broker.logIn(token: #"{"access_token": "access-2", "expires_in": 60}"#)
        let after = await broker.call(.get, "/credentials?policy=local", tenant: "t1")
        #expect(after.json["token"]?.string == "access-2")
        #expect(after.json["user_id"] == .null)
        #expect(after.fields["ETag"] != before.fields["ETag"])
        // Nothing of the old session is left: without a refresh token of its own the new one cannot be renewed.
        #expect(await broker.call(.get, "/credentials/status", tenant: "t1").json["refreshable"] == .bool(false))
    }

    @Test func `wins over a refresh in flight`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn()
        broker.time.advance(by: .seconds(3600))
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("access-of-the-refresh", refresh: "refresh-of-the-refresh"))))
        async let reader = broker.token()
        await gate.arrivals()
        await broker.logIn(token: Self.granted)
        gate.open()
        #expect(await reader == "access-2")
        #expect(await broker.token() == "access-2")
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-3")))
        #expect(await broker.token() == "access-3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "refresh-2")
    }

    @Test func `is tried until the store takes it`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.forgetSleeps()
        store.disturb([.refuse, .refuse, .refuse, .refuse, .refuse, .refuse, .refuse]) { $0.writes(.credentials) }
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(store.remainingFaults == 0)
        #expect(
            broker.time.slept == [
                .milliseconds(200), .milliseconds(400), .milliseconds(800), .milliseconds(1000), .milliseconds(1000),
                .milliseconds(1000), .milliseconds(1000),
            ])
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.token() == "access-2")
        #expect(await broker.progress(login.id).json["status"]?.string == "completed")
    }

    @Test func `waits for a store that is away altogether`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.holdSleeps()
        broker.transport.enqueue(
            .decide { _ in
                store.isAway = true
                return .json(200, Self.granted)
            })
        async let answer = broker.callback("code=c-1&state=\(login.state)")
        await broker.time.sleepers(of: .milliseconds(200))
        store.isAway = false
        broker.time.advance(by: .milliseconds(200))
        #expect(await answer.status == 200)
        #expect(await broker.token() == "access-2")
    }

    @Test func `counts as done when the store took it and could not say so`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.logIn()
        #expect(await broker.token() == "access-1")
        let login = await broker.beginLogin()
        store.disturb([.loseAnswer]) { $0.writes(.credentials) }
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(store.remainingFaults == 0)
        #expect(await broker.token() == "access-2")
        #expect(await broker.progress(login.id).json["status"]?.string == "completed")
    }

    @Test func `counts as done although a refresh has followed it already`() async throws {
        let store = BrokerFaultyStore(revalidateAfter: .zero)
        let broker = try await BrokerHarness(store: store)
        let other = try await BrokerHarness(store: store, transport: broker.transport, time: broker.time)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.holdSleeps()
        store.disturb([.loseAnswer]) { $0.writes(.credentials) }
        broker.transport.enqueue(.json(200, Self.granted))
        async let answer = broker.callback("code=c-1&state=\(login.state)")
        await broker.time.sleepers(of: .milliseconds(200))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-3", refresh: "refresh-3")))
        let refreshed = await other.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
        #expect(refreshed.json["token"]?.string == "access-3")
        broker.time.advance(by: .milliseconds(200))
        #expect(await answer.status == 200)
        #expect(await broker.progress(login.id).json["status"]?.string == "completed")
        #expect(await broker.token() == "access-3")
    }

    @Test func `gives an app a code that is valid after an outage that was longer than a code lives`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient()
        broker.time.holdSleeps()
        store.disturb([.refuse]) { $0.writes(.credentials) }
        async let login = broker.logIn(app: BrokerHarness.authorization(), token: Self.granted)
        await broker.time.sleepers(of: .milliseconds(200))
        broker.time.advance(by: .seconds(301))
        let code = await login.parameters["code"]
        #expect(await broker.exchange(try #require(code)).status == 200)
    }

    @Test func `counts as done when its first commit lands while another one is sent`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.holdSleeps()
        store.disturb([.landLate]) { $0.writes(.credentials) }
        broker.transport.enqueue(.json(200, Self.granted))
        async let answer = broker.callback("code=c-1&state=\(login.state)")
        await broker.time.sleepers(of: .milliseconds(200))
        // So long that the commit is decided anew.
        broker.time.advance(by: .seconds(31))
        #expect(await answer.status == 200)
        #expect(await broker.progress(login.id).json["status"]?.string == "completed")
        #expect(await broker.token() == "access-2")
        #expect(try await broker.causes().count == 1)
    }

    // MARK: Marking the state as used

    @Test func `begins once the state is marked as used, which is tried again`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        store.disturb([.refuse, .refuse]) { $0.replaces(.login) }
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(store.remainingFaults == 0)
        #expect(broker.transport.seen.count == 1)
    }

    /// The mark was there before it was tried again, or came to be meanwhile.
    @Test(arguments: [BrokerFaultyStore.Fault.loseAnswer, .landLate])
    func `happens although the store could not say that it marked the state`(
        fault: BrokerFaultyStore.Fault
    ) async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        store.disturb([fault]) { $0.replaces(.login) }
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.token() == "access-2")
    }

    @Test func `happens once when two callbacks meet a store that does not say whose mark it took`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let (first, second) = (Gate(), Gate())
        store.disturb([.hold(first), .hold(second)]) { $0.replaces(.login) }
        store.disturb([.loseAnswer]) { $0.writes(.credentials) }
        broker.transport.enqueue(.json(200, Self.granted))
        async let one = broker.callback("code=c-1&state=\(login.state)")
        await first.arrivals()
        async let two = broker.callback("code=c-1&state=\(login.state)")
        await second.arrivals()
        second.open()
        #expect(await two.status == 200)
        first.open()
        #expect(await one.status == 409)
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `is left undone by a store that stays away, and the state stays usable`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        store.disturb(Array(repeating: .refuse, count: 18)) { $0.replaces(.login) }
        let page = await broker.callback("code=c-1&state=\(login.state)")
        #expect(page.status == 503)
        #expect(page.fields["Retry-After"] != nil)
        #expect(page.fields["Content-Type"] == "text/html; charset=utf-8")
        #expect(broker.transport.seen.isEmpty)
        store.isAway = true
        let json = await broker.callback("code=c-1&state=\(login.state)", accept: "application/json")
        #expect(json.status == 503)
        #expect(json.code == "storage_unavailable")
        store.isAway = false
        while store.remainingFaults > 0 { _ = await broker.callback("code=c-1&state=\(login.state)") }
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
    }

    @Test func `tells why it failed once the store is back`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(
            .decide { _ in
                store.disturb([.refuse, .refuse]) { $0.replaces(.login) }
                return .json(400, #"{"error": "invalid_grant"}"#)
            })
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 502)
        #expect(await broker.progress(login.id).json["error"]?.string == "unexpected_error")
    }
}
