import ExternalText
import GroundTesting
import JSON
import Testing

@Suite struct `JSON value` {
    private static func parse(_ text: String) throws(JSONValue.Fault) -> JSONValue {
        try JSONValue(parsing: Array(text.utf8))
    }

    @Test(arguments: [
        ("null", JSONValue.null), ("true", .bool(true)), ("false", .bool(false)), ("0", .integer(0)),
        ("-1", .integer(-1)), ("1.5", .number(1.5)), ("1e-2", .number(0.01)), (#""""#, .string("")),
        (#""a""#, .string("a")), ("[]", .array([])), ("{}", .object([:])), (" \t\r\n1 \t\r\n", .integer(1)),
        (#"{"a":[1,{"b":null}]}"#, .object(["a": .array([.integer(1), .object(["b": .null])])])),
    ])
    func `one well-formed value is read`(text: String, value: JSONValue) throws {
        #expect(try Self.parse(text) == value)
    }

    @Test(arguments: [
        "", " ", "{", "}", "[", "]", "[1", "{\"a\"", "{\"a\":", "{\"a\":1", "[1,]", "[1 , ]", "{\"a\":1,}",
        "{\"a\":[1],\n}", "[[],]", "[\"a\",]", "[,]", "{,}", "[,1]", "[1 2]",
        "{\"a\" 1}", "{1:1}", "{a:1}", "{'a':1}", "'a'", "nul", "nulll", "True", "01", "-", "+1", ".5", "1.", "1e",
        "0x1",
        "NaN", "Infinity", "[1}", "{\"a\":1]", "// c\n1", "/* c */1", ",", ":", "\"", "\"a", "\"\\", "\"\\u00",
        "\"\\u00g0\"",
        "\"\\x\"", "\"\\u+123\"",
    ])
    func `malformed text is refused`(text: String) {
        #expect(throws: JSONValue.Fault.malformed) { try Self.parse(text) }
    }

    // H014
    @Test(arguments: ["1 1", "{} x", "null,", "[]]", "\"a\"\"b\"", "{}{}", "1\u{0}"])
    func `bytes after the value are refused`(text: String) {
        #expect(throws: JSONValue.Fault.malformed) { try Self.parse(text) }
    }

    // H014
    @Test(arguments: [
        [0x22, 0xff, 0x22], [0x22, 0xc0, 0xaf, 0x22], [0x22, 0xed, 0xa0, 0x80, 0x22], [0x22, 0xe2, 0x82, 0x22],
        [0x22, 0xf5, 0x80, 0x80, 0x80, 0x22], [0x80],
    ])
    func `bytes that are not UTF-8 are refused`(bytes: [UInt8]) {
        #expect(throws: JSONValue.Fault.malformed) { try JSONValue(parsing: bytes) }
    }

    @Test(arguments: [
        [0x22, 0, 0x61, 0, 0x22, 0], [0, 0x22, 0, 0x61, 0, 0x22], [0x31, 0], [0, 0x31], [0x31, 0, 0, 0],
        [0, 0, 0, 0x31], [0x31, 0, 0x32, 0],
    ])
    func `UTF-16 and UTF-32 are refused, though their bytes are UTF-8, too`(bytes: [UInt8]) {
        #expect(throws: JSONValue.Fault.malformed) { try JSONValue(parsing: bytes) }
    }

    @Test func `a byte order mark is ignored`() throws {
        #expect(try JSONValue(parsing: [0xef, 0xbb, 0xbf, 0x31]) == .integer(1))
    }

    @Test(arguments: [UInt8(0), 1, 8, 9, 0x0a, 0x0d, 0x1f])
    func `a bare control character in a string is refused`(byte: UInt8) {
        #expect(throws: JSONValue.Fault.malformed) { try JSONValue(parsing: [0x22, byte, 0x22]) }
    }

    @Test(arguments: [
        (#""\"\\\/\b\f\n\r\t""#, "\"\\/\u{8}\u{c}\n\r\t"), (#""\u0041\u00e9\u20AC""#, "Aé€"), (#""\ud83d\ude00""#, "😀"),
        (#""\u0000""#, "\u{0}"), ("\"\u{7f}\u{2028}\"", "\u{7f}\u{2028}"),
    ])
    func `escapes are resolved`(text: String, value: String) throws {
        #expect(try Self.parse(text) == .string(value))
    }

    @Test(arguments: [
        #""\ud800""#, #""\udc00""#, #""\ud800x""#, #""\ud800\ud800""#, #""\ud800\u0041""#, #""\ude00\ud83d""#,
    ])
    func `a lone surrogate is refused`(text: String) {
        #expect(throws: JSONValue.Fault.malformed) { try Self.parse(text) }
    }

    @Test(arguments: [
        ("9223372036854775806", JSONValue.integer(.max - 1)), ("9223372036854775807", .integer(.max)),
        ("9223372036854775808", .number(0x1p63)), ("-9223372036854775808", .integer(.min)),
        ("-9223372036854775809", .number(-0x1p63)),
        ("123456789012345678901234567890", .number(1.2345678901234568e29)),
        ("1e308", .number(1e308)),
    ])
    func `an integer beyond 64 bits becomes a number`(text: String, value: JSONValue) throws {
        #expect(try Self.parse(text) == value)
    }

    @Test(arguments: ["1e309", "-1e309", "1e99999"])
    func `a number beyond a double is refused`(text: String) {
        #expect(throws: JSONValue.Fault.malformed) { try Self.parse(text) }
    }

    // MARK: Depth

    @Test(arguments: [31, 32])
    func `values nest up to the maximum depth`(depth: Int) throws {
        let arrays = String(repeating: "[", count: depth) + String(repeating: "]", count: depth)
        let objects = String(repeating: #"{"a":"#, count: depth) + "1" + String(repeating: "}", count: depth)
        #expect(try Self.parse(arrays).array != nil)
        #expect(try Self.parse(objects).object != nil)
    }

    // H014
    @Test(arguments: [33, 34, 100_000])
    func `values nested deeper are refused`(depth: Int) {
        let arrays = String(repeating: "[", count: depth) + String(repeating: "]", count: depth)
        let objects = String(repeating: #"{"a":"#, count: depth) + "1" + String(repeating: "}", count: depth)
        #expect(throws: JSONValue.Fault.tooDeep) { try Self.parse(arrays) }
        #expect(throws: JSONValue.Fault.tooDeep) { try Self.parse(objects) }
        #expect(throws: JSONValue.Fault.tooDeep) { try Self.parse(String(repeating: "[", count: depth)) }
    }

    @Test func `brackets in strings do not count as nesting`() throws {
        let text = "\"" + String(repeating: "[", count: 100) + "\""
        #expect(try Self.parse(text).text?.count == 100)
    }

    @Test func `values next to each other do not count as nesting`() throws {
        let text = "[" + Array(repeating: "[[]]", count: 100).joined(separator: ",") + "]"
        #expect(try Self.parse(text).array?.count == 100)
    }

    // MARK: Repeated members

    // H015
    @Test(arguments: [
        (#"{"a":1,"a":1}"#, "/a"), (#"{"a":1,"b":2,"a":3}"#, "/a"), (#"{"a":1,"\u0061":2}"#, "/a"),
        (#"{"x":{"a":1,"a":2}}"#, "/x/a"), (#"{"x":[0,{"a":1,"a":2}]}"#, "/x/1/a"),
        (#"[{"a":1},{"a":1,"a":2}]"#, "/1/a"),
        (#"{"":1,"":2}"#, "/"), (#"{"a/b":1,"a\/b":2}"#, "/a~1b"), (#"{"a~b":1,"a~b":2}"#, "/a~0b"),
        (#"{"\ud83d\ude00":1,"😀":2}"#, "/😀"), (#"{"a":{"a":1},"a":2}"#, "/a"), (#"{"\n":1,"\u000a":2}"#, "/\n"),
    ])
    func `a repeated member is refused with a pointer to it`(text: String, pointer: String) {
        #expect(throws: JSONValue.Fault.repeatedMember(pointer: pointer)) { try Self.parse(text) }
    }

    @Test(arguments: [
        #"{"a":"a"}"#, #"{"a":1,"b":"a"}"#, #"[{"a":1},{"a":2}]"#, #"{"a":{"a":{"a":1}}}"#, #"{"a":1,"A":2}"#,
        #"{"a":["a","a"]}"#, #"{"a":1,"\\u0061":2}"#,
        // Swift's strings treat these two spellings as equal. Names are compared by their bytes, so both members are
        // kept.
        "{\"\u{e9}\":1,\"e\u{301}\":2}",
    ])
    func `equal names in different objects are not repeated members`(text: String) throws {
        _ = try Self.parse(text)
    }

    @Test func `a fault describes the problem without the content`() {
        #expect(JSONValue.Fault.malformed.description == "The body is not one well-formed JSON value in UTF-8.")
        #expect(JSONValue.Fault.tooDeep.description.contains("32"))
        #expect(JSONValue.Fault.repeatedMember(pointer: "/a").description.contains("/a"))
    }

    // MARK: Access

    @Test func `members are found in objects only`() throws {
        let value = try Self.parse(#"{"s":"t","b":true,"i":7,"a":[1],"o":{"n":null}}"#)
        #expect(value["s"]?.string == "t")
        #expect(value["b"]?.bool == true)
        #expect(value["i"]?.integer == 7)
        #expect(value["a"]?.array == [.integer(1)])
        #expect(value["o"]?["n"] == .null)
        #expect(value["missing"] == nil)
        #expect(value["s"]?["x"] == nil)
        #expect(value["i"]?.string == nil)
        #expect(value["s"]?.integer == nil)
        #expect(value["i"]?.bool == nil)
    }
}
