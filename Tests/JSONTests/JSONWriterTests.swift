import ExternalText
import GroundTesting
import JSON
import Testing

@Suite struct `JSON writer` {
    private static func text(_ body: (inout JSONWriter) -> Void) -> String {
        var writer = JSONWriter()
        body(&writer)
        return String(decoding: writer.bytes, as: UTF8.self)
    }

    @Test func `members keep the given order with commas between them`() {
        let text = Self.text { writer in
            writer.object { writer in
                writer.member("b", "text")
                writer.member("a", 1)
                writer.member("yes", true)
                writer.member("big", Int64.max)
                writer.member("list", ["x", "y"])
                writer.memberOrNull("none", nil)
                writer.memberOrNull("some", "s")
                writer.memberIfPresent("left out", nil as String?)
                writer.memberIfPresent("left out", nil as Int64?)
                writer.memberIfPresent("number", 5)
                writer.name("nested")
                writer.object { $0.member("deep", JSONValue.null) }
                writer.name("empty")
                writer.array { _ in }
                writer.member("last", false)
            }
        }
        #expect(
            text == """
                {"b":"text","a":1,"yes":true,"big":9223372036854775807,"list":["x","y"],"none":null,"some":"s",\
                "number":5,"nested":{"deep":null},"empty":[],"last":false}
                """)
    }

    @Test func `elements have commas between them`() {
        let text = Self.text { writer in
            writer.array { writer in
                writer.integer(-1)
                writer.bool(true)
                writer.null()
                writer.string("a")
                writer.array { $0.integer(2) }
                writer.object { _ in }
                writer.object { $0.member("a", 1) }
            }
        }
        #expect(text == #"[-1,true,null,"a",[2],{},{"a":1}]"#)
    }

    @Test(arguments: [
        ("\"", #"\""#), ("\\", #"\\"#), ("/", "/"), ("\n", #"\n"#), ("\r", #"\r"#), ("\t", #"\t"#),
        ("\r\n", #"\r\n"#), ("\u{0}", #"\u0000"#), ("\u{8}", #"\u0008"#), ("\u{1f}", #"\u001f"#), (" ", " "),
        ("~", "~"),
        ("\u{7f}", #"\u007f"#), ("\u{80}", #"\u0080"#), ("\u{9f}", #"\u009f"#), ("\u{a0}", "\u{a0}"),
        ("\u{1b}[31m", #"\u001b[31m"#), ("\u{2027}", "\u{2027}"), ("\u{2028}", #"\u2028"#), ("\u{2029}", #"\u2029"#),
        ("\u{202a}", "\u{202a}"), ("é€😀", "é€😀"), ("</script>", "</script>"),
    ])
    func `characters that could forge a line or end a string are escaped`(value: String, escaped: String) {
        #expect(Self.text { $0.string(value) } == "\"" + escaped + "\"")
        #expect(Self.text { writer in writer.object { $0.member(value, 1) } } == "{\"" + escaped + "\":1}")
    }

    @Test func `characters at the edges of the first planes are read back`() throws {
        let edges: [ClosedRange<UInt32>] = [
            0...0x2ff, 0x2020...0x2030, 0xd7f0...0xd7ff, 0xe000...0xe00f, 0xfff0...0x1000f,
        ]
        var text = ""
        for scalar in edges.joined().compactMap(Unicode.Scalar.init) { text.unicodeScalars.append(scalar) }
        var writer = JSONWriter()
        writer.string(text)
        #expect(try JSONValue(parsing: writer.bytes) == .string(text))
    }

    @Test func `written values are read back`() throws {
        let value = JSONValue.object([
            "null": .null, "bool": .bool(false), "least": .integer(.min), "most": .integer(.max),
            "number": .number(0.1), "small": .number(.leastNonzeroMagnitude),
            "large": .number(.greatestFiniteMagnitude),
            "text": .string("a\u{0}\"\\\u{2028}é😀"), "array": .array([.array([]), .object([:]), .integer(1)]),
            "": .object(["x\ny": .string("")]),
        ])
        var writer = JSONWriter()
        writer.value(value)
        #expect(try JSONValue(parsing: writer.bytes) == value)
    }

    @Test func `a value's members are sorted, so that equal values have equal texts`() {
        let text = Self.text { $0.value(.object(["b": .integer(1), "a": .integer(2), "c": .null])) }
        #expect(text == #"{"a":2,"b":1,"c":null}"#)
    }
}
