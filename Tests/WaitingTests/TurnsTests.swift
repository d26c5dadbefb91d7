import GroundTesting
import Synchronization
import Testing
import Waiting

@Suite(.timeLimit(.minutes(1))) struct `Turns of tasks` {
    private struct Failure: Error {}

    private final class Order: Sendable {
        private let numbers = Mutex<[Int]>([])

        func append(_ number: Int) { numbers.withLock { $0.append(number) } }

        var all: [Int] { numbers.withLock { $0 } }
    }

    @Test func `come one after the other in the order of arrival, also after a failure and in a cancelled task`() async
    {
        let (turns, gate) = (Turns<String>(), Gate())
        let order = Order()
        await withTaskGroup(of: Void.self) { group in
            group.addImmediateTask {
                await turns.take("a") {
                    gate.arrive()
                    await gate.opened()
                    order.append(0)
                }
            }
            await gate.arrivals()
            for number in 1...100 {
                group.addImmediateTask {
                    try? await turns.take("a") {
                        await Task.yield()
                        order.append(number)
                        if number.isMultiple(of: 3) { throw Failure() }
                    }
                }
            }
            group.cancelAll()
            // Another key does not wait.
            let seen = await turns.take("b") { order.all }
            #expect(seen == [])
            gate.open()
            await group.waitForAll()
        }
        let all = order.all
        #expect(all == Array(0...100))
        // Nothing is left behind.
        let next = await turns.take("a") { 101 }
        #expect(next == 101)
    }
}
