import ExternalText
import HTTPCodec
import Testing

/// Feeds `text` in pieces of `pieceLength` bytes, then closes if it says so. Returns the response and what followed it.
private func parse(
    _ text: String, method: Method = .get, limits: ResponseLimits = ResponseLimits(), closes: Bool = false,
    pieceLength: Int = .max
) throws(ResponseFault) -> (response: ParsedResponse, rest: Int)? {
    var parser = ResponseParser(limits: limits, requestMethod: method)
    let bytes = Array(text.utf8)
    var start = 0
    while start < bytes.count {
        let end = start + min(pieceLength, bytes.count - start)
        if case .complete(let count) = try parser.consume(bytes.span.extracting(start..<end)) {
            return (parser.response, bytes.count - start - count)
        }
        start = end
    }
    return closes ? (try parser.peerClosed(), 0) : nil
}

private let ok = "HTTP/1.1 200 OK\r\n"

@Suite struct `Response parser` {
    @Test(arguments: [1, 2, 5, 16, Int.max])
    func `reads a response with a length, however it is cut`(pieceLength: Int) throws {
        let text = ok + "Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
        let parsed = try #require(try parse(text, pieceLength: pieceLength))
        #expect(parsed.response.status == .ok)
        #expect(parsed.response.fields["content-type"] == "text/plain")
        #expect(parsed.response.body == Array("hello".utf8))
        #expect(parsed.response.allowsReuse)
        #expect(parsed.rest == 0)
    }

    @Test(arguments: [1, 2, 5, 16, Int.max])
    func `reads a chunked response, however it is cut`(pieceLength: Int) throws {
        let text = ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x\r\n!\r\n0\r\nT: v\r\n\r\n"
        let parsed = try #require(try parse(text, pieceLength: pieceLength))
        #expect(parsed.response.body == Array("hello!".utf8))
        #expect(parsed.response.allowsReuse)
    }

    @Test(arguments: [1, 16, Int.max])
    func `reads until the server closes when no length is given`(pieceLength: Int) throws {
        let parsed = try #require(try parse(ok + "\r\nhello", closes: true, pieceLength: pieceLength))
        #expect(parsed.response.body == Array("hello".utf8))
        #expect(!parsed.response.allowsReuse)
        #expect(try parse(ok + "\r\nhello") == nil)
    }

    @Test(arguments: [
        (Method.head, "200 OK", "Content-Length: 5\r\n", true), (.get, "204 No Content", "", true),
        (.get, "304 Not Modified", "Content-Length: 5\r\n", true), (.get, "204 No", "Content-Length: 5\r\n", false),
        (.get, "204 No", "Transfer-Encoding: chunked\r\n", false), (.get, "204 No", "Content-Length: 0\r\n", true),
    ])
    func `knows which answers have no content`(method: Method, line: String, field: String, allowsReuse: Bool) throws {
        let parsed = try #require(try parse("HTTP/1.1 \(line)\r\n\(field)\r\n12345", method: method))
        #expect(parsed.response.body.isEmpty)
        #expect(parsed.response.allowsReuse == allowsReuse)
        #expect(parsed.rest == 5)
    }

    @Test(arguments: [
        ("HTTP/1.1", "", true), ("HTTP/1.1", "Connection: close\r\n", false), ("HTTP/1.0", "", false),
        ("HTTP/1.0", "Connection: keep-alive\r\n", true),
    ])
    func `says whether the connection persists`(version: String, field: String, allowsReuse: Bool) throws {
        let parsed = try #require(try parse("\(version) 200 OK\r\nContent-Length: 0\r\n\(field)\r\n"))
        #expect(parsed.response.allowsReuse == allowsReuse)
    }

    @Test(arguments: [1, 16, Int.max])
    func `skips interim responses`(pieceLength: Int) throws {
        let text =
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok
            + "Content-Length: 1\r\n\r\nx"
        let parsed = try #require(try parse(text, pieceLength: pieceLength))
        #expect(parsed.response.status == .ok)
        #expect(parsed.response.fields["link"] == nil)
        #expect(parsed.response.body == Array("x".utf8))
    }

    @Test(arguments: [(7, true), (8, true), (9, false)])
    func `bounds interim responses`(count: Int, fits: Bool) throws {
        let text = String(repeating: "HTTP/1.1 100 Continue\r\n\r\n", count: count) + ok + "Content-Length: 0\r\n\r\n"
        if fits {
            #expect(try parse(text) != nil)
        } else {
            #expect(throws: ResponseFault.tooManyInterimResponses) { try parse(text) }
        }
    }

