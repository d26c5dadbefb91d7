import GroundTesting
import Synchronization
import Testing
import Waiting

@Suite struct `One flight at a time` {
    /// A patience that ends as soon as it begins.
    private let atOnce: @Sendable () async -> Void = {}

    @Test func `callers of one key share one piece of work and one of them started it`() async {
        let flights = SingleFlight<String, Int>()
        let gate = Gate()
        let started = Counter()
        let results = await withTaskGroup(of: (Int, Bool)?.self) { group in
            for _ in 0..<50 {
                group.addTask {
                    await flights.run("a", within: nil) {
                        started.increment()
                        gate.arrive()
                        await gate.opened()
                        return 7
                    }.map { ($0.value, $0.isOwn) }
                }
            }
            await gate.arrivals()
            gate.open()
            return await group.reduce(into: [(Int, Bool)?]()) { $0.append($1) }
        }
        #expect(results.allSatisfy { $0?.0 == 7 })
        #expect(results.filter { $0?.1 == true }.count == started.count)
        #expect(flights.count == 0)
    }

    @Test func `keys do not wait for each other`() async {
        let flights = SingleFlight<String, Int>()
        let gate = Gate()
        async let slow = flights.run("slow", within: nil) {
            gate.arrive()
            await gate.opened()
            return 1
        }
        await gate.arrivals()
        #expect(await flights.run("quick", within: nil) { 2 }?.value == 2)
        gate.open()
        #expect(await slow?.value == 1)
    }

    @Test func `work that is over is not joined`() async {
        let flights = SingleFlight<String, Int>()
        #expect(await flights.run("a", within: nil) { 1 }?.value == 1)
        let second = await flights.run("a", within: nil) { 2 }
        #expect(second?.value == 2)
        #expect(second?.isOwn == true)
    }

    @Test func `patience ends a wait and not the work`() async {
        let flights = SingleFlight<String, Int>()
        let gate = Gate()
        let impatient = await flights.run("a", within: atOnce) {
            gate.arrive()
            await gate.opened()
            return 1
        }
        #expect(impatient == nil)
        await gate.arrivals()
        #expect(flights.count == 1)
        async let joined = flights.run("a", within: nil) { 2 }
        gate.open()
        let result = await joined
        #expect(result?.value == (result?.isOwn == true ? 2 : 1))
    }

    @Test func `a caller that is cancelled leaves the work to the others`() async {
        let flights = SingleFlight<String, Int>()
        let gate = Gate()
        let first = Task {
            await flights.run("a", within: nil) {
                gate.arrive()
                await gate.opened()
                return Task.isCancelled ? -1 : 1
            }?.value
        }
        await gate.arrivals()
        first.cancel()
        #expect(await first.value == nil)
        async let second = flights.run("a", within: nil) { 2 }
        while flights.count == 0 { await Task.yield() }
        gate.open()
        let result = await second
        #expect(result?.value == (result?.isOwn == true ? 2 : 1))
    }

    @Test func `a caller that was cancelled before it came does not wait`() async {
        let flights = SingleFlight<String, Int>()
        let gate = Gate()
        let caller = Task {
            await gate.opened()
            return await flights.run("a", within: nil) {
                await Gate().opened()
                return 1
            }?.value
        }
        caller.cancel()
        gate.open()
        #expect(await caller.value == nil)
    }

    @Test func `idle waits for all that is in flight`() async {
        let flights = SingleFlight<String, Int>()
        await flights.finish()
        let gate = Gate()
        let landed = Counter()
        for key in ["a", "b", "c"] {
            _ = await flights.run(key, within: atOnce) {
                gate.arrive()
                await gate.opened()
                landed.increment()
                return 1
            }
        }
        await gate.arrivals(3)
        async let idle: Void = flights.finish()
        gate.open()
        await idle
        #expect(landed.count == 3)
        #expect(flights.count == 0)
    }
}

private final class Counter: Sendable {
    private let total = Mutex(0)

    var count: Int { total.withLock { $0 } }

    func increment() { total.withLock { $0 += 1 } }
}
