import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Postgres
import Testing
import TokenBroker

@Suite struct `Probes` {
    /// Sleeps are held: the probe's patience must not end by itself.
    private static func make(_ store: FaultyStore = FaultyStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        broker.time.holdSleeps()
        return broker
    }

    // H083
    @Test(arguments: ["/livez", "/healthz"])
    func `the process lives whatever its store does`(path: String) async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        store.setDown(true)
        broker.broker.health.beginDraining()
        let answer = await broker.call(.get, path, key: nil)
        #expect((answer.status, answer.text) == (200, #"{"status":"live"}"#))
        #expect(answer.fields["Content-Type"] == "application/json")
        #expect(store.checks == 0)
        #expect(await broker.call(.head, path, key: nil).status == 200)
    }

    @Test func `a store that answers is ready`() async throws {
        let broker = try await Self.make()
        let answer = await broker.call(.get, "/readyz", key: nil)
        #expect((answer.status, answer.text) == (200, #"{"status":"ready"}"#))
    }

    // H083
    @Test(arguments: [StoreError.unavailable, .damaged("canary-place"), .conflict])
    func `a store that fails is not ready and is ready again when it answers`(error: StoreError) async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        store.onCheck(.refuse(error))
        let answer = await broker.call(.get, "/readyz", key: nil)
        #expect((answer.status, answer.text) == (503, #"{"status":"store_unavailable"}"#))
        store.onCheck(.pass)
        broker.time.advance(by: .milliseconds(999))
        #expect(await broker.call(.get, "/readyz", key: nil).status == 503)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.call(.get, "/readyz", key: nil).status == 200)
        store.onCheck(.refuse(error))
        broker.time.advance(by: .milliseconds(999))
        #expect(await broker.call(.get, "/readyz", key: nil).status == 200)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.call(.get, "/readyz", key: nil).status == 503)
        #expect(store.checks == 3)
    }

    @Test func `operators are told why the store does not answer, and callers are not`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let reports = DatabaseReports(broker.broker.log, time: broker.time)
        broker.broker.health.explain { reports.lastReason }
        store.onCheck(.refuse(.unavailable))
        reports.note(.connectionFailed(sqlstate: "28P01", detail: "connection to server at \"db\" failed"))
        let reason = "no connection to PostgreSQL (SQLSTATE 28P01), the password is wrong: connection to server at "
        let operations = Service(broker.broker, scope: .operations)
        let told = BrokerHarness.Answer(await operations.respond(to: Request(method: .get, path: "/readyz")))
        #expect(told.status == 503)
        #expect(told.json["reason"]?.text == reason + "\"db\" failed")
        let answer = await broker.call(.get, "/readyz", key: nil)
        #expect((answer.status, answer.text) == (503, #"{"status":"store_unavailable"}"#))
        let line = try #require(broker.log.first { $0.contains("database_failed") })
        #expect((try JSONValue(parsing: Array(line.utf8)))["database_error"]?.text == reason + "\"db\" failed")
    }

    @Test func `probes from all sides cost one check`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let gate = Gate()
        store.onCheck(.hold(gate))
        async let first = broker.call(.get, "/readyz", key: nil)
        await gate.arrivals()
        async let second = broker.call(.get, "/readyz", key: nil)
        await broker.time.sleepers(of: .seconds(2), .seconds(2))
        gate.open()
        #expect(await first.status == 200)
        #expect(await second.status == 200)
        #expect(await broker.call(.get, "/readyz", key: nil).status == 200)
        #expect(store.checks == 1)
    }

    // H083
    @Test func `a store that hangs is not ready after two seconds, and does not hold up the next check`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let gate = Gate()
        store.onCheck(.hold(gate))
        async let answer = broker.call(.get, "/readyz", key: nil)
        await broker.time.sleepers(of: .seconds(2))
        broker.time.advance(by: .seconds(2))
        #expect(await answer.status == 503)
        #expect(broker.time.slept == [.seconds(2)])
        // The store answers again, on another connection.
        store.onCheck(.pass)
        #expect(await broker.call(.get, "/readyz", key: nil).status == 200)
        #expect(store.checks == 2)
        gate.open()
    }

    @Test func `probes that are given up leave one check`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let gate = Gate()
        store.onCheck(.hold(gate))
        for _ in 0..<3 {
            let probe = Task { await broker.call(.get, "/readyz", key: nil) }
            await gate.arrivals()
            probe.cancel()
            #expect(await probe.value.status == 503)
        }
        #expect(store.checks == 1)
        gate.open()
    }

    // H098
    @Test func `a broker that drains is not ready and says why`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        #expect(await broker.call(.get, "/readyz", key: nil).status == 200)
        broker.broker.health.beginDraining()
        let answer = await broker.call(.get, "/readyz", key: nil)
        #expect((answer.status, answer.text) == (503, #"{"status":"draining"}"#))
    }

    @Test func `draining that begins during a check counts`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let gate = Gate()
        store.onCheck(.hold(gate))
        async let answer = broker.call(.get, "/readyz", key: nil)
        await gate.arrivals()
        broker.broker.health.beginDraining()
        gate.open()
        #expect(await answer.text == #"{"status":"draining"}"#)
    }

    @Test func `the description of the API needs no key`() async throws {
        let broker = try await Self.make()
        let answer = await broker.call(.get, "/openapi.yaml", key: nil)
        #expect(answer.status == 200)
        #expect(answer.fields["Content-Type"] == "application/yaml")
        #expect(answer.text.hasPrefix("openapi: 3.1."))
    }

    @Test func `what has expired is removed without being asked for`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        broker.time.holdSleeps()
        await broker.makeTenant()
        for seconds in [30, 600] {
            _ = await broker.makeKey("t1", #"{"name": "k", "permissions": ["login"], "expires_in": \#(seconds)}"#)
        }
        broker.broker.core.start()
        // Beside this work, the one that tells of tokens about to expire.
        await broker.time.sleepers(of: .housekeeping, .expiryNotices)
        #expect(try await store.list(.apiKey, tenant: nil, after: nil, limit: 10).count == 2)
        #expect(broker.time.slept.contains(.seconds(60)))
        broker.time.advance(by: .seconds(60))
        await broker.time.sleepers(of: .housekeeping, .expiryNotices)
        #expect(try await store.list(.apiKey, tenant: nil, after: nil, limit: 10).count == 1)
        await broker.broker.core.finish()
    }

    @Test(.timeLimit(.minutes(1)))
    func `a store that is away while what has expired is removed is tried again`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.makeTenant()
        _ = await broker.makeKey("t1", #"{"name": "k", "permissions": ["login"], "expires_in": 1}"#)
        broker.time.advance(by: .seconds(2))
        store.setDown(true)
        broker.broker.core.start()
        // Beside this work, the one that tells of tokens about to expire and the search for device logins.
        await broker.time.sleepers(of: .housekeeping, .expiryNotices, .loginSearch)
        #expect(broker.log.contains { $0.contains("store_failed") })
        store.setDown(false)
        broker.time.advance(by: .seconds(60))
        // Which of those three sleeps again is not told by their number: the search ends when it has been done.
        while try await !store.list(.apiKey, tenant: nil, after: nil, limit: 10).isEmpty { await Task.yield() }
        await broker.broker.core.finish()
    }

    @Test(arguments: ["/livez", "/healthz", "/readyz", "/metrics", "/openapi.yaml", "/docs"])
    func `a probe takes GET and HEAD`(path: String) async throws {
        let broker = try await Self.make()
        let answer = await broker.call(.post, path, key: nil)
        #expect((answer.status, answer.code) == (405, "method_not_allowed"))
        #expect(answer.fields["Allow"] == "GET, HEAD")
    }
}
