/// One command: what its help, its completions and its page in the manual say, and what it does. All of these come from here.
package struct CommandSpecification: Sendable {
    /// A word that stands at its place.
    package struct Argument: Sendable {
        /// As the help shows it, in capitals: `TENANT`.
        package let name: String
        package let help: String
        package let isRequired: Bool
        /// Whether it may stand several times; only the last argument of a command.
        package let repeats: Bool
        /// The words that it may be, for the help and for completions; empty for any.
        package let choices: [String]

        package init(
            _ name: String, _ help: String, isRequired: Bool = true, repeats: Bool = false, choices: [String] = []
        ) {
            self.name = name
            self.help = help
            self.isRequired = isRequired
            self.repeats = repeats
            self.choices = choices
        }
    }

    /// `--name`, or `--name VALUE`, or `--name=VALUE`.
    package struct Option: Sendable {
        /// Without the dashes.
        package let name: String
        /// What the help shows for the value, in capitals; nil for a switch.
        package let value: String?
        package let help: String
        /// The values that it may have, for the help and for completions; empty for any.
        package let choices: [String]
        /// Whether it may stand several times.
        package let repeats: Bool

        package init(
            _ name: String, _ value: String? = nil, _ help: String, choices: [String] = [], repeats: Bool = false
        ) {
            self.name = name
            self.value = value
            self.help = help
            self.choices = choices
            self.repeats = repeats
        }
    }

    package struct Example: Sendable {
        package let command: String
        package let meaning: String

        package init(_ command: String, _ meaning: String) {
            self.command = command
            self.meaning = meaning
        }
    }

    package typealias Body = @Sendable (Invocation) async throws(CommandError) -> Void

    /// The words that name it: `["tenants", "create"]`.
    package let words: [String]
    /// A line in lists of commands; begins with a verb.
    package let summary: String
    /// What else there is to say, in paragraphs; empty for nothing.
    package let discussion: String
    package let arguments: [Argument]
    package let options: [Option]
    package let examples: [Example]
    /// Whether what stands behind the arguments, or behind `--`, belongs to another program.
    package let takesCommand: Bool
    /// Whether it takes the options that name a broker and the form of the output.
    package let speaksToBroker: Bool
    /// Nil for a command that works on the service's own files and database: it is another part of the program.
    package private(set) var body: Body?

    package init(
        _ words: String, _ summary: String, discussion: String = "", arguments: [Argument] = [], options: [Option] = [],
        examples: [Example], takesCommand: Bool = false, speaksToBroker: Bool = true,
        body: Body? = nil
    ) {
        self.words = words.split(separator: " ").map(String.init)
        self.summary = summary
        self.discussion = discussion
        self.arguments = arguments
        self.options = options
        self.examples = examples
        self.takesCommand = takesCommand
        self.speaksToBroker = speaksToBroker && body != nil
        self.body = body
    }

    package var name: String { words.joined(separator: " ") }

    /// The same command with another body.
    func with(_ body: @escaping Body) -> CommandSpecification {
        var changed = self
        changed.body = body
        return changed
    }

    /// Those that every command of a client has.
    package static let commonOptions = [
        Option("tenant", "NAME", "the tenant; else TOKEN_BROKER_TENANT, else that of the context"),
        Option("context", "NAME", "the broker and the key to use; see token-broker context"),
        Option("json", nil, "print JSON for programs in place of a table"),
        Option("help", nil, "print this help"),
    ]

    /// All options that it takes.
    package var allOptions: [Option] {
        options + (speaksToBroker ? Self.commonOptions : [Option("help", nil, "print this help")])
    }
}