    private static let hostile: [(ResponseFault, [String])] = [
        (
            .malformedHead,
            [
                "HTTP/1.1 200\r\n", "HTTP/1.1  200 OK\r\n", "HTTP/1.1 2000 OK\r\n", "HTTP/1.1 20 OK\r\n",
                "HTTP/1.1 099 X\r\n", "HTTP/1.1 600 X\r\n", "HTTP/1.1 2x0 OK\r\n", "http/1.1 200 OK\r\n", "\r\n",
                "ICY 200 OK\r\n", "HTTP/1.1 200 OK\n", "HTTP/1.1 200 O\0K\r\n", "\(ok)A : b\r\n",
                "\(ok)A: b\r\n c\r\n", "\(ok)A: b\rc\r\n",
            ]
        ),
        (.unsupportedVersion, ["HTTP/2.0 200 OK\r\n", "HTTP/0.9 200 OK\r\n"]),
        (.unexpectedUpgrade, ["HTTP/1.1 101 Switching Protocols\r\n\r\n"]),
        (
            .ambiguousLength,
            [
                "\(ok)Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
                "\(ok)Content-Length: 5\r\nContent-Length: 5\r\n\r\n", "\(ok)Content-Length: 5, 5\r\n\r\n",
                "\(ok)Content-Length: -1\r\n\r\n", "\(ok)Content-Length: 99999999999999999999\r\n\r\n",
                "\(ok)Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            ]
        ),
        (
            .unsupportedTransferCoding,
            [
                "\(ok)Transfer-Encoding: gzip, chunked\r\n\r\n", "\(ok)Transfer-Encoding: gzip\r\n\r\n",
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            ]
        ),
        (.malformedChunk, ["\(ok)Transfer-Encoding: chunked\r\n\r\n5\nhello"]),
        (
            .bodyTooLarge,
            [
                "\(ok)Content-Length: 1048577\r\n\r\n", "\(ok)Transfer-Encoding: chunked\r\n\r\n100001\r\n",
            ]
        ),
    ]

    // H095
    @Test(arguments: hostile)
    func `refuses what breaks the grammar or a limit`(fault: ResponseFault, texts: [String]) {
        for text in texts {
            #expect(throws: fault, "\(text)") { try parse(text, pieceLength: 1) }
            #expect(throws: fault, "\(text)") { try parse(text) }
        }
    }

    @Test(arguments: [
        ("", ResponseFault.closedBeforeResponse), ("H", .truncated), (ok, .truncated),
        (ok + "Content-Length: 5\r\n\r\nhell", .truncated), ("HTTP/1.1 100 Continue\r\n\r\n", .truncated),
        (ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", .truncated),
    ])
    func `tells a close in the middle from one before the first byte`(text: String, fault: ResponseFault) {
        #expect(throws: fault) { try parse(text, closes: true) }
    }

    @Test(arguments: [(99, true), (100, true), (101, false)])
    func `bounds the head`(length: Int, fits: Bool) throws {
        let start = ok + "Content-Length: 0\r\nX: "
        let text = start + String(repeating: "a", count: length - start.utf8.count - 4) + "\r\n\r\n"
        for pieceLength in [1, 30, .max] {
            if fits {
                #expect(try parse(text, limits: ResponseLimits(headBytes: 100), pieceLength: pieceLength) != nil)
            } else {
                #expect(throws: ResponseFault.headTooLarge) {
                    try parse(text, limits: ResponseLimits(headBytes: 100), pieceLength: pieceLength)
                }
            }
        }
    }

    // H094
    @Test func `bounds heads without an end, and all interim heads together`() {
        let limits = ResponseLimits(headBytes: 100)
        #expect(throws: ResponseFault.headTooLarge) {
            try parse(ok + "X: " + String(repeating: "a", count: 1000), limits: limits)
        }
        #expect(throws: ResponseFault.headTooLarge) {
            try parse(
                String(repeating: "HTTP/1.1 102 X\r\nA: bbbbbbbbbbbbbbbbbb\r\n\r\n", count: 3), limits: limits)
        }
        #expect(throws: ResponseFault.headTooLarge) {
            try parse(ok + "A: b\r\nC: d\r\n\r\n", limits: ResponseLimits(fieldCount: 1))
        }
    }

    // H094
    @Test(arguments: [(9, true), (10, true), (11, false)])
    func `bounds every kind of body`(length: Int, fits: Bool) throws {
        let body = String(repeating: "x", count: length)
        let texts = [
            ok + "Content-Length: \(length)\r\n\r\n" + body, ok + "\r\n" + body,
            ok + "Transfer-Encoding: chunked\r\n\r\n\(String(length, radix: 16))\r\n\(body)\r\n0\r\n\r\n",
        ]
        for text in texts {
            if fits {
                let parsed = try parse(text, limits: ResponseLimits(bodyBytes: 10), closes: true)
                #expect(parsed?.response.body.count == length)
            } else {
                #expect(throws: ResponseFault.bodyTooLarge) {
                    try parse(text, limits: ResponseLimits(bodyBytes: 10), closes: true)
                }
            }
        }
    }

    @Test func `names the bytes that no request asked for`() throws {
        let parsed = try #require(try parse(ok + "Content-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n"))
        #expect(parsed.rest == 17)
    }
}
