import Testing

@testable import Reactor

/// What a loop knows of the times at which its process stood still.
@Suite struct `A loop that stood still` {
    private static func at(_ seconds: Double) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 1_000_000_000_000 + Int64(seconds * 1_000_000_000))
    }

    private static func arrival(
        _ standstill: Standstill, at now: Double, turnBegan: Double? = nil, quietSince: Double = -100
    ) -> MonotonicInstant? {
        standstill.arrival(at: at(now), turnBegan: at(turnBegan ?? now), quietSince: at(quietSince))
    }

    @Test(arguments: [(2.999, false), (3, true), (3.001, true)] as [(Double, Bool)])
    func `knows it after three seconds`(length: Double, isKnown: Bool) {
        var standstill = Standstill()
        standstill.note(from: Self.at(0), to: Self.at(length))
        let arrival = Self.arrival(standstill, at: length)
        #expect(arrival == (isKnown ? Self.at(0) : nil))
    }

    /// For how long it stood still, and for how long after that what is read may have waited.
    @Test(arguments: [(3, 5), (5, 5), (6, 6), (60, 60), (61, 60), (3600, 60)] as [(Double, Double)])
    func `counts what it reads as old for as long as peers may send again`(length: Double, rest: Double) {
        var standstill = Standstill()
        standstill.note(from: Self.at(0), to: Self.at(length))
        let end = length + rest
        #expect(Self.arrival(standstill, at: end - 0.001) == Self.at(0))
        #expect(Self.arrival(standstill, at: end) == nil)
    }

    @Test func `counts from the first of two times that follow closely`() {
        var standstill = Standstill()
        standstill.note(from: Self.at(0), to: Self.at(10))
        standstill.note(from: Self.at(12), to: Self.at(16))
        #expect(Self.arrival(standstill, at: 19.9) == Self.at(0))
        // The second one is not as long, and its own time is over.
        #expect(Self.arrival(standstill, at: 21) == nil)
        standstill.note(from: Self.at(30), to: Self.at(34))
        #expect(Self.arrival(standstill, at: 34) == Self.at(30))
    }

    /// When nothing waited any more at the place that is read from.
    @Test(arguments: [(-1, true), (9.999, true), (10, false), (10.001, false)] as [(Double, Bool)])
    func `counts nothing as old that came when all had been read`(quietSince: Double, isOld: Bool) {
        var standstill = Standstill()
        standstill.note(from: Self.at(0), to: Self.at(10))
        #expect(Self.arrival(standstill, at: 12, quietSince: quietSince) == (isOld ? Self.at(0) : nil))
    }

    @Test func `knows it also within a turn`() {
        let standstill = Standstill()
        #expect(Self.arrival(standstill, at: 12, turnBegan: 1) == Self.at(1))
        #expect(Self.arrival(standstill, at: 1.1, turnBegan: 1) == nil)
    }

    @Test func `an idle loop with an observer does not take its idle time for a standstill`() async throws {
        final class Observer: TurnObserver {
            func turnBegan(at time: MonotonicInstant, busySince: MonotonicInstant, readyCount: Int) {}
            func readinessHandled() {}
        }
        let loop = try EventLoop(name: "test-idle")
        defer { loop.shutDown() }
        loop.execute { loop.observe(Observer()) }
        try await Task.sleep(for: .milliseconds(3500))
        let arrival = await withCheckedContinuation { continuation in
            loop.execute {
                continuation.resume(returning: loop.arrivalBeforeStandstill(quietSince: .init(nanoseconds: .min)))
            }
        }
        #expect(arrival == nil)
    }
}
