/// A command with its words read: the options, the arguments, and what the command may touch.
package struct Invocation: Sendable {
    package let command: CommandSpecification
    /// By the option's name; a switch has one empty value.
    package let options: [String: [String]]
    package let arguments: [String]
    /// What stands behind `--`, for `run`.
    package let trailing: [String]
    package let terminal: any Terminal
    package let environment: [String: String]

    /// The value of an option that stands once.
    package subscript(_ option: String) -> String? { options[option]?.last }

    package func values(_ option: String) -> [String] { options[option] ?? [] }

    package func has(_ option: String) -> Bool { options[option] != nil }

    package var printsJSON: Bool { has("json") }

    /// An option that must be a whole number in a range.
    /// - Throws: `usage`.
    package func integer(_ option: String, in range: ClosedRange<Int>) throws(CommandError) -> Int? {
        guard let text = self[option] else { return nil }
        guard let number = Int(text), range.contains(number) else {
            throw CommandError(
                .usage, "--\(option) must be a number from \(range.lowerBound) to \(range.upperBound), not \(text)",
                next: help)
        }
        return number
    }

    /// How its help is asked for.
    package var help: String { "token-broker \(command.name) --help" }

    /// What is wrong with the command line, with the command's help as what to run next.
    package func wrong(_ text: String) -> CommandError { CommandError(.usage, text, next: help) }
}

extension Invocation {
    /// Reads the words of a command line behind those that name the command.
    /// - Throws: `usage`, and says which word is wrong and which one is near.
    package init(
        _ command: CommandSpecification, words: ArraySlice<String>, terminal: any Terminal,
        environment: [String: String]
    ) throws(CommandError) {
        var options: [String: [String]] = [:]
        var arguments: [String] = []
        var trailing: [String] = []
        var left = words
        let help = "token-broker \(command.name) --help"
        while let word = left.popFirst() {
            if word == "--" {
                if command.takesCommand { trailing = Array(left) } else { arguments += left }
                break
            }
            if command.takesCommand, arguments.count == command.arguments.count, !word.hasPrefix("-") {
                trailing = [word] + left
                break
            }
            guard word.hasPrefix("-"), word != "-" else {
                arguments.append(word)
                continue
            }
            let (name, attached) = Self.split(word)
            guard let option = command.allOptions.first(where: { $0.name == name }) else {
                throw CommandError(
                    .usage,
                    Nearest.complaint(
                        about: word, "option", among: command.allOptions.map { "--" + $0.name }, lists: false),
                    next: help)
            }
            if options[name] != nil, !option.repeats {
                throw CommandError(.usage, "--\(name) may stand once only", next: help)
            }
            options[name, default: []].append(try Self.value(of: option, attached, &left, help))
        }
        if arguments.count < command.arguments.count(where: \.isRequired) {
            let missing = command.arguments[arguments.count]
            throw CommandError(
                .usage, "\(missing.name) is missing: \(missing.help)" + Nearest.choices(missing.choices), next: help)
        }
        if arguments.count > command.arguments.count, command.arguments.last?.repeats != true {
            throw CommandError(.usage, "\(arguments[command.arguments.count]) is one word too many", next: help)
        }
        for (argument, word) in zip(command.arguments, arguments)
        where !argument.choices.isEmpty && !argument.choices.contains(word) {
            throw CommandError(
                .usage, Nearest.complaint(about: word, argument.name, among: argument.choices), next: help)
        }
        self.init(
            command: command, options: options, arguments: arguments, trailing: trailing, terminal: terminal,
            environment: environment)
    }

    /// Whether `--help` or `-h` stands before `--`, and before the words of the program that the command runs.
    static func asksForHelp(_ words: ArraySlice<String>, _ command: CommandSpecification) -> Bool {
        var left = words
        while let word = left.popFirst(), word != "--" {
            if word == "--help" || word == "-h" { return true }
            guard command.takesCommand else { continue }
            if !word.hasPrefix("-") { return false }
            let (name, attached) = split(word)
            let takesValue = command.allOptions.contains { $0.name == name && $0.value != nil }
            if takesValue, attached == nil, left.first?.hasPrefix("-") == false { left.removeFirst() }
        }
        return false
    }

    private static func split(_ word: String) -> (name: String, attached: String?) {
        if word == "-h" { return ("help", nil) }
        if word == "-f" { return ("file", nil) }
        guard word.hasPrefix("--") else { return (word, nil) }
        let name = word.dropFirst(2)
        guard let sign = name.firstIndex(of: "=") else { return (String(name), nil) }
        return (String(name[..<sign]), String(name[name.index(after: sign)...]))
    }

    private static func value(
        of option: CommandSpecification.Option, _ attached: String?, _ left: inout ArraySlice<String>, _ help: String
    ) throws(CommandError) -> String {
        guard let name = option.value else {
            guard attached == nil else { throw CommandError(.usage, "--\(option.name) takes no value", next: help) }
            return ""
        }
        guard let value = attached ?? left.popFirst() else {
            throw CommandError(
                .usage, "--\(option.name) needs a value: \(name)" + Nearest.choices(option.choices), next: help)
        }
        guard option.choices.isEmpty || option.choices.contains(value) else {
            throw CommandError(
                .usage, Nearest.complaint(about: value, "value of --\(option.name)", among: option.choices), next: help)
        }
        return value
    }
}

/// The word that was meant where one was misspelt.
enum Nearest {
    /// The longest list of choices in a complaint, in characters.
    private static let longestList = 1000

    /// `unknown option --tenent; did you mean --tenant?`
    /// - Parameter lists: whether all words are named where none is near; false where there are too many, and another command lists
    ///   them.
    static func complaint(about word: String, _ kind: String, among words: [String], lists: Bool = true) -> String {
        guard let near = word.utf8.count > 64 ? nil : nearest(to: word, among: words) else {
            return "unknown \(kind) \(word)" + (lists ? choices(words) : "")
        }
        return "unknown \(kind) \(word); did you mean \(near)?"
    }

    /// `; it can be a, b or c`. Empty for no words, and for too many.
    static func choices(_ words: [String]) -> String {
        guard let last = words.last else { return "" }
        let others = words.dropLast().joined(separator: ", ")
        let text = "; it can be " + (others.isEmpty ? "" : others + " or ") + last
        return text.count > longestList ? "" : text
    }

    /// The one with the fewest changes, if these are at most a third of the word and at most three.
    static func nearest(to word: String, among words: [String]) -> String? {
        let limit = min(3, max(1, word.count / 3))
        let best = words.map { ($0, distance(Array(word), Array($0))) }.min { $0.1 < $1.1 }
        return best.flatMap { $0.1 <= limit ? $0.0 : nil }
    }

    /// How many letters must be added, left out, replaced or exchanged with their neighbour.
    static func distance(_ first: [Character], _ second: [Character]) -> Int {
        var rows = [Array(0...second.count)]
        for (row, letter) in first.enumerated() {
            var next = [row + 1]
            for (column, other) in second.enumerated() {
                var cost = min(
                    rows[row][column] + (letter == other ? 0 : 1), rows[row][column + 1] + 1, next[column] + 1)
                if row > 0, column > 0, letter == second[column - 1], first[row - 1] == other {
                    cost = min(cost, rows[row - 1][column - 1] + 1)
                }
                next.append(cost)
            }
            rows.append(next)
        }
        return rows[first.count][second.count]
    }
}
