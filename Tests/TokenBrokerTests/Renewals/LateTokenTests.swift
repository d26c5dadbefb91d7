import BrokerTesting
import CredentialStore
import Testing

/// Tokens that have a part of their lifetime behind them when a caller could get them.
@Suite struct `Tokens that came late` {
    @Test(
        arguments: [
            (60, .milliseconds(1), "a2"), (61, .seconds(1), "a2"), (61, .milliseconds(1001), "a3"),
            (65, .seconds(5), "a2"), (65, .milliseconds(5001), "a3"), (3600, .seconds(5), "a2"),
        ] as [(Int, Duration, String)])
    func `a token that grew too short while the store was waited for is renewed once more`(
        lifetime: Int, delay: Duration, token: String
    ) async throws {
        let time = ManualTime()
        let store = BrokerFaultyStore(MemoryRecordStore { time.monotonic }, revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant()
        _ = await broker.set("a1", refresh: "r1")
        time.advance(by: .seconds(3600))
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.credentials) }
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a2", refresh: "r2", expiresIn: lifetime)),
            .json(200, BrokerHarness.token("a3", refresh: "r3", expiresIn: lifetime)))
        async let answer = broker.get()
        await gate.arrivals()
        time.advance(by: delay)
        gate.open()
        #expect(await answer.token == token)
        #expect(broker.transport.seen.count == (token == "a3" ? 2 : 1))
    }

    /// The answer took long, or the process was held up while it was on its way.
    @Test(
        arguments: [
            (60, .milliseconds(1), "a2"), (61, .milliseconds(1001), "a3"), (65, .seconds(5), "a2"),
            (65, .milliseconds(5001), "a3"),
        ] as [(Int, Duration, String)])
    func `a token that grew too short on its way from the provider is renewed once more`(
        lifetime: Int, delay: Duration, token: String
    ) async throws {
        let time = ManualTime()
        let broker = try await BrokerHarness(time: time)
        await broker.makeTenant()
        _ = await broker.set("a1", refresh: "r1")
        time.advance(by: .seconds(3600))
        let gate = Gate()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2", expiresIn: lifetime))),
            .json(200, BrokerHarness.token("a3", refresh: "r3", expiresIn: lifetime)))
        async let answer = broker.get()
        await gate.arrivals()
        time.advance(by: delay)
        gate.open()
        #expect(await answer.token == token)
        #expect(broker.transport.seen.count == (token == "a3" ? 2 : 1))
    }
}
