import GroundTesting
import Synchronization
import Testing
import Waiting

@Suite(.timeLimit(.minutes(1))) struct `One waiter` {
    @Test func `a value that comes before the wait ends it at once`() async {
        let waiter = Waiter<Int>()
        #expect(waiter.resume(returning: 1))
        #expect(await waiter.value() == 1)
    }

    @Test func `a value that comes during the wait ends it`() async {
        let waiter = Waiter<Int>()
        let task = Task.immediate { await waiter.value() }
        #expect(waiter.resume(returning: 1))
        #expect(await task.value == 1)
    }

    // Before the wait and during it.
    @Test(arguments: [false, true])
    func `the first of several values is the one`(waitsAlready: Bool) async {
        let waiter = Waiter<Int>()
        let task = waitsAlready ? Task.immediate { await waiter.value() } : nil
        #expect(waiter.resume(returning: 1))
        #expect(!waiter.resume(returning: 2))
        #expect(!waiter.resume(returning: 3))
        let value = if let task { await task.value } else { await waiter.value() }
        #expect(value == 1)
        #expect(!waiter.resume(returning: 4))
    }

    @Test func `a wait without a way to leave outlasts the cancellation of its task`() async {
        let waiter = Waiter<Int>()
        let task = Task.immediate { await waiter.value() }
        task.cancel()
        waiter.resume(returning: 1)
        #expect(await task.value == 1)
    }

    @Test func `a task that is cancelled leaves`() async {
        let waiter = Waiter<Int?>()
        let task = Task.immediate { await waiter.value { waiter.resume(returning: nil) } }
        task.cancel()
        #expect(await task.value == nil)
    }

    @Test func `a task that was cancelled before its wait leaves at once`() async {
        let (waiter, gate) = (Waiter<Int?>(), Gate())
        let task = Task {
            await gate.opened()
            return await waiter.value { waiter.resume(returning: nil) }
        }
        task.cancel()
        gate.open()
        #expect(await task.value == nil)
    }

    @Test func `cancellation and value race for each wait, and each ends once`() async {
        await withTaskGroup(of: Void.self) { group in
            for number in 0..<1000 {
                group.addTask {
                    let waiter = Waiter<Int?>()
                    let task = Task { await waiter.value { waiter.resume(returning: nil) } }
                    async let resumed = Task { waiter.resume(returning: number) }.value
                    task.cancel()
                    let (value, isFirst) = (await task.value, await resumed)
                    #expect(value == (isFirst ? number : nil))
                }
            }
        }
    }
}

@Suite(.timeLimit(.minutes(1))) struct `A list of waiters` {
    @Test func `waiters are taken out in the order of their arrival, each once`() {
        var list = WaitList<String, Int>()
        let waiters = ["a", "b", "c"].map { list.enter($0) }
        #expect(list.count == 3)
        #expect(list.remove(waiters[1]) === waiters[1])
        #expect(list.remove(waiters[1]) == nil)
        let first = list.popFirst()
        #expect(first?.subject == "a")
        #expect(first?.waiter === waiters[0])
        #expect(list.remove(waiters[0]) == nil)
        #expect(list.popFirst()?.subject == "c")
        #expect(list.popFirst() == nil)
        #expect(list.isEmpty)
    }

    @Test func `a waiter that has left does not take out the one that has its place now`() {
        var list = WaitList<Void, Int>()
        let earlier = list.enter()
        #expect(list.remove(earlier) === earlier)
        let later = list.enter()
        #expect(list.remove(earlier) == nil)
        #expect(list.count == 1)
        #expect(list.remove(later) === later)
    }

    @Test func `a waiter of another list is not taken out`() {
        var lists = [WaitList<Void, Int>(), WaitList<Void, Int>()]
        let waiter = lists[0].enter()
        _ = lists[1].enter()
        #expect(lists[1].remove(waiter) == nil)
        #expect(lists[1].count == 1)
    }

    // The boundary of a subject and both its neighbours.
    @Test(arguments: [(4, [Int]()), (5, [5]), (6, [5])])
    func `waiters are taken out by their subject`(limit: Int, due: [Int]) {
        var list = WaitList<Int, Int>()
        let waiters = [(5, list.enter(5)), (7, list.enter(7))]
        let removed = list.removeAll { $0 <= limit }
        #expect(waiters.filter { waiter in removed.contains { $0 === waiter.1 } }.map(\.0) == due)
        #expect(list.count == 2 - due.count)
        #expect(list.removeAll().count == 2 - due.count)
        #expect(list.isEmpty)
    }

    @Test func `of a value, a cancellation and a deadline that race, one ends each wait, and no value is lost`() async {
        let owner = Owner()
        let received = await withTaskGroup(of: Bool.self) { group in
            for number in 0..<1000 {
                group.addTask {
                    let waiter = owner.enter(number)
                    let task = Task { await waiter.value { owner.leave(waiter) } }
                    switch number % 3 {
                    case 0: task.cancel()
                    case 1: owner.leave(waiter)
                    default: break
                    }
                    owner.giveNext()
                    return await task.value != nil
                }
            }
            return await group.reduce(into: 0) { count, isReceived in count += isReceived ? 1 : 0 }
        }
        #expect(owner.isEmpty)
        #expect(received == owner.given)
    }
}

/// Has a list under its lock.
private final class Owner: Sendable {
    private struct State {
        var waiters = WaitList<Int, Int?>()
        var given = 0
    }

    private let state = Mutex(State())

    var isEmpty: Bool { state.withLock { $0.waiters.isEmpty } }
    var given: Int { state.withLock { $0.given } }

    func enter(_ number: Int) -> Waiter<Int?> { state.withLock { $0.waiters.enter(number) } }

    func leave(_ waiter: Waiter<Int?>) {
        state.withLock { $0.waiters.remove(waiter) }?.resume(returning: nil)
    }

    /// Gives the first waiter a value.
    func giveNext() {
        let next = state.withLock { state in
            let next = state.waiters.popFirst()
            if next != nil { state.given += 1 }
            return next
        }
        if let next { #expect(next.waiter.resume(returning: next.subject)) }
    }
}
