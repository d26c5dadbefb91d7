/// What `--help` prints: of the program, of a group of commands, of a command.
package enum HelpText {
    private static let width = 96

    /// Of the whole program.
    package static func overview() -> String {
        var text = """
            token-broker: logs users in at OAuth providers, keeps their credentials, and provides valid access tokens

            usage: token-broker COMMAND [ARGUMENTS] [OPTIONS]

            """
        for group in CommandCatalog.groups {
            text += "\n\(group.title)\n"
            text += list(group.commands.map { ($0.name, $0.summary) })
        }
        text += """

            Each command explains itself: token-broker COMMAND --help. token-broker --version prints the version, and
            token-broker help variables the service's variables.

            exit status

            """
        return text + list(ExitStatus.allCases.map { (String($0.rawValue), $0.meaning) })
    }

    /// Of the commands that begin with the same words.
    package static func group(_ words: [String]) -> String {
        let commands = CommandCatalog.below(words)
        return "usage: token-broker \(words.joined(separator: " ")) COMMAND\n\n"
            + list(commands.map { ($0.name, $0.summary) })
            + "\nEach explains itself: token-broker \(commands[0].name) --help\n"
    }

    /// Of one command.
    package static func command(_ command: CommandSpecification) -> String {
        let title = wrap("token-broker \(command.name): \(command.summary)", width).joined(separator: "\n")
        var text = "\(title)\n\nusage: \(usage(command))\n"
        for paragraph in command.discussion.split(separator: "\n\n") {
            text += "\n" + wrap(String(paragraph), width).joined(separator: "\n") + "\n"
        }
        if !command.arguments.isEmpty {
            text += "\narguments\n" + list(command.arguments.map { ($0.name, described($0)) })
        }
        text += "\noptions\n" + list(command.allOptions.map { (shown($0), described($0)) })
        text += "\nexamples\n"
        for example in command.examples { text += "  # \(example.meaning)\n  \(example.command)\n" }
        return text
    }

    package static func usage(_ command: CommandSpecification) -> String {
        let arguments = command.arguments.map { argument in
            let name = argument.name + (argument.repeats ? "..." : "")
            return argument.isRequired ? name : "[\(name)]"
        }
        return
            (["token-broker", command.name] + arguments + ["[OPTIONS]"]
            + (command.takesCommand ? ["-- COMMAND..."] : []))
            .joined(separator: " ")
    }

    package static func shown(_ option: CommandSpecification.Option) -> String {
        "--\(option.name)" + (option.value.map { " \($0)" } ?? "")
    }

    package static func described(_ option: CommandSpecification.Option) -> String {
        option.help + listed(option.choices)
    }

    package static func described(_ argument: CommandSpecification.Argument) -> String {
        argument.help + listed(argument.choices)
    }

    private static func listed(_ choices: [String]) -> String {
        choices.isEmpty ? "" : ": \(choices.joined(separator: ", "))"
    }

    /// Of the command or the group that words name, or of the whole program for none.
    /// - Throws: `usage` for other words.
    package static func about(_ words: [String]) throws(CommandError) -> String {
        if words.isEmpty { return overview() }
        // A group alone is its list where it is run, and itself where it is explained.
        let isGroup = !CommandCatalog.all.contains { $0.words == words } && CommandCatalog.below(words).count > 1
        if !isGroup, let (command, left) = CommandCatalog.find(words), left.isEmpty { return self.command(command) }
        if CommandCatalog.below(words).isEmpty { throw CommandCatalog.complaint(about: words) }
        return group(words)
    }

    /// Two columns.
    static func list(_ rows: [(String, String)]) -> String {
        let column = min(30, (rows.map(\.0.count).max() ?? 0) + 2)
        var text = ""
        for (name, help) in rows {
            let lines = wrap(help, width - column - 2)
            let fits = name.count + 2 <= column
            text += "  \(name)"
            text +=
                fits
                ? String(repeating: " ", count: column - name.count) : "\n" + String(repeating: " ", count: column + 2)
            text += lines.joined(separator: "\n" + String(repeating: " ", count: column + 2)) + "\n"
        }
        return text
    }

    static func wrap(_ text: String, _ width: Int) -> [String] {
        var lines: [String] = []
        var line = ""
        for word in text.split(whereSeparator: { $0 == " " || $0 == "\n" }) {
            if !line.isEmpty, line.count + 1 + word.count > width {
                lines.append(line)
                line = ""
            }
            line += (line.isEmpty ? "" : " ") + word
        }
        return lines + [line]
    }
}
