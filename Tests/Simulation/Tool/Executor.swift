import CSimulation

/// What runs in the simulated world and can die or stand still: a replica's process, or the world itself, which does
/// neither.
///
/// Unchecked: everything of a world runs on one thread.
@safe final class SimulatedProcess: @unchecked Sendable {
    let name: String
    /// For the hash of a timeline.
    let number: Int
    private(set) var isDead = false
    private(set) var isPaused = false
    /// What is to run when the process goes on.
    fileprivate var heldJobs: [UnsafeMutableRawPointer] = unsafe []
    fileprivate var heldCalls: [() -> Void] = []

    init(_ name: String, number: Int) {
        self.name = name
        self.number = number
    }

    /// Nothing of the process runs any more. What its tasks have in memory stays there, as nothing of it may end in the
    /// orderly way in which a task ends.
    func die() {
        isDead = true
        unsafe heldJobs = []
        heldCalls = []
    }

    func pause() { isPaused = true }

    fileprivate func goOn() { isPaused = false }
}

/// The only thing that runs anything: one job at a time, picked by the seed among those that are ready; where none is, it
/// advances the clock to the next timer.
///
/// Unchecked: there is one thread, and this is what runs on it.
@safe final class Executor: @unchecked Sendable {
    @safe private struct ReadyJob {
        let job: UnsafeMutableRawPointer
        let process: SimulatedProcess
    }

    /// A place in the heap of timers: without references, since it moves about there.
    private struct Timer {
        let time: Int64
        let number: Int64
        let slot: Int

        static func < (left: Timer, right: Timer) -> Bool {
            left.time == right.time ? left.number < right.number : left.time < right.time
        }
    }

    private struct TimedCall {
        let process: SimulatedProcess
        let call: () -> Void
    }

    enum Failure: Error {
        /// So many jobs ran without that any time has passed: they run in a circle.
        case standstill(jobs: Int)
    }

    /// Where the runtime's jobs go. One world is run after the other.
    nonisolated(unsafe) private static var current: Executor?
    private static let jobsWithoutTime = 500_000

    /// Nanoseconds since the world's beginning.
    private(set) var now: Int64 = 0
    /// Of which process the code is that runs now. What it begins is of the same process.
    private(set) var running: SimulatedProcess
    let world = SimulatedProcess("world", number: 0)
    private(set) var jobs = 0
    private var ready: [ReadyJob] = []
    private var timers: [Timer] = []
    /// What the timers call, by their slots.
    private var timedCalls: [TimedCall?] = []
    private var freeSlots: [Int] = []
    private var lastTimer: Int64 = 0
    private var chance: Chance
    /// Of everything that ran, in its order (FNV-1a).
    private(set) var hash: UInt64 = 0xcbf2_9ce4_8422_2325

    init(seed: UInt64) {
        running = world
        chance = Chance(seed: seed)
    }

    /// Has this executor run everything from now on.
    func takeOver() {
        if unsafe Self.current == nil {
            unsafe csimulation_take_jobs { job in
                guard let job = unsafe job, let executor = unsafe Executor.current else { return }
                unsafe executor.ready.append(ReadyJob(job: job, process: executor.running))
            }
        }
        unsafe Self.current = self
    }

    /// Mixes what the world decided into the hash.
    func note(_ number: Int64) {
        hash = (hash ^ UInt64(bitPattern: number)) &* 0x0000_0100_0000_01b3
    }

    /// Runs code as a process's: what it begins belongs to that.
    @discardableResult
    func run<R>(as process: SimulatedProcess, _ body: () -> R) -> R {
        let before = running
        running = process
        defer { running = before }
        return body()
    }

    /// Calls `call` at `time` as code of `process`: later where that stands still then, never where it is dead.
    func at(_ time: Int64, _ process: SimulatedProcess, _ call: @escaping () -> Void) {
        lastTimer += 1
        let timed = TimedCall(process: process, call: call)
        let slot: Int
        if let free = freeSlots.popLast() {
            timedCalls[free] = timed
            slot = free
        } else {
            timedCalls.append(timed)
            slot = timedCalls.count - 1
        }
        push(Timer(time: max(time, now), number: lastTimer, slot: slot))
    }

    func after(_ span: Int64, _ process: SimulatedProcess? = nil, _ call: @escaping () -> Void) {
        at(now + span, process ?? world, call)
    }

    func resume(_ process: SimulatedProcess) {
        process.goOn()
        ready += unsafe process.heldJobs.map { unsafe ReadyJob(job: $0, process: process) }
        unsafe process.heldJobs = []
        let calls = process.heldCalls
        process.heldCalls = []
        for call in calls { run(as: process, call) }
    }

    /// Runs everything up to `end`, or until `isOver` says so.
    func run(until end: Int64, _ isOver: () -> Bool = { false }) throws(Failure) {
        var jobsSince = 0
        while !isOver() {
            if !ready.isEmpty {
                step()
                jobsSince += 1
                if jobsSince > Self.jobsWithoutTime { throw .standstill(jobs: jobsSince) }
                continue
            }
            guard let next = timers.first, next.time <= end else { break }
            if next.time > now {
                now = next.time
                jobsSince = 0
            }
            let slot = pop().slot
            freeSlots.append(slot)
            guard let timer = timedCalls[slot].take() else { continue }
            if timer.process.isDead { continue }
            if timer.process.isPaused {
                timer.process.heldCalls.append(timer.call)
                continue
            }
            note(now &* 31 &+ Int64(timer.process.number))
            run(as: timer.process, timer.call)
        }
        if now < end, !isOver() { now = end }
    }

    private func step() {
        let index = ready.count == 1 ? 0 : chance.below(ready.count)
        ready.swapAt(index, ready.count - 1)
        let next = ready.removeLast()
        if next.process.isDead { return }
        if next.process.isPaused {
            unsafe next.process.heldJobs.append(next.job)
            return
        }
        jobs += 1
        note(Int64(index &* 64 &+ next.process.number))
        running = next.process
        unsafe csimulation_run(next.job)
        running = world
    }

    /// Lets go of what waits to be run in a world that is over.
    func clear() {
        ready = []
        (timers, timedCalls, freeSlots) = ([], [], [])
    }

    // MARK: The heap of timers

    private func push(_ timer: Timer) {
        timers.append(timer)
        var index = timers.count - 1
        while index > 0 {
            let parent = (index - 1) / 2
            if !(timers[index] < timers[parent]) { break }
            timers.swapAt(index, parent)
            index = parent
        }
    }

    private func pop() -> Timer {
        timers.swapAt(0, timers.count - 1)
        let first = timers.removeLast()
        var index = 0
        while true {
            var least = index
            for child in [2 * index + 1, 2 * index + 2] where child < timers.count && timers[child] < timers[least] {
                least = child
            }
            if least == index { return first }
            timers.swapAt(index, least)
            index = least
        }
    }
}
