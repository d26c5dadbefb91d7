import CSimulation
import Glibc
import Reactor

/// Runs whole replicas of the broker in simulated worlds, each drawn from a seed, and says what of the promises did not
/// hold there.
@main
struct Simulation {
    /// How many worlds a process runs: the tasks of killed replicas stay in its memory.
    private static let worldsPerProcess: UInt64 = 20

    static func main() {
        unsafe csimulation_order_dictionaries(CommandLine.unsafeArgv)
        let options = Options(Array(CommandLine.arguments.dropFirst()))
        warmUp()
        let start = MonotonicInstant.now
        let totals = options.refreshes.map { runInProcesses(options, until: $0) } ?? runHere(options)
        let seconds = Double(start.duration(to: .now).milliseconds) / 1000
        for line in totals.lines(from: options.seed, seconds: seconds) { print(line) }
        exit(totals.failed.isEmpty ? 0 : 1)
    }

    /// What the process does once, and with random numbers, is done before the first world begins.
    private static func warmUp() {
        var options = Options()
        (options.users, options.duration) = (4, .seconds(20))
        World(seed: 0, options).run()
    }

    private static func runHere(_ options: Options) -> Totals {
        var totals = Totals()
        for number in 0..<UInt64(options.worlds) {
            let world = run(options.seed + number, options)
            totals.add(world)
            report(world)
            if options.printsTimeline { for entry in world.timeline { show(entry) } }
            finish(world, options)
            if world.hasFailed, !options.keepsGoing { break }
        }
        return totals
    }

    private static func run(_ seed: UInt64, _ options: Options) -> World {
        let world = World(seed: seed, options, records: options.printsTimeline)
        world.run()
        return world
    }

    /// Prints what there is to be said, and lets go of the world.
    private static func finish(_ world: World, _ options: Options) {
        if options.printsProofs { for line in world.judge.excused { print("could not be kept: \(line)") } }
        if world.hasFailed { explain(world.seed, options) }
        world.clear()
    }

    // MARK: Many worlds

    private struct Batch {
        let child: pid_t
        let pipe: CInt
    }

    private static func runInProcesses(_ options: Options, until refreshes: Int) -> Totals {
        var totals = Totals()
        var seed = options.seed
        var batches: [Batch] = []
        while true {
            let isOver = totals.grants >= refreshes || !totals.failed.isEmpty && !options.keepsGoing
            if isOver, batches.isEmpty { return totals }
            if isOver || batches.count == options.processes {
                totals.add(wait(for: batches.removeFirst()))
            } else {
                batches.append(begin(seed..<seed + worldsPerProcess, options))
                seed += worldsPerProcess
            }
        }
    }

    private static func begin(_ seeds: Range<UInt64>, _ options: Options) -> Batch {
        var ends: [CInt] = [-1, -1]
        guard unsafe pipe(&ends) == 0 else { fatalError("no pipe") }
        let child = csimulation_fork()
        if child > 0 {
            close(ends[1])
            return Batch(child: child, pipe: ends[0])
        }
        precondition(child == 0, "no process")
        close(ends[0])
        var totals = Totals()
        for seed in seeds {
            let world = run(seed, options)
            totals.add(world)
            finish(world, options)
            if world.hasFailed, !options.keepsGoing { break }
        }
        let bytes = Array(totals.text.utf8)
        let count = unsafe write(ends[1], bytes, bytes.count)
        exit(count == bytes.count ? 0 : 2)
    }

    private static func wait(for batch: Batch) -> Totals {
        var bytes: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while true {
            let count = unsafe read(batch.pipe, &buffer, buffer.count)
            if count <= 0 { break }
            bytes += buffer[..<count]
        }
        close(batch.pipe)
        var status: CInt = 0
        while unsafe waitpid(batch.child, &status, 0) == -1, errno == EINTR {}
        guard status == 0, !bytes.isEmpty else { fatalError("a process that ran worlds ended with \(status)") }
        return Totals(text: String(decoding: bytes, as: UTF8.self))
    }

    // MARK: Printing

    private static func report(_ world: World) {
        print("seed \(world.seed): \(world.setting)")
        print("  timeline \(String(world.executor.hash, radix: 16)), \(world.executor.jobs) jobs")
        print("  \(world.provider.grants) refreshes, \(world.calls) calls, errors \(pairs(world.failures))")
        let counts = Dictionary(uniqueKeysWithValues: world.faults.counts.map { ($0.key.rawValue, $0.value) })
        print("  faults \(pairs(counts)); recovered after \(Judge.text(world.slowestRecovery))")
    }

    private static func pairs(_ counts: [String: Int]) -> String {
        counts.sorted { $0.key < $1.key }.map { "\($0.key) \($0.value)" }.joined(separator: ", ")
    }

    /// Runs the world again, which goes the same way, and shows what led to the first violation.
    private static func explain(_ seed: UInt64, _ options: Options) {
        let world = World(seed: seed, options, records: true)
        world.run()
        print("seed \(seed) FAILS: \(world.setting)")
        if let failure = world.failure { print("  \(failure)") }
        for violation in world.judge.violations.prefix(5) {
            let user = violation.user.map { "user \($0): " } ?? ""
            print("  \(Judge.text(violation.time)): \(user)\(violation.kind.rawValue): \(violation.text)")
        }
        if let first = world.judge.violations.first {
            let relevant = world.timeline.filter { entry in
                entry.time > first.time - 90_000_000_000 && entry.time <= first.time + 1_000_000
                    && (entry.user == nil || entry.user == first.user)
            }
            for entry in relevant.suffix(80) { show(entry) }
        }
        world.clear()
    }

    private static func show(_ entry: (time: Int64, user: Int?, text: String)) {
        print("  \(Judge.text(entry.time)) \(entry.user.map { "[\($0)] " } ?? "")\(entry.text)")
    }
}
