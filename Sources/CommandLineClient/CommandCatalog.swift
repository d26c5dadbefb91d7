/// All commands of the program, in the order of its help.
package enum CommandCatalog {
    /// Those with a heading in common.
    package struct Group: Sendable {
        package let title: String
        package let commands: [CommandSpecification]
    }

    package static let groups: [Group] = [
        Group(title: "users and their tokens", commands: UserCommands.all),
        Group(title: "what has happened, and taking it back", commands: HistoryCommands.all),
        Group(title: "what brokers and other programs keep", commands: TransferCommands.all),
        Group(title: "tenants, providers, keys, apps", commands: AdministrationCommands.all),
        Group(title: "the service", commands: ServiceCommands.all),
        Group(title: "this program", commands: ContextCommands.all + ShellCommands.all),
    ]

    package static let all: [CommandSpecification] = groups.flatMap(\.commands)

    /// The command that words begin with, and the words behind it; nil where there is none. A group alone, such as `tenants`,
    /// lists what there is, where it has a `list`.
    package static func find(_ words: [String]) -> (command: CommandSpecification, left: ArraySlice<String>)? {
        let fitting = all.filter { words.starts(with: $0.words) }
        if let command = fitting.max(by: { $0.words.count < $1.words.count }) {
            return (command, words.dropFirst(command.words.count))
        }
        let group = Array(words.prefix { !$0.hasPrefix("-") })
        if group.isEmpty || words.contains("--help") || words.contains("-h") { return nil }
        return all.first { $0.words == group + ["list"] }.map { ($0, words.dropFirst(group.count)) }
    }

    /// The commands below some words: for `keys`, those that begin with it.
    package static func below(_ words: [String]) -> [CommandSpecification] {
        all.filter { $0.words.starts(with: words) }
    }

    /// Why words name no command, and which one is near.
    package static func complaint(about words: [String]) -> CommandError {
        // How many of the words are known.
        let level =
            words.isEmpty || below(words).isEmpty
            ? words.indices.last { !below(Array(words[..<$0])).isEmpty } ?? 0 : words.count
        let known = below(Array(words[..<level])).compactMap { $0.words.count > level ? $0.words[level] : nil }
        let prefix = words[..<level].joined(separator: " ")
        let text =
            words.count > level
            ? Nearest.complaint(about: words[level], "command", among: Array(Set(known)).sorted(), lists: level > 0)
            : "\(prefix) needs another word: \(Array(Set(known)).sorted().joined(separator: ", "))"
        return CommandError(.usage, text, next: "token-broker \(prefix.isEmpty ? "" : prefix + " ")--help")
    }
}
