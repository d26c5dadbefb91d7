import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Postgres
import Testing
import TokenBroker

@Suite struct `A login's state` {
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)

    // H030
    @Test(arguments: [(599_999, 200), (600_000, 410), (600_001, 410)])
    func `is good for ten minutes`(milliseconds: Int64, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.time.advance(by: .milliseconds(milliseconds))
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.callback("code=c-1&state=\(login.state)")
        #expect(answer.status == status)
        #expect(broker.transport.seen.count == (status == 200 ? 1 : 0))
    }

    @Test(arguments: [(0, 409), (599_999, 409), (600_000, 410), (4_200_000, 410)])
    func `is known as used until its ten minutes are over`(milliseconds: Int64, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        broker.time.advance(by: .milliseconds(milliseconds))
        let answer = await broker.callback("code=c-1&state=\(login.state)", accept: "application/json")
        #expect(answer.status == status)
        #expect(answer.code == (status == 409 ? "conflict" : "gone"))
        #expect(broker.transport.seen.count == 1)
    }

    /// Begins a login at the first of three replicas of one transport, and sends fifty callbacks to them.
    private static func expectOneRedemption(_ replicas: [BrokerHarness], _ transport: ScriptedTransport) async {
        await replicas[0].makeTenant()
        let login = await replicas[0].beginLogin()
        transport.always(.json(200, granted))
        let statuses = await withTaskGroup(of: Int.self) { group in
            for number in 0..<50 {
                let replica = replicas[number % 3]
                group.addTask { await replica.callback("code=c-1&state=\(login.state)").status }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(statuses.count { $0 == 200 } == 1)
        #expect(statuses.count { $0 == 409 } == 49)
        #expect(transport.seen.count == 1)
    }

    // H029
    @Test func `works once for fifty callbacks over three replicas`() async throws {
        let store = MemoryRecordStore()
        let time = ManualTime()
        let transport = ScriptedTransport()
        var replicas: [BrokerHarness] = []
        for _ in 0..<3 {
            replicas.append(try await BrokerHarness(store: store, transport: transport, time: time))
        }
        await Self.expectOneRedemption(replicas, transport)
        #expect(await replicas[2].token() == "access-1")
    }

    // H029
    @Test func `works once for fifty callbacks over three replicas on PostgreSQL`() async throws {
        let server = try await PostgresServer.shared.value
        var configuration = try PostgresConfiguration(server.uri(database: try await server.makeDatabase()))
        // More at once than two slow cores serve within the defaults.
        configuration.waitTimeout = .seconds(20)
        configuration.statementTimeout = .seconds(20)
        let time = ManualTime()
        let transport = ScriptedTransport()
        var replicas: [BrokerHarness] = []
        for _ in 0..<3 {
            let store = try await PostgresRecordStore.open(
                configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
            replicas.append(try await BrokerHarness(store: store, transport: transport, time: time))
        }
        await Self.expectOneRedemption(replicas, transport)
        for replica in replicas {
            #expect(await replica.token() == "access-1")
            await replica.vault.close()
        }
    }

    @Test func `is good on a replica that did not begin the login`() async throws {
        let store = MemoryRecordStore()
        let first = try await BrokerHarness(store: store)
        let second = try await BrokerHarness(store: store, transport: first.transport, time: first.time)
        await first.makeTenant()
        let login = await first.beginLogin()
        first.transport.enqueue(.json(200, Self.granted))
        #expect(await second.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(await first.callback("code=c-1&state=\(login.state)").status == 409)
        #expect(await first.progress(login.id).json["status"]?.string == "completed")
        #expect(await first.token() == "access-1")
    }

    @Test func `several logins are under way side by side`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let first = await broker.beginLogin(body: #"{"storage_key": "a"}"#)
        let second = await broker.beginLogin(body: #"{"storage_key": "b"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-b", refresh: "r")))
        #expect(await broker.callback("code=c-2&state=\(second.state)").status == 200)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-a", refresh: "r")))
        #expect(await broker.callback("code=c-1&state=\(first.state)").status == 200)
        #expect(await broker.token(storageKey: "a") == "access-a")
        #expect(await broker.token(storageKey: "b") == "access-b")
    }

    @Test func `is followed through although the browser goes away in the exchange`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        let browser = Task { await broker.callback("code=c-1&state=\(login.state)").status }
        await gate.arrivals()
        browser.cancel()
        #expect(await browser.value == 503)
        gate.open()
        await broker.broker.core.finish()
        #expect(await broker.progress(login.id).json["status"]?.string == "completed")
        #expect(await broker.token() == "access-1")
    }

    @Test func `is followed through although the browser goes away while it is marked as used`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.login) }
        broker.transport.enqueue(.json(200, Self.granted))
        let browser = Task { await broker.callback("code=c-1&state=\(login.state)").status }
        await gate.arrivals()
        browser.cancel()
        gate.open()
        _ = await browser.value
        await broker.broker.core.finish()
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.progress(login.id).json["status"]?.string == "completed")
        #expect(await broker.token() == "access-1")
    }

    // H036
    @Test func `keeps the registration and the endpoints that the login began with`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "c1", "client_secret": "s1", "client_unique_key": "k1", "scopes": ["r_usr"],
             "auth_service_base_uri": "https://old.example/v1"}
            """#)
        let login = await broker.beginLogin()
        await broker.makeTenant(
            "t1",
            #"""
            {"client_id": "c2", "client_secret": "s2", "scopes": ["w_usr"], "certificate_pinning": false,
             "auth_service_base_uri": "https://new.example/v1", "browser_binding": "required"}
            """#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        let request = try #require(broker.transport.seen.last)
        #expect(request.url == "https://old.example/v1/oauth2/token")
        #expect(request.isPinned)
        #expect(request.form["client_id"] == "c1")
        #expect(request.form["client_secret"] == "s1")
        #expect(request.form["client_unique_key"] == "k1")
        #expect(request.form["scope"] == "r_usr")
    }

    @Test func `goes with its tenant`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 410)
        await broker.makeTenant()
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 410)
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `brings nothing back when its tenant goes during the exchange`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let login = await broker.beginLogin()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let answer = broker.callback("code=c-1&state=\(login.state)")
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        await broker.makeTenant()
        gate.open()
        #expect(await answer.status == 410)
        #expect(try await broker.count(.credentials) == 0)
        #expect(try await broker.count(.login) == 0)
        #expect(await broker.token() == nil)
    }

    @Test func `leaves no secret behind once it is used`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"client_id": "c1", "client_secret": "the-client-secret", "browser_binding": "when_started_here"}"#)
        let login = await broker.beginLogin()
        let cookie = try #require(BrokerHarness.cookie(await broker.start(login)))
        let before = try #require(try await broker.loginRecord(login.id))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let answer = broker.callback("code=the-code&state=\(login.state)", cookie: cookie)
        await gate.arrivals()
        let during = try #require(try await broker.loginRecord(login.id))
        gate.open()
        #expect(await answer.status == 200)
        let after = try #require(try await broker.loginRecord(login.id))
        let verifier = try #require(broker.transport.seen.last?.form["code_verifier"])
        let binding = String(cookie.split(separator: "=")[1])
        let secrets = [verifier, binding, "the-client-secret", login.state]
        for secret in secrets { #expect(before.contains(secret)) }
        for record in [during, after] {
            for secret in secrets + ["the-code", "access-1", "refresh-1"] { #expect(!record.contains(secret)) }
        }
    }

    @Test func `leaves no secret behind when the provider reports an error`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "the-client-secret"}"#)
        let login = await broker.beginLogin()
        #expect(await broker.callback("error=access_denied&state=\(login.state)").status == 400)
        let record = try #require(try await broker.loginRecord(login.id))
        for secret in ["the-client-secret", login.state, "code_verifier", #""binding""#] {
            #expect(!record.contains(secret))
        }
    }
}
