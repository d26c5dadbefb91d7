import GroundTesting
import Synchronization
import Testing
import Waiting

@Suite struct `Waiting for a signal` {
    private static let never: @Sendable () async -> Void = {
        let gate = Gate()
        await withTaskCancellationHandler {
            await gate.opened()
        } onCancel: {
            gate.open()
        }
    }

    @Test func `a signal between the look and the wait is not missed`() async {
        let signals = KeyedSignal<String>()
        let ticket = signals.ticket("a")
        signals.signal("a")
        await signals.wait(for: "a", since: ticket, within: Self.never)
    }

    @Test func `a signal wakes every task that waits for its key`() async {
        let signals = KeyedSignal<String>()
        let ticket = signals.ticket("a")
        let gate = Gate()
        await withTaskGroup(of: Void.self) { group in
            for _ in 0..<50 {
                group.addTask {
                    await signals.wait(for: "a", since: ticket) {
                        gate.arrive()
                        await Self.never()
                    }
                }
            }
            await gate.arrivals(50)
            signals.signal("a")
            await group.waitForAll()
        }
    }

    @Test func `another key's signal wakes no task`() async {
        let signals = KeyedSignal<String>()
        let limit = Gate()
        let isOver = Atomic(false)
        let ticket = signals.ticket("a")
        let waiter = Task {
            await signals.wait(for: "a", since: ticket) {
                limit.arrive()
                await limit.opened()
            }
            isOver.store(true, ordering: .sequentiallyConsistent)
        }
        await limit.arrivals()
        signals.signal("b")
        for _ in 0..<100 { await Task.yield() }
        let wasWoken = isOver.load(ordering: .sequentiallyConsistent)
        #expect(!wasWoken)
        limit.open()
        await waiter.value
    }

    @Test func `the limit ends a wait`() async {
        let signals = KeyedSignal<String>()
        await signals.wait(for: "a", since: signals.ticket("a"), within: {})
    }

    @Test func `a task that is cancelled stops waiting`() async {
        let signals = KeyedSignal<String>()
        let gate = Gate()
        let waiter = Task {
            await signals.wait(for: "a", since: signals.ticket("a")) {
                gate.arrive()
                await Self.never()
            }
        }
        await gate.arrivals()
        waiter.cancel()
        await waiter.value
    }

    @Test func `a task that was cancelled before it came does not wait`() async {
        let signals = KeyedSignal<String>()
        let gate = Gate()
        let waiter = Task {
            await gate.opened()
            await signals.wait(for: "a", since: signals.ticket("a"), within: Self.never)
        }
        waiter.cancel()
        gate.open()
        await waiter.value
    }

    @Test func `ten thousand keys cost no memory for ever and wake those who wait`() async {
        let signals = KeyedSignal<Int>()
        let gate = Gate()
        let waiter = Task {
            await signals.wait(for: -1, since: signals.ticket(-1)) {
                gate.arrive()
                await Self.never()
            }
        }
        await gate.arrivals()
        for key in 0..<20_001 { signals.signal(key) }
        signals.signal(-1)
        await waiter.value
    }
}
