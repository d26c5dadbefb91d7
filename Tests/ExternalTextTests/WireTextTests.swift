import ExternalText
import GroundTesting
import Testing

struct `Text from outside` {
    // é as one scalar and as two scalars.
    private static let composed: WireText = "\u{e9}"
    private static let decomposed: WireText = "e\u{301}"

    @Test func `two spellings of a text are different texts`() {
        #expect(Self.composed != Self.decomposed)
        #expect(Set([Self.composed, Self.decomposed]).count == 2)
        #expect(Self.composed.text == Self.decomposed.text, "for String they are one")
    }

    @Test func `texts of equal bytes are equal and have equal hashes, whatever their length`() {
        for count in 0...33 {
            let one = WireText(String(repeating: "x", count: count))
            let other = WireText([UInt8](repeating: UInt8(ascii: "x"), count: count))
            #expect(one == other)
            #expect(one.hashValue == other.hashValue)
            #expect(one != WireText(one.text + "y"))
        }
    }

    @Test func `texts are ordered by their bytes`() {
        let texts: [WireText] = ["", "A", "Z", "a", "aa", "b", "e\u{301}", "z", "\u{e9}", "\u{10000}"]
        #expect(texts.shuffled().sorted() == texts)
    }

    @Test(arguments: [
        ("", "", true, true), ("a", "", true, true), ("", "a", false, false), ("ab", "a", true, false),
        ("ab", "b", false, true), ("ab", "ab", true, true), ("ab", "abc", false, false),
        ("e\u{301}x", "e", true, false),
    ])
    func `beginnings and ends are bytes`(text: String, part: String, starts: Bool, ends: Bool) {
        #expect(WireText(text).starts(with: WireText(part)) == starts)
        #expect(WireText(text).ends(with: WireText(part)) == ends)
    }

    @Test(arguments: [
        ("Bearer", "bEARER", true), ("@", "`", false), ("[", "{", false), ("\u{212a}", "k", false), ("a", "ab", false),
        ("\u{c9}", "\u{e9}", false), ("Z", "z", true), ("A", "a", true),
    ])
    func `only the case of ASCII letters is ignored`(one: String, other: String, isEqual: Bool) {
        #expect(WireText(one).equalsIgnoringCase(WireText(other)) == isEqual)
        #expect((WireText(one).lowercased == WireText(other).lowercased) == isEqual)
    }

    @Test(arguments: [
        ("", 0, ""), ("abc", 0, ""), ("abc", 2, "ab"), ("abc", 3, "abc"), ("abc", 4, "abc"), ("a\u{e9}", 2, "a"),
        ("a\u{e9}", 3, "a\u{e9}"), ("\u{10000}x", 3, ""), ("\u{10000}x", 4, "\u{10000}"),
    ])
    func `a prefix has whole scalars`(text: String, count: Int, prefix: String) {
        #expect(WireText(text).prefix(count) == WireText(prefix))
    }

    @Test(arguments: [
        ("", Int.max, [""]), ("a", .max, ["a"]), (",", .max, ["", ""]), ("a,b,c", .max, ["a", "b", "c"]),
        ("a,b,c", 2, ["a", "b,c"]), ("a,b,c", 1, ["a,b,c"]), (",\u{301},", .max, ["", "\u{301}", ""]),
    ])
    func `a text is split at an ASCII character`(text: String, limit: Int, parts: [String]) {
        #expect(WireText(text).split(at: ",", limit: limit).map(\.text) == parts)
    }

    @Test(arguments: [("", ""), (" \t ", ""), (" a\t", "a"), ("a b", "a b"), ("\u{a0}a", "\u{a0}a")])
    func `spaces and tabs are trimmed`(text: String, trimmed: String) {
        #expect(WireText(text).trimmed == WireText(trimmed))
    }

    @Test func `bytes that are not UTF-8 are refused`() {
        #expect(WireText(validating: [0x61, 0xff].span) == nil)
        #expect(WireText(validating: [0x65, 0xcc, 0x81].span) == Self.decomposed)
    }

    private enum Choice: String, CaseIterable { case one, two }

    @Test(arguments: [("one", true), ("two", true), ("", false), ("on", false), ("one\u{301}", false)])
    func `a case is found by the bytes of its raw value`(text: String, isFound: Bool) {
        #expect((Choice(WireText(text))?.rawValue == text) == isFound)
    }
}
