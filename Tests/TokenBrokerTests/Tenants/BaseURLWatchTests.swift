import BrokerTesting
import CredentialStore
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

@Suite(.timeLimit(.minutes(1))) struct `Replicas' public base URLs` {
    @Test func `that differ are told, until one was changed or its replica is gone`() async throws {
        let time = ManualTime()
        let store = RewindingStore()
        let one = try await BrokerHarness(store: store, time: time)
        let same = try await BrokerHarness(store: store, time: time)
        let other = try await BrokerHarness(store: store, time: time, publicBaseURL: "https://other.example")
        func check() async -> [Bool] {
            for broker in [one, same, other] { await broker.broker.core.baseURL.check() }
            return [one, same, other].map(\.broker.core.baseURL.differs)
        }
        #expect(await check() == [false, false, true])
        #expect(await other.metric("token_broker_public_base_url_differs") == 1)
        #expect(await one.metric("token_broker_public_base_url_differs") == 0)
        // While the others go on, so does the difference; it is told once an hour.
        for _ in 0..<4 {
            time.advance(by: .seconds(60))
            #expect(await check() == [false, false, true])
        }
        #expect(
            other.log.count { $0.contains("public_base_url_differs") && $0.contains("https://broker.example") } == 1)
        // The others are gone.
        time.advance(by: BaseURLWatch.memory)
        await other.broker.core.baseURL.check()
        #expect(!other.broker.core.baseURL.differs)
        #expect(await check() == [true, true, false])
    }
}
