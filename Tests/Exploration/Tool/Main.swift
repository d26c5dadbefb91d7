import Glibc
import RenewalWorld

@main struct Main {
    static func main() async {
        let options: Options
        do throws(Options.Fault) {
            options = try Options(CommandLine.arguments.dropFirst())
        } catch {
            print(error.text)
            exit(2)
        }
        // As many at a time as there are processors, each with memory of its own. The results are printed in order.
        let jobs = max(1, sysconf(CInt(_SC_NPROCESSORS_ONLN)))
        var summary = Summary()
        await withTaskGroup(of: (Int, Result).self) { group in
            var (begun, printed) = (0, 0)
            var waiting: [Int: Result] = [:]
            func begin() {
                guard begun < options.settings.count else { return }
                let (index, setting) = (begun, options.settings[begun])
                begun += 1
                group.addTask { (index, Result(setting, atMost: options.most, atLeast: options.least)) }
            }
            for _ in 0..<jobs { begin() }
            while let (index, result) = await group.next() {
                waiting[index] = result
                while let next = waiting.removeValue(forKey: printed) {
                    next.print()
                    summary.add(next)
                    printed += 1
                    if !next.isWell, !options.goesOn { exit(1) }
                }
                begin()
            }
        }
        print("In all \(summary.states) states in \(Result.text(seconds: summary.seconds)).")
        exit(summary.isWell ? 0 : 1)
    }
}

private struct Summary {
    var (states, seconds, isWell) = (0, 0.0, true)

    mutating func add(_ result: Result) {
        states += result.states
        seconds += result.seconds
        if !result.isWell { isWell = false }
    }
}

/// What was found in one setting.
private struct Result: Sendable {
    let states: Int
    /// How long the search took.
    let seconds: Double
    /// Whether all states were looked at, are as many as they should be, and break no promise.
    let isWell: Bool
    private let lines: [String]

    /// Looks at all states of the setting.
    /// - Parameter least: how many states there should be, of which some are behind a hand-over; 0 for any number.
    init(_ setting: Setting, atMost most: Int, atLeast least: Int) {
        let clock = ContinuousClock()
        let start = clock.now
        let exploration = Exploration(setting, atMost: most)
        let took = start.duration(to: clock.now)
        states = exploration.states
        seconds = Double(took.components.seconds) + Double(took.components.attoseconds) / 1e18
        let isEnough = least == 0 || states >= least && exploration.handedOverStates > 0
        isWell = exploration.isComplete && exploration.finding == nil && isEnough
        var line = "\(Options.name(setting)): \(states) states, \(exploration.moves) moves, "
        line += "\(Self.text(seconds: seconds)), \(exploration.quietStates) ends, \(exploration.excusedStates) of them "
        line += "excused; \(exploration.handedOverStates) states after a hand-over"
        if !exploration.isComplete { line += ", not complete" }
        if !isEnough { line += ", fewer than expected" }
        let finding = exploration.finding.map { ["  FOUND: \($0.violation)"] + $0.timeline.map { "  \($0)" } }
        lines = [line] + (finding ?? [])
    }

    func print() {
        for line in lines { Swift.print(line) }
        fflush(nil)
    }

    static func text(seconds: Double) -> String { "\((seconds * 10).rounded() / 10) s" }
}
