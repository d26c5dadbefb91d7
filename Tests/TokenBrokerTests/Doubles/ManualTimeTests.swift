import BrokerTesting
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `Time that a test moves` {
    @Test func `a wait for sleepers ends with its task`() async {
        let time = ManualTime(skipsSleeps: false)
        let waiting = Task { await time.sleeper() }
        waiting.cancel()
        await waiting.value
        let other = Task { await time.sleepers(of: .seconds(1)) }
        let sleeper = Task { try? await time.sleep(for: .seconds(1)) }
        await other.value
        time.advance(by: .seconds(1))
        await sleeper.value
    }

    @Test(
        arguments: [
            ([], [], true), ([.seconds(1)], [], false), ([.seconds(1)], [.seconds(1)], true),
            ([.seconds(1)], [.milliseconds(999)], false), ([.seconds(1)], [.milliseconds(1001)], false),
            ([.seconds(1), .seconds(1)], [.seconds(1)], false),
            ([.seconds(1), .seconds(1)], [.seconds(1), .seconds(2), .seconds(1)], true),
            ([.between(.seconds(1), .seconds(2))], [.milliseconds(999)], false),
            ([.between(.seconds(1), .seconds(2))], [.seconds(2)], true),
            ([.between(.seconds(1), .seconds(2))], [.milliseconds(2001)], false),
            ([.between(.seconds(1), .seconds(3)), .seconds(2)], [.seconds(2), .seconds(1)], true),
            ([.between(.seconds(1), .seconds(3)), .seconds(2)], [.seconds(2)], false),
        ] as [([SleepLength], [Duration], Bool)])
    func `each length that is waited for needs a sleep of its own`(
        lengths: [SleepLength], sleeps: [Duration], areThere: Bool
    ) {
        #expect(SleepLength.areAll(lengths, among: sleeps) == areThere)
    }

    @Test func `time passes in steps, each of which waits until all sleep again`() async {
        let time = ManualTime(skipsSleeps: false)
        let count = Mutex(0)
        let worker = Task {
            while (try? await time.sleep(for: .seconds(1))) != nil { count.withLock { $0 += 1 } }
        }
        await time.sleepers(of: .seconds(1))
        await time.pass(.seconds(30))
        #expect(count.withLock { $0 } == 30)
        worker.cancel()
        await worker.value
    }
}
