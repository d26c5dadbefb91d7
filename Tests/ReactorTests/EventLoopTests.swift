import Glibc
import GroundTesting
import Reactor
import Synchronization
import Testing

/// Records events from any thread in their order.
private final class Record<Event: Sendable>: Sendable {
    private let events = Mutex<[Event]>([])

    func add(_ event: Event) { events.withLock { $0.append(event) } }
    var all: [Event] { events.withLock { $0 } }
}

/// A handler that runs a closure. Only the loop's thread uses it.
private final class Handler: ReadinessHandler {
    private let body: (Readiness) -> Void
    init(_ body: @escaping (Readiness) -> Void) { self.body = body }
    func becameReady(_ readiness: Readiness, tag: Int) { body(readiness) }
}

/// Requests the given number of turns. Only the loop's thread uses it.
private final class Observer: TurnObserver {
    private let loop: EventLoop
    private var left: Int
    private let record: (Int) -> Void
    private(set) var began = 0

    init(_ loop: EventLoop, wants: Int, record: @escaping (Int) -> Void) {
        (self.loop, left, self.record) = (loop, wants, record)
    }

    func turnBegan(at time: MonotonicInstant, busySince: MonotonicInstant, readyCount: Int) { began += 1 }

    func readinessHandled() {
        record(began)
        left -= 1
        if left > 0 { loop.requestTurn() }
    }
}

@Suite struct `Event loop: turns` {
    /// No descriptor, deadline or job wakes the loop in this test.
    @Test func `a requested turn begins at once, and no further turn follows`() async throws {
        let record = Record<Int>()
        try await withLoop { actor in
            let loop = actor.loop
            await actor.runAtOnce { _ in
                loop.observe(Observer(loop, wants: 3) { record.add($0) })
                loop.requestTurn()
            }
            let deadline = MonotonicInstant.after(.seconds(10))
            while record.all.count < 3, MonotonicInstant.now < deadline { await Task.yield() }
            // Each of the three was in a turn of its own.
            #expect(record.all.count == 3 && Set(record.all).count == 3)
        }
    }
}

@Suite struct `Event loop: jobs` {
    @Test func `actions run in the order in which they were queued`() async throws {
        let record = Record<Int>()
        try await withLoop { actor in
            for index in 0..<1000 { actor.loop.execute { record.add(index) } }
            await actor.run { _ in }
        }
        #expect(record.all == Array(0..<1000))
    }

    @Test func `an action that an action queues runs after those that were queued before`() async throws {
        let record = Record<String>()
        try await withLoop { actor in
            let loop = actor.loop
            await actor.runAtOnce { _ in
                loop.execute {
                    record.add("a")
                    loop.execute { record.add("c") }
                }
                loop.execute { record.add("b") }
            }
            await actor.run { _ in }
            await actor.run { _ in }
        }
        #expect(record.all == ["a", "b", "c"])
    }

    @Test func `an actor on the loop runs on its thread, before and after a suspension`() async throws {
        try await withLoop { actor in
            #expect(!actor.loop.isCurrent)
            await actor.run { loop in
                #expect(loop.isCurrent)
                await Task.yield()
                #expect(loop.isCurrent)
            }
            #expect(!actor.loop.isCurrent)
        }
    }

    /// Queueing again would put the task behind the job that was queued before the call.
    @Test(arguments: [false, true])
    func `a task that prefers the loop goes from actor to actor without queueing up`(wasSuspended: Bool) async throws {
        let record = Record<String>()
        try await withLoop { actor in
            let (tasks, other) = (EventLoopTaskExecutor(actor.loop), LoopActor(actor.loop))
            await Task(executorPreference: tasks) {
                await actor.run { loop in
                    if wasSuspended { try? await loop.sleep(until: .after(.milliseconds(1))) }
                    let queued = Task(executorPreference: tasks) { record.add("queued") }
                    await other.runAtOnce { _ in record.add("called") }
                    record.add("back")
                    await queued.value
                }
            }.value
        }
        #expect(record.all == ["called", "back", "queued"])
    }

    @Test func `many tasks from many threads all run`() async throws {
        let record = Record<Int>()
        try await withLoop { actor in
            await withTaskGroup(of: Void.self) { group in
                for index in 0..<500 {
                    group.addTask { await actor.runAtOnce { _ in record.add(index) } }
                }
            }
        }
        #expect(record.all.sorted() == Array(0..<500))
    }

