import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// A session that its provider ends at a refresh that was not needed: the token at hand lives, and no API has refused it.
@Suite struct `A token whose session is over` {
    private static let other = "{" + BrokerHarness.oidc + #""client_id": "c1"}"#
    private static let dead = ScriptedTransport.Step.json(400, #"{"error": "invalid_grant"}"#)

    private static func make(
        _ tenant: String = other, lifetime: Duration = .seconds(3600)
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: lifetime)
        broker.transport.enqueue(dead)
        return broker
    }

    /// Queries for which the refresh is made, with what is left of the token.
    @Test(arguments: [("policy=local_force_refresh", 3600), ("min_ttl=7200", 3600), ("", 59), ("level=user", 1)])
    func `is given until its end, with the end of the session beside it`(query: String, left: Int64) async throws {
        let broker = try await Self.make(lifetime: .seconds(left))
        let tag = await broker.get("policy=local").tag
        for query in [query, "", query, "level=user&min_ttl=0", "policy=local"] {
            let answer = await broker.get(query)
            #expect((answer.status, answer.token, answer.level) == (200, "a1", "user"), "\(query)")
            #expect(answer.json["expires_in"] == .integer(left))
            #expect(answer.json["session"]?["cause"]?.text == "revoked")
            #expect(answer.json["session"]?["ended"]?.text == "2026-11-21T09:00:00Z")
            #expect(answer.json["session"]?["reconnect_uri"]?.text?.hasPrefix("https://broker.example/") == true)
            #expect(answer.tag == tag)
        }
        // A caller that has the token learns of the end, too.
        #expect(await broker.get(fields: ["If-None-Match": tag]).json["session"] != nil)
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.causes() == ["set", "revoked"])
        let status = await broker.status()
        #expect(status.json["state"]?.text == "ended" && status.json["logged_in"]?.bool == false)
        #expect(try await broker.quarantined()?.credentials.refreshToken?.revealedText == "r1")

        broker.time.advance(by: .seconds(left))
        let after = await broker.get()
        #expect((after.level, after.json["session"]?["ended"]?.text) == ("basic", "2026-11-21T09:00:00Z"))
        #expect(try await broker.causes() == ["set", "revoked"])
        #expect(await broker.get("policy=local_force_refresh").code == "missing_token_container")
    }

    @Test func `is given by another process, and from the store`() async throws {
        let broker = try await Self.make()
        #expect(await broker.get("policy=local_force_refresh").token == "a1")
        let restarted = try await BrokerHarness(store: broker.store, time: broker.time)
        let answer = await restarted.get("level=user")
        #expect((answer.token, answer.json["session"]?["cause"]?.text) == ("a1", "revoked"))
    }

    @Test func `is not given where an API has refused it, to that caller nor to others`() async throws {
        let broker = try await Self.make()
        #expect(await broker.get("api_error_sub_status=11003").level == "basic")
        #expect(await broker.get("min_ttl=0").level == "basic")
    }

    @Test func `is over when an API refuses it later`() async throws {
        let broker = try await Self.make()
        let tag = await broker.get("policy=local_force_refresh").tag
        let answer = await broker.get("api_error_sub_status=11003", fields: ["If-None-Match": tag])
        #expect((answer.level, answer.json["session"]?["cause"]?.text) == ("basic", "revoked"))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.causes() == ["set", "revoked"])
    }

    /// TIDAL's Auth design has the credentials removed.
    @Test(arguments: ["policy=local_force_refresh", "min_ttl=7200"])
    func `is removed with tidal`(query: String) async throws {
        let broker = try await Self.make(#"{"client_id": "c1"}"#)
        #expect(await broker.get(query).level == "basic")
    }

    @Test func `gives way to a new login, and to a session that is restored`() async throws {
        let broker = try await Self.make()
        #expect(await broker.get("policy=local_force_refresh").json["session"] != nil)
        #expect(await broker.restore().status == 200)
        let restored = await broker.get()
        #expect((restored.token, restored.json["session"]) == ("a1", nil))
        broker.transport.enqueue(Self.dead)
        #expect(await broker.get("policy=local_force_refresh").json["session"] != nil)
        await broker.set("b1", refresh: "r2")
        let answer = await broker.get()
        #expect((answer.token, answer.json["session"]) == ("b1", nil))
        #expect(await broker.status().json["state"]?.text == "active")
    }

    @Test func `is the rest of a session that a replica proves to go on`() async throws {
        let clock = ManualTime()
        let base = MemoryRecordStore { clock.monotonic }
        let store = BrokerFaultyStore(base, revalidateAfter: .seconds(5))
        let first = try await BrokerHarness(store: store)
        let second = try await BrokerHarness(store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)))
        await first.makeTenant("t1", Self.other)
        await first.set("a1", refresh: "r1")
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.credentials) }
        first.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        async let granted = first.get("policy=local_force_refresh")
        await gate.arrivals()
        clock.advance(by: .seconds(60))
        second.transport.enqueue(Self.dead)
        #expect(await second.get("policy=local_force_refresh").json["session"] != nil)
        gate.open()
        #expect(await granted.token == "a2")
        for broker in [first, second] {
            broker.time.advance(by: .seconds(6))
            let answer = await broker.get()
            #expect((answer.token, answer.json["session"]) == ("a2", nil))
        }
    }
}

