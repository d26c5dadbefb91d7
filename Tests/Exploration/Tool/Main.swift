internal import Glibc
import RenewalWorld

@main struct Main {
    static func main() {
        let options: Options
        do throws(Options.Fault) {
            options = try Options(CommandLine.arguments.dropFirst())
        } catch {
            print(error.text)
            exit(2)
        }
        let clock = ContinuousClock()
        var (states, seconds, isWell) = (0, 0.0, true)
        for setting in options.settings {
            var exploration: Explorer?
            let time = clock.measure { exploration = Explorer(setting, atMost: options.most) }
            guard let exploration else { continue }
            let took = Double(time.components.seconds) + Double(time.components.attoseconds) / 1e18
            states += exploration.states
            seconds += took
            print(Options.name(setting), terminator: ": ")
            print(
                "\(exploration.states) states, \(exploration.moves) moves, \((took * 10).rounded() / 10) s",
                terminator: "")
            print(", \(exploration.quietStates) ends, \(exploration.excusedStates) of them excused", terminator: "")
            print("; \(exploration.handedOverStates) states after a hand-over", terminator: "")
            print(exploration.isComplete ? "" : ", not complete")
            if let finding = exploration.finding {
                isWell = false
                print("  FOUND: \(finding.violation)")
                for line in finding.timeline { print("  \(line)") }
                if !options.goesOn { exit(1) }
            }
            if !exploration.isComplete { isWell = false }
            fflush(nil)
        }
        print("In all \(states) states in \((seconds * 10).rounded() / 10) s.")
        exit(isWell ? 0 : 1)
    }
}