    @Test func `jobs that enqueue jobs do not keep deadlines from running`() async throws {
        final class Churn: Sendable {
            let isOver = Atomic<Bool>(false)
            func turn(_ loop: EventLoop) {
                if !isOver.load(ordering: .relaxed) { loop.execute { self.turn(loop) } }
            }
        }
        try await withLoop { actor in
            let churn = Churn()
            await actor.runAtOnce { loop in
                churn.turn(loop)
                loop.schedule(at: .after(.milliseconds(5))) { churn.isOver.store(true, ordering: .relaxed) }
            }
            await actor.run { loop in try? await loop.sleep(until: .after(.milliseconds(10))) }
            let isOver = churn.isOver.load(ordering: .relaxed)
            #expect(isOver)
        }
    }

    @Test func `shutting down runs the queued actions first`() async throws {
        let record = Record<Int>()
        let loop = try EventLoop(name: "test-loop")
        for index in 0..<100 { loop.execute { record.add(index) } }
        loop.shutDown()
        #expect(record.all == Array(0..<100))
    }

    @Test func `shutDown may be called twice and from the loop itself`() async throws {
        let loop = try EventLoop(name: "test-loop")
        let (ended, end) = AsyncStream.makeStream(of: Void.self)
        loop.execute {
            loop.shutDown()
            loop.shutDown()
            loop.execute { end.finish() }
        }
        for await _ in ended {}
        loop.shutDown()
    }
}

@Suite struct `Event loop: deadlines` {
    @Test func `actions run in the order of their times and never before them`() async throws {
        let record = Record<(due: MonotonicInstant, ran: MonotonicInstant)>()
        try await withLoop { actor in
            await actor.run { loop in
                let start = MonotonicInstant.now
                for milliseconds in [9, 1, 5, 3, 7, 2, 8, 4, 6, 10] {
                    let due = start.advanced(by: .milliseconds(milliseconds))
                    loop.schedule(at: due) { record.add((due, .now)) }
                }
                try? await loop.sleep(until: start.advanced(by: .milliseconds(11)))
            }
        }
        #expect(record.all.count == 10)
        #expect(record.all.map(\.due) == record.all.map(\.due).sorted())
        #expect(record.all.allSatisfy { $0.ran >= $0.due })
    }

    @Test func `a deadline in the past is due at once`() async throws {
        let record = Record<Int>()
        try await withLoop { actor in
            await actor.runAtOnce { loop in
                loop.schedule(at: MonotonicInstant(nanoseconds: 0)) { record.add(1) }
                loop.schedule(at: MonotonicInstant(nanoseconds: .min)) { record.add(0) }
            }
            await actor.run { loop in try? await loop.sleep(until: .now) }
        }
        #expect(record.all == [0, 1])
    }

    @Test func `a cancelled action does not run, even when another one of its turn cancels it`() async throws {
        let record = Record<String>()
        try await withLoop { actor in
            await actor.run { loop in
                let due = MonotonicInstant.after(.milliseconds(2))
                let first = loop.schedule(at: due) { record.add("first") }
                let third = loop.schedule(at: due.advanced(by: .nanoseconds(2))) { record.add("third") }
                loop.schedule(at: due.advanced(by: .nanoseconds(1))) {
                    loop.cancel(third)
                    record.add("second")
                }
                loop.cancel(first)
                loop.cancel(first)
                try? await loop.sleep(until: due.advanced(by: .milliseconds(2)))
            }
        }
        #expect(record.all == ["second"])
    }

    @Test func `most of many deadlines cancelled leave the others in order`() async throws {
        let record = Record<Int>()
        try await withLoop { actor in
            await actor.run { loop in
                let start = MonotonicInstant.now
                let actions = (0..<1000).map { index in
                    loop.schedule(at: start.advanced(by: .microseconds((index * 7919) % 1000))) {
                        record.add((index * 7919) % 1000)
                    }
                }
                for (index, action) in actions.enumerated() where (index * 7919) % 10 != 0 { loop.cancel(action) }
                try? await loop.sleep(until: start.advanced(by: .milliseconds(2)))
            }
        }
        #expect(record.all == Array(stride(from: 0, to: 1000, by: 10)))
    }

    @Test func `a sleep ends at its deadline or when its task is cancelled`() async throws {
        try await withLoop { actor in
            let start = MonotonicInstant.now
            let due = start.advanced(by: .milliseconds(5))
            await actor.run { loop in try? await loop.sleep(until: due) }
            #expect(MonotonicInstant.now >= due)

            let sleeper = Task { await actor.failure { loop in try await loop.sleep(until: .distantFuture) } }
            sleeper.cancel()
            #expect(await sleeper.value as? WaitInterrupted == .cancelled)
        }
    }
}

