extension Invocation {
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
        return (["token-broker"] + words.map(Self.typed)).joined(separator: " ")
    }

    /// A word as a shell is to read it.
    private static func typed(_ word: String) -> String {
        let isPlain =
            !word.isEmpty
            && word.utf8.allSatisfy { byte in
                UInt8(ascii: "a")...UInt8(ascii: "z") ~= byte || UInt8(ascii: "A")...UInt8(ascii: "Z") ~= byte
                    || UInt8(ascii: "0")...UInt8(ascii: "9") ~= byte || "-_./:=,@%+".utf8.contains(byte)
            }
        return isPlain ? word : CompletionWords.quoted(TextTable.shown(word))
    }
}
