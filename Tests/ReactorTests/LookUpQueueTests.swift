import Testing

@testable import Reactor

@Suite struct `Order of look-ups` {
    private static let start = MonotonicInstant(nanoseconds: 1)

    private static func limits(
        threads: Int = 4, unproven: Int = 3, slow: Int = 1, waiting: Int = 256
    ) -> NameResolver.Limits {
        var limits = NameResolver.Limits()
        (limits.threads, limits.unprovenThreads, limits.slowThreads) = (threads, unproven, slow)
        limits.waitingNames = waiting
        return limits
    }

    /// A queue with the history of these earlier look-ups.
    private static func queue(
        _ limits: NameResolver.Limits = limits(), slow: [String] = [], prompt: [String] = []
    ) -> LookUpQueue {
        var queue = LookUpQueue(limits: limits)
        for host in slow { look(host, up: &queue, .failure(.temporary), took: .seconds(10)) }
        for host in prompt { look(host, up: &queue, .success([]), took: .milliseconds(20)) }
        return queue
    }

    private static func look(
        _ host: String, up queue: inout LookUpQueue, _ answer: Result<[SocketAddress.IP], ResolutionError>,
        took duration: Duration
    ) {
        _ = queue.append(host)
        _ = queue.takeNext()
        queue.finish(host, answer: answer, duration: duration, now: start)
    }

    /// The names that are looked up at the same time when these names are requested in this order.
    private static func taken(_ hosts: [String], from queue: LookUpQueue) -> [String] {
        var queue = queue
        for host in hosts { _ = queue.append(host) }
        var taken: [String] = []
        while let host = queue.takeNext() { taken.append(host) }
        return taken
    }

    @Test func `prompt names may use all threads, unproven names fewer, slow names the fewest`() {
        #expect(Self.taken(["a", "b", "c", "d", "e"], from: Self.queue(prompt: ["a", "b", "c", "d", "e"])).count == 4)
        #expect(Self.taken(["a", "b", "c", "d", "e"], from: Self.queue()) == ["a", "b", "c"])
        #expect(Self.taken(["a", "b", "c", "d", "e"], from: Self.queue(slow: ["a", "b", "c", "d", "e"])) == ["a"])
    }

    @Test func `a name that has a thread overtakes names that have none, and each class keeps its order`() {
        let queue = Self.queue(slow: ["s1", "s2", "s3"], prompt: ["p1", "p2"])
        #expect(Self.taken(["s1", "s2", "u1", "s3", "p1", "u2", "u3", "p2"], from: queue) == ["s1", "u1", "p1", "u2"])
        #expect(Self.taken(["s1", "u1", "u2", "u3", "s2", "p1"], from: queue) == ["s1", "u1", "u2", "p1"])
    }

    @Test(
        arguments: [
            // A look-up of more than a second makes a name slow, whatever its outcome; this table has the boundary.
            ([(true, 1001)], false), ([(true, 1000)], true), ([(true, 999)], true),
            ([(false, 1001)], false), ([(false, 1000)], true),
            // A prompt look-up ends the slowness.
            ([(true, 5000), (true, 10)], true), ([(true, 5000), (false, 10)], true),
            ([(true, 10), (true, 5000)], false),
        ] as [([(Bool, Int)], Bool)])
    func `a name is slow when its last look-up was slow`(lookUps: [(Bool, Int)], goes: Bool) {
        var queue = Self.queue(Self.limits(slow: 1), slow: ["other"])
        for (isFound, milliseconds) in lookUps {
            Self.look("x", up: &queue, isFound ? .success([]) : .failure(.temporary), took: .milliseconds(milliseconds))
        }
        #expect(Self.taken(["other", "x"], from: queue) == (goes ? ["other", "x"] : ["other"]))
    }

    @Test func `the end of a look-up lets the next begin`() {
        var queue = Self.queue(slow: ["s1", "s2"])
        for host in ["s1", "s2"] { _ = queue.append(host) }
        let first = queue.takeNext()
        #expect(first == "s1")
        #expect(!queue.hasNext)
        queue.finish("s1", answer: .failure(.temporary), duration: .seconds(10), now: Self.start)
        let second = queue.takeNext()
        #expect(second == "s2")
    }

    @Test func `more names than the limit do not wait`() {
        var queue = Self.queue(Self.limits(waiting: 2))
        let arrivals = ["a", "b", "c"].map { queue.append($0) }
        #expect(arrivals == [true, true, false])
        let departures = ["a", "a"].map { queue.remove($0) }
        #expect(departures == [true, false])
        let (late, next) = (queue.append("c"), queue.takeNext())
        #expect(late)
        #expect(next == "b")
    }

    @Test func `failures are remembered for three seconds, successes end them, and there is a bound`() {
        var queue = Self.queue()
        Self.look("x", up: &queue, .failure(.notFound), took: .zero)
        #expect(queue.failure(of: "x", now: Self.start.advanced(by: .milliseconds(2999))) == .notFound)
        #expect(queue.failure(of: "x", now: Self.start.advanced(by: .seconds(3))) == nil)
        Self.look("x", up: &queue, .success([]), took: .zero)
        #expect(queue.failure(of: "x", now: Self.start) == nil)
        for index in 0..<5000 { Self.look("n\(index)", up: &queue, .failure(.notFound), took: .zero) }
        let remembered = (0..<5000).count { queue.failure(of: "n\($0)", now: Self.start) != nil }
        #expect((1...1024).contains(remembered))
        #expect(queue.failure(of: "n4999", now: Self.start) == .notFound)
    }
}