/// The address at which the user of an ended session logs in again.
@Suite struct `The address for another login` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1"}"#

    private static func make() async throws -> (broker: BrokerHarness, path: String) {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero, storageKey: "u@example")
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let uri = await broker.get("storage_key=u@example").json["session"]?["reconnect_uri"]?.text ?? ""
        return (broker, BrokerHarness.path(of: uri))
    }

    private static func open(_ broker: BrokerHarness, _ path: String) async -> BrokerHarness.Answer {
        await broker.call(.get, path, key: nil, fields: ["Accept": .init(BrokerHarness.browserAccept)])
    }

    @Test func `begins a login that is bound to the browser and stored under the same key`() async throws {
        let (broker, path) = try await Self.make()
        let answer = await Self.open(broker, path)
        let location = try #require(answer.fields["Location"]?.text)
        #expect(answer.status == 303 && location.hasPrefix("https://id.example/a?"))
        let cookie = try #require(BrokerHarness.cookie(answer))
        let state = try #require(BrokerHarness.parameters(of: location)["state"])
        #expect(await broker.callback("code=c&state=\(state)").status == 403)
        broker.transport.enqueue(.json(200, BrokerHarness.token("b1", refresh: "r2")))
        #expect(await broker.callback("code=c&state=\(state)", cookie: cookie).status == 200)
        #expect(await broker.get("storage_key=u@example").token == "b1")
        // It has served.
        #expect(await Self.open(broker, path).status == 410)
    }

    @Test func `stores nothing before it is opened, and begins a login of its own each time`() async throws {
        let (broker, path) = try await Self.make()
        for _ in 0..<3 { _ = await broker.get("storage_key=u@example") }
        #expect(!broker.log.contains { $0.contains("login_begun") })
        let states = [await Self.open(broker, path), await Self.open(broker, path)].map {
            BrokerHarness.parameters(of: $0.fields["Location"]?.text ?? "")["state"]
        }
        #expect(Set(states).count == 2)
        #expect(await broker.call(.head, path, key: nil).status == 405)
    }

    @Test(arguments: [(86_399, 303), (86_400, 410)])
    func `is good for a day`(seconds: Int, status: Int) async throws {
        let (broker, path) = try await Self.make()
        broker.time.advance(by: .seconds(seconds))
        #expect(await Self.open(broker, path).status == status)
    }

    @Test func `is good for its own tenant and as it was made only`() async throws {
        let (broker, path) = try await Self.make()
        await broker.makeTenant("t2", Self.tenant)
        for other in [
            path.replacing("/t1/", with: "/t2/"), path.replacing("/t1/", with: "/t3/"), path + "A",
            String(path.dropLast(4)) + "AAAA", "/login/reconnect/t1/A",
        ] { #expect(await Self.open(broker, other).status == 410, "\(other)") }
        await broker.logOut(storageKey: "u@example")
        #expect(await Self.open(broker, path).status == 410)
    }

    @Test func `is not opened by a browser that fetches ahead`() async throws {
        let (broker, path) = try await Self.make()
        #expect(await broker.call(.get, path, key: nil, fields: ["Sec-Purpose": "prefetch"]).status == 503)
    }
}
