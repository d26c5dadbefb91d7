import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// A renewal whose tries have all failed, with no token left to give.
@Suite struct `A provider that fails six times` {
    private static func expired(
        _ tenant: String = #"{"client_id": "c1"}"#, store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        return broker
    }

    private static let failures: [(ScriptedTransport.Step, String)] = [
        (.json(503, ""), "retryable_error"), (.json(500, #"{"error": "server_error"}"#), "retryable_error"),
        (.failure(.connectFailed), "network_error"),
        (.failure(.timedOut(.firstByte, requestSent: true)), "network_error"),
        (.json(200, "<html>"), "token_response_error"),
    ]

    @Test(arguments: failures)
    func `is asked again by the next call, up to six times`(step: ScriptedTransport.Step, code: String) async throws {
        let broker = try await Self.expired()
        broker.transport.always(step)
        for calls in [6, 12] {
            #expect(await broker.get().code == code)
            #expect(broker.transport.seen.count == calls)
        }
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
    }

    @Test(arguments: [
        (ScriptedTransport.Step.json(403, ""), "unexpected_error"),
        (.failure(.untrusted(.chain)), "provider_untrusted"),
        (.json(429, "", fields: ["Retry-After": "0"]), "retryable_error"),
    ])
    func `is told apart from one that refuses, which is one call for each read`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let broker = try await Self.expired()
        broker.transport.always(step)
        for calls in 1...3 {
            #expect(await broker.get().code == code)
            #expect(broker.transport.seen.count == calls)
        }
        #expect(try await broker.events().allSatisfy { $0.kind != .credentialsDegraded })
    }

    // MARK: Within the provider's grace

    /// Has what was given up be looked for so often.
    private static func look(_ count: Int, _ time: ManualTime) async {
        func looks() -> Int { time.slept.count { $0 >= .milliseconds(500) && $0 <= .milliseconds(625) } }
        while looks() == 0 { await Task.yield() }
        for _ in 0..<count {
            let before = looks()
            time.advance(by: .milliseconds(625))
            while looks() == before { await Task.yield() }
        }
    }

    @Test func `is asked again within its grace by a process that has the store for itself`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(store: MemoryRecordStore { time.monotonic }, time: time)
        await broker.makeTenant("t1", #"{"client_id": "c1", "rotation": "always"}"#)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.broker.core.start()
        // Too much patience for a call, of a provider that may have spent the refresh token.
        broker.transport.enqueue(
            .json(503, "", fields: ["Retry-After": "31"]), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().status == 503)
        await Self.look(4, time)
        while broker.transport.seen.count < 2 { await Task.yield() }
        await broker.broker.core.renewer.finish()
        #expect(await broker.get().token == "a2")
        broker.broker.beginDraining()
        await broker.broker.core.finish()
    }
}
