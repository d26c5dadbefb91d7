import ExternalText
import HTTPCodec
import Testing

/// A response's text, with digits in place of the request's number.
private func response(
    _ status: Status, fields: Fields = [:], body: String = "", framing: ResponseEncoder.Framing? = nil,
    connection: ResponseEncoder.Connection = .unstated, omitsBody: Bool = false
) throws(EncodingFault) -> String {
    let encoder = ResponseEncoder(second: 784_111_777)
    let head = OutputBuffer(capacity: 1)
    let number = encoder.nextNumber()
    let framing = framing ?? .length(body.utf8.count)
    try encoder.appendHead(status, fields, framing, number: number, connection: connection, to: head)
    var output: [UInt8] = []
    head.withBytes { bytes in for index in bytes.indices { output.append(bytes[index]) } }
    if !omitsBody, !status.forbidsContent {
        ResponseEncoder.appendContent(Array(body.utf8), framing, to: &output)
    }
    #expect(number.text.utf8.count == 32)
    return String(decoding: output, as: UTF8.self).replacing(number.text, with: "7f")
}

/// Names and values that would break a head apart.
private let hostileValues = ["a\r\nX: y", "a\nb", "a\rb", "a\0b", "\u{7f}", "a\u{1b}[31m"]
private let hostileNames = ["", "a b", "a:", "a\r\nb", "\u{e9}", "a\0"]

