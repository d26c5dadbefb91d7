package import ExternalText

/// How far a listener has come in the log: the event that it was sent last, whose `id` in the stream this is.
package struct EventPosition: Sendable, Equatable {
    /// The index that stands for every event of an entry. An entry holds a handful.
    static let whole = 9999

    /// A place that no log reaches: a listener who names it is told that events may have been missed.
    package static let unknown = EventPosition(after: .max)

    /// The entry's place in the log; 0 before the first.
    let sequence: Int64
    /// The event's place among those of the entry's commit.
    let index: Int

    /// Past every event of the entry.
    init(after sequence: Int64) {
        self.init(sequence: sequence, index: Self.whole)
    }

    init(sequence: Int64, index: Int) {
        self.sequence = sequence
        // There is no event before the first entry, and so nothing to be in the middle of.
        self.index = sequence == 0 ? Self.whole : index
    }

    /// Reads what `description` writes; nil for anything else.
    package init?(_ text: WireText) {
        let parts = text.split(at: "-", limit: 3)
        guard parts.count == 2, let sequence = Self.number(parts[0], digits: 19),
            let index = Self.number(parts[1], digits: 4)
        else { return nil }
        self.init(sequence: sequence, index: Int(index))
    }

    var description: String { "\(sequence)-\(index)" }

    var isWhole: Bool { index == Self.whole }

    private static func number(_ text: WireText, digits: Int) -> Int64? {
        guard (1...digits).contains(text.count), text.utf8.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }) else {
            return nil
        }
        return Int64(text.text)
    }
}
