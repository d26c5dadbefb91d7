import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite(.timeLimit(.minutes(1))) struct `Polling for a device login` {
    private static func error(_ status: Int, _ error: String) -> ScriptedTransport.Step {
        .json(status, #"{"error": "\#(error)"}"#)
    }

    private static func subStatus(_ status: Int, _ subStatus: Int) -> ScriptedTransport.Step {
        .json(status, #"{"status": \#(status), "sub_status": \#(subStatus)}"#)
    }

    struct Waiting: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let step: ScriptedTransport.Step
        /// Between the answer and the next poll.
        let wait: Duration
    }

    // T18: the answers that mean that the user is awaited. T17: a server that fails.
    private static let waiting: [Waiting] = [
        .init(
            testDescription: "400 authorization_pending", step: error(400, "authorization_pending"), wait: .seconds(5)),
        .init(
            testDescription: "401 authorization_pending", step: error(401, "authorization_pending"), wait: .seconds(5)),
        .init(
            testDescription: "403 authorization_pending", step: error(403, "authorization_pending"), wait: .seconds(5)),
        .init(
            testDescription: "TIDAL's pending",
            step: .json(400, #"{"status": 400, "error": "authorization_pending", "sub_status": 1002}"#),
            wait: .seconds(5)),
        .init(testDescription: "slow_down", step: error(400, "slow_down"), wait: .seconds(10)),
        // GitHub's answers.
        .init(
            testDescription: "200 authorization_pending", step: error(200, "authorization_pending"), wait: .seconds(5)),
        .init(testDescription: "200 slow_down", step: error(200, "slow_down"), wait: .seconds(10)),
        .init(testDescription: "429", step: .json(429, "{}"), wait: .seconds(10)),
        .init(
            testDescription: "429, Retry-After 60", step: .json(429, "{}", fields: ["Retry-After": "60"]),
            wait: .seconds(60)),
        .init(
            testDescription: "429, Retry-After 1", step: .json(429, "{}", fields: ["Retry-After": "1"]),
            wait: .seconds(10)),
        .init(testDescription: "500", step: .json(500, ""), wait: .milliseconds(500)),
        .init(
            testDescription: "503 with an error that would be final", step: error(503, "access_denied"),
            wait: .milliseconds(500)),
        .init(
            testDescription: "503, Retry-After 90", step: .json(503, "{}", fields: ["Retry-After": "90"]),
            wait: .seconds(60)),
        .init(testDescription: "not reached", step: .failure(.connectFailed), wait: .milliseconds(500)),
        .init(
            testDescription: "lost", step: .failure(.connectionLost(requestSent: true)), wait: .milliseconds(500)),
        .init(
            testDescription: "too slow", step: .failure(.timedOut(.firstByte, requestSent: true)),
            wait: .milliseconds(500)),
    ]

    @Test(arguments: waiting)
    func `goes on after what may pass`(row: Waiting) async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        script.enqueue(row.step)
        await broker.time.pass(.seconds(5))
        #expect(script.polls == [.seconds(5)])
        #expect(broker.time.slept.last == row.wait)
        #expect(await broker.deviceProgress(handle).text == #"{"status":"pending"}"#)
        broker.time.advance(by: row.wait - .milliseconds(1))
        #expect(script.polls.count == 1)
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(script.polls == [.seconds(5), .seconds(5) + row.wait])
    }

    struct Ending: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let step: ScriptedTransport.Step
        /// What `GET /device/{device_code}` tells then.
        let outcome: String
    }

    private static let expired = #"{"status":"expired"}"#
    private static let refused = #"{"status":"failed","error":"token_response_error"}"#

    private static let ending: [Ending] = [
        .init(
            testDescription: "access_denied", step: error(400, "access_denied"),
            outcome: #"{"status":"failed","error":"authorization_error"}"#),
        .init(
            testDescription: "403 access_denied", step: error(403, "access_denied"),
            outcome: #"{"status":"failed","error":"authorization_error"}"#),
        .init(testDescription: "expired_token", step: error(400, "expired_token"), outcome: expired),
        // T20
        .init(testDescription: "T20: 401 11003", step: subStatus(401, 11003), outcome: expired),
        .init(testDescription: "T20: 400 11003", step: subStatus(400, 11003), outcome: expired),
        // T19
        .init(testDescription: "T19: 403", step: subStatus(403, 4005), outcome: refused),
        .init(testDescription: "T19: 404", step: .json(404, "{}"), outcome: refused),
        .init(testDescription: "invalid_grant", step: error(400, "invalid_grant"), outcome: refused),
        .init(testDescription: "invalid_client", step: error(401, "invalid_client"), outcome: refused),
        .init(testDescription: "unsupported_grant_type", step: error(400, "unsupported_grant_type"), outcome: refused),
        .init(testDescription: "200 without a token", step: .json(200, "{}"), outcome: refused),
        .init(testDescription: "200 that is no JSON", step: .json(200, "<html>"), outcome: refused),
        .init(testDescription: "200 with an error", step: error(200, "invalid_grant"), outcome: refused),
        .init(
            testDescription: "200 with access_denied", step: error(200, "access_denied"),
            outcome: #"{"status":"failed","error":"authorization_error"}"#),
        .init(
            testDescription: "302", step: .json(302, "", fields: ["Location": "https://x.example/"]), outcome: refused),
    ]

    @Test(arguments: ending)
    func `ends with what is final`(row: Ending) async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        script.enqueue(row.step)
        broker.time.advance(by: .seconds(5))
        // What follows says why; see `Why a login failed`.
        #expect(await broker.deviceEnd(handle).hasPrefix(row.outcome.dropLast()))
        broker.time.advance(by: .seconds(200))
        await broker.broker.deviceLogins.finish()
        #expect(script.polls.count == 1)
        #expect(try await broker.count(.credentials) == 0)
        let entries = try await broker.vault.entries(after: 0, limit: 10)
        #expect(entries.count { $0.content?.revealedText.contains("login.failed") == true } == 1)
    }

    // T15
    @Test func `a token that comes in time is the end`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        await broker.time.pass(.seconds(294))
        #expect(script.polls.count == 58)
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(1))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(await broker.token() == "access-1")
        #expect(script.polls.last == .seconds(295))
    }

    // T16, T64 H044
    @Test(arguments: [
        (300, 5, 59), (299, 5, 59), (301, 5, 60), (4, 5, 0), (5, 5, 0), (6, 5, 1), (1, 600, 0),
    ])
    func `nothing is polled from the moment when the code expires`(
        expiresIn: Int, interval: Int, count: Int
    ) async throws {
        let (broker, script) = try await BrokerHarness.devices()
        script.setCodes(DeviceScript.codes(interval: interval, expiresIn: expiresIn))
        let handle = await broker.beginDevice()
        var left = expiresIn * 1000
        while left > 500 {
            await broker.time.pass(.milliseconds(500))
            left -= 500
        }
        broker.time.advance(by: .milliseconds(499))
        #expect(await broker.deviceProgress(handle).text == #"{"status":"pending"}"#)
        // It would be there if it was asked for.
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.deviceProgress(handle).text == Self.expired)
        #expect(await broker.deviceEnd(handle) == Self.expired)
        broker.time.advance(by: .seconds(30))
        await broker.broker.deviceLogins.finish()
        #expect(script.polls.count == count)
        #expect(await broker.token() == nil)
    }

    @Test func `a poll is not put off beyond the end by what the provider asks for`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        script.enqueue(.json(429, "{}", fields: ["Retry-After": "3600"]))
        await broker.time.pass(.seconds(5))
        #expect(broker.time.slept.last == .seconds(295))
        broker.time.advance(by: .seconds(295))
        #expect(await broker.deviceEnd(handle) == Self.expired)
        #expect(script.polls.count == 1)
    }

    @Test func `a wall clock that is put back brings no poll forward`() async throws {
        let store = RecordingStore()
        let (broker, script) = try await BrokerHarness.devices(store: store)
        script.setCodes(DeviceScript.codes(interval: 60, expiresIn: 90))
        _ = await broker.beginDevice()
        broker.time.advance(by: .seconds(60))
        await broker.time.sleepers(of: .seconds(30))
        #expect(script.polls == [.seconds(60)])
        // Another process on the same store, whose clock says that the code has a long time to live.
        let late = try await BrokerHarness.devices(store: store, script: DeviceScript(broker.time), tenant: nil)
        late.broker.broker.core.start()
        await late.broker.time.sleepers(of: .housekeeping, .expiryNotices)
        await late.broker.time.pass(.seconds(59))
        #expect(late.script.polls.isEmpty)
    }

    @Test func `an answer that is under way when the code expires counts`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        script.setCodes(DeviceScript.codes(interval: 5, expiresIn: 6))
        let handle = await broker.beginDevice()
        let gate = Gate()
        script.enqueue(.after(gate, DeviceScript.granted()))
        broker.time.advance(by: .seconds(5))
        await gate.arrivals()
        broker.time.advance(by: .seconds(5))
        #expect(await broker.deviceProgress(handle).text == #"{"status":"pending"}"#)
        gate.open()
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
    }

    // T17, T21, T64
    @Test func `a server that fails is spared more and more, and then asked at the interval again`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        for _ in 0..<12 { script.enqueue(.json(503, "{}")) }
        await broker.time.pass(.seconds(50))
        let schedule: [Duration] = [
            .milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8), .seconds(5),
        ]
        #expect(zip(script.polls, script.polls.dropFirst()).map { $1 - $0 } == schedule + schedule)
        #expect(await broker.deviceProgress(handle).text == #"{"status":"pending"}"#)
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(1))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
    }

    // T17
    @Test func `an answer between two failures begins the schedule anew`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        _ = await broker.beginDevice()
        script.enqueue(
            .json(500, ""), .failure(.connectFailed), DeviceScript.pending, .json(500, ""), DeviceScript.pending)
        await broker.time.pass(.seconds(20))
        #expect(
            script.polls == [
                .seconds(5), .milliseconds(5500), .milliseconds(6500), .milliseconds(11_500), .seconds(12),
                .seconds(17),
            ])
    }

    // H044
    @Test func `slow_down adds five seconds for good, each time`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        _ = await broker.beginDevice()
        script.enqueue(
            DeviceScript.slowDown, DeviceScript.pending, .json(503, ""), DeviceScript.pending, DeviceScript.slowDown)
        await broker.time.pass(.seconds(66))
        #expect(
            script.polls == [
                .seconds(5), .seconds(15), .seconds(25), .milliseconds(25_500), .milliseconds(35_500),
                .milliseconds(50_500), .milliseconds(65_500),
            ])
    }

    @Test func `logins do not wait for one another`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let first = await broker.beginDevice(storageKey: "a")
        let second = await broker.beginDevice(storageKey: "b")
        let gate = Gate()
        script.enqueue(.after(gate, DeviceScript.granted("late")), DeviceScript.granted("soon"))
        broker.time.advance(by: .seconds(5))
        await gate.arrivals()
        await withTaskGroup { group in
            for handle in [first, second] { group.addTask { await broker.deviceEnd(handle) } }
            #expect(await group.next() == #"{"status":"completed"}"#)
            gate.open()
            #expect(await group.next() == #"{"status":"completed"}"#)
        }
        let tokens = [await broker.token(storageKey: "a"), await broker.token(storageKey: "b")]
        #expect(Set(tokens) == ["late", "soon"])
    }
}
