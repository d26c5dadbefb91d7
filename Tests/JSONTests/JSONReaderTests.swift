import ExternalText
import Foundation
import GroundTesting
import JSON
import Testing

/// Tests each rule of RFC 8259, and that the reader agrees with Foundation's.
@Suite struct `JSON reader` {
    private static func parse(_ text: String) -> Result<JSONValue, JSONValue.Fault> {
        Result { () throws(JSONValue.Fault) in try JSONValue(parsing: Array(text.utf8)) }
    }

    /// Each text with its value; nil for a text that a reader must refuse.
    @Test(
        arguments: [
            // §2, white space: exactly four characters, between tokens and around the text.
            ("\t\n\r 1\t\n\r ", JSONValue.integer(1)), ("\u{b}1", nil), ("\u{c}1", nil), ("\u{a0}1", nil),
            ("\u{2028}1", nil),
            ("1\u{85}", nil), (" [ 1 ,\t2\n,\r3 ] ", .array([.integer(1), .integer(2), .integer(3)])),
            (" { \"a\" : 1 , \"b\" : 2 } ", .object(["a": .integer(1), "b": .integer(2)])),
            // §3, literals: in lower case and complete.
            ("true", .bool(true)), ("TRUE", nil), ("tru", nil), ("truee", nil), ("true1", nil), ("false", .bool(false)),
            ("fals", nil), ("null", .null), ("nil", nil), ("nul l", nil), ("undefined", nil),
            // §4 and §5, commas and colons: exactly one between values.
            ("[1,2]", .array([.integer(1), .integer(2)])), ("[1,,2]", nil), ("[,1]", nil), ("[1,]", nil),
            ("[1;2]", nil),
            ("[1:2]", nil), ("[\"a\":1]", nil), ("[]]", nil), ("[}", nil), ("[", nil), ("]", nil), ("{}}", nil),
            ("{]", nil),
            ("{\"a\":1,}", nil), ("{,\"a\":1}", nil), ("{\"a\"::1}", nil), ("{\"a\",1}", nil), ("{\"a\":}", nil),
            ("{\"a\"}", nil), ("{\"a\" \"b\"}", nil), ("{null:1}", nil), ("{1:1}", nil), ("{[]:1}", nil),
            ("{\"a\":1 \"b\":2}", nil),
            ("{\"\":{}}", .object(["": .object([:])])),
            // §6, numbers: an optional minus, no leading zeros, digits on both sides of a point, an exponent with digits.
            ("0", .integer(0)), ("-0", .integer(0)), ("00", nil), ("-00", nil), ("01", nil), ("-01", nil),
            ("10", .integer(10)),
            ("+1", nil), ("--1", nil), ("- 1", nil), ("-", nil), ("-a", nil), (".1", nil), ("-.1", nil), ("1.", nil),
            ("1.e1", nil),
            ("0.5", .number(0.5)), ("0.50", .number(0.5)), ("-0.5", .number(-0.5)), ("1.0", .integer(1)),
            ("-1.0", .integer(-1)),
            ("1e2", .integer(100)), ("1E2", .integer(100)), ("1e+2", .integer(100)), ("1e-2", .number(0.01)),
            ("1e", nil),
            ("1e+", nil), ("1e-", nil), ("1ee2", nil), ("1e2.5", nil), ("1e 2", nil), ("0e0", .integer(0)), ("0e", nil),
            ("1.5e1", .integer(15)), ("1e00", .integer(1)), ("1 2", nil), ("1_000", nil), ("0x10", nil), ("1f", nil),
            ("Infinity", nil), ("-Infinity", nil), ("NaN", nil), ("inf", nil), ("nan", nil), ("1e400", nil),
            ("-1e400", nil),
            ("1e-400", .integer(0)), ("5e-324", .number(.leastNonzeroMagnitude)),
            ("1.7976931348623157e308", .number(.greatestFiniteMagnitude)),
            ("1.7976931348623159e308", nil),
            // Integers at the limits of 64 bits and of a double's exact integers.
            ("9223372036854775807", .integer(.max)), ("9223372036854775808", .number(0x1p63)),
            ("-9223372036854775808", .integer(.min)), ("-9223372036854775809", .number(-0x1p63)),
            ("9007199254740993", .integer(9_007_199_254_740_993)),
            ("9007199254740991.0", .integer(9_007_199_254_740_991)),
            ("9007199254740992.0", .number(0x1p53)), ("-9007199254740991.0", .integer(-9_007_199_254_740_991)),
            ("-9007199254740992.0", .number(-0x1p53)), ("1e15", .integer(1_000_000_000_000_000)),
            ("1e18", .number(1e18)),
            ("0.1", .number(0.1)), ("0.30000000000000004", .number(0.30000000000000004)),
            ("123456789.125", .number(123456789.125)),
            // §7, strings: characters that must be escaped, and all allowed escapes.
            (#""\"\\\/\b\f\n\r\t""#, .string("\"\\/\u{8}\u{c}\n\r\t")), (#""/""#, .string("/")), (#""\'""#, nil),
            (#""\0""#, nil),
            (#""\a""#, nil), (#""\v""#, nil), (#""\x41""#, nil), (#""\U0041""#, nil), (#""\u{41}""#, nil),
            (#""\ ""#, nil),
            (#""a\"#, nil), (#""\"#, nil), (#"""#, nil), (#""a"#, nil), (#"a"#, nil), (#"'a'"#, nil), (#""a"b"#, nil),
            (#""\u0041""#, .string("A")), (#""x\u0041y\u0042z""#, .string("xAyBz")),
            (#""\u00e9\u00E9""#, .string("éé")),
            (#""\u""#, nil), (#""\u0""#, nil), (#""\u00""#, nil), (#""\u004""#, nil), (#""\u004g""#, nil),
            (#""\u+041""#, nil),
            (#""\u-041""#, nil), (#""\u 041""#, nil), (#""\u0000""#, .string("\u{0}")),
            (#""\uffff""#, .string("\u{ffff}")),
            (#""\ufeff""#, .string("\u{feff}")), (#""\ud7ff\ue000""#, .string("\u{d7ff}\u{e000}")),
            ("\"\u{7f}\"", .string("\u{7f}")), ("\"\u{20}\"", .string(" ")), ("\"\u{1f}\"", nil), ("\"\n\"", nil),
            ("\"\t\"", nil),
            ("\"\u{2028}\u{2029}\"", .string("\u{2028}\u{2029}")), ("\"é€😀\"", .string("é€😀")),
            // §8.2, surrogates: pairs in their order, both halves as escapes.
            (#""\ud83d\ude00""#, .string("😀")), (#""\uD83D\uDE00""#, .string("😀")),
            (#""\ud800\udc00""#, .string("\u{10000}")),
            (#""\udbff\udfff""#, .string("\u{10ffff}")), (#""\ud83d""#, nil), (#""\ude00""#, nil), (#""\ud83dx""#, nil),
            (#""\ud83d\n""#, nil), (#""\ud83d\u0041""#, nil), (#""\ud83d\ud83d""#, nil), (#""\ude00\ud83d""#, nil),
            (#""\ud83d\ud83d\ude00""#, nil), (#""\ud83d\"#, nil), (#""\ud83d\u"#, nil), (#""\ud83d\ude0""#, nil),
            (#"{"\ud83d":1}"#, nil),
            // Exactly one value.
            ("", nil), (" ", nil), ("1,", nil), ("1,2", nil), ("{}{}", nil), ("1 //", nil), ("/**/1", nil), ("#", nil),
            ("\u{0}", nil), ("1\u{0}", nil), ("[1]\u{1a}", nil),
        ] as [(String, JSONValue?)])
    func `reads the texts that the RFC allows and no others`(text: String, value: JSONValue?) {
        #expect(Self.parse(text) == value.map { .success($0) } ?? .failure(.malformed))
    }

    @Test(
        arguments: [
            // RFC 3629 §3 and §10: continuation bytes without a lead, leads without continuation bytes, overlong forms,
            // surrogates, values above the last scalar, bytes that never occur.
            [0x80], [0xbf], [0xc3], [0xc3, 0x28], [0xe2, 0x82], [0xe2, 0x28, 0xa1], [0xf0, 0x9f, 0x98],
            [0xf0, 0x28, 0x8c, 0xbc],
            [0xc0, 0x80], [0xc0, 0xaf], [0xc1, 0xbf], [0xe0, 0x80, 0xaf], [0xe0, 0x9f, 0xbf], [0xf0, 0x80, 0x80, 0xaf],
            [0xf0, 0x8f, 0xbf, 0xbf], [0xed, 0xa0, 0x80], [0xed, 0xbf, 0xbf], [0xed, 0xa0, 0xbd, 0xed, 0xb8, 0x80],
            [0xf4, 0x90, 0x80, 0x80], [0xf5, 0x80, 0x80, 0x80], [0xf8, 0x88, 0x80, 0x80, 0x80], [0xfe], [0xff],
        ] as [[UInt8]])
    func `refuses bytes that are not UTF-8, in any position`(bytes: [UInt8]) {
        let quote = [UInt8(ascii: "\"")]
        let texts: [[UInt8]] = [
            bytes, quote + bytes + quote, quote + Array("é".utf8) + bytes + quote,
            quote + bytes + Array(#"\n"#.utf8) + quote,
            quote + Array(#"\n"#.utf8) + bytes + quote, Array("{\"".utf8) + bytes + Array("\":1}".utf8),
            Array("[1".utf8) + bytes + Array("]".utf8), Array("1".utf8) + bytes, quote + bytes,
        ]
        for text in texts { #expect(throws: JSONValue.Fault.malformed) { try JSONValue(parsing: text) } }
    }

    @Test(
        arguments: [
            ([0xef, 0xbb, 0xbf, 0x31], true), ([0xef, 0xbb, 0xbf], false),
            ([0xef, 0xbb, 0xbf, 0xef, 0xbb, 0xbf, 0x31], false),
            ([0xef, 0xbb, 0x31], false), ([0x31, 0xef, 0xbb, 0xbf], false), ([0xfe, 0xff, 0, 0x31], false),
            ([0xff, 0xfe, 0x31, 0], false),
        ] as [([UInt8], Bool)])
    func `ignores one byte order mark of UTF-8 before the text`(bytes: [UInt8], isRead: Bool) {
        #expect(((try? JSONValue(parsing: bytes)) == .integer(1)) == isRead)
    }

    @Test func `a fault before a repeated member is reported`() {
        #expect(Self.parse(#"{"a" 1,"a":2}"#) == .failure(.malformed))
        #expect(Self.parse(#"[{"b":{"c":[0,{"d":1,"d"#) == .failure(.malformed))
        #expect(Self.parse(#"[{"b":{"c":[0,{"d":1,"d":"#) == .failure(.malformed))
        #expect(Self.parse(#"[{"b":{"c":[0,{"d":1,"d":2"#) == .failure(.repeatedMember(pointer: "/0/b/c/1/d")))
        #expect(Self.parse(#"{"a":{"~/":[{"x":1,"x":2}]}}"#) == .failure(.repeatedMember(pointer: "/a/~0~1/0/x")))
    }

    // MARK: Foundation's reader

    /// A value as Foundation decodes it.
    private struct Decoded: Decodable {
        let value: JSONValue

        init(from decoder: any Decoder) throws {
            let container = try decoder.singleValueContainer()
            if container.decodeNil() {
                value = .null
            } else if let text = try? container.decode(String.self) {
                value = .string(text)
            } else if let flag = try? container.decode(Bool.self) {
                value = .bool(flag)
            } else if let integer = try? container.decode(Int64.self) {
                value = .integer(integer)
            } else if let number = try? container.decode(Double.self) {
                value = .number(number)
            } else if let members = try? container.decode([String: Decoded].self) {
                value = .object(Dictionary(uniqueKeysWithValues: members.map { (WireText($0.key), $0.value.value) }))
            } else {
                value = .array(try container.decode([Decoded].self).map(\.value))
            }
        }
    }

    /// Whether the values agree. They may differ for integers in the spelling of a fraction, which Foundation computes
    /// in decimal.
    private static func agree(_ ours: JSONValue, _ theirs: JSONValue) -> Bool {
        switch (ours, theirs) {
        case (.number(let number), .integer(let integer)): number.magnitude >= 0x1p53 && number == Double(integer)
        case (.array(let ours), .array(let theirs)):
            ours.count == theirs.count && zip(ours, theirs).allSatisfy { agree($0, $1) }
        case (.object(let ours), .object(let theirs)):
            ours.count == theirs.count
                && ours.allSatisfy { name, value in theirs[name].map { agree(value, $0) } ?? false }
        default: ours == theirs
        }
    }

    private static func foundation(_ text: [UInt8]) -> JSONValue? {
        try? JSONDecoder().decode(Decoded.self, from: Data(text)).value
    }

    /// Generates texts that use all the freedom of the grammar.
    private struct Generator {
        var random: SplitMix

        mutating func below(_ limit: Int) -> Int { Int(random.next() % UInt64(limit)) }
        mutating func any<T>(_ choices: [T]) -> T { choices[below(choices.count)] }
        mutating func space() -> String { below(4) == 0 ? any([" ", "\n", "\t", "\r", "  \n"]) : "" }
        mutating func digits() -> String { (0...below(6)).map { _ in "\(below(10))" }.joined() }

        mutating func number() -> String {
            var text = any(["", "", "-"]) + (below(5) == 0 ? "0" : "\(1 + below(9))" + (below(3) == 0 ? "" : digits()))
            if below(12) == 0 { text += digits() + digits() + digits() }
            if text.hasPrefix("0") || text.hasPrefix("-0") { text = text.hasPrefix("-") ? "-0" : "0" }
            if below(3) == 0 { text += "." + digits() }
            if below(4) == 0 { text += any(["e", "E"]) + any(["", "+", "-"]) + "\(below(30))" }
            return text
        }

        mutating func string() -> String {
            let pieces = [
                "a", "Z", "0", " ", "é", "€", "😀", "\u{7f}", "\u{2028}", #"\""#, #"\\"#, #"\/"#, #"\b"#, #"\f"#, #"\n"#,
                #"\r"#,
                #"\t"#, #"\u0041"#, #"\u00e9"#, #"\u20AC"#, #"\ud83d\ude00"#, #"\u0000"#, #"\uFFFD"#, "e\u{301}",
            ]
            return "\"" + (0..<below(8)).map { _ in any(pieces) }.joined() + "\""
        }

        mutating func value(depth: Int) -> String {
            var text: String
            switch below(depth > 4 ? 6 : 10) {
            case 0: text = "null"
            case 1: text = any(["true", "false"])
            case 2, 3: text = number()
            case 4, 5: text = string()
            case 6, 7:
                text = "[" + (0..<below(5)).map { _ in value(depth: depth + 1) }.joined(separator: ",") + space() + "]"
            default:
                // Numbered, so that no name is repeated.
                text = "{" + space()
                text += (0..<below(5)).map { index in
                    space() + "\"\(index)" + string().dropFirst() + space() + ":" + value(depth: depth + 1)
                }.joined(separator: ",")
                text += "}"
            }
            text = space() + text + space()
            return text
        }
    }

    private struct SplitMix {
        var state: UInt64

        mutating func next() -> UInt64 {
            state &+= 0x9e37_79b9_7f4a_7c15
            var word = state
            word = (word ^ (word >> 30)) &* 0xbf58_476d_1ce4_e5b9
            word = (word ^ (word >> 27)) &* 0x94d0_49bb_1331_11eb
            return word ^ (word >> 31)
        }
    }

    @Test(arguments: 0..<20 as Range<UInt64>)
    func `reads well-formed texts as Foundation does`(seed: UInt64) throws {
        var generator = Generator(random: SplitMix(state: seed))
        for _ in 0..<200 {
            let text = Array(generator.value(depth: 0).utf8)
            let ours = Result { () throws(JSONValue.Fault) in try JSONValue(parsing: text) }
            guard case .success(let value) = ours, let theirs = Self.foundation(text), Self.agree(value, theirs) else {
                Issue.record("\(String(decoding: text, as: UTF8.self)): \(ours)")
                return
            }
        }
    }

    /// Texts that Foundation refuses must be refused. The reverse does not hold: Foundation accepts a comma after the
    /// last element, repeated members, and other encodings.
    @Test(arguments: 0..<20 as Range<UInt64>)
    func `refuses damaged texts that Foundation refuses`(seed: UInt64) {
        var generator = Generator(random: SplitMix(state: seed &+ 1000))
        var taken = 0
        for _ in 0..<400 {
            var text = Array(generator.value(depth: 0).utf8)
            for _ in 0...generator.below(2) {
                let place = generator.below(text.count)
                switch generator.below(4) {
                case 0: text.remove(at: place)
                case 1: text[place] = UInt8(truncatingIfNeeded: generator.random.next())
                case 2: text.insert(generator.any(Array(#",:[]{}"\-+.e01 tfnu"#.utf8)), at: place)
                default: text.removeSubrange(place...)
                }
                if text.isEmpty { break }
            }
            guard let ours = try? JSONValue(parsing: text) else { continue }
            taken += 1
            guard let theirs = Self.foundation(text), Self.agree(ours, theirs) else {
                Issue.record("\(String(decoding: text, as: UTF8.self)): \(ours)")
                return
            }
        }
        #expect(taken > 0)
    }
}
