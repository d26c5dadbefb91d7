import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// How a tenant has requests to its provider repeated.
@Suite(.timeLimit(.minutes(1))) struct `Retry settings of a tenant` {
    private static func tenant(_ retry: String) -> String {
        "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1", "retry": \#(retry)}"#
    }

    /// A broker whose user's token is over.
    private static func make(_ retry: String) async throws -> BrokerHarness {
        try await BrokerHarness.expired(tenant(retry))
    }

    private static let all = #"""
        {"tries": 3, "first_pause_ms": 200, "factor": 1.5, "longest_pause_ms": 250, "rate_limit_retries": 2,
         "follow_retry_after": false}
        """#

    @Test func `are shown with the tenant, and outlive a restart`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.all))
        let other = try await BrokerHarness(store: broker.store)
        let wanted = try JSONValue(parsing: Array(Self.all.utf8))
        #expect(await other.call(.get, "/tenants/t1").json["retry"] == wanted)
    }

    @Test(arguments: ["{}", "null", #"{"tries": null, "factor": null}"#])
    func `are not shown, and not stored, where there are none`(retry: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(retry))
        #expect(await broker.call(.get, "/tenants/t1").json["retry"] == nil)
    }

    @Test(
        arguments: [
            (#"{"tries": 1}"#, ["/tries"]), (#"{"tries": 2}"#, []), (#"{"tries": 10, "longest_pause_ms": 2000}"#, []),
            (#"{"tries": 11}"#, ["/tries"]), (#"{"tries": "3"}"#, ["/tries"]),
            (#"{"first_pause_ms": 99}"#, ["/first_pause_ms"]), (#"{"first_pause_ms": 100}"#, []),
            (#"{"first_pause_ms": 10000, "tries": 2, "longest_pause_ms": 10000}"#, []),
            (#"{"first_pause_ms": 10001, "tries": 2}"#, ["/first_pause_ms"]),
            (#"{"factor": 0.99}"#, ["/factor"]), (#"{"factor": 1}"#, []), (#"{"factor": 1.0}"#, []),
            (#"{"factor": 10, "tries": 3}"#, []), (#"{"factor": 10.01}"#, ["/factor"]),
            (#"{"factor": "2"}"#, ["/factor"]), (#"{"longest_pause_ms": 99}"#, ["/longest_pause_ms"]),
            (#"{"longest_pause_ms": 499}"#, [""]), (#"{"longest_pause_ms": 500}"#, []),
            (#"{"longest_pause_ms": 30000}"#, []), (#"{"longest_pause_ms": 30001}"#, ["/longest_pause_ms"]),
            (#"{"rate_limit_retries": -1}"#, ["/rate_limit_retries"]), (#"{"rate_limit_retries": 0}"#, []),
            (#"{"rate_limit_retries": 5}"#, []), (#"{"rate_limit_retries": 6}"#, ["/rate_limit_retries"]),
            (#"{"follow_retry_after": true}"#, []), (#"{"follow_retry_after": 1}"#, ["/follow_retry_after"]),
            (#"{"pauses": 3}"#, ["/pauses"]), ("[]", [""]), (#"{"tries": 1, "factor": 0}"#, ["/factor", "/tries"]),
            // 0.5 + 1 + 2 + 4 + 8 + 8 s, and once more.
            (#"{"tries": 7}"#, []), (#"{"tries": 8}"#, [""]),
            (#"{"tries": 4, "first_pause_ms": 10000, "factor": 1, "longest_pause_ms": 10000}"#, []),
            (#"{"tries": 5, "first_pause_ms": 7500, "factor": 1}"#, []),
            (#"{"tries": 5, "first_pause_ms": 7501, "factor": 1}"#, [""]),
        ] as [(String, [String])])
    func `are refused by name where they do not fit`(retry: String, wrong: [String]) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: Self.tenant(retry))
        #expect(answer.status == (wrong.isEmpty ? 201 : 400))
        #expect(answer.pointers == wrong.map { "/retry" + $0 })
    }

    @Test func `say by how much they wait too long`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: Self.tenant(#"{"tries": 8}"#))
        let detail = answer.json["errors"]?.array?.first?["detail"]?.text ?? ""
        #expect(detail.contains("30000 ms") && detail.contains("31500 ms"), "\(detail)")
    }

    // MARK: Their effects

    @Test(
        arguments: [
            (#"{"tries": 2}"#, [500]), (#"{"tries": 4, "first_pause_ms": 100, "factor": 3}"#, [100, 300, 900]),
            (#"{"tries": 3, "first_pause_ms": 333, "factor": 1.5}"#, [333, 500]),
            (#"{"first_pause_ms": 400, "longest_pause_ms": 1000}"#, [400, 800, 1000, 1000, 1000]),
            (#"{"factor": 1}"#, [500, 500, 500, 500, 500]), ("{}", [500, 1000, 2000, 4000, 8000]),
        ] as [(String, [Int64])])
    func `decide when a renewal is tried again`(retry: String, waits: [Int64]) async throws {
        let broker = try await Self.make(retry)
        broker.transport.always(.failure(.connectFailed))
        #expect(await broker.get().code == "network_error")
        #expect(broker.transport.seen.count == waits.count + 1)
        #expect(broker.time.slept == waits.map { Duration.milliseconds($0) })
    }

    @Test func `decide when the code of a login is exchanged again`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#"{"tries": 3, "first_pause_ms": 200}"#))
        let login = await broker.beginLogin()
        broker.transport.always(.json(503, ""))
        #expect(await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil).status == 503)
        #expect(broker.transport.seen.count == 3)
        #expect(broker.time.slept == [.milliseconds(200), .milliseconds(400)])
    }

    @Test func `decide when an upgrade is tried again, and that a dead one is followed by one refresh`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1"}"#)
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", #"{"client_id": "c2", "retry": {"tries": 2, "first_pause_ms": 100}}"#)
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        _ = await broker.get()
        #expect(broker.transport.seen.map { $0.form["client_id"] } == ["c2", "c2", "c1"])
        #expect(broker.time.slept.reduce(.zero, +) == .milliseconds(100))
    }

    // MARK: Limits of rate

    @Test(
        arguments: [
            ("{}", 1, 0), (#"{"rate_limit_retries": 0}"#, 1, 0), (#"{"rate_limit_retries": 1}"#, 2, 3),
            (#"{"rate_limit_retries": 3}"#, 4, 9), (#"{"rate_limit_retries": 5, "tries": 3}"#, 3, 6),
        ] as [(String, Int, Int)])
    func `decide how often the wait of a 429 is waited`(retry: String, calls: Int, seconds: Int) async throws {
        let broker = try await Self.make(retry)
        broker.transport.always(.json(429, "", fields: ["Retry-After": "3"]))
        let answer = await broker.get()
        #expect((answer.status, answer.retryAfter) == (503, 3))
        #expect(broker.transport.seen.count == calls)
        #expect(broker.time.slept.reduce(.zero, +) == .seconds(seconds))
    }

    @Test(arguments: [("30", 2), ("31", 1), ("16", 2), ("15", 3), ("10", 4)])
    func `wait for half a minute in all`(retryAfter: String, calls: Int) async throws {
        let broker = try await Self.make(#"{"rate_limit_retries": 5}"#)
        broker.transport.always(.json(429, "", fields: ["Retry-After": retryAfter]))
        #expect(await broker.get().status == 503)
        #expect(broker.transport.seen.count == calls)
    }

    @Test func `serve a user after the wait of a 429`() async throws {
        let broker = try await Self.make(#"{"rate_limit_retries": 1}"#)
        broker.transport.enqueue(
            .json(429, "", fields: ["Retry-After": "Sat, 21 Nov 2026 09:00:07 GMT"]),
            .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.time.slept.reduce(.zero, +) == .seconds(7))
    }

    @Test(arguments: [("{}", 6), (#"{"rate_limit_retries": 0}"#, 1), (#"{"rate_limit_retries": 2}"#, 3)])
    func `decide how often a code is exchanged again after a 429`(retry: String, calls: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(retry))
        let login = await broker.beginLogin()
        broker.transport.always(.json(429, "", fields: ["Retry-After": "1"]))
        #expect(await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil).status == 503)
        #expect(broker.transport.seen.count == calls)
    }

    @Test(arguments: [(true, 9000), (false, 500)])
    func `decide whether Retry-After counts`(follows: Bool, milliseconds: Int) async throws {
        let broker = try await Self.make(#"{"follow_retry_after": \#(follows)}"#)
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": "9"]), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.time.slept.reduce(.zero, +) == .milliseconds(milliseconds))
    }
}
