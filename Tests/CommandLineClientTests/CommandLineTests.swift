import CommandLineClient
import Testing

@Suite struct `A command line` {
    private func step(_ words: String...) -> (CommandLineClient.ExitStatus?, RecordedTerminal) {
        let terminal = RecordedTerminal()
        switch CommandProgram.step(words, terminal: terminal, environment: [:]) {
        case .end(let status): return (status, terminal)
        case .run, .service: return (nil, terminal)
        }
    }

    @Test(arguments: [
        (["contxt", "list"], "unknown command contxt; did you mean context?"),
        (["context", "lst"], "unknown command lst; did you mean list?"),
        (["zzzzzz"], "unknown command zzzzzz"),
        (["restore", "--cause", "held"], "unknown value of --cause held; it can be revoked or expired"),
        (
            ["keys", "create", "x", "--permission", "foo"],
            "unknown value of --permission foo; it can be credentials:read, "
        ),
        (["completions"], "; it can be bash, zsh or fish"),
        (["completions", "tcsh-1"], "; it can be bash, zsh or fish"),
        (["token", "--format"], "--format needs a value: FORMAT; it can be bearer, "),
        (["context", "add", "--urll", "x"], "unknown option --urll; did you mean --url?"),
        (["context", "add", "---url", "x"], "unknown option ---url; did you mean --url?"),
        (["context", "add", "--url"], "--url needs a value: URL"),
        (["context", "add", "--json=1", "a"], "--json takes no value"),
        (["context", "add", "--json", "--json", "a"], "--json may stand once only"),
        (["context", "add", "--url", "x"], "NAME is missing"),
        (["context", "use", "a", "b"], "b is one word too many"),
    ])
    func `is refused with the word that was meant and with the help to ask for`(words: [String], complaint: String) {
        let terminal = RecordedTerminal()
        guard case .end(.usage) = CommandProgram.step(words, terminal: terminal, environment: [:]) else {
            Issue.record("\(words) is accepted")
            return
        }
        #expect(terminal.errors.contains(complaint), "\(terminal.errors)")
        #expect(terminal.errors.contains("Try: token-broker "), "\(terminal.errors)")
        #expect(terminal.errors.contains("--help"))
    }

    @Test func `explains every command with an example, and fits 100 columns`() {
        for command in CommandCatalog.all {
            let terminal = RecordedTerminal()
            guard
                case .end(.done) = CommandProgram.step(command.words + ["--help"], terminal: terminal, environment: [:])
            else {
                Issue.record("\(command.name) has no help")
                continue
            }
            #expect(terminal.output.hasPrefix("token-broker \(command.name): "))
            #expect(!command.examples.isEmpty, "\(command.name)")
            #expect(
                command.examples.allSatisfy { $0.command.contains("token-broker \(command.name)") }, "\(command.name)")
            // An example is typed as it is, in one line.
            let examples = command.examples.map { "  " + $0.command }
            let long = terminal.output.split(separator: "\n").filter {
                $0.count > 100 && !examples.contains(String($0))
            }
            #expect(long.isEmpty, "\(long)")
        }
    }

    @Test(arguments: [
        ["run", "--help"], ["run", "-h"], ["run", "--tenant", "work", "--help"],
        ["run", "--env=A", "--help", "--json"],
        ["run", "--tenant", "work", "--help", "--", "echo", "RAN"], ["run", "--tenant", "--help", "--", "true"],
        ["run", "--force-refresh", "-h", "true"],
    ])
    func `is explained wherever --help stands before the words of a program`(words: [String]) {
        let terminal = RecordedTerminal()
        guard case .end(.done) = CommandProgram.step(words, terminal: terminal, environment: [:]) else {
            Issue.record("\(words) has no help")
            return
        }
        #expect(terminal.output.hasPrefix("token-broker run: "))
    }

    @Test(arguments: [
        (["run", "--", "echo", "--help"], ["echo", "--help"]), (["run", "echo", "-h"], ["echo", "-h"]),
        (["run", "--tenant", "work", "echo", "--help"], ["echo", "--help"]),
        (["run", "--env=A", "--json", "echo", "--", "--help"], ["echo", "--", "--help"]),
    ])
    func `leaves the --help of a program to that`(words: [String], program: [String]) {
        #expect(CommandLines.invocation(words, [:])?.trailing == program)
    }

    @Test func `has one command for each name`() {
        let names = CommandCatalog.all.map(\.name)
        #expect(Set(names).count == names.count)
    }

    @Test func `explains a group of commands, and itself`() {
        let (status, group) = step("context", "--help")
        #expect(status == .done)
        #expect(group.output.contains("context add"))
        let (whole, overview) = step("--help")
        #expect(whole == .done)
        for command in CommandCatalog.all { #expect(overview.output.contains(command.summary.prefix(20))) }
    }
}
