import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Upgrading credentials` {
    private static let first =
        #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["a"]}"#
    private static let backoff: [Duration] = [.milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8)]

    private static let moreScopes =
        #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["b", "a"]}"#

    /// A configuration that differs from `first` in one of the four, and what that makes of the form.
    struct Change: Sendable, CustomTestStringConvertible {
        let difference: String
        let configuration: String
        let form: [String: String?]

        var testDescription: String { "\(difference): \(configuration)" }
    }

    static let changes: [Change] = [
        Change(
            difference: "client_id",
            configuration: #"{"client_id": "c2", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["a"]}"#,
            form: ["client_id": "c2"]),
        Change(
            difference: "scopes",
            configuration:
                #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["b", "a"]}"#,
            form: ["scope": "a b"]),
        Change(
            difference: "scopes",
            configuration: #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1"}"#,
            form: ["scope": nil]),
        Change(
            difference: "client_secret",
            configuration: #"{"client_id": "c1", "client_secret": "s2", "client_unique_key": "u1", "scopes": ["a"]}"#,
            form: ["client_secret": "s2"]),
        Change(
            difference: "client_secret",
            configuration: #"{"client_id": "c1", "client_secret": null, "client_unique_key": "u1", "scopes": ["a"]}"#,
            form: ["client_secret": nil]),
        Change(
            difference: "client_unique_key",
            configuration: #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u2", "scopes": ["a"]}"#,
            form: ["client_unique_key": "u2"]),
        Change(
            difference: "client_unique_key",
            configuration: #"{"client_id": "c1", "client_secret": "s1", "scopes": ["a"]}"#,
            form: ["client_unique_key": nil]),
    ]

    private static func loggedIn(
        lifetime: Duration = .seconds(3600), refresh: String? = "r1", store: (any RecordStore)? = nil,
        time: ManualTime = ManualTime()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", first)
        await broker.set(
            "a1", refresh: refresh, lifetime: lifetime,
            members: #""level": "user", "user_id": "42", "client_unique_key": "u1", "granted_scopes": ["a"], "#)
        return broker
    }

    // MARK: Users

    // T47
    // T71
    @Test(arguments: changes, [3600, 59, -1])
    func `each of the four alone has a user carried over in one request, and only once`(
        change: Change, left: Int
    ) async throws {
        let broker = try await Self.loggedIn(lifetime: .seconds(left))
        await broker.makeTenant("t1", change.configuration)
        #expect(await broker.status().differences == [change.difference])
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        let answer = await broker.get()
        #expect((answer.status, answer.level, answer.token) == (200, "user", "a2"))
        #expect(answer.json["user_id"] == .string("42"))
        let request = try #require(broker.transport.seen.first)
        var form = [
            "grant_type": "update_client", "refresh_token": "r1", "client_id": "c1", "client_secret": "s1",
            "client_unique_key": "u1", "scope": "a",
        ]
        for (name, value) in change.form { form[name] = value }
        #expect(request.form == form)
        #expect(request.url == "https://auth.tidal.com/v1/oauth2/token")
        #expect(request.isPinned)

        #expect(await broker.get().tag == answer.tag)
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.status().differences == nil)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3")))
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        #expect(broker.transport.seen.last?.form["grant_type"] == "refresh_token")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
        #expect(try await broker.causes() == ["set", "upgrade", "refresh"])
    }

    // T47
    // T73
    @Test func `the granted scopes are the answer's, and those of before when it names none`() async throws {
        for (scope, granted) in [("b a", ["a", "b"]), ("b", ["b"]), (nil, ["a"])] {
            let broker = try await Self.loggedIn()
            await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["a", "b"]}"#)
            broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2", scope: scope)))
            let answer = await broker.get()
            #expect(answer.json["granted_scopes"] == .array(granted.map(JSONValue.string)))
            #expect(answer.json["requested_scopes"] == .array([.string("a"), .string("b")]))
        }
    }

    // T47
    @Test func `the refresh token of before is kept when the answer has none`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")), .json(200, BrokerHarness.token("a3")))
        #expect(await broker.get().token == "a2")
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1"])
        #expect(broker.transport.seen.map(\.form["client_id"]) == ["c2", "c2"])
    }

    @Test func `all four at once are one request`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant(
            "t1", #"{"client_id": "c2", "client_secret": "s2", "client_unique_key": "u2", "scopes": ["b"]}"#)
        #expect(
            await broker.status().differences == ["client_id", "client_secret", "client_unique_key", "scopes"])
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(
            broker.transport.seen.map(\.form) == [
                [
                    "grant_type": "update_client", "refresh_token": "r1", "client_id": "c2", "client_secret": "s2",
                    "client_unique_key": "u2", "scope": "b",
                ]
            ])
    }

    // T41
    @Test func `a hundred callers cause one request`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let tokens = await withTaskGroup(of: String?.self) { group in
            for _ in 0..<100 { group.addTask { await broker.get().token } }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(tokens == Array(repeating: "a2", count: 100))
        #expect(broker.transport.seen.count == 1)
    }

    @Test(arguments: ["policy=local", "policy=local&min_ttl=86400", "policy=local&api_error_sub_status=11003"])
    func `policy=local never upgrades`(query: String) async throws {
        let broker = try await Self.loggedIn(lifetime: .seconds(-5))
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let answer = await broker.get(query)
        #expect((answer.status, answer.token) == (200, "a1"))
        #expect(answer.json["client_id"] == .string("c1"))
        #expect(broker.transport.seen.isEmpty)
    }

    @Test(arguments: ["policy=local_valid", "policy=local_force_refresh", "policy=create_if_needed", "level=user"])
    func `every other policy upgrades, and does not refresh besides`(query: String) async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get(query).token == "a2")
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["update_client"])
    }

    @Test func `without a refresh token a user is served until the token expires`() async throws {
        let broker = try await Self.loggedIn(lifetime: .seconds(100), refresh: nil)
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.time.advance(by: .seconds(40))
        #expect(await broker.get().token == "a1")
        #expect(await broker.status().differences?.contains("client_id") == true)
        broker.time.advance(by: .milliseconds(1))
        let answer = await broker.get()
        #expect((answer.level, answer.json["client_id"]) == ("basic", .string("c2")))
        // Kept for its own client while something is left of it.
        #expect(try await broker.causes() == ["set"])
        broker.time.advance(by: .milliseconds(59_999))
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.causes() == ["set", "expired"])
        #expect(try await broker.quarantined() == nil)
    }

    // MARK: Failures

    static let failures: [(ScriptedTransport.Step, String)] = [
        (.json(400, #"{"error": "unsupported_grant_type"}"#), "retryable_error"),
        (.json(401, #"{"error": "invalid_client"}"#), "retryable_error"),
        (.json(401, #"{"error": "access_denied"}"#), "retryable_error"),
        (.json(403, ""), "retryable_error"), (.json(404, "<html>"), "retryable_error"),
        (.json(429, ""), "retryable_error"), (.json(500, #"{"error": "server_error"}"#), "retryable_error"),
        (.json(503, ""), "retryable_error"), (.json(302, "", fields: ["Location": "/x"]), "retryable_error"),
        (.json(200, "{}"), "retryable_error"), (.json(200, "<html>"), "retryable_error"),
        (.failure(.connectFailed), "retryable_error"),
        (.failure(.connectionLost(requestSent: true)), "retryable_error"),
        (.failure(.timedOut(.firstByte, requestSent: true)), "retryable_error"),
        (.failure(.untrusted(.pin)), "retryable_error"), (.failure(.untrusted(.chain)), "retryable_error"),
        (.failure(.malformedResponse), "retryable_error"), (.failure(.responseTooLarge), "retryable_error"),
        (.failure(.insecureTarget), "retryable_error"),
    ]

    // T48
    // T49
    // T72
    @Test(arguments: failures)
    func `whatever fails is tried six times, changes nothing and is tried again at the next read`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2", "client_secret": "s2"}"#)
        let before = await broker.get("policy=local")
        broker.transport.always(step)
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, code))
        #expect((answer.retryAfter ?? 0) >= 1)
        #expect(broker.transport.seen.map(\.form["grant_type"]) == Array(repeating: "update_client", count: 6))
        if case .json(429, _, _) = step {
            #expect(broker.time.slept.count == 5)
        } else {
            #expect(broker.time.slept == Self.backoff)
        }
        let after = await broker.get("policy=local")
        #expect((after.tag, after.token) == (before.tag, "a1"))
        let status = await broker.status()
        #expect(status.isLoggedIn == true)
        #expect(status.json["refreshable"] == .bool(true))
        #expect(try await broker.causes() == ["set"])
        #expect(try await broker.quarantined() == nil)

        broker.time.advance(by: .seconds(60))
        broker.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
    }

    // T48
    // T49
    // T72
    @Test(arguments: failures)
    func `client credentials fail to be upgraded in the same way`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.first)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        let before = await broker.get()
        await broker.makeTenant("t1", #"{"client_id": "c2", "client_secret": "s2"}"#)
        broker.transport.always(step)
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, code))
        #expect((answer.retryAfter ?? 0) >= 1)
        #expect(broker.transport.seen.count == 1 + 6)
        #expect(await broker.get("policy=local").tag == before.tag)
        broker.time.advance(by: .seconds(60))
        broker.transport.always(.json(200, BrokerHarness.token("client-2")))
        #expect(await broker.get().token == "client-2")
    }

    @Test(arguments: 1...5)
    func `a retry that succeeds is the upgrade`(failures: Int) async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        for _ in 0..<failures { broker.transport.enqueue(.json(401, #"{"error": "invalid_client"}"#)) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.time.slept == Array(Self.backoff.prefix(failures)))
    }

    @Test func `a provider that wants to be left alone is, and nothing is told of it meanwhile`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "60"]))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 60))
        let told = try await broker.events().count
        broker.time.advance(by: .milliseconds(59_999))
        #expect(await broker.get().retryAfter == 1)
        #expect(broker.transport.seen.count == 1)
        #expect(try await broker.events().count == told)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test func `callers are told of a failed upgrade for 30 seconds without another call`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.always(.json(400, #"{"error": "unsupported_grant_type"}"#))
        #expect(await broker.get().status == 503)
        let again = await broker.get()
        #expect((again.status, again.code, again.retryAfter) == (503, "retryable_error", 30))
        broker.time.advance(by: .milliseconds(29_999))
        #expect(await broker.get().retryAfter == 1)
        #expect(broker.transport.seen.count == 6)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
    }

    @Test func `a session that has ended while an upgrade is due ends by one ordinary refresh`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", Self.moreScopes)
        for _ in 0..<7 { broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#)) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (200, "client"))
        let calls = broker.transport.seen
        #expect(
            calls.map(\.form["grant_type"]) == Array(repeating: "update_client", count: 6)
                + ["refresh_token", "client_credentials"])
        #expect(calls[6].form["client_id"] == "c1" && calls[6].form["refresh_token"] == "r1")
        #expect(try await broker.causes() == ["set", "revoked", "client"])
    }

    @Test func `a session that lives while its upgrade is refused is refreshed and kept`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", Self.moreScopes)
        for _ in 0..<6 { broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#)) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().code == "retryable_error")
        #expect(await broker.get().retryAfter == 30)
        #expect(broker.transport.seen.count == 7)
        let kept = await broker.get("policy=local")
        #expect((kept.token, kept.json["requested_scopes"]) == ("a2", .array([.string("a")])))
        broker.time.advance(by: .seconds(30))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test func `a failed upgrade is told with the provider's code and begins and ends once`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.always(.json(400, #"{"error": "unsupported_grant_type"}"#))
        let answer = await broker.get()
        #expect(answer.json["error_code"] == .string("unsupported_grant_type"))
        let events = try await broker.events().dropFirst()
        #expect(
            events.map(\.kind) == [
                .refreshStarted, .refreshRefreshingAccessToken, .refreshFailed, .credentialsDegraded,
            ])
        #expect(events.dropLast().allSatisfy { $0.data["grant"] == .string("upgrade") })
        #expect(Set(events.compactMap { $0.data["refresh_id"]?.text }).count == 1)
        #expect(events.last?.data["error"] == .string("retryable_error"))
    }

    @Test func `an upgrade that cannot be written down is not begun`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.loggedIn(store: store)
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        store.disturb([.refuse]) { if case .append = $0 { true } else { false } }
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "storage_unavailable"))
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.events().map(\.kind) == [.credentialsUpdated])
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test func `a tenant that is deleted during an upgrade leaves nothing behind`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let upgraded = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        #expect(await upgraded.status == 404)
        #expect(try await broker.count(.credentials) == 0)
        #expect(try await broker.events().isEmpty)
    }

    @Test func `a logout during an upgrade holds, and the upgrade is told to have failed`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let upgraded = broker.get()
        await gate.arrivals()
        await broker.logOut()
        gate.open()
        #expect(await upgraded.level == "basic")
        #expect(await broker.get().level == "basic")
        let last = try #require(try await broker.events().last)
        #expect((last.kind, last.data["grant"]) == (.refreshFailed, .string("upgrade")))
    }

    // MARK: Client credentials

    // T71
    @Test(arguments: changes.filter { $0.form["client_secret"] != .some(nil) })
    func `each of the four alone has client credentials made anew, and only once`(change: Change) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.first)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1")), .json(200, BrokerHarness.token("client-2")))
        #expect(await broker.get().token == "client-1")
        await broker.makeTenant("t1", change.configuration)
        #expect(await broker.status().differences == [change.difference])
        #expect(await broker.get().token == "client-2")
        #expect(await broker.get().token == "client-2")
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["client_credentials", "client_credentials"])
        #expect(try await broker.causes() == ["client", "upgrade"])
        #expect(await broker.status().differences == nil)
    }

    @Test func `client credentials of a client that has lost its secret serve no longer`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.first)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1", expiresIn: 100)))
        #expect(await broker.get().token == "client-1")
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": null}"#)
        #expect(await broker.get().level == "basic")
        #expect(broker.transport.seen.count == 1)
    }

    // MARK: Changes of the configuration meanwhile
    @Test func `a caller with a newer configuration than the renewal it joins gets an upgrade`() async throws {
        let broker = try await Self.loggedIn()
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))),
            .json(200, BrokerHarness.token("a3", refresh: "r3")))
        async let refreshed = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        async let joined = broker.get()
        gate.open()
        #expect(await joined.token == "a3")
        #expect(["a2", "a3"].contains(await refreshed.token))
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token", "update_client"])
    }

    @Test func `a configuration that changes during an upgrade has the session carried on`() async throws {
        let broker = try await Self.loggedIn()
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))), .json(200, BrokerHarness.token("a3")))
        async let upgraded = broker.get()
        await gate.arrivals()
        await broker.makeTenant("t1", #"{"client_id": "c3"}"#)
        gate.open()
        _ = await upgraded
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.map(\.form["client_id"]) == ["c2", "c3"])
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r2"])
    }
}
