import AuthTesting
import BrokerCore
import BrokerTesting
import CredentialStore
import OAuth
import Testing
import TokenBroker

/// Sessions that the broker itself ends in a wave: those that a trial has presented and the provider has refused again, after days.
@Suite(.timeLimit(.minutes(2))) struct `The end of sessions in a wave` {
    private typealias Waves = `A wave of refusals`

    private static let day: Duration = .seconds(86_400)

    /// Has the job do what is due after that time, which is one trial at most.
    private static func pass(_ broker: BrokerHarness, _ duration: Duration) async {
        broker.time.advance(by: duration)
        await broker.broker.core.waveJob.handleAllDue()
    }

    private static func ended(_ broker: BrokerHarness) async throws -> [String] {
        try await Waves.told(broker, .credentialsDeauthorized).compactMap { $0["storage_key"]?.text }
    }

    /// A wave whose trials were refused for the seven days of the quarantine, so that the next one may end a session.
    private static func lasting(_ broker: BrokerHarness) async {
        await Waves.wave(broker)
        for day in 0..<7 {
            await pass(broker, Self.day)
            #expect(await Waves.list(broker, "held").count == 5, "on day \(day)")
        }
    }

    @Test func `comes with a refused trial after the days of a quarantine, one session at a time`() async throws {
        let broker = try await Waves.make(5)
        await Self.lasting(broker)
        var held = (0..<5).map(Waves.key)
        for pause in [Self.day] + Array(repeating: .seconds(10), count: 4) {
            let calls = broker.transport.seen.count
            await Self.pass(broker, pause)
            let tried = broker.transport.seen.dropFirst(calls).compactMap { $0.form["refresh_token"] }
            try #require(tried.count == 1)
            held.removeAll { $0 == Waves.key(Int(tried[0].dropFirst()) ?? -1) }
            #expect(await Waves.list(broker, "held") == held)
        }
        #expect(held == [])
        await Self.pass(broker, .seconds(10))
        #expect(try await Waves.told(broker, .providerRecovered).count == 1)
        #expect(try await broker.count(.held) == 0)
        #expect(await broker.restore(storageKey: try #require(try await Self.ended(broker).last)).status == 200)
    }

    @Test func `leaves those that were not tried, and the first success frees them`() async throws {
        let broker = try await Waves.make(5)
        await Self.lasting(broker)
        let before = try await Self.ended(broker)
        await Self.pass(broker, Self.day)
        let ended = try await Self.ended(broker).dropFirst(before.count)
        #expect(ended.count == 1)
        broker.transport.always(Waves.alive)
        await Self.pass(broker, .seconds(10))
        await Waves.work(broker)
        #expect(await Waves.list(broker, "held") == [])
        #expect(await Waves.list(broker, "quarantined") == Array(ended))
        #expect(await Waves.list(broker, "active") == (0..<5).map(Waves.key).filter { !ended.contains($0) })
    }

    @Test func `does not come with a trial that gets no answer`() async throws {
        let broker = try await Waves.make(5)
        await Self.lasting(broker)
        broker.transport.always(.json(503, ""))
        for _ in 0..<5 { await Self.pass(broker, Self.day) }
        #expect(await Waves.list(broker, "held").count == 5)
    }

    @Test func `does not come where nothing is quarantined`() async throws {
        let broker = try await BrokerHarness { $0.core.quarantine = .zero }
        await Waves.fill(broker, 6)
        for index in 0..<6 { _ = await Waves.get(broker, index) }
        await Waves.work(broker)
        // Without a quarantine, those that had ended before it was noticed cannot be put back.
        #expect(await Waves.list(broker, "held") == [4, 5].map(Waves.key))
        for _ in 0..<40 { await Self.pass(broker, Self.day) }
        #expect(await Waves.list(broker, "held") == [4, 5].map(Waves.key))
        broker.transport.always(Waves.alive)
        await Self.pass(broker, Self.day)
        await Waves.work(broker)
        for index in 4..<6 { #expect(await Waves.get(broker, index).token == "new") }
    }
}
