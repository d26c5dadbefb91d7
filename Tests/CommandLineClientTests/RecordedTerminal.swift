internal import CommandLineClient
internal import Synchronization

/// What a command says, and not what Testing calls so.
typealias ExitStatus = CommandLineClient.ExitStatus

/// A terminal that keeps what is written to it, and answers questions with prepared lines.
final class RecordedTerminal: Terminal {
    private struct State {
        var output: [UInt8] = []
        var errors = ""
        var answers: [String]
    }

    private let state: Mutex<State>
    let isTerminal: Bool
    let canAsk: Bool
    let width = 80

    /// - Parameter answers: what a person types, or the lines of standard input.
    init(isTerminal: Bool = false, canAsk: Bool = false, answers: [String] = []) {
        state = Mutex(State(answers: answers))
        self.isTerminal = isTerminal
        self.canAsk = canAsk
    }

    var output: String { state.withLock { String(decoding: $0.output, as: UTF8.self) } }
    var errors: String { state.withLock { $0.errors } }

    func write(_ bytes: [UInt8]) { state.withLock { $0.output += bytes } }
    func complain(_ text: String) { state.withLock { $0.errors += text } }
    func secret(_ prompt: String) -> String? { line(prompt) }

    func line(_ prompt: String) -> String? {
        state.withLock { state in
            state.errors += prompt
            return state.answers.isEmpty ? nil : state.answers.removeFirst()
        }
    }

    func input(limit: Int) -> [UInt8]? {
        state.withLock { state in
            let bytes = state.answers.flatMap { Array(($0 + "\n").utf8) }
            state.answers = []
            return bytes.count > limit ? nil : bytes
        }
    }
}
