import Testing

@testable import Reactor

/// What a loop knows of the times at which its process stood still.
@Suite struct `A loop that stood still` {
    private static func at(_ seconds: Double) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 1_000_000_000_000 + Int64(seconds * 1_000_000_000))
    }

    @Test(arguments: [(2.999, false), (3, true), (3.001, true)] as [(Double, Bool)])
    func `knows it after three seconds`(length: Double, isKnown: Bool) {
        var standstill = Standstill()
        standstill.note(from: Self.at(0), to: Self.at(length))
        let arrival = standstill.arrival(at: Self.at(length), turnBegan: Self.at(length))
        #expect(arrival == (isKnown ? Self.at(0) : nil))
    }

    /// For how long it stood still, and for how long after that what is read may have waited.
    @Test(arguments: [(3, 5), (5, 5), (6, 6), (60, 60), (61, 60), (3600, 60)] as [(Double, Double)])
    func `counts what it reads as old for as long as peers may send again`(length: Double, rest: Double) {
        var standstill = Standstill()
        standstill.note(from: Self.at(0), to: Self.at(length))
        let end = length + rest
        #expect(standstill.arrival(at: Self.at(end - 0.001), turnBegan: Self.at(end - 0.001)) == Self.at(0))
        #expect(standstill.arrival(at: Self.at(end), turnBegan: Self.at(end)) == nil)
    }

    @Test func `counts from the first of two times that follow closely`() {
        var standstill = Standstill()
        standstill.note(from: Self.at(0), to: Self.at(10))
        standstill.note(from: Self.at(12), to: Self.at(16))
        #expect(standstill.arrival(at: Self.at(19.9), turnBegan: Self.at(19.9)) == Self.at(0))
        // The second one is not as long, and its own time is over.
        #expect(standstill.arrival(at: Self.at(21), turnBegan: Self.at(21)) == nil)
        standstill.note(from: Self.at(30), to: Self.at(34))
        #expect(standstill.arrival(at: Self.at(34), turnBegan: Self.at(34)) == Self.at(30))
    }

    @Test func `knows it also within a turn`() {
        let standstill = Standstill()
        #expect(standstill.arrival(at: Self.at(12), turnBegan: Self.at(1)) == Self.at(1))
        #expect(standstill.arrival(at: Self.at(1.1), turnBegan: Self.at(1)) == nil)
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
            loop.execute { continuation.resume(returning: loop.arrivalBeforeStandstill()) }
        }
        #expect(arrival == nil)
    }
}
