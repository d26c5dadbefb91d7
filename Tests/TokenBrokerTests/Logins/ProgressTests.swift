import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import Testing
import TokenBroker

@Suite struct `Asking how far a login is` {
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1")

    @Test func `a login is pending until it is completed`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "l", "permissions": ["login"]}"#)
        let login = await broker.beginLogin()
        let pending = await broker.call(.get, "/login/\(login.id)", key: key)
        #expect(pending.status == 200)
        #expect(pending.text == #"{"status":"pending"}"#)
        #expect(pending.fields["Cache-Control"] == "no-store")
        _ = await broker.start(login)
        #expect(await broker.progress(login.id).text == #"{"status":"pending"}"#)
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 403)
        #expect(await broker.progress(login.id).text == #"{"status":"pending"}"#)
        let other = await broker.beginLogin()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let answer = broker.callback("code=c-1&state=\(other.state)")
        await gate.arrivals()
        #expect(await broker.progress(other.id).text == #"{"status":"pending"}"#)
        gate.open()
        #expect(await answer.status == 200)
        #expect(await broker.progress(other.id).text == #"{"status":"completed"}"#)
    }

    @Test func `a failure is told by its code, what the provider said, and what to change`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let denied = await broker.beginLogin()
        _ = await broker.callback("error=access_denied&state=\(denied.state)")
        #expect(
            await broker.progress(denied.id).text
                == #"{"status":"failed","error":"authorization_error","error_code":"access_denied","#
                + #""detail":"The login service reports that the login did not succeed. The user, or a policy there, "#
                + #"did not allow it."}"#)
        let refused = await broker.beginLogin()
        broker.transport.enqueue(.json(400, "{}"))
        _ = await broker.callback("code=c-1&state=\(refused.state)")
        #expect(
            await broker.progress(refused.id).text
                == #"{"status":"failed","error":"unexpected_error","#
                + #""detail":"The provider refused the token request with status 400. The provider named no "#
                + #"reason. Some refuse a wrong client_secret in this way: check the configured client_id, client_secret and "#
                + #"token_endpoint_auth_method."}"#)
    }

    @Test(arguments: [(599_999, "pending"), (600_000, "expired"), (4_199_999, "expired")])
    func `a login that was not finished expires`(milliseconds: Int64, status: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.advance(by: .milliseconds(milliseconds))
        #expect(await broker.progress(login.id).text == #"{"status":"\#(status)"}"#)
    }

    @Test func `an outcome is told for an hour after the state is over, then the login is forgotten`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        _ = await broker.callback("code=c-1&state=\(login.state)")
        broker.time.advance(by: .seconds(4200))
        #expect(try await broker.vault.removeExpired(before: broker.time.now, limit: 10) == 0)
        #expect(await broker.progress(login.id).text == #"{"status":"completed"}"#)
        broker.time.advance(by: .milliseconds(1))
        #expect(try await broker.vault.removeExpired(before: broker.time.now, limit: 10) == 1)
        #expect(await broker.progress(login.id).status == 404)
    }

    // H022 H023
    @Test func `another caller's login cannot be told from a login that never was`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let login = await broker.beginLogin(tenant: "t1", body: #"{"storage_key": "b"}"#)
        let stranger = await broker.makeKey("t2")
        let narrowed = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["a"]}"#)
        let unknown = await broker.call(.get, "/login/AAAAAAAAAAAAAAAAAAAAAA", key: stranger)
        #expect(unknown.status == 404)
        #expect(unknown.code == "not_found")
        for key in [stranger, narrowed] {
            let answer = await broker.call(.get, "/login/\(login.id)?wait=60", key: key)
            #expect(answer.status == 404)
            #expect(answer.body == unknown.body)
        }
        #expect(broker.time.slept.isEmpty)
        let own = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["b"]}"#)
        #expect(await broker.call(.get, "/login/\(login.id)", key: own).status == 200)
        #expect(await broker.call(.get, "/login/\(login.id)", key: nil).status == 401)
        let reader = await broker.makeKey("t1", #"{"name": "r", "permissions": ["credentials:read"]}"#)
        #expect(await broker.call(.get, "/login/\(login.id)", key: reader).status == 403)
        for id in ["x", "..%2F..", "%00", login.id + "A", String(login.id.dropLast())] {
            #expect(await broker.progress(id).status == 404)
        }
    }

    @Test func `a login whose code is being redeemed is not over with its state`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.advance(by: .milliseconds(599_999))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let answer = broker.callback("code=c-1&state=\(login.state)")
        await gate.arrivals()
        broker.time.advance(by: .seconds(300))
        #expect(await broker.progress(login.id).text == #"{"status":"pending"}"#)
        // As after a crash: another process must tell the caller in the end.
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.progress(login.id).text == #"{"status":"expired"}"#)
        gate.open()
        #expect(await answer.status == 200)
        #expect(await broker.progress(login.id).text == #"{"status":"completed"}"#)
    }

    // MARK: Waiting

    @Test(arguments: ["abc", "-1", "1.5", "", "1s", "0x10", "%2B5", "1%200", "%D9%A1"])
    func `wait takes a whole number`(wait: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let answer = await broker.progress(login.id, query: "?wait=\(wait)")
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        #expect(answer.json["errors"]?.array?.first?["pointer"]?.string == "wait")
    }

    @Test func `no other parameter is known`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        #expect(await broker.progress(login.id, query: "?waits=1").status == 400)
        #expect(await broker.progress(login.id, query: "?wait=1&wait=1").status == 400)
    }

    @Test(arguments: [("0", 0), ("1", 1), ("59", 59), ("60", 60), ("61", 60), ("99999999999999999999", 60)])
    func `it waits that long, sixty seconds at most`(wait: String, seconds: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.forgetSleeps()
        #expect(await broker.progress(login.id, query: "?wait=\(wait)").text == #"{"status":"pending"}"#)
        #expect(broker.time.slept == (seconds == 0 ? [] : [.seconds(seconds)]))
    }

    @Test(arguments: ["code=c-1", "error=access_denied"])
    func `it returns the moment the login ends`(query: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.holdSleeps()
        let waiters = (0..<3).map { _ in Task { await broker.progress(login.id, query: "?wait=60").text } }
        await broker.time.sleepers(of: .seconds(60), .seconds(60), .seconds(60))
        broker.transport.enqueue(.json(200, Self.granted))
        _ = await broker.callback("\(query)&state=\(login.state)")
        for waiter in waiters { #expect(await waiter.value != #"{"status":"pending"}"#) }
    }

    @Test func `waiting callers are answered when the broker begins to stop, and no caller waits after that`()
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.holdSleeps()
        let waiters = (0..<3).map { _ in Task { await broker.progress(login.id, query: "?wait=60").text } }
        await broker.time.sleepers(of: .seconds(60), .seconds(60), .seconds(60))
        broker.broker.beginDraining()
        for waiter in waiters { #expect(await waiter.value == #"{"status":"pending"}"#) }
        #expect(await broker.progress(login.id, query: "?wait=60").text == #"{"status":"pending"}"#)
    }

    @Test func `it returns the moment the login expires`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.advance(by: .seconds(570))
        broker.time.forgetSleeps()
        #expect(await broker.progress(login.id, query: "?wait=60").text == #"{"status":"expired"}"#)
        #expect(broker.time.slept == [.seconds(30)])
    }

    @Test func `it does not wait for what has ended`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        _ = await broker.callback("error=access_denied&state=\(login.state)")
        broker.time.holdSleeps()
        #expect(await broker.progress(login.id, query: "?wait=60").json["status"]?.string == "failed")
    }

    @Test func `it sees within a second what another replica finished`() async throws {
        let store = BrokerFaultyStore(revalidateAfter: .seconds(5))
        let first = try await BrokerHarness(store: store)
        let second = try await BrokerHarness(store: store, transport: first.transport, time: first.time)
        await first.makeTenant()
        let login = await first.beginLogin()
        first.time.holdSleeps()
        let waiter = Task { await second.progress(login.id, query: "?wait=60").text }
        await first.time.sleepers(of: .seconds(1))
        first.transport.enqueue(.json(200, Self.granted))
        #expect(await first.callback("code=c-1&state=\(login.state)").status == 200)
        first.time.advance(by: .seconds(1))
        #expect(await waiter.value == #"{"status":"completed"}"#)
    }

    @Test func `it waits sixty seconds in all where it has to look again and again`() async throws {
        let store = BrokerFaultyStore(revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.forgetSleeps()
        #expect(await broker.progress(login.id, query: "?wait=60").text == #"{"status":"pending"}"#)
        #expect(broker.time.slept == Array(repeating: .seconds(1), count: 60))
    }

    @Test func `it lets go of a caller that has gone`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.holdSleeps()
        let waiter = Task { await broker.progress(login.id, query: "?wait=60").text }
        await broker.time.sleepers(of: .seconds(60))
        waiter.cancel()
        #expect(await waiter.value == #"{"status":"pending"}"#)
    }
}
