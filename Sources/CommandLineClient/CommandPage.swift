/// Deploy/COMMANDS.md: all commands, as their help explains them.
package enum CommandPage {
    package static var text: String {
        var page = """
            # Commands

            What `token-broker help --markdown` prints; `token-broker COMMAND --help` explains one command.


            """
        for group in CommandCatalog.groups where !group.commands.isEmpty {
            page += "* [\(title(group))](#\(anchor(title(group))))\n"
        }
        for group in CommandCatalog.groups where !group.commands.isEmpty {
            page += "\n## \(title(group))\n"
            for command in group.commands { page += section(command) }
        }
        page += "\n## Exit status\n\n| status | meaning |\n|---|---|\n"
        for status in ExitStatus.allCases { page += "| \(status.rawValue) | \(cell(status.meaning)) |\n" }
        page += "\n## Options of all commands that speak to a broker\n\n"
        return page + options(CommandSpecification.commonOptions)
    }

    private static func section(_ command: CommandSpecification) -> String {
        var text = "\n### \(command.name)\n\n`\(HelpText.usage(command))`\n\n"
        text += command.summary.first!.uppercased() + command.summary.dropFirst() + ".\n"
        for paragraph in command.discussion.split(separator: "\n\n") {
            text += "\n" + HelpText.wrap(plain(String(paragraph)), 120).joined(separator: "\n") + "\n"
        }
        let rows =
            command.arguments.map { "| `\($0.name)` | \(cell(HelpText.described($0))) |\n" }.joined()
            + options(of: command)
        if !rows.isEmpty { text += "\n| | |\n|---|---|\n" + rows }
        text += "\n```sh\n"
        for example in command.examples { text += "# \(example.meaning)\n\(example.command)\n" }
        return text + "```\n"
    }

    /// Without those that all commands have.
    private static func options(of command: CommandSpecification) -> String {
        command.options.map(row).joined()
    }

    private static func options(_ options: [CommandSpecification.Option]) -> String {
        "| | |\n|---|---|\n" + options.map(row).joined()
    }

    private static func row(_ option: CommandSpecification.Option) -> String {
        "| `\(HelpText.shown(option))` | \(cell(HelpText.described(option))) |\n"
    }

    private static func cell(_ text: String) -> String { plain(text).replacing("|", with: "\\|") }

    /// What Markdown would take for its own marks, as it stands.
    private static func plain(_ text: String) -> String {
        var escaped = ""
        for character in text {
            if "*<>`[]".contains(character) { escaped.append("\\") }
            escaped.append(character)
        }
        return escaped
    }

    private static func title(_ group: CommandCatalog.Group) -> String {
        group.title.first!.uppercased() + group.title.dropFirst()
    }

    /// As GitHub makes it of a heading.
    private static func anchor(_ title: String) -> String {
        String(
            title.lowercased().filter { $0.isLetter || $0.isNumber || $0 == " " || $0 == "-" }.map {
                $0 == " " ? "-" : $0
            })
    }
}
