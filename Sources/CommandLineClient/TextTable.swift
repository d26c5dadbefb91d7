/// Rows for people: columns of equal width, two spaces apart, the last one as long as it is.
package struct TextTable: Sendable {
    private let header: [String]
    private var rows: [[String]] = []
    /// Those of the columns, once lines were printed; nil before.
    private var widths: [Int]?

    /// To what a column is padded at most where no terminal is known, so that one long cell does not move all others.
    private static let widest = 80
    /// What a column keeps in a terminal that is too narrow for all: storage keys, identifiers and times are seen whole.
    private static let narrowest = 24

    package init(_ header: String...) { self.header = header }

    /// - Parameter cells: as many as the header has. Control characters in them are replaced, so that a name from outside
    ///   cannot steer the terminal.
    package mutating func add(_ cells: String...) { rows.append(cells.map(Self.shown)) }

    /// Whether there is, and was, no row.
    package var isEmpty: Bool { rows.isEmpty && widths == nil }

    /// Whether there are rows that were not printed yet.
    var hasRows: Bool { !rows.isEmpty }

    /// The lines, with a line break behind each. Empty rows give the header alone.
    /// - Parameter width: the columns of the terminal that shows them: in a narrow one long cells are cut, but for those of the last
    ///   column. Nil for what is no terminal: cells are whole.
    package func text(isBold: Bool = false, width: Int? = nil) -> String {
        var table = self
        return table.nextLines(isBold: isBold, width: width)
    }

    /// The lines of the rows that were added since the last call, which need not be held longer; with the header before the first
    /// ones, by which the columns are measured.
    /// - Parameter width: as in `text`.
    package mutating func nextLines(isBold: Bool = false, width: Int? = nil) -> String {
        let isBegun = widths != nil
        let widths = widths ?? measured(in: width)
        self.widths = widths
        defer { rows = [] }
        func line(_ cells: [String]) -> String {
            var text = ""
            for (column, cell) in cells.enumerated() {
                if column == cells.count - 1 {
                    text += cell
                } else {
                    let isCut = width != nil && cell.count > widths[column]
                    let shown = isCut ? String(cell.prefix(widths[column] - 1)) + "…" : cell
                    text += shown + String(repeating: " ", count: max(0, widths[column] - shown.count) + 2)
                }
            }
            while text.last == " " { text.removeLast() }
            return text
        }
        let head = isBold ? "\u{1b}[1m\(line(header))\u{1b}[0m" : line(header)
        return ((isBegun ? [] : [head]) + rows.map(line)).map { $0 + "\n" }.joined()
    }

    private func measured(in width: Int?) -> [Int] {
        let natural = header.indices.map { column in ([header] + rows).map { $0[column].count }.max() ?? 0 }
        guard let width else { return natural.map { min($0, Self.widest) } }
        let left = width - 2 * (header.count - 1) - min(natural.last ?? 0, Self.narrowest)
        var limit = natural.max() ?? 0
        while limit > Self.narrowest, natural.dropLast().reduce(0, { $0 + min($1, limit) }) > left { limit -= 1 }
        return natural.map { min($0, limit) }
    }

    /// A text from outside as a terminal may be shown it.
    package static func shown(_ text: String) -> String {
        guard text.unicodeScalars.contains(where: isControl) else { return text }
        return String(String.UnicodeScalarView(text.unicodeScalars.map { isControl($0) ? "\u{fffd}" : $0 }))
    }

    /// Control characters, and those that turn the direction of writing.
    private static func isControl(_ scalar: Unicode.Scalar) -> Bool {
        switch scalar.properties.generalCategory {
        case .control, .format, .lineSeparator, .paragraphSeparator: true
        default: false
        }
    }
}

extension Invocation {
    /// Whether standard output may have colours: a terminal, and no `NO_COLOR` (no-color.org).
    package var showsColours: Bool {
        terminal.isTerminal && (environment["NO_COLOR"] ?? "").isEmpty && environment["TERM"] != "dumb"
    }

    package func show(_ table: TextTable) {
        var table = table
        showNext(of: &table)
    }

    /// Prints the rows that were added since the last call.
    func showNext(of table: inout TextTable) {
        let width = terminal.isTerminal ? terminal.width : nil
        terminal.write(Array(table.nextLines(isBold: showsColours, width: width).utf8))
    }
}

extension TextTable {
    /// Lines from outside, each as `shown` says.
    static func shownLines(_ text: String) -> String {
        text.split(separator: "\n", omittingEmptySubsequences: false).map { shown(String($0)) }.joined(separator: "\n")
    }
}
