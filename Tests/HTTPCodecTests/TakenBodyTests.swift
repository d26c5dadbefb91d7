import ExternalText
import HTTPCodec
import Testing

@Suite struct `A response whose body is taken as it comes` {
    private static let body = "0123456789"

    @Test(arguments: [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n012\r\n7\r\n3456789\r\n0\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n0123456789",
    ])
    func `has the same bytes however it is cut, and none of them at its end`(text: String) throws {
        let bytes = Array(text.utf8)
        for size in [1, 2, 3, 7, bytes.count] {
            var parser = ResponseParser(requestMethod: .get)
            var taken: [UInt8] = []
            var isComplete = false
            for start in stride(from: 0, to: bytes.count, by: size) {
                let piece = Array(bytes[start..<min(start + size, bytes.count)])
                let progress = try parser.consume(piece.span)
                let part = parser.takeBody()
                // The head comes before the body.
                #expect(part.isEmpty || parser.receivedHead?.status == .ok)
                taken += part
                isComplete = progress != .needsMore
            }
            let response = isComplete ? parser.response : try parser.peerClosed()
            #expect(String(decoding: taken, as: UTF8.self) == Self.body)
            #expect(response.body.isEmpty)
            #expect(parser.takeBody().isEmpty)
        }
    }

    @Test func `has no head before the head is complete, nor after an interim one`() throws {
        var parser = ResponseParser(requestMethod: .get)
        for text in ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 404 x\r\n", "A: b\r\n"] {
            _ = try parser.consume(Array(text.utf8).span)
            #expect(parser.receivedHead == nil)
        }
        _ = try parser.consume(Array("\r\n".utf8).span)
        #expect(parser.receivedHead?.status.code == 404)
        #expect(parser.receivedHead?.fields["A"] == "b")
    }
}
