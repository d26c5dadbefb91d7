package import ExternalText

/// A listener's position in the log: the event that was sent to it last, whose `id` in the stream this is.
package struct EventPosition: Sendable, Equatable {
    /// The index that means all events of an entry. An entry has only a few events.
    static let whole = 9999

    /// A position that no log reaches: a listener that names it gets a `stream.reset`.
    package static let unknown = EventPosition(after: .max)

    /// The entry's sequence number in the log; 0 for the position before the first entry.
    let sequence: Int64
    /// The event's index in the entry.
    let index: Int

    /// The position after all events of the entry.
    init(after sequence: Int64) {
        self.init(sequence: sequence, index: Self.whole)
    }

    init(sequence: Int64, index: Int) {
        self.sequence = sequence
        // The position before the first entry has no event.
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
