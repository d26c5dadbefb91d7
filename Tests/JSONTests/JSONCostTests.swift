import ExternalText
import GroundTesting
import JSON
import Testing

/// The time for reading and writing JSON is proportional to its size, whatever it contains.
struct `Cost of JSON` {
    private static let inputs: [(name: String, make: @Sendable (Int) -> String)] = [
        ("marks in a name", { "{\"\(HostileText.marks($0))\":1}" }),
        ("marks in a value", { "{\"a\":\"\(HostileText.marks($0))\"}" }),
        ("escaped marks in a name", { "{\"\(HostileText.jsonMarks($0))\":1}" }),
        ("escaped marks in a value", { "[\"\(HostileText.jsonMarks($0))\"]" }),
        (
            "members that differ in their last mark",
            { size in
                // There are so many names that the growth steps of a table and the depth of sorting weigh the same in
                // both sizes.
                let names = (0..<size / 128).map { HostileText.marks(100) + "\($0)" }
                return "{" + names.map { "\"\($0)\":1" }.joined(separator: ",") + "}"
            }
        ),
        ("many members", { size in "{" + (0..<size / 10).map { "\"\($0)\":1" }.joined(separator: ",") + "}" }),
        ("many elements", { "[0" + HostileText.repeated(",0", $0) + "]" }),
        ("many empty objects", { "[{}" + HostileText.repeated(",{}", $0) + "]" }),
        (
            "deep nesting, many times",
            { size in
                let deep = String(repeating: "[", count: 31) + String(repeating: "]", count: 31)
                return "[" + deep + HostileText.repeated("," + deep, size) + "]"
            }
        ),
        (
            "long names around a fault",
            { size in
                let name = String(repeating: "n", count: size / 30)
                return String(repeating: "{\"\(name)\":", count: 30) + "{\"a\":1,\"a\":2}"
                    + String(repeating: "}", count: 30)
            }
        ),
        ("spaces", { "[" + HostileText.repeated(" ", $0) + "]" }),
        ("digits", { "[" + HostileText.repeated("1", $0) + "]" }),
        ("quotation marks", { "\"" + HostileText.repeated(#"\""#, $0) + "\"" }),
        ("no end of a string", { "\"" + HostileText.repeated("a", $0) }),
    ]

    @Test(arguments: inputs.map(\.name))
    func `reading is linear`(name: String) throws {
        let make = try #require(Self.inputs.first { $0.name == name }).make
        let growth = ReadingCost.growth(from: 16_384) {
            Array(make($0).utf8)
        } _: {
            _ = try? JSONValue(parsing: $0)
        }
        #expect(growth < ReadingCost.limit)
    }

    @Test(arguments: inputs.map(\.name))
    func `writing what was read is linear`(name: String) throws {
        let make = try #require(Self.inputs.first { $0.name == name }).make
        let growth = ReadingCost.growth(from: 16_384) {
            (try? JSONValue(parsing: Array(make($0).utf8))) ?? .null
        } _: {
            var writer = JSONWriter()
            // A value that is refused takes too little time to be measured alone.
            for _ in 0..<100 { writer.integer(1) }
            writer.value($0)
        }
        #expect(growth < ReadingCost.limit)
    }

    @Test(arguments: [(127, true), (128, true), (129, false)])
    func `a name may have as many bytes as the limit`(count: Int, isRead: Bool) throws {
        let name = String(repeating: "n", count: count)
        let text = Array("{\"a\":{\"\(name)\":1}}".utf8)
        if isRead {
            #expect(try JSONValue(parsing: text, longestName: 128)["a"]?[name] == .integer(1))
        } else {
            let pointer = "/a/" + String(repeating: "n", count: 64)
            #expect(throws: JSONValue.Fault.nameTooLong(pointer: pointer, limit: 128)) {
                try JSONValue(parsing: text, longestName: 128)
            }
        }
        #expect(try JSONValue(parsing: text)["a"]?[name] == .integer(1))
    }

    @Test(arguments: [(1023, true), (1024, true), (1025, false)])
    func `a number may have 1024 characters`(count: Int, isRead: Bool) {
        let text = "0." + String(repeating: "1", count: count - 2)
        #expect(((try? JSONValue(parsing: Array(text.utf8))) != nil) == isRead)
    }
}
