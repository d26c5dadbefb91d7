/// Where a command writes to and asks: standard output, standard error, and the person before the terminal.
package protocol Terminal: Sendable {
    /// Whether standard output is a terminal: tables are for people then.
    var isTerminal: Bool { get }
    /// Whether a person can be asked: standard input and standard error are a terminal.
    var canAsk: Bool { get }
    /// Whether standard error is a terminal, on which a person reads what is noted, and can scan a code.
    var isErrorTerminal: Bool { get }
    /// Whether a line that is replaced may show on it how far a command is.
    var showsProgress: Bool { get }
    /// Columns of the terminal at standard error; 80 where that is unknown.
    var width: Int { get }
    /// Why standard output is not complete: the first write that failed; nil while none has. A command that has done its work ends
    /// with it, and one that prints for long asks for it meanwhile.
    var outputError: CommandError? { get }
    /// Writes to standard output as it is, without a line break. Writes nothing behind a fault.
    func write(_ bytes: [UInt8])
    /// Writes to standard error, without a line break.
    func writeError(_ text: String)
    /// Asks for a line that is not shown while it is typed. Where standard input is no terminal, it is read without a question. Nil at
    /// the end of the input.
    func secret(_ prompt: String) -> String?
    /// Asks for a line. Nil at the end of the input.
    func line(_ prompt: String) -> String?
    /// All of standard input, up to `limit` bytes; nil for more.
    func input(limit: Int) -> [UInt8]?
}

extension Terminal {
    package var isErrorTerminal: Bool { canAsk }
    package var showsProgress: Bool { isErrorTerminal }

    /// - Throws: `outputError`, if there is one.
    package func checkOutput() throws(CommandError) { if let outputError { throw outputError } }

    /// A line on standard output.
    package func print(_ text: String) { write(Array((text + "\n").utf8)) }

    /// JSON on standard output, in lines.
    package func print(json bytes: [UInt8]) {
        write(TextTable.shownJSON(bytes.last == 0x0a ? bytes : bytes + [0x0a]))
    }

    /// Lines on standard error, for people: what is being done, or what else to know. What is from outside cannot steer the
    /// terminal.
    package func note(_ text: String) { writeError(TextTable.shownLines(text) + "\n") }
}