@Suite struct `Response encoder` {
    @Test func `writes head and content together`() throws {
        #expect(
            try response(.ok, fields: ["Content-Type": "text/plain"], body: "hi")
                == "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nX-Content-Type-Options: nosniff\r\n"
                + "X-Request-ID: 7f\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nhi")
    }

    @Test(arguments: [204, 304])
    func `gives an answer that has no content no length either`(code: Int) throws {
        let text = try response(Status(code), body: "ignored")
        #expect(!text.contains("Content-Length"))
        #expect(text.hasSuffix("\r\n\r\n"))
    }

    @Test func `states the length for HEAD and leaves the content out`() throws {
        let text = try response(.ok, body: "hello", omitsBody: true)
        #expect(text.contains("Content-Length: 5\r\n"))
        #expect(text.hasSuffix("\r\n\r\n"))
    }

    @Test(
        arguments: [
            (200, .length(2), "hi", false, "Content-Length: 2\r\n", "hi"),
            (200, .chunked, "", false, "Transfer-Encoding: chunked\r\n", ""),
            (200, .chunked, "hi", false, "Transfer-Encoding: chunked\r\n", "2\r\nhi\r\n"),
            (200, .chunked, "hi", true, "Transfer-Encoding: chunked\r\n", ""),
            (200, .close, "", false, "", ""), (200, .close, "hi", false, "", "hi"), (200, .close, "hi", true, "", ""),
            (204, .chunked, "hi", false, "", ""), (304, .chunked, "hi", false, "", ""),
            (304, .close, "hi", false, "", ""),
        ] as [(Int, ResponseEncoder.Framing, String, Bool, String, String)])
    func `tells how the content ends`(
        code: Int, framing: ResponseEncoder.Framing, body: String, omitsBody: Bool, field: String, content: String
    ) throws {
        let text = try response(Status(code), body: body, framing: framing, omitsBody: omitsBody)
        let line = "HTTP/1.1 \(code) \(Status(code).reason)\r\n"
        #expect(
            text == line
                + "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nX-Content-Type-Options: nosniff\r\nX-Request-ID: 7f\r\n"
                + field + "\r\n" + content)
    }

    @Test(
        arguments: [
            (0, ""), (1, "1"), (9, "9"), (10, "a"), (15, "f"), (16, "10"), (17, "11"), (255, "ff"), (256, "100"),
            (65_535, "ffff"), (65_536, "10000"),
        ])
    func `a chunk says its size, and no bytes are no chunk`(count: Int, size: String) {
        let bytes = [UInt8](repeating: 0x61, count: count)
        var output: [UInt8] = []
        ResponseEncoder.appendChunk(bytes, to: &output)
        let line = Array("\r\n".utf8)
        #expect(output == (count == 0 ? [] : Array(size.utf8) + line + bytes + line))
    }

    @Test func `what it writes in chunks is what the response parser reads`() throws {
        var output = Array(try response(.ok, body: "a", framing: .chunked).utf8)
        for count in [15, 0, 16, 4096] {
            ResponseEncoder.appendChunk([UInt8](repeating: 0x62, count: count), to: &output)
        }
        ResponseEncoder.appendLastChunk(to: &output)
        var parser = ResponseParser(requestMethod: .get)
        let step = try parser.consume(output.span)
        guard case .complete(let count) = step else {
            Issue.record("the response is not complete")
            return
        }
        #expect(count == output.count)
        #expect(parser.response.body == [0x61] + [UInt8](repeating: 0x62, count: 4127))
        #expect(parser.response.allowsReuse)
    }

    @Test(
        arguments: [
            (ResponseEncoder.Connection.unstated, nil), (.close, "Connection: close\r\n"),
            (.keepAlive, "Connection: keep-alive\r\n"),
        ] as [(ResponseEncoder.Connection, String?)])
    func `says what becomes of the connection`(connection: ResponseEncoder.Connection, line: String?) throws {
        let text = try response(.ok, connection: connection)
        #expect(text.contains("Connection") == (line != nil))
        if let line { #expect(text.contains(line)) }
    }

    @Test(arguments: hostileValues) func `refuses a value that would end its line`(value: String) {
        #expect(throws: EncodingFault.fieldValue) { try response(.ok, fields: ["X": value]) }
        #expect(throws: EncodingFault.fieldValue) { try ResponseEncoder.encode(["X": value]) }
    }

    @Test(arguments: hostileNames) func `refuses a name that is no token`(name: String) {
        #expect(throws: EncodingFault.fieldName) { try response(.ok, fields: [name: "x"]) }
    }

    @Test(arguments: ["content-length", "Transfer-Encoding", "Connection", "DATE", "x-request-id"])
    func `refuses fields that it writes itself`(name: String) {
        for framing in [ResponseEncoder.Framing.length(0), .chunked, .close] {
            #expect(throws: EncodingFault.reservedField) { try response(.ok, fields: [name: "x"], framing: framing) }
        }
    }

    @Test(arguments: [100, 101, 199]) func `refuses an interim status`(code: Int) {
        #expect(throws: EncodingFault.status) { try response(Status(code)) }
    }

    @Test func `a fault leaves the output as it was`() {
        let encoder = ResponseEncoder(second: 0)
        let output = OutputBuffer(capacity: 3)
        output.append([1, 2, 3].span)
        #expect(throws: EncodingFault.fieldValue) {
            try encoder.appendHead(
                .ok, ["A": "b", "C": "\r\n"], .length(1), number: encoder.nextNumber(), connection: .unstated,
                to: output)
        }
        #expect(output.withBytes { bytes in bytes.indices.map { bytes[$0] } } == [1, 2, 3])
    }

    @Test func `gives each request a number of its own, and each second its date`() {
        let encoder = ResponseEncoder(second: 784_111_777)
        var seen: Set<String> = []
        for _ in 0..<1000 { seen.insert(encoder.nextNumber().text) }
        #expect(seen.count == 1000)
        let output = OutputBuffer(capacity: 1)
        encoder.update(second: 784_111_778)
        encoder.begin(.ok, .length(0), number: encoder.nextNumber(), connection: .unstated, to: output)
        let text = output.withBytes { bytes in String(decoding: bytes.indices.map { bytes[$0] }, as: UTF8.self) }
        #expect(text.contains("\r\nDate: Sun, 06 Nov 1994 08:49:38 GMT\r\n"))
    }
}

@Suite struct `An output buffer` {
    private static func text(_ output: OutputBuffer) -> String {
        output.withBytes { bytes in String(decoding: bytes.indices.map { bytes[$0] }, as: UTF8.self) }
    }

    @Test(arguments: [
        0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 12_345, 99_999_999, 100_000_000, 999_999_999_999_999_999,
        1_000_000_000_000_000_000, Int64.max,
    ])
    func `takes numbers, and knows how long they are`(number: Int64) {
        let output = OutputBuffer(capacity: 1)
        output.append(decimal: number)
        #expect(Self.text(output) == "\(number)")
        #expect(OutputBuffer.digits(of: number) == output.count)
    }

    @Test(arguments: [0, 1, 4, 5])
    func `loses its first bytes and keeps the rest`(removed: Int) {
        let output = OutputBuffer(capacity: 1)
        output.append("abcde")
        output.removeFirst(removed)
        #expect(Self.text(output) == String("abcde".dropFirst(removed)))
        output.append("f")
        #expect(Self.text(output) == "abcde".dropFirst(removed) + "f")
    }