@Suite struct `Event loop: readiness` {
    /// Each job takes longer than all jobs together may take in one turn, by a clock that does not run on while another
    /// program has the processor.
    @Test func `many jobs do not keep descriptors waiting, and all run in order`() async throws {
        let pair = try SocketPair()
        let record = Record<Int>()
        let count = 100
        let clock = ManualLoopClock()
        try await withLoop(clock: clock) { actor in
            try await actor.runAtOnce { loop in
                _ = try loop.register(
                    pair.near, handler: Handler { if $0.contains(.readable) { record.add(-1) } })
                for index in 0..<count {
                    loop.execute {
                        if index == 0 { pair.sendByte() }
                        clock.move(by: .milliseconds(1))
                        record.add(index)
                    }
                }
            }
            await actor.run { _ in }
        }
        #expect(record.all.filter { $0 >= 0 } == Array(0..<count))
        #expect(try #require(record.all.firstIndex(of: -1)) < 5)
    }

    @Test func `a wait ends when the descriptor becomes readable, again and again`() async throws {
        let pair = try SocketPair()
        try await withLoop { actor in
            try await actor.run { loop in
                for _ in 0..<3 {
                    loop.schedule(at: .after(.milliseconds(1))) { pair.sendByte() }
                    let readiness = try await loop.ready(pair.near, for: .readable, until: .after(.seconds(20)))
                    #expect(readiness == .readable)
                    #expect(loop.isCurrent)
                    pair.drain()
                }
            }
        }
    }

    @Test func `a wait stays on the loop's thread when an unisolated function makes it`() async throws {
        func wait(_ loop: EventLoop, _ descriptor: CInt) async throws -> Readiness {
            try await loop.ready(descriptor, for: .writable, until: .after(.seconds(20)))
        }
        let pair = try SocketPair()
        try await withLoop { actor in
            try await actor.run { loop in
                let readiness = try await wait(loop, pair.near)
                #expect(readiness == .writable)
                #expect(loop.isCurrent)
            }
        }
    }

    @Test func `the end of the peer's stream makes a descriptor ready`() async throws {
        let pair = try SocketPair()
        try await withLoop { actor in
            try await actor.run { loop in
                shutdown(pair.far, CInt(SHUT_WR))
                let readiness = try await loop.ready(pair.near, for: .readable, until: .after(.seconds(20)))
                #expect(readiness == [.readable, .peerFinished])
            }
        }
    }

    @Test func `a wait ends at its deadline and the next wait still succeeds`() async throws {
        let pair = try SocketPair()
        try await withLoop { actor in
            let due = MonotonicInstant.after(.milliseconds(5))
            let failure = await actor.failure { loop in
                _ = try await loop.ready(pair.near, for: .readable, until: due)
            }
            #expect(failure as? WaitInterrupted == .deadlineExceeded)
            #expect(MonotonicInstant.now >= due)
            pair.sendByte()
            let readiness = try await actor.run { loop in
                try await loop.ready(pair.near, for: .readable, until: .after(.seconds(20)))
            }
            #expect(readiness == .readable)
        }
    }

    @Test(arguments: [true, false])
    func `a wait ends when its task is cancelled, before or after it began`(isBefore: Bool) async throws {
        let pair = try SocketPair()
        try await withLoop { actor in
            let (began, begin) = AsyncStream.makeStream(of: Void.self)
            let (gate, open) = AsyncStream.makeStream(of: Void.self)
            let task = Task {
                if isBefore { for await _ in gate {} }
                return await actor.failure { loop in
                    loop.execute { begin.finish() }
                    _ = try await loop.ready(pair.near, for: .readable, until: .distantFuture)
                }
            }
            if !isBefore { for await _ in began {} }
            task.cancel()
            open.finish()
            #expect(await task.value as? WaitInterrupted == .cancelled)
        }
    }

    @Test func `a descriptor that is not open cannot be waited for`() async throws {
        try await withLoop { actor in
            let failure = await actor.failure { loop in
                _ = try await loop.ready(1 << 20, for: .readable, until: .after(.seconds(20)))
            }
            #expect(failure as? WaitInterrupted == .system(SystemError("epoll_ctl", number: EBADF)))
        }
    }

