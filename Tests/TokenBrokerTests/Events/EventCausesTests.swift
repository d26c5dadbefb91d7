import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// What is told of each change, and that nothing is told of none.
@Suite struct `Events of changes` {
    private static let steps = [
        "refresh.started", "refresh.refreshing_access_token", "refresh.refreshed_access_token",
        "refresh.saving_tokens", "credentials.updated", "refresh.succeeded",
    ]

    /// The events after the first `count`, each with its cause where it has one.
    private static func told(_ broker: BrokerHarness, after count: Int = 0) async throws -> [String] {
        try await broker.loggedEvents().dropFirst(count).map { event in
            event.name + (event.cause.map { " \($0)" } ?? "")
        }
    }

    /// What `change` has told.
    private static func told(
        _ broker: BrokerHarness, by change: () async throws -> Void
    ) async throws -> [String] {
        let count = try await broker.loggedEvents().count
        try await change()
        return try await told(broker, after: count)
    }

    private static func steps(_ cause: String) -> [String] {
        steps.map { $0 == "credentials.updated" ? "\($0) \(cause)" : $0 }
    }

    // T36 T51 T52 S07 S10 S11
    @Test func `every way in which credentials change tells it once, with its cause, and no secret`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let loggedIn = try await Self.told(broker) { await broker.logIn() }
        #expect(loggedIn == ["credentials.updated login", "login.completed"])
        let refreshed = try await Self.told(broker) {
            broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
            #expect(await broker.get("policy=local_force_refresh").token == "access-2")
        }
        #expect(refreshed == Self.steps("refresh"))
        let upgraded = try await Self.told(broker) {
            await broker.makeTenant("t1", #"{"client_id": "c2", "client_secret": "secret-2"}"#)
            broker.transport.enqueue(.json(200, BrokerHarness.token("access-3", refresh: "refresh-3")))
            #expect(await broker.get().token == "access-3")
        }
        #expect(upgraded == Self.steps("upgrade"))
        let nothing = try await Self.told(broker) {
            #expect(await broker.get().token == "access-3")
            _ = await broker.call(.get, "/credentials/status", tenant: "t1")
        }
        #expect(nothing == [])
        let set = try await Self.told(broker) {
            await broker.set("access-4", refresh: "refresh-4", clientID: "c2")
            await broker.set("access-5", refresh: "refresh-5", clientID: "c2")
        }
        #expect(set == ["credentials.updated set", "credentials.updated set"])
        let loggedOut = try await Self.told(broker) {
            for _ in 0..<2 { #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204) }
        }
        #expect(loggedOut == ["credentials.deauthorized logout"])
        let obtained = try await Self.told(broker) {
            broker.transport.enqueue(.json(200, BrokerHarness.token("access-6")))
            #expect(await broker.get().level == "client")
        }
        #expect(obtained == ["credentials.updated client"])
        let loggedInAgain = try await Self.told(broker) {
            await broker.logIn(token: BrokerHarness.token("access-7", refresh: "refresh-7", userID: 42))
        }
        #expect(loggedInAgain == ["credentials.updated login", "login.completed"])
        let ended = try await Self.told(broker) {
            broker.transport.enqueue(.json(401, #"{"error": "invalid_grant"}"#))
            #expect(await broker.get("policy=local_force_refresh&level=user").code == "level_not_available")
        }
        #expect(
            ended == [
                "refresh.started", "refresh.refreshing_access_token", "credentials.deauthorized revoked",
                "refresh.failed",
            ])
        let restored = try await Self.told(broker) {
            #expect(await broker.call(.post, "/credentials/restore", tenant: "t1").status == 200)
        }
        #expect(restored == ["credentials.updated restored"])
        await broker.set("access-8", lifetime: .seconds(100), clientID: "c2")
        let expired = try await Self.told(broker) {
            broker.time.advance(by: .seconds(101))
            #expect(await broker.get("level=user").code == "level_not_available")
        }
        #expect(expired == ["credentials.deauthorized expired"])

        let told = try await broker.loggedEvents().map(\.data).joined()
        // The code as the end of a value: a `refresh_id` may have the same three characters within.
        for secret in ["access-", "refresh-", "secret-", #"c-1""#, "verifier", "tb_"] {
            #expect(!told.contains(secret), "\(secret)")
        }
    }

    // S08
    @Test func `a renewal that fails tells so, and that nothing else happened`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("access-1", refresh: "refresh-1")
        let failed = try await Self.told(broker) {
            broker.transport.enqueue(.json(400, #"{"error": "invalid_scope"}"#))
            #expect(await broker.get("policy=local_force_refresh").code == "unexpected_error")
        }
        #expect(failed == ["refresh.started", "refresh.refreshing_access_token", "refresh.failed"])
        #expect(await broker.get().token == "access-1")
        let failure = try #require(try await broker.loggedEvents().last)
        #expect(failure.json["error"]?.string == "unexpected_error")
        #expect(failure.json["error_code"]?.string == "invalid_scope")
    }

    @Test func `the events of a renewal and its log lines bear one name, and another renewal another`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("access-1", refresh: "refresh-1")
        for number in 2...3 {
            broker.transport.enqueue(.json(200, BrokerHarness.token("access-\(number)", refresh: "refresh-1")))
            _ = await broker.get("policy=local_force_refresh")
        }
        let names = try await broker.loggedEvents().dropFirst().map(\.refreshID)
        #expect(names.count == 12)
        let first = try #require(names[0])
        let second = try #require(names[6])
        #expect(first != second)
        #expect(names == Array(repeating: first, count: 6) + Array(repeating: second, count: 6))
        for name in [first, second] {
            let lines = broker.log.filter { $0.contains(#""event":"credentials_renewed""#) && $0.contains(name) }
            #expect(lines.count == 1)
        }
    }

    @Test func `what tells of credentials has their version, user and end`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn(storageKey: "alice")
        let version = await broker.get("storage_key=alice").version
        let event = try #require(try await broker.loggedEvents().first)
        #expect(event.json["tenant"]?.string == "t1")
        #expect(event.json["storage_key"]?.string == "alice")
        #expect(event.json["level"]?.string == "user")
        #expect(event.json["user_id"]?.string == "42")
        #expect(event.json["expires"]?.string == "2026-11-21T10:00:00Z")
        #expect(event.json["time"]?.string == "2026-11-21T09:00:00Z")
        #expect(event.json["version"]?.integer == version)
    }

    @Test func `a renewal that a logout overtakes tells of its failure only`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("access-1", refresh: "refresh-1")
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("access-2"))))
        let told = try await Self.told(broker) {
            async let renewed = broker.get("policy=local_force_refresh")
            await gate.arrivals()
            _ = await broker.call(.delete, "/credentials", tenant: "t1")
            gate.open()
            _ = await renewed
        }
        #expect(
            told == [
                "refresh.started", "refresh.refreshing_access_token", "credentials.deauthorized logout",
                "refresh.failed",
            ])
    }

    @Test func `a login that the user refuses, and one whose code is refused, are told`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let refused = await broker.beginLogin()
        _ = await broker.call(.get, "/login/callback?error=access_denied&state=\(refused.state)", key: nil)
        let failed = await broker.beginLogin()
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        _ = await broker.call(.get, "/login/callback?code=c-1&state=\(failed.state)", key: nil)
        let events = try await broker.loggedEvents()
        #expect(events.map(\.name) == ["login.failed", "login.failed"])
        #expect(events.map { $0.json["error"]?.text } == ["authorization_error", "unexpected_error"])
        #expect(events.map { $0.json["error_code"]?.text } == ["access_denied", "invalid_grant"])
        #expect(events.map { $0.json["login_id"]?.text } == [refused.id, failed.id])
        let text = events.map(\.data).joined()
        #expect(!text.contains(refused.state) && !text.contains(failed.state) && !text.contains("c-1"))
    }

    // S13
    @Test func `of nine who cause a renewal at once, twenty times, each time one change is told`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("access-0", refresh: "refresh-1")
        for round in 1...20 {
            let tag = await broker.get().tag
            broker.transport.always(.json(200, BrokerHarness.token("access-\(round)", refresh: "refresh-1")))
            let told = try await Self.told(broker) {
                await withTaskGroup { group in
                    for _ in 0..<9 {
                        group.addTask {
                            _ = await broker.get("api_error_sub_status=11003", fields: ["If-None-Match": tag])
                        }
                    }
                }
            }
            #expect(told == Self.steps("refresh"), "round \(round)")
        }
    }

    // T65
    @Test func `when a logout is told, the credentials are gone already`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant()
        await broker.set("access-1", refresh: "refresh-1")
        let listener = await broker.listen(tenant: "t1")
        async let answer = broker.call(.delete, "/credentials", tenant: "t1")
        #expect(await listener.events(1).map(\.name) == ["credentials.deauthorized"])
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(await answer.status == 204)
        await listener.close()
    }
}
