import BrokerCore
import ExternalText
import OAuth
import Testing

@Suite struct `Reading values that are text` {
    private enum Colour: String, CaseIterable {
        case red, green
    }

    private struct Reader: TextReader {
        let text: WireText?
        var faults: [String] = []

        mutating func string(_ name: String) -> WireText? { text }

        mutating func note(_ name: String, _ detail: String) { faults.append("\(name) \(detail)") }
    }

    private static func reader(_ text: String?) -> Reader { Reader(text: text.map { WireText($0) }) }

    @Test(
        arguments: [
            ("2", nil), ("3", 3), ("4", 4), ("5", 5), ("6", nil), ("003", 3), ("", nil), ("+3", nil), ("-3", nil),
            (" 3", nil),
            ("3 ", nil), ("3.0", nil), ("٣", nil), ("3\u{301}", nil),
        ] as [(String, Int?)])
    func `an integer is digits in a range`(text: String, expected: Int?) {
        var reader = Self.reader(text)
        #expect(reader.integer("n", in: 3...5) == expected)
        #expect(reader.faults == (expected == nil ? ["n must be a whole number from 3 to 5"] : []))
    }

    // 17, 18 and 19 digits.
    @Test(
        arguments: [
            ("99999999999999999", 99_999_999_999_999_999), ("999999999999999999", 999_999_999_999_999_999),
            ("1000000000000000000", nil),
        ] as [(String, Int64?)])
    func `an integer has 18 digits at most`(text: String, expected: Int64?) {
        var reader = Self.reader(text)
        #expect(reader.integer("n", in: 0...Int64.max) == expected)
    }

    @Test(arguments: [("127", 127), ("128", nil), ("255", nil), ("256", nil)] as [(String, Int8?)])
    func `an integer that its type does not hold is a fault`(text: String, expected: Int8?) {
        var reader = Self.reader(text)
        #expect(reader.integer("n", in: 0...Int8.max) == expected)
        #expect(reader.faults.count == (expected == nil ? 1 : 0))
    }

    @Test(arguments: [("true", true), ("false", false), ("True", nil), ("1", nil), ("", nil)] as [(String, Bool?)])
    func `a flag is true or false`(text: String, expected: Bool?) {
        var reader = Self.reader(text)
        #expect(reader.bool("b") == expected)
        #expect(reader.faults == (expected == nil ? ["b must be true or false"] : []))
    }

    @Test(
        arguments: [("red", "red"), ("green", "green"), ("Red", nil), ("re", nil), ("redd", nil)] as [(String, String?)]
    )
    func `a choice is one of its words`(text: String, expected: String?) {
        var reader = Self.reader(text)
        #expect(reader.choice("c", Colour.self)?.rawValue == expected)
        #expect(reader.faults == (expected == nil ? ["c must be one of red, green"] : []))
    }

    @Test func `what is not given is no fault`() {
        var reader = Self.reader(nil)
        #expect(reader.integer("n", in: 1...2) == nil)
        #expect(reader.bool("b") == nil)
        #expect(reader.choice("c", Colour.self) == nil)
        #expect(reader.timestamp("t") == nil)
        #expect(reader.faults.isEmpty)
    }

    // No fault, one, several, and what is beyond the hundred that are told.
    @Test(
        arguments: [(0, nil, 0), (1, "The n0 d.", 1), (2, "It has 2 faults; see errors.", 2)] as [(Int, String?, Int)]
            + [99, 100, 101].map { ($0, "It has \($0) faults; see errors.", min($0, 100)) })
    func `all faults are counted and a hundred are told`(count: Int, detail: String?, told: Int) {
        // In two lists, as those of an object and of an object within it.
        var (faults, inner) = (FaultList(), FaultList())
        for number in 0..<count {
            if number < count / 2 { faults.add(.init("n\(number)", "d")) } else { inner.add(.init("n\(number)", "d")) }
        }
        faults.add(inner)
        var error: BrokerError?
        do throws(BrokerError) {
            try faults.check(in: "It") { "The \($0.pointer)" }
        } catch let thrown {
            error = thrown
        }
        #expect(error?.detail == detail)
        #expect(error?.faults.map(\.pointer) ?? [] == (0..<told).map { "n\($0)" })
    }
}
