import JSON

extension CommandSpecification.Option {
    /// Of commands that ask before they do what cannot be taken back.
    static let yes = CommandSpecification.Option("yes", nil, "do not ask")
}

extension Invocation {
    /// Asks whether something is to be done that cannot be taken back; `--yes` answers.
    /// - Parameter again: the command as it is typed again, where its words alone do not say it.
    /// - Throws: `usage` where there is no one to ask, and `failed` where the answer is no.
    func confirm(_ question: String, again: String? = nil) throws(CommandError) {
        if has("yes") { return }
        try requirePerson(question, again: again)
        let answer = terminal.line(TextTable.shown(question) + " [y/N] ") ?? ""
        if ["y", "yes"].contains(answer.lowercased()) { return }
        throw CommandError(.failed, "nothing is changed", next: again)
    }

    /// - Parameters: as `confirm` has them.
    /// - Throws: `usage` where there is no one to ask.
    func requirePerson(_ question: String, again: String? = nil) throws(CommandError) {
        if terminal.canAsk { return }
        throw CommandError(
            .usage, "there is no one to ask here: say --yes to do it. \(question)",
            next: again.map { $0 + " --yes" } ?? self.again(adding: ["--yes"]))
    }

    /// JSON from the broker as a line on standard output.
    func printLine(_ bytes: [UInt8]) { terminal.print(json: bytes) }

    /// A line of JSON.
    func printLine(_ value: JSONValue) { printLine(value.encoded) }
}

extension JSONValue {
    /// As a document.
    var encoded: [UInt8] {
        var writer = JSONWriter()
        writer.value(self)
        return writer.bytes
    }
}
