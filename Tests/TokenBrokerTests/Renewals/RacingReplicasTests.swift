import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import Testing
import TokenBroker

@Suite struct `Two replicas that refresh the same token` {
    /// A replica of its own, on a store that all share.
    private static func replica(
        _ base: any RecordStore, _ quarantine: Duration
    ) async throws -> (BrokerHarness, BrokerFaultyStore) {
        let store = BrokerFaultyStore(base, revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store) { $0.core.quarantine = quarantine }
        return (broker, store)
    }

    /// The first replica has been granted new tokens and is about to store them, but was held up for longer than its
    /// lease lasts; the second, which has taken that over and is refused with the token that is spent by that, does
    /// `meanwhile` before the first is let go on.
    private static func race(
        quarantine: Duration = .seconds(86_400), _ meanwhile: (BrokerHarness) async -> Void
    ) async throws -> (granted: BrokerHarness.Answer, first: BrokerHarness, second: BrokerHarness) {
        let clock = ManualTime()
        let base = MemoryRecordStore { clock.monotonic }
        let (first, store) = try await replica(base, quarantine)
        let (second, _) = try await replica(base, quarantine)
        await first.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        await first.logIn()
        for broker in [first, second] { broker.time.advance(by: .seconds(3600)) }
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.credentials) }
        first.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        async let granted = first.get()
        await gate.arrivals()
        clock.advance(by: .seconds(60))
        await meanwhile(second)
        gate.open()
        return (await granted, first, second)
    }

    // Q26
    @Test func `keep the session, although the slower answer comes to the store first`() async throws {
        let (granted, first, second) = try await Self.race { second in
            second.transport.enqueue(
                .json(400, #"{"error": "invalid_grant"}"#), .json(200, BrokerHarness.token("access-of-the-client")))
            let answer = await second.get()
            #expect(answer.level == "client")
        }
        #expect(granted.token == "access-2")
        for broker in [first, second] {
            broker.time.advance(by: .seconds(6))
            #expect(await broker.get().token == "access-2")
        }
        first.time.advance(by: .seconds(3600))
        first.transport.enqueue(.json(200, BrokerHarness.token("access-3")))
        #expect(await first.get().token == "access-3")
        #expect(first.transport.seen.last?.form["refresh_token"] == "refresh-2")
    }

    // Where nothing is kept aside, the empty record is all that the logout finds, and its mark must go.
    @Test(arguments: [Duration.seconds(86_400), .zero])
    func `keep a logout that comes between`(quarantine: Duration) async throws {
        let (_, first, _) = try await Self.race(quarantine: quarantine) { second in
            second.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
            #expect(await second.get("level=user").code == "level_not_available")
            #expect(await second.call(.delete, "/credentials", tenant: "t1").status == 204)
            second.transport.always(.json(200, BrokerHarness.token("access-of-the-client")))
        }
        first.time.advance(by: .seconds(6))
        first.transport.always(.json(200, BrokerHarness.token("access-of-the-client")))
        #expect(await first.get().level == "client")
    }
}
