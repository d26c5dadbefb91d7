import HTTPCodec
import Testing

/// What a parser says of a head: the fault, or each part.
private func outcome(_ parser: inout RequestParser, _ text: String, section: Int? = nil) -> String {
    let bytes = Array(text.utf8)
    parser.reset(section: section)
    do throws(RequestFault) {
        guard let head = try parser.parse(bytes.span) else { return "partial" }
        let copy = head.copied(from: bytes.span)
        let fields = copy.fields.all.map { "\($0.name): \($0.value)" }
        return
            "\(head.length) \(copy.method) \(copy.path) \(copy.query ?? "-") \(fields) \(head.section.lines.map(\.known)) "
            + "\(head.framing) \(head.isHTTP10) \(head.keepsAlive) \(head.expectsContinue)"
    } catch {
        return "\(error)"
    }
}

private let fields = "Host: h\r\nAccept: */*\r\nAuthorization: Bearer secret-of-a-caller\r\n\r\n"

/// The fields of a caller with that number.
private func fields(of number: Int) -> String { "Host: h\r\nAuthorization: Bearer caller-\(number)\r\n\r\n" }

@Suite struct `Header fields that come again` {
    /// Reads a head with a parser that knows `fields` of the last one, and with a new parser.
    private static func expectSame(_ text: String, _ sourceLocation: SourceLocation = #_sourceLocation) {
        var parser = RequestParser()
        _ = outcome(&parser, "GET /credentials HTTP/1.1\r\n" + fields)
        var new = RequestParser()
        #expect(outcome(&parser, text) == outcome(&new, text), sourceLocation: sourceLocation)
    }

    @Test func `are read as if they had not come before, whatever byte of the head differs`() {
        let head = Array("GET /credentials HTTP/1.1\r\n\(fields)".utf8)
        for index in head.indices {
            for byte in [UInt8(ascii: "a"), UInt8(ascii: ":"), UInt8(ascii: "\r"), UInt8(ascii: "\n"), 0, 0x20, 0x7f] {
                var changed = head
                changed[index] = byte
                Self.expectSame(String(decoding: changed, as: UTF8.self))
            }
            var (shorter, longer) = (head, head)
            shorter.remove(at: index)
            longer.insert(head[index], at: index)
            Self.expectSame(String(decoding: shorter, as: UTF8.self))
            Self.expectSame(String(decoding: longer, as: UTF8.self))
            Self.expectSame(String(decoding: head[..<index], as: UTF8.self))
        }
    }

    @Test(arguments: [
        "GET / HTTP/1.1", "POST /credentials?storage_key=a HTTP/1.1", "GET http://other/ HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET / HTTP/1.0", "GET / HTTP/1.9", "GET / HTTP/2.0", "TRACE / HTTP/1.1", "GET /", "", "\r\nGET / HTTP/1.1",
        "\r\n\r\nGET / HTTP/1.1",
    ])
    func `may follow any request line`(line: String) {
        Self.expectSame("\(line)\r\n\(fields)")
        Self.expectSame("\(line)\r\n\(fields)GET / HTTP/1.1\r\n")
    }

    @Test func `are the same section, with its note, behind another request line`() throws {
        var parser = RequestParser()
        let first = Array("GET /a HTTP/1.1\r\n\(fields)".utf8)
        let second = Array("GET /longer?b=c HTTP/1.1\r\n\(fields)more".utf8)
        let section = try #require(try parser.parse(first.span)?.section)
        #expect(section.note == nil)
        section.note = SIMD4(1, 2, 3, 4)
        parser.reset(section: section.position)
        guard let again = try parser.parse(second.span) else {
            Issue.record("the head is complete")
            return
        }
        let (found, length) = (again.section, again.length)
        #expect(found === section)
        #expect(found.note == SIMD4(1, 2, 3, 4))
        #expect(length == second.count - 4)
        // A new connection's first request is looked for where the last section is held.
        parser.reset()
        #expect(try parser.parse(second.span)?.section === section)
    }

    @Test func `lose their note when another text takes their place, and when they are wiped`() throws {
        let sections = FieldSections()
        var parser = RequestParser(sections: sections)
        func read(_ number: Int) throws -> FieldSection {
            let bytes = Array("GET / HTTP/1.1\r\n\(fields(of: number))".utf8)
            parser.reset()
            return try #require(try parser.parse(bytes.span)?.section)
        }
        let first = try read(0)
        first.note = SIMD4(repeating: 7)
        // Some of a thousand share the place of the first.
        let places = try (1...1000).map { try #require(try read($0).position) }
        // The seed is random: with some seeds a thousand texts leave a few of the 64 places empty.
        #expect(Set(places).count >= 48 && Set(places).isSubset(of: 0..<64))
        #expect(places.contains(try #require(first.position)))
        #expect(first.note == nil)
        let last = try read(1)
        last.note = SIMD4(repeating: 7)
        #expect(try read(1).note != nil)
        sections.wipe()
        #expect(try read(1).note == nil)
    }

    @Test(arguments: [(2047, true), (2048, true), (2049, false)])
    func `are held up to 2,048 bytes`(count: Int, isHeld: Bool) throws {
        let start = "Host: h\r\nX: "
        let text = start + String(repeating: "x", count: count - start.utf8.count - 4) + "\r\n\r\n"
        #expect(text.utf8.count == count)
        var parser = RequestParser()
        let bytes = Array("GET / HTTP/1.1\r\n\(text)".utf8)
        let section = try #require(try parser.parse(bytes.span)?.section)
        #expect((section.position != nil) == isHeld)
    }

    @Test func `of HTTP/1.0 are not held`() throws {
        var parser = RequestParser()
        let bytes = Array("GET / HTTP/1.0\r\n\(fields)".utf8)
        #expect(try parser.parse(bytes.span)?.section.position == nil)
    }

    @Test(arguments: [0, 1]) func `count for the limit of a head`(excess: Int) {
        let line = "GET /credentials HTTP/1.1\r\n"
        let limits = RequestLimits(headBytes: line.utf8.count + fields.utf8.count)
        var parser = RequestParser(limits: limits)
        #expect(outcome(&parser, line + fields) != "headTooLarge")
        let longer = "GET /credentials\(String(repeating: "s", count: excess)) HTTP/1.1\r\n"
        var new = RequestParser(limits: limits)
        #expect(outcome(&parser, longer + fields) == outcome(&new, longer + fields))
        #expect((outcome(&parser, longer + fields) == "headTooLarge") == (excess > 0))
    }
}
