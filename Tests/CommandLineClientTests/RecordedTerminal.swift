import CommandLineClient
import Synchronization

/// What a command says, and not what Testing calls so.
typealias ExitStatus = CommandLineClient.ExitStatus

/// A terminal that keeps what is written to it, and answers questions with prepared lines.
final class RecordedTerminal: Terminal {
    private struct State {
        var output: [UInt8] = []
        var errors = ""
        var answers: [String]
        var outputError: CommandError?
        var secrets = 0
    }

    private let state: Mutex<State>
    let isTerminal: Bool
    let canAsk: Bool
    let width = 80
    private let room: Int
    private let fault: CommandError

    /// - Parameters:
    ///   - answers: what a person types, or the lines of standard input.
    ///   - room: how many bytes standard output takes.
    ///   - fault: of the first write beyond that.
    init(
        isTerminal: Bool = false, canAsk: Bool = false, answers: [String] = [], room: Int = .max,
        fault: CommandError = CommandError(.failed, "standard output cannot be written: write: No space left on device")
    ) {
        state = Mutex(State(answers: answers))
        self.room = room
        self.fault = fault
        self.isTerminal = isTerminal
        self.canAsk = canAsk
    }

    var output: String { state.withLock { String(decoding: $0.output, as: UTF8.self) } }
    var errors: String { state.withLock { $0.errors } }
    /// How many lines were read without being shown.
    var secrets: Int { state.withLock { $0.secrets } }

    var outputError: CommandError? { state.withLock { $0.outputError } }

    func write(_ bytes: [UInt8]) {
        state.withLock { state in
            if state.outputError != nil { return }
            if state.output.count + bytes.count > room { state.outputError = fault } else { state.output += bytes }
        }
    }
    func writeError(_ text: String) { state.withLock { $0.errors += text } }
    func secret(_ prompt: String) -> String? {
        state.withLock { $0.secrets += 1 }
        return line(canAsk ? prompt : "")
    }

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
