import CommandLineClient

/// Command lines as tests run them, with a terminal that keeps what they print.
enum CommandLines {
    /// Runs a command to its end.
    static func run(
        _ words: [String], _ environment: [String: String] = [:], terminal: RecordedTerminal = RecordedTerminal()
    ) async -> (status: ExitStatus?, terminal: RecordedTerminal) {
        switch CommandProgram.step(words, terminal: terminal, environment: environment) {
        case .end(let status): return (status, terminal)
        case .run(let invocation): return (await CommandProgram.run(invocation), terminal)
        case .service: return (nil, terminal)
        }
    }

    /// The words of a command that speaks to a broker, read.
    static func invocation(_ words: [String], _ environment: [String: String]) -> Invocation? {
        guard
            case .run(let invocation) = CommandProgram.step(
                words, terminal: RecordedTerminal(), environment: environment)
        else { return nil }
        return invocation
    }
}
