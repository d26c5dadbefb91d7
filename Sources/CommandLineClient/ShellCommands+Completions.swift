/// A shell that completions can be printed for.
enum CompletionShell: String, CaseIterable {
    case bash, zsh, fish

    var script: String {
        switch self {
        case .bash: BashCompletions.script
        case .zsh: ZshCompletions.script
        case .fish: FishCompletions.script
        }
    }
}

/// What completions need to know of the catalog.
enum CompletionWords {
    /// A word of commands: what stands before it, the word, and what it is.
    struct Word {
        let before: String
        let word: String
        let help: String
    }

    /// All words of commands, in the catalog's order.
    static let all: [Word] = {
        var words: [Word] = []
        var known: Set<String> = []
        for command in CommandCatalog.all {
            for index in command.words.indices {
                let path = command.words[...index].joined(separator: " ")
                guard known.insert(path).inserted else { continue }
                let exact = CommandCatalog.all.first { $0.name == path }
                let below = CommandCatalog.below(Array(command.words[...index])).map { $0.words.dropFirst(index + 1) }
                let names = below.compactMap(\.first).reduce(into: [String]()) {
                    if !$0.contains($1) { $0.append($1) }
                }
                words.append(
                    Word(
                        before: command.words[..<index].joined(separator: " "), word: command.words[index],
                        help: exact?.summary ?? names.joined(separator: ", ")))
            }
        }
        return words
    }()

    /// All that can be typed before a further word or an option.
    static var paths: [String] { all.map { $0.before.isEmpty ? $0.word : "\($0.before) \($0.word)" } }

    /// What precedes words of commands, each with the words.
    static var groups: [(before: String, words: [Word])] {
        var order: [String] = []
        for word in all where !order.contains(word.before) { order.append(word.before) }
        return order.map { before in (before, all.filter { $0.before == before }) }
    }

    /// Choices of a command's options and arguments: the pattern `COMMAND --option` or `COMMAND POSITION`, and the words.
    static var choices: [(pattern: String, words: [String])] {
        CommandCatalog.all.flatMap { command in
            command.allOptions.filter { !$0.choices.isEmpty }.map { ("\(command.name) --\($0.name)", $0.choices) }
                + command.arguments.enumerated().filter { !$0.element.choices.isEmpty }.map {
                    ("\(command.name) \($0.offset)", $0.element.choices)
                }
        }
    }

    /// The options of a command that take a value, as they are typed.
    static func valued(_ command: CommandSpecification) -> [String] {
        command.allOptions.filter { $0.value != nil }.map { "--" + $0.name }
    }
}
