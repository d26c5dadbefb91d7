import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `A caller's patience` {
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1", "scopes": ["b", "a"]}"#

    @Test(arguments: ["wait=5", "WAIT = 5", "respond-async, wait=5", "wait=\"5\"", "wait=5; foo=bar"])
    func `a caller's patience ends its wait and not the renewal`(preference: String) async throws {
        let broker = try await BrokerHarness()
        broker.time.holdSleeps()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let impatient = broker.get(fields: ["Prefer": preference])
        await gate.arrivals()
        await broker.time.sleepers(of: .seconds(5))
        broker.time.advance(by: .seconds(5))
        let answer = await impatient
        #expect((answer.status, answer.code) == (503, "retryable_error"))
        #expect((answer.retryAfter ?? 0) >= 1)
        #expect(answer.json["retry_after"]?.integer.map(Int.init) == answer.retryAfter)
        #expect(broker.time.slept == [.seconds(5)])

        async let patient = broker.get()
        gate.open()
        #expect(await patient.token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    /// What the caller asks for, and what it gets when it stops waiting.
    @Test(arguments: [
        ("policy=local_force_refresh", 200), ("min_ttl=7200", 200), ("api_error_sub_status=11003", 503),
    ])
    func `a caller that stops waiting gets the live token, unless an API has refused it`(
        query: String, status: Int
    ) async throws {
        let broker = try await BrokerHarness()
        broker.time.holdSleeps()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let impatient = broker.get(query, fields: ["Prefer": "wait=5"])
        await gate.arrivals()
        await broker.time.sleepers(of: .seconds(5))
        broker.time.advance(by: .seconds(5))
        let answer = await impatient
        #expect((answer.status, answer.token) == (status, status == 200 ? "a1" : nil))
        #expect(answer.json["degraded"]?["code"]?.text == (status == 200 ? "retryable_error" : nil))
        gate.open()
        await broker.broker.core.renewer.finish()
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a patience of nought starts the renewal and does not wait for it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        #expect(await broker.get(fields: ["Prefer": "wait=0"]).status == 503)
        await gate.arrivals()
        gate.open()
        #expect(await broker.get().token == "a2")
    }

    @Test func `patience bounds the whole wait, also where a logout is followed by another request`() async throws {
        let broker = try await BrokerHarness()
        broker.time.holdSleeps()
        await broker.makeTenant("t1", Self.withSecret)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let (refresh, client) = (Gate(), Gate())
        broker.transport.enqueue(
            .after(refresh, .json(400, #"{"error": "invalid_grant"}"#)),
            .after(client, .json(200, BrokerHarness.token("client-1"))))
        async let answer = broker.get(fields: ["Prefer": "wait=5"])
        await refresh.arrivals()
        await broker.time.sleepers(of: .seconds(5))
        broker.time.advance(by: .seconds(3))
        refresh.open()
        await client.arrivals()
        while broker.time.slept.count < 2 { await Task.yield() }
        broker.time.advance(by: .seconds(2))
        #expect(await answer.status == 503)
        #expect(broker.time.slept == [.seconds(5), .seconds(2)])
        client.open()
        #expect(await broker.get().token == "client-1")
    }

    @Test func `a good token is given at once whatever the patience`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        #expect(await broker.get(fields: ["Prefer": "wait=0"]).token == "a1")
    }

    @Test(arguments: [
        ("wait", 400), ("wait=", 400), ("wait=x", 400), ("wait=-1", 400), ("wait=1.5", 400),
        ("wait=99999999999999999999", 200), (";", 200), ("=", 200), ("=5", 200), (";wait=5", 200), (",", 200),
        ("respond-async", 200), ("return=minimal", 200),
    ])
    func `a preference that is not a number of seconds is refused and others are let pass`(
        preference: String, status: Int
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.get(fields: ["Prefer": preference]).status == status)
    }
}
