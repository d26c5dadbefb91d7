/// How a further command is typed in a shell so that it speaks to the same broker: what the words of this one have named is named
/// again; what variables and kept contexts say holds there, too.
package struct NextCommand: Sendable, Equatable {
    /// What `--context` has named.
    let context: String?

    package init(context: String?) {
        self.context = context
    }

    /// - Parameters:
    ///   - words: as programs get them, without `token-broker`.
    ///   - tenant: the tenant that it is about; nil where it is about none, or where its words name it.
    package func typed(_ words: [String], tenant: String? = nil) -> String {
        let all =
            ["token-broker"] + words + (tenant.map { ["--tenant", $0] } ?? [])
            + (context.map { ["--context", $0] } ?? [])
        return all.map(ShellWord.quoted).joined(separator: " ")
    }

    package func typed(_ words: String..., tenant: String? = nil) -> String { typed(words, tenant: tenant) }
}

/// A word of a command line.
package enum ShellWord {
    private static let plain = Set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,/:=@%+".utf8)

    /// As a POSIX shell reads it as this one word. What a terminal must not be shown is replaced.
    package static func quoted(_ word: String) -> String {
        let word = TextTable.shown(word)
        if !word.isEmpty, word.utf8.allSatisfy(plain.contains) { return word }
        return inQuotes(word)
    }

    /// The same in single quotes, whatever is in it.
    static func inQuotes(_ word: String) -> String {
        "'" + word.split(separator: "'", omittingEmptySubsequences: false).joined(separator: #"'\''"#) + "'"
    }
}

extension Invocation {
    /// How further commands speak to the same broker.
    package var next: NextCommand { NextCommand(context: self["context"]) }

    /// Another command about the same tenant, as this one has named it.
    func next(_ words: String...) -> String { next.typed(words, tenant: self["tenant"]) }

    /// This command as it is typed again.
    /// - Parameters:
    ///   - changed: the values of options that have others now; none leaves an option out.
    ///   - others: words that it lacks.
    func again(_ changed: [String: [String]] = [:], adding others: [String] = []) -> String {
        var options: [String] = []
        for option in command.allOptions {
            for value in changed[option.name] ?? values(option.name) {
                options += option.value == nil ? ["--" + option.name] : ["--" + option.name, value]
            }
        }
        options += others
        // An argument that begins with a dash stands behind two of them, and options do not.
        let isDashed = arguments.contains { $0.hasPrefix("-") && $0 != "-" }
        var words = command.words + (isDashed ? options + ["--"] + arguments : arguments + options)
        if !trailing.isEmpty { words += ["--"] + trailing }
        return NextCommand(context: nil).typed(words)
    }
}
