/// The page of the manual, in the macros of man(7).
enum ManualPage {
    static var text: String {
        var page = ".TH TOKEN\\-BROKER 1 \"\" token\\-broker \"User Commands\"\n.nh\n.ad l\n.SH NAME\n"
        page += "token\\-broker \\- log users in at OAuth providers and provide valid access tokens\n"
        page += ".SH SYNOPSIS\n.B token\\-broker\n.I COMMAND\n.RI [ ARGUMENTS ]\n.RI [ OPTIONS ]\n"
        page += ".SH DESCRIPTION\n"
        page += paragraph(
            "A broker logs users in at OAuth providers, keeps their credentials encrypted, and gives callers access tokens that "
                + "are valid. The same program is the service (token-broker serve) and speaks to one over HTTP: to the broker "
                + "that --context or TOKEN_BROKER_URL names, else to that of the current context, else to the one on this machine."
        )
        for group in CommandCatalog.groups where !group.commands.isEmpty {
            page += ".SH \(argument(group.title.uppercased()))\n"
            for command in group.commands { page += section(command) }
        }
        page += ".SH EXIT STATUS\n"
        for status in ExitStatus.allCases { page += item(String(status.rawValue), status.meaning) }
        page += ".SH ENVIRONMENT\n" + paragraph("token-broker help variables lists all variables.")
        page += ".SH FILES\n"
        page += item("~/.config/token-broker/contexts.json", "brokers and keys that token-broker context keeps")
        page += item("~/.local/share/token-broker", "data and keys of a broker that token-broker up runs")
        return page
    }

    private static func section(_ command: CommandSpecification) -> String {
        var text = ".SS \(argument(HelpText.usage(command)))\n"
        text += paragraph(command.summary.first!.uppercased() + command.summary.dropFirst() + ".")
        for paragraph in command.discussion.split(separator: "\n\n") {
            text += ".PP\n" + self.paragraph(String(paragraph))
        }
        for argument in command.arguments { text += item(argument.name, HelpText.described(argument)) }
        for option in command.allOptions { text += item(HelpText.shown(option), HelpText.described(option)) }
        text += ".PP\nExamples:\n"
        for example in command.examples {
            text += ".PP\n" + paragraph(example.meaning + ":") + ".PP\n.nf\n.RS 4\n\(line(example.command))\n.RE\n.fi\n"
        }
        return text
    }

    /// A word in bold, and what it means.
    private static func item(_ name: String, _ meaning: String) -> String {
        ".TP\n.B \(argument(name))\n\(paragraph(meaning))"
    }

    private static func paragraph(_ text: String) -> String {
        HelpText.wrap(text, 72).map { line($0) + "\n" }.joined()
    }

    /// A line of text: a dot or an apostrophe at its beginning would make it a request.
    private static func line(_ text: String) -> String {
        let text = escaped(text)
        return text.hasPrefix(".") || text.hasPrefix("'") || text.hasPrefix("\\(aq") ? "\\&" + text : text
    }

    /// What stands behind a macro, as one argument.
    private static func argument(_ text: String) -> String {
        "\"" + escaped(text).replacing("\"", with: "\\(dq") + "\""
    }

    private static func escaped(_ text: String) -> String {
        text.replacing("\\", with: "\\e").replacing("-", with: "\\-").replacing("'", with: "\\(aq")
            .replacing("…", with: "...").replacing("~", with: "\\(ti").replacing("^", with: "\\(ha")
            .replacing("`", with: "\\(ga")
    }
}