    @Test func `many descriptors become ready at once and each is reported once`() async throws {
        // This is more than one call of epoll_wait returns.
        let pairs = try (0..<400).map { _ in try SocketPair() }
        try await withLoop { actor in
            try await withThrowingTaskGroup(of: Void.self) { group in
                for pair in pairs {
                    group.addTask {
                        try await actor.run { loop in
                            let readiness = try await loop.ready(pair.near, for: .readable, until: .after(.seconds(20)))
                            #expect(readiness == .readable)
                        }
                    }
                }
                // The loop runs the tasks above first, because they were enqueued before this write.
                group.addTask { await actor.runAtOnce { _ in for pair in pairs { pair.sendByte() } } }
                try await group.waitForAll()
            }
        }
    }

    @Test func `a registration reports edges until it is deregistered`() async throws {
        let pair = try SocketPair()
        let record = Record<Readiness>()
        try await withLoop { actor in
            let registration = try await actor.runAtOnce { loop in
                try loop.register(pair.near, handler: Handler { record.add($0) })
            }
            await actor.run { loop in try? await loop.sleep(until: .now) }
            #expect(record.all == [.writable])
            await actor.runAtOnce { _ in pair.sendByte() }
            await actor.run { loop in try? await loop.sleep(until: .now) }
            #expect(record.all == [.writable, [.readable, .writable]])
            await actor.runAtOnce { loop in
                pair.sendByte()
                loop.deregister(registration)
                loop.deregister(registration)
            }
            await actor.run { loop in try? await loop.sleep(until: .now) }
            #expect(record.all.count == 2)
        }
    }

    @Test func `a listener is reported as long as a connection waits to be accepted`() async throws {
        let listener = try Socket.listen(on: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0))
        let address = try Socket.localAddress(of: listener.rawValue)
        let number = listener.rawValue
        let record = Record<Readiness>()
        try await withLoop { actor in
            let held = try await actor.run { loop in
                try await Holder(Socket.connect(to: address, on: loop, until: .after(.seconds(20))))
            }
            let registration = try await actor.runAtOnce { loop in
                try loop.registerListener(number, Handler { record.add($0) })
            }
            for _ in 0..<3 { await actor.run { loop in try? await loop.sleep(until: .now) } }
            await actor.runAtOnce { loop in loop.deregister(registration) }
            #expect(record.all.count >= 2)
            #expect(record.all.allSatisfy { $0 == .readable })
            withExtendedLifetime(held) {}
        }
        withExtendedLifetime(listener.rawValue) {}
    }

    @Test func `an event that was fetched for an ended registration reaches no handler`() async throws {
        let (one, two, three) = (try SocketPair(), try SocketPair(), try SocketPair())
        let record = Record<String>()
        try await withLoop { actor in
            try await actor.runAtOnce { loop in
                // Both descriptors become readable in one call of epoll_wait. The handler that runs first ends both
                // registrations and gives the freed slots to a third descriptor, which is not readable.
                final class Both { var registrations: [Registration] = [] }
                let both = Both()
                func drop(_ name: String) -> Handler {
                    Handler { _ in
                        record.add(name)
                        for registration in both.registrations { loop.deregister(registration) }
                        for _ in both.registrations {
                            _ = try? loop.registerListener(three.near, Handler { _ in record.add("third") })
                        }
                    }
                }
                both.registrations = [
                    try loop.registerListener(one.near, drop("first")),
                    try loop.registerListener(two.near, drop("first")),
                ]
                one.sendByte()
                two.sendByte()
            }
            for _ in 0..<3 { await actor.run { loop in try? await loop.sleep(until: .now) } }
        }
        #expect(record.all == ["first"])
    }

    @Test func `an event of an earlier registration of the same descriptor number reaches no handler`() async throws {
        let record = Record<String>()
        try await withLoop { actor in
            try await actor.runAtOnce { loop in
                let old = try SocketPair()
                let number = old.near
                // Closes the descriptor without deregistering it, as libraries do that own their sockets.
                let registration = try loop.register(number, handler: Handler { _ in record.add("old") })
                withExtendedLifetime(old) {}
                loop.deregister(registration)
            }
            let new = try SocketPair()
            let registration = try await actor.runAtOnce { loop in
                try loop.registerListener(new.near, Handler { _ in record.add("new") })
            }
            new.sendByte()
            await actor.run { loop in
                _ = try? await loop.sleep(until: .now)
                _ = try? await loop.sleep(until: .now)
            }
            await actor.runAtOnce { loop in loop.deregister(registration) }
        }
        #expect(Set(record.all) == ["new"])
    }
}

/// Retains a descriptor for closures, which can capture only copyable values.
final class Holder: Sendable {
    let descriptor: OwnedDescriptor
    init(_ descriptor: consuming OwnedDescriptor) { self.descriptor = descriptor }
}
