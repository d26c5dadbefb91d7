import Glibc
import Reactor
import Synchronization
import Testing

@Suite struct `Blocking thread` {
    private actor Resident {
        let thread: BlockingThread
        var order: [Int] = []
        nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

        init(_ thread: BlockingThread) { self.thread = thread }

        func add(_ number: Int) { order.append(number) }
        var identity: UInt { UInt(pthread_self()) }
        var isOnItsThread: Bool { thread.isIsolatingCurrentContext() == true }

        /// Blocks the thread of this actor until `gate` is no longer zero.
        func block(on gate: borrowing Atomic<Int>) {
            while gate.load(ordering: .acquiring) == 0 { sched_yield() }
        }
    }

    @Test func `runs its actor's jobs on one thread of its own`() async throws {
        let thread = try BlockingThread(name: "test-blocking")
        let resident = Resident(thread)
        let first = await resident.identity
        let second = await resident.identity
        #expect(first == second)
        #expect(await resident.isOnItsThread)
        #expect(thread.isIsolatingCurrentContext() == false)
        thread.shutDown()
    }

    @Test func `runs every job that many tasks enqueue`() async throws {
        let thread = try BlockingThread(name: "test-blocking")
        let resident = Resident(thread)
        await withTaskGroup(of: Void.self) { group in
            for index in 0..<500 { group.addTask { await resident.add(index) } }
        }
        #expect(await resident.order.sorted() == Array(0..<500))
        thread.shutDown()
    }

    @Test func `keeps the order of one task's jobs`() async throws {
        let thread = try BlockingThread(name: "test-blocking")
        let resident = Resident(thread)
        for index in 0..<100 { await resident.add(index) }
        #expect(await resident.order == Array(0..<100))
        thread.shutDown()
    }

    @Test func `ends only when its queue is empty`() async throws {
        final class Gate: Sendable { let count = Atomic<Int>(0) }
        let gate = Gate()
        let thread = try BlockingThread(name: "test-blocking")
        let resident = Resident(thread)
        let blocked = Task.immediate { await resident.block(on: gate.count) }
        let later = Task.immediate { await resident.add(1) }
        thread.shutDown()
        gate.count.store(1, ordering: .releasing)
        await blocked.value
        await later.value
    }
}
