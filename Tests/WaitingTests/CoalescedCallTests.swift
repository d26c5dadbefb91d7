import GroundTesting
import Synchronization
import Testing
import Waiting

@Suite(.timeLimit(.minutes(1))) struct `One question for many askers` {
    /// A question whose answers are the numbers of the times that it was asked. The first waits for its gate.
    private static func question(_ gate: Gate, _ asked: Counter) -> CoalescedCall<Int> {
        CoalescedCall {
            asked.increment()
            let number = asked.count
            if number == 1 {
                gate.arrive()
                await gate.opened()
            }
            return number
        }
    }

    @Test
    func
        `a caller that comes while it is under way is answered by the next call, together with all others that come then`()
        async
    {
        let (gate, asked) = (Gate(), Counter())
        let question = Self.question(gate, asked)
        async let first = question.value()
        await gate.arrivals()
        let answers = await withTaskGroup(of: Int?.self) { group in
            // Each begins its wait before it gives way.
            for _ in 0..<100 { group.addImmediateTask { await question.value() } }
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers == [Int?](repeating: 2, count: 100))
        #expect(await first == 1)
        #expect(asked.count == 2)
        await question.finish()
    }

    @Test func `an answer that was given is not given again`() async {
        let (gate, asked) = (Gate(), Counter())
        let question = Self.question(gate, asked)
        gate.open()
        for number in 1...3 { #expect(await question.value() == number) }
    }

    @Test func `an asker who is cancelled is not waited for, and the others have their answer`() async {
        let (gate, asked) = (Gate(), Counter())
        let question = Self.question(gate, asked)
        let askers = [Task.immediate { await question.value() }, Task.immediate { await question.value() }]
        await gate.arrivals()
        let late = [Task.immediate { await question.value() }, Task.immediate { await question.value() }]
        askers[0].cancel()
        late[0].cancel()
        #expect(await askers[0].value == nil)
        #expect(await late[0].value == nil)
        gate.open()
        #expect(await askers[1].value != nil)
        #expect(await late[1].value == 2)
        let start = Gate()
        let cancelled = Task {
            await start.opened()
            return await question.value()
        }
        cancelled.cancel()
        start.open()
        #expect(await cancelled.value == nil)
    }

    @Test func `a call without waiting callers is not made again`() async {
        let (gate, asked) = (Gate(), Counter())
        let question = Self.question(gate, asked)
        let first = Task.immediate { await question.value() }
        await gate.arrivals()
        let late = Task.immediate { await question.value() }
        late.cancel()
        #expect(await late.value == nil)
        gate.open()
        #expect(await first.value == 1)
        await question.finish()
        #expect(asked.count == 1)
    }
}

private final class Counter: Sendable {
    private let total = Atomic(0)

    var count: Int { total.load(ordering: .relaxed) }

    func increment() { total.add(1, ordering: .relaxed) }
}
