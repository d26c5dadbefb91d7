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

@Suite struct `Retries of a renewal` {
    private static let rotating = #"{"client_id": "c1", "rotation": "always"}"#
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1"}"#

    // Q27 Q28
    @Test(
        arguments: [("", 10_000), (#", "reuse_grace": 0"#, 10_000), (#", "reuse_grace": 10"#, 4500)] as [(String, Int)])
    func `a slow call is given up for another one only within a grace that is known`(
        member: String, milliseconds: Int
    ) async throws {
        let broker = try await BrokerHarness.expired(#"{"client_id": "c1"\#(member)}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.map(\.timeLimit) == [.milliseconds(milliseconds)])
    }

    // T29 H091
    @Test(arguments: [500, 502, 503, 504, 599])
    func `a 5xx is tried again five times by the design's schedule`(status: Int) async throws {
        let broker = try await BrokerHarness.expired(#"{"client_id": "c1", "reuse_grace": 60}"#)
        // A 5xx with a terminal error in its body says nothing about the session.
        broker.transport.always(.json(status, #"{"error": "invalid_grant", "sub_status": 11101}"#))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "retryable_error"))
        #expect(answer.retryAfter != nil)
        #expect(broker.transport.seen.count == 6)
        #expect(broker.time.slept == RenewalWaits.design)

        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test(
        arguments: [
            (0, RenewalWaits.design),
            (
                9,
                [.milliseconds(500), .seconds(1), .seconds(2), .seconds(1), .milliseconds(500), .seconds(1)]
            ),
            (10, RenewalWaits.withinGrace),
            (16, RenewalWaits.design.dropLast() + [.seconds(1), .seconds(1), .milliseconds(500)]),
            (17, RenewalWaits.design.dropLast() + [.seconds(1), .seconds(1), .milliseconds(833)]),
            (
                22,
                RenewalWaits.design.dropLast() + [
                    .seconds(1), .seconds(1), .seconds(1), .seconds(1), .milliseconds(500),
                ]
            ),
            // The last wait of 8 s ends in the second half of a grace below 32 s, and others are to have their turn before.
            (
                23,
                RenewalWaits.design.dropLast() + [
                    .seconds(1), .seconds(1), .seconds(1), .seconds(1), .milliseconds(833),
                ]
            ),
            (32, RenewalWaits.design),
        ] as [(Int, [Duration])])
    func `the last retry comes within the provider's grace, where there is one`(
        grace: Int, waits: [Duration]
    ) async throws {
        let broker = try await BrokerHarness.expired(#"{"client_id": "c1", "reuse_grace": \#(grace)}"#)
        broker.transport.always(.json(500, ""))
        #expect(await broker.get().code == "retryable_error")
        #expect(broker.time.slept == waits)
    }

    // H091
    @Test(arguments: [
        TransportError.connectFailed, .nameNotFound, .nameResolutionFailed, .tlsFailed,
        .connectionLost(requestSent: false), .connectionLost(requestSent: true),
        .timedOut(.connect, requestSent: false), .timedOut(.firstByte, requestSent: true),
    ])
    func `a lost connection is tried again like a 5xx and is then network_error`(error: TransportError) async throws {
        let broker = try await BrokerHarness.expired(Self.rotating)
        broker.transport.always(.failure(error))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (503, "network_error"))
        #expect(answer.retryAfter != nil)
        #expect(broker.transport.seen.count == 6)
        #expect(
            broker.time.slept == (error.requestMayHaveBeenProcessed ? RenewalWaits.withinGrace : RenewalWaits.design))
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test(arguments: 1...5)
    func `a retry that succeeds ends the schedule`(failures: Int) async throws {
        let broker = try await BrokerHarness.expired(Self.rotating)
        for failure in 0..<failures {
            broker.transport.enqueue(failure % 2 == 0 ? .json(503, "") : .failure(.connectionLost(requestSent: true)))
        }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.time.slept == RenewalWaits.betweenCalls.prefix(failures).flatMap(\.self))
    }

    @Test func `client credentials are tried again likewise`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.always(.json(500, ""))
        #expect(await broker.get().code == "retryable_error")
        #expect(broker.time.slept == RenewalWaits.design)
        broker.time.forgetSleeps()
        broker.transport.always(.failure(.connectFailed))
        #expect(await broker.get().code == "network_error")
        #expect(broker.time.slept == RenewalWaits.design)
        broker.transport.always(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
    }

    // H092
    @Test(arguments: [
        ("0", Duration.milliseconds(500)), ("1", .seconds(1)), ("3", .seconds(3)), ("30", .seconds(30)),
        ("Sat, 21 Nov 2026 09:00:07 GMT", .seconds(7)), ("Sat, 21 Nov 2020 09:00:00 GMT", .milliseconds(500)),
        ("soon", .milliseconds(500)), ("", .milliseconds(500)), ("-5", .milliseconds(500)),
    ])
    func `a 503 with Retry-After is tried again then, the schedule being the least`(
        value: String, wait: Duration
    ) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": value]), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        // In steps that the lease outlasts.
        #expect(broker.time.slept.reduce(.zero, +) == wait)
    }

    // H092
    @Test(arguments: [("31", 31), ("59", 59), ("60", 60), ("61", 60), ("3600", 60), ("99999999999999999999", 60)])
    func `a 503 that asks for more than a call can wait ends the call and is obeyed for a minute at most`(
        value: String, seconds: Int
    ) async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": value]), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", seconds))
        #expect(broker.time.slept == [])
        broker.time.advance(by: .seconds(seconds) - .milliseconds(1))
        #expect(await broker.get().retryAfter == 1)
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.get().token == "a2")
    }
}
