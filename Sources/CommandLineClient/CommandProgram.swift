import Reactor

/// The command line as a whole: finds the command, reads its words, and says what went wrong.
package enum CommandProgram {
    /// What to do for a command line.
    package enum Step: Sendable {
        /// Done already.
        case end(ExitStatus)
        case run(Invocation)
        /// A command of the service itself, with its words.
        case service(ServiceCommand, Invocation)
    }

    /// Finds the command. Help and complaints are printed here.
    package static func step(
        _ words: [String], terminal: any Terminal, environment: [String: String]
    ) -> Step {
        if words == ["--help"] || words == ["-h"] || words == ["help"] {
            return show(HelpText.overview(), terminal)
        }
        let words = words == ["--version"] ? ["version"] : words
        guard let (command, left) = CommandCatalog.find(words) else {
            let named = words.prefix { !$0.hasPrefix("-") }
            if !named.isEmpty, words.dropFirst(named.count).first.map({ $0 == "--help" || $0 == "-h" }) == true,
                !CommandCatalog.below(Array(named)).isEmpty
            {
                return show(HelpText.group(Array(named)), terminal)
            }
            let meant = Array(named.isEmpty ? words[...] : named)
            let group = CommandCatalog.below(Array(meant.prefix(1)))
            // Where all commands with this first word are the service's, so is this one.
            let ofService = group.allSatisfy { $0.body == nil } ? group.first : nil
            return fail(CommandCatalog.complaint(about: meant), of: ofService, terminal)
        }
        if Invocation.asksForHelp(left, command) { return show(HelpText.command(command), terminal) }
        if let word = left.first, !word.hasPrefix("-"), command.arguments.isEmpty, !command.takesCommand,
            CommandCatalog.below(command.words).count > 1
        {
            return fail(CommandCatalog.complaint(about: command.words + [word]), of: command, terminal)
        }
        do throws(CommandError) {
            let invocation = try Invocation(command, words: left, terminal: terminal, environment: environment)
            return ServiceCommand(rawValue: command.name).map { .service($0, invocation) } ?? .run(invocation)
        } catch {
            return fail(error, of: command, terminal)
        }
    }

    /// Runs a command to its end.
    package static func run(_ invocation: Invocation) async -> ExitStatus {
        guard let body = invocation.command.body else { return .usage }
        do throws(CommandError) {
            try await body(invocation)
            try invocation.terminal.checkOutput()
            return .done
        } catch {
            // What else is wrong does not hide that output is lost.
            if let lost = invocation.terminal.outputError?.text, !lost.isEmpty, !error.text.contains(lost) {
                invocation.terminal.note("token-broker: \(lost)")
            }
            return report(error, invocation.terminal)
        }
    }

    private static func show(_ text: String, _ terminal: any Terminal) -> Step {
        terminal.write(Array(text.utf8))
        return .end(terminal.outputError.map { report($0, terminal) } ?? .done)
    }

    private static func fail(
        _ error: CommandError, of command: CommandSpecification?, _ terminal: any Terminal
    ) -> Step {
        let status = report(error, terminal)
        return .end(command.map { $0.body == nil } == true ? status.ofService : status)
    }

    /// Says what is wrong, and which command helps.
    /// - Returns: the status to end with.
    package static func report(_ error: CommandError, _ terminal: any Terminal) -> ExitStatus {
        if !error.text.isEmpty { terminal.note("token-broker: \(error.text)") }
        if let next = error.next { terminal.note("Try: \(TextTable.shown(next))") }
        return error.status
    }
}

/// The terminal that the process has.
package struct SystemTerminal: Terminal {
    /// Whether the terminal knows no control characters but those of a line.
    private let isDumb = ProcessEnvironment.variables["TERM"] == "dumb"

    package init() {}

    package var isTerminal: Bool { TerminalDevice.isTerminal(1) }
    package var canAsk: Bool { TerminalDevice.isTerminal(0) && TerminalDevice.isTerminal(2) }
    package var isErrorTerminal: Bool { TerminalDevice.isTerminal(2) }
    package var showsProgress: Bool { isErrorTerminal && !isDumb }
    package var width: Int { TerminalDevice.width ?? 80 }
    package func write(_ bytes: [UInt8]) { TerminalDevice.write(bytes, to: 1) }
    package func writeError(_ text: String) { TerminalDevice.write(Array(text.utf8), to: 2) }
    package var outputError: CommandError? {
        guard let fault = TerminalDevice.outputFault else { return nil }
        // As other programs, which such a write ends by a signal, and without a word.
        if fault.isBrokenPipe { return CommandError(.unread, "") }
        return CommandError(.failed, "standard output cannot be written: \(fault)")
    }
    package func secret(_ prompt: String) -> String? { TerminalDevice.secret(prompt) }
    package func line(_ prompt: String) -> String? {
        writeError(prompt)
        return TerminalDevice.line()
    }
    package func input(limit: Int) -> [UInt8]? { TerminalDevice.input(limit: limit) }
}
