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
                    let isCut = width != nil && Self.columns(cell) > widths[column]
                    let shown = isCut ? Self.cut(cell, to: widths[column] - 1) + "…" : cell
                    text += shown + String(repeating: " ", count: max(0, widths[column] - Self.columns(shown)) + 2)
                }
            }
            while text.last == " " { text.removeLast() }
            return text
        }
        let head = isBold ? "\u{1b}[1m\(line(header))\u{1b}[0m" : line(header)
        return ((isBegun ? [] : [head]) + rows.map(line)).map { $0 + "\n" }.joined()
    }

    private func measured(in width: Int?) -> [Int] {
        let natural = header.indices.map { column in ([header] + rows).map { Self.columns($0[column]) }.max() ?? 0 }
        guard let width else { return natural.map { min($0, Self.widest) } }
        let left = width - 2 * (header.count - 1) - min(natural.last ?? 0, Self.narrowest)
        var limit = natural.max() ?? 0
        while limit > Self.narrowest, natural.dropLast().reduce(0, { $0 + min($1, limit) }) > left { limit -= 1 }
        return natural.map { min($0, limit) }
    }

    /// How many columns of a terminal a text takes: two for each letter of Chinese, Japanese and Korean and for each emoji, one for
    /// each other letter with the marks on it. Terminals differ about newer emoji.
    static func columns(_ text: String) -> Int {
        if text.utf8.allSatisfy({ $0 < 0x80 }) { return text.utf8.count }
        return text.reduce(0) { $0 + (isWide($1) ? 2 : 1) }
    }

    /// As many letters of a text as fit into so many columns.
    private static func cut(_ text: String, to width: Int) -> String {
        var left = width
        return String(
            text.prefix { letter in
                left -= isWide(letter) ? 2 : 1
                return left >= 0
            })
    }

    /// The blocks of Unicode whose letters are wide (East Asian Width W and F).
    private static let wide: [ClosedRange<UInt32>] = [
        0x1100...0x115f, 0x2e80...0x303e, 0x3041...0x33ff, 0x3400...0x4dbf, 0x4e00...0xa4cf, 0xa960...0xa97f,
        0xac00...0xd7a3, 0xf900...0xfaff, 0xfe10...0xfe19, 0xfe30...0xfe6f, 0xff01...0xff60, 0xffe0...0xffe6,
        0x16fe0...0x18dff, 0x1aff0...0x1b2ff, 0x1f200...0x1f265, 0x20000...0x3fffd,
    ]

    private static func isWide(_ letter: Character) -> Bool {
        letter.unicodeScalars.contains { scalar in
            scalar.properties.isEmojiPresentation || scalar == "\u{fe0f}" || wide.contains { $0.contains(scalar.value) }
        }
    }

    /// A text from outside as a terminal may be shown it.
    package static func shown(_ text: String) -> String {
        guard text.unicodeScalars.contains(where: isControl) else { return text }
        return String(String.UnicodeScalarView(text.unicodeScalars.map { isControl($0) ? "\u{fffd}" : $0 }))
    }

    /// JSON as a terminal may be shown it, and as programs read it like before: what `shown` replaces is escaped.
    package static func shownJSON(_ bytes: [UInt8]) -> [UInt8] {
        if bytes.allSatisfy({ $0 >= 0x20 && $0 < 0x7f || $0 == 0x0a }) { return bytes }
        var shown: [UInt8] = []
        for scalar in String(decoding: bytes, as: UTF8.self).unicodeScalars {
            guard isControl(scalar), !["\n", "\r", "\t"].contains(scalar) else {
                shown += UTF8.encode(scalar)!
                continue
            }
            for unit in UTF16.encode(scalar)! {
                let digits = String(unit, radix: 16)
                shown += Array("\\u\(String(repeating: "0", count: 4 - digits.count))\(digits)".utf8)
            }
        }
        return shown
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
