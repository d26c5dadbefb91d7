import ExternalText
import GroundTesting
import HTTPCodec
import Testing

/// Reading what HTTP carries takes time in proportion to its size, whatever is in it.
struct `Cost of HTTP` {
    private static let noLimits = FormEncoding.Limits(pairs: .max, nameBytes: .max)

    private static let forms: [(name: String, make: @Sendable (Int) -> String)] = [
        ("marks in a name", { HostileText.marks($0) + "=1" }), ("marks in a value", { "a=" + HostileText.marks($0) }),
        ("escaped marks in a name", { HostileText.escapedMarks($0) + "=1" }),
        ("escaped marks in a value", { "a=" + HostileText.escapedMarks($0) }),
        ("many tiny pairs", { HostileText.repeated("a&", $0) }), ("ampersands", { HostileText.repeated("&", $0) }),
        ("equals signs", { HostileText.repeated("=", $0) }), ("plus signs", { HostileText.repeated("+", $0) }),
        ("broken escapes", { HostileText.repeated("a=%zz&", $0) }),
    ]

    @Test(arguments: forms.map(\.name))
    func `reading a form is linear`(name: String) throws {
        let make = try #require(Self.forms.first { $0.name == name }).make
        let growth = ReadingCost.growth(from: 16_384) {
            WireText(make($0))
        } _: {
            _ = try? FormEncoding.decode($0, limits: Self.noLimits)
        }
        #expect(growth < ReadingCost.limit)
    }

    private static let values: [(name: String, make: @Sendable (Int) -> String)] = [
        ("marks", { HostileText.marks($0) }), ("commas", { HostileText.repeated(",", $0) }),
        ("members", { HostileText.repeated("a,", $0) }), ("semicolons", { HostileText.repeated(";", $0) }),
        ("spaces inside", { "a" + HostileText.repeated(" ", $0) + "a" }),
        ("spaces between commas", { "," + HostileText.repeated(" ", $0) + "," }),
    ]

    @Test(arguments: values.map(\.name))
    func `reading a field is linear`(name: String) throws {
        let make = try #require(Self.values.first { $0.name == name }).make
        let growth = ReadingCost.growth(from: 16_384) {
            Fields(dictionaryLiteral: ("x", make($0)))
        } _: { fields in
            _ = fields.list("x")
            let value = fields["x"] ?? ""
            _ = MediaType(value)
            _ = value.lowercased.trimmed.split(at: ";")
            _ = Set([value, WireText(value.text + "a")]).contains(WireText(value.text + "b"))
            _ = value.equalsIgnoringCase(WireText(value.text))
            _ = value < WireText(value.text + "a")
        }
        #expect(growth < ReadingCost.limit)
    }

    private static let heads: [(name: String, make: @Sendable (Int) -> String)] = [
        ("many fields", { HostileText.repeated("a:\r\n", $0) }), ("one field", { "a: \(HostileText.marks($0))\r\n" }),
        ("options of the connection", { "Connection: \(HostileText.repeated("a,", $0))\r\n" }),
        ("transfer codings", { "Transfer-Encoding: \(HostileText.repeated("a,", $0))chunked\r\n" }),
        ("spaces", { "a: \(HostileText.repeated(" ", $0))\r\n" }),
        ("digits", { "Content-Length: \(HostileText.repeated("0", $0))\r\n" }),
    ]

    @Test(arguments: heads.map(\.name))
    func `reading a head is linear`(name: String) throws {
        let make = try #require(Self.heads.first { $0.name == name }).make
        let limits = RequestLimits(headBytes: 1 << 20, fieldCount: 1 << 20)
        let growth = ReadingCost.growth(from: 16_384) {
            Array("GET / HTTP/1.1\r\nHost: a\r\n\(make($0))\r\n".utf8)
        } _: { head in
            var parser = RequestParser(limits: limits)
            _ = try? parser.parse(head.span)
        }
        #expect(growth < ReadingCost.limit)
    }

    @Test func `reading an answer in chunks of one byte is linear`() {
        let growth = ReadingCost.growth(from: 16_384) { size in
            Array("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".utf8)
                + Array(HostileText.repeated("1\r\na\r\n", size).utf8) + Array("0\r\n\r\n".utf8)
        } _: { answer in
            var parser = ResponseParser(requestMethod: .get)
            // In pieces, as it comes from a socket.
            for start in stride(from: 0, to: answer.count, by: 1000) {
                _ = try? parser.consume(answer.span.extracting(start..<min(start + 1000, answer.count)))
            }
        }
        #expect(growth < ReadingCost.limit)
    }

    @Test(arguments: [(127, true), (128, true), (129, false)])
    func `a form may have 128 pairs and names of 128 bytes`(count: Int, isRead: Bool) throws {
        let pairs = WireText(HostileText.repeated("a=1&", 4 * count))
        let name = WireText("&" + HostileText.repeated("n", count) + "=1")
        let escaped = WireText(HostileText.repeated("%6e", 3 * count) + "=1")
        if isRead {
            #expect(try FormEncoding.decode(pairs).count == count)
            #expect(try FormEncoding.decode(name).count == 1)
            #expect(try FormEncoding.decode(escaped).count == 1)
        } else {
            #expect(throws: FormEncoding.Fault.tooManyPairs(limit: 128)) { try FormEncoding.decode(pairs) }
            #expect(throws: FormEncoding.Fault.nameTooLong(limit: 128)) { try FormEncoding.decode(name) }
            #expect(throws: FormEncoding.Fault.nameTooLong(limit: 128)) { try FormEncoding.decode(escaped) }
        }
    }

    @Test(arguments: [
        ("application/json", "application/json", []),
        ("Application/JSON ; Charset=UTF-8", "application/json", ["charset=utf-8"]),
        ("application/json;charset=\"utf-8\";", "application/json", ["charset=utf-8"]), ("", "", []), (";a", "", ["a"]),
    ])
    func `a media type is read without regard to case`(value: String, name: String, parameters: [String]) {
        let type = MediaType(WireText(value))
        #expect(type.name == WireText(name))
        #expect(type.parameters.map(\.text) == parameters)
    }
}
