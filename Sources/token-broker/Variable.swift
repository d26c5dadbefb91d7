import BrokerCore

/// A variable of the environment, as one row of `Variable.all`: its name, what it may be, where its value goes, and what it means
/// to an operator. Reading, `config check` and `token-broker help variables` go by the rows. The default is that of the property.
struct Variable: Sendable {
    /// The whole name, so that a search for it leads here.
    let name: StaticString
    /// Whether `NAME_FILE` may name a file with the value.
    let hasFileForm: Bool
    /// Whether it is read only beside a database.
    private(set) var needsDatabase = false
    /// Puts the value where it belongs, or notes what is wrong with it. Nil for a variable that only commands read.
    let read: (@Sendable (inout EnvironmentReader, inout Configuration) -> Void)?
    /// - Parameter usual: a configuration with all defaults.
    private let meaning: @Sendable (_ usual: Configuration) -> String

    /// A variable of the service.
    /// - Parameters:
    ///   - kind: what the text may be.
    ///   - member: where the value goes. It stays as it is if the variable is not set.
    ///   - meaning: what the value is. The range and the default are put after it.
    ///   - note: what else there is to know, between the range and the default.
    init<Value>(
        _ name: StaticString, _ kind: VariableKind<Value>,
        _ member: any WritableKeyPath<Configuration, Value> & Sendable,
        _ meaning: String, _ note: String? = nil
    ) {
        self.init(name, kind, meaning, note, set: { $0[keyPath: member] = $1 }, usual: { $0[keyPath: member] })
    }

    /// The same for a property that may be nil.
    init<Value>(
        _ name: StaticString, _ kind: VariableKind<Value>,
        _ member: any WritableKeyPath<Configuration, Value?> & Sendable, _ meaning: String, _ note: String? = nil
    ) {
        self.init(name, kind, meaning, note, set: { $0[keyPath: member] = $1 }, usual: { $0[keyPath: member] })
    }

    private init<Value>(
        _ name: StaticString, _ kind: VariableKind<Value>, _ meaning: String, _ note: String?,
        set: @escaping @Sendable (inout Configuration, Value) -> Void,
        usual: @escaping @Sendable (Configuration) -> Value?
    ) {
        self.name = name
        hasFileForm = kind.hasFileForm
        read = { reader, configuration in
            if let value = kind.read(&reader, name) { set(&configuration, value) }
        }
        self.meaning = { configuration in
            let first = [meaning, kind.range].compactMap(\.self).joined(separator: ", ")
            let last = usual(configuration).flatMap { kind.text($0) }.map { "default \($0)" }
            return [first, note, last].compactMap(\.self).joined(separator: "; ")
        }
    }

    /// A variable of the commands that speak to a broker, which read it themselves.
    init(ofCommands name: StaticString, hasFileForm: Bool = false, _ meaning: String) {
        self.name = name
        self.hasFileForm = hasFileForm
        read = nil
        self.meaning = { _ in meaning }
    }

    /// The same variable, which is neither read nor checked without a database.
    var withDatabaseOnly: Variable {
        var variable = self
        variable.needsDatabase = true
        return variable
    }

    static let prefix = "TOKEN_BROKER_"

    /// The names of this program's own variables, with their `_FILE` forms.
    static let ownNames: Set<String> = {
        let own = all.filter { $0.name.description.hasPrefix(prefix) }
        return Set(own.map(\.name.description) + own.filter(\.hasFileForm).map { $0.name.description + "_FILE" })
    }()
}

/// The rows of a table, one statement each: so the compiler finds the types of each row by itself.
@resultBuilder enum VariableRows {
    static func buildExpression(_ row: Variable) -> [Variable] { [row] }
    static func buildPartialBlock(first: [Variable]) -> [Variable] { first }
    static func buildPartialBlock(accumulated: [Variable], next: [Variable]) -> [Variable] { accumulated + next }
}

extension Variable {
    /// What `token-broker help variables` prints.
    static let help: String = {
        let usual = Configuration()
        func lines(_ rows: [Variable]) -> String { rows.map { $0.paragraph(usual) }.joined(separator: "\n") }
        return """
            environment of the service (each variable marked * can be given as NAME_FILE, the path of a file that contains the
            value; other users must not be able to write to that file)
            \(lines(ofService))

            environment of the commands that speak to a broker
            \(lines(ofCommands))
            """
    }()

    /// The column at which meanings begin, and that at which lines end.
    private static let (indentation, width) = (41, 116)

    /// The name, and beside it the meaning.
    private func paragraph(_ usual: Configuration) -> String {
        let margin = String(repeating: " ", count: Self.indentation)
        let start = "  \(name)\(hasFileForm ? " *" : "")"
        var lines: [String] = []
        // A long name has a line for itself.
        var line = start + margin.dropFirst(start.count)
        if start.count >= Self.indentation {
            lines.append(start)
            line = margin
        }
        var isEmpty = true
        for word in meaning(usual).split(separator: " ") {
            if !isEmpty, line.count + 1 + word.count > Self.width {
                lines.append(line)
                (line, isEmpty) = (margin, true)
            }
            line += (isEmpty ? "" : " ") + word
            isEmpty = false
        }
        return (lines + [line]).joined(separator: "\n")
    }
}