    @Test func `shows a part of its bytes`() {
        let output = OutputBuffer(capacity: 8)
        output.append("abcde")
        for (start, end, text) in [(0, 0, ""), (0, 1, "a"), (1, 4, "bcd"), (4, 5, "e"), (5, 5, "")] {
            let part = output.withBytes(from: start, to: end) { bytes in
                String(decoding: bytes.indices.map { bytes[$0] }, as: UTF8.self)
            }
            #expect(part == text)
        }
    }

    @Test func `grows, and forgets what it is told to`() {
        let output = OutputBuffer(capacity: 4)
        for _ in 0..<100 { output.append("abc") }
        #expect(Self.text(output) == String(repeating: "abc", count: 100))
        output.removeLast(298)
        #expect(Self.text(output) == "ab")
        output.wipe()
        #expect(Self.text(output) == "ab")
        output.removeAll()
        output.wipe()
        output.append("d")
        #expect(Self.text(output) == "d")
        #expect(output.withBytes(from: 1) { $0.isEmpty })
    }
}

@Suite struct `Request encoder` {
    @Test func `writes head and content together`() throws {
        let bytes = try RequestEncoder.encode(
            method: .post, target: "/token?x=1", host: "example.org:8443", fields: ["Accept": "application/json"],
            body: Array("a=b".utf8))
        #expect(
            String(decoding: bytes, as: UTF8.self)
                == "POST /token?x=1 HTTP/1.1\r\nHost: example.org:8443\r\nAccept: application/json\r\n"
                + "Content-Length: 3\r\n\r\na=b")
    }

    @Test(arguments: [(Method.get, false), (.delete, false), (.post, true), (.put, true)])
    func `states an empty content's length where content has a meaning`(method: Method, states: Bool) throws {
        let bytes = try RequestEncoder.encode(method: method, target: "/", host: "a", fields: [:])
        #expect(String(decoding: bytes, as: UTF8.self).contains("Content-Length: 0") == states)
    }

    @Test(arguments: hostileValues) func `refuses a value that would end its line`(value: String) {
        #expect(throws: EncodingFault.fieldValue) {
            try RequestEncoder.encode(method: .get, target: "/", host: "a", fields: ["X": value])
        }
    }

    @Test(arguments: hostileNames) func `refuses a name that is no token`(name: String) {
        #expect(throws: EncodingFault.fieldName) {
            try RequestEncoder.encode(method: .get, target: "/", host: "a", fields: [name: "x"])
        }
        #expect(throws: EncodingFault.method) {
            try RequestEncoder.encode(method: Method(name), target: "/", host: "a", fields: [:])
        }
    }

    @Test(arguments: ["", "/a b", "/\r\nX: y", "/\u{e9}", "/\t"]) func `refuses a hostile target`(target: String) {
        #expect(throws: EncodingFault.target) {
            try RequestEncoder.encode(method: .get, target: target, host: "a", fields: [:])
        }
        #expect(throws: EncodingFault.target) {
            try RequestEncoder.encode(method: .get, target: "/", host: target, fields: [:])
        }
    }

    @Test(arguments: ["host", "Content-Length", "transfer-encoding"])
    func `refuses fields that it writes itself`(name: String) {
        #expect(throws: EncodingFault.reservedField) {
            try RequestEncoder.encode(method: .get, target: "/", host: "a", fields: [name: "x"])
        }
    }

    @Test func `what it writes is what the request parser reads`() throws {
        let bytes = try RequestEncoder.encode(
            method: .put, target: "/a?b", host: "[::1]:1", fields: ["X": "y"], body: [1, 2])
        var parser = RequestParser()
        let head = try #require(try parser.parsed(bytes.span))
        #expect(head.method == .put)
        #expect(head.path == "/a")
        #expect(head.query == "b")
        #expect(head.framing == .length(2))
        #expect(head.fields["x"] == "y")
    }
}

@Suite struct `HTTP date` {
    @Test(
        arguments: [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"), (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"), (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"), (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"), (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (253_402_300_800, "Fri, 31 Dec 9999 23:59:59 GMT"), (-1, "Thu, 01 Jan 1970 00:00:00 GMT"),
        ] as [(Int64, String)])
    func `is an IMF-fixdate`(seconds: Int64, text: String) {
        #expect(String(decoding: HTTPDate.format(secondsSince1970: seconds), as: UTF8.self) == text)
    }
}
