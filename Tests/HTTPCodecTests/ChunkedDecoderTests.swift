import HTTPCodec
import Testing

private struct Decoded: Equatable {
    var body = ""
    var rest = ""
    var isComplete = false
}

/// Feeds `text` in pieces of `pieceLength` bytes.
private func decode(
    _ text: String, bodyLimit: Int = 1000, overheadLimit: Int = 100, pieceLength: Int = .max
) throws(ChunkedDecoder.Fault) -> Decoded {
    var decoder = ChunkedDecoder(bodyLimit: bodyLimit, overheadLimit: overheadLimit)
    let bytes = Array(text.utf8)
    var decoded = Decoded()
    var start = 0
    while start < bytes.count, !decoded.isComplete {
        let piece = Array(bytes[start..<min(bytes.count, start + min(pieceLength, bytes.count))])
        var index = 0
        pieces: while true {
            switch try decoder.next(piece.span, from: index) {
            case .data(let range):
                decoded.body += String(decoding: piece[range], as: UTF8.self)
                index = range.upperBound
            case .needsMore:
                break pieces
            case .complete(let end):
                decoded.isComplete = true
                decoded.rest = String(decoding: bytes[(start + end)...], as: UTF8.self)
                break pieces
            }
        }
        start += piece.count
    }
    return decoded
}

@Suite struct `Chunked decoder` {
    @Test(
        arguments: [
            ("0\r\n\r\n", ""), ("5\r\nhello\r\n0\r\n\r\n", "hello"), ("1\r\na\r\n02\r\nbc\r\n000\r\n\r\n", "abc"),
            ("a\r\n0123456789\r\n0\r\n\r\n", "0123456789"), ("A;x\r\n0123456789\r\n0;y=z\r\n\r\n", "0123456789"),
            ("1;a=\"q;\\\"\r\\z\";b\r\nx\r\n0\r\n\r\n", nil), ("1;a=\"q;\\\"z\";b\r\nx\r\n0\r\n\r\n", "x"),
            ("1\r\nx\r\n0\r\nTrailer: value\r\nOther:\r\n\r\n", "x"), ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n"),
        ] as [(String, String?)])
    func `reads well-formed bodies, however they are cut`(text: String, body: String?) {
        for pieceLength in [1, 2, 3, 7, .max] {
            let decoded = try? decode(text + (body == nil ? "" : "next"), pieceLength: pieceLength)
            #expect(decoded == body.map { Decoded(body: $0, rest: "next", isComplete: true) })
        }
    }

    @Test func `is incomplete at every byte before the last`() throws {
        let text = "5;a=b\r\nhello\r\n0\r\nT: v\r\n\r\n"
        for length in 0..<text.utf8.count {
            #expect(try !decode(String(text.prefix(length))).isComplete || text.prefix(length).contains("\r\n\r\n"))
        }
    }

    // H003
    @Test(arguments: [
        "\r\n", "g\r\n", " 5\r\nhello\r\n", "5 \r\nhello\r\n", "5\nhello\n", "5\rhello", "-5\r\n", "+5\r\n", "0x5\r\n",
        "5\r\nhello0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "5\r\nhello\r0\r\n\r\n", "5\r\nhello!\r\n0\r\n\r\n", "5;\r\n",
        "5;;a\r\n", "5;a=\r\n", "5;a=\"b\r\n", "5; a\r\n", "5;a =b\r\n", "5;a\n", "5;a\0\r\n", "0\r\n\n", "0\r\n\rx",
        "0\r\n bad: x\r\n\r\n", "0\r\nbad : x\r\n\r\n", "0\r\nbad\r\n\r\n", "0\r\na: b\n\r\n", "0\r\na: b\rc\r\n\r\n",
        "0\r\na: \0\r\n\r\n", "00000000000000001\r\nx\r\n0\r\n\r\n", "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "100000000000000000000000000000005\r\nhello\r\n0\r\n\r\n",
    ])
    func `refuses what breaks the grammar`(text: String) {
        for pieceLength in [1, .max] {
            #expect(throws: ChunkedDecoder.Fault.malformed) { try decode(text, pieceLength: pieceLength) }
        }
    }

    @Test(arguments: [("9", "1"), ("a", "0"), ("5", "5")])
    func `takes bodies up to the limit`(first: String, second: String) throws {
        let body = String(repeating: "x", count: Int(first, radix: 16) ?? 0)
        let more = second == "0" ? "" : "\(second)\r\n\(String(repeating: "y", count: Int(second) ?? 0))\r\n"
        #expect(try decode("\(first)\r\n\(body)\r\n\(more)0\r\n\r\n", bodyLimit: 10).isComplete)
    }

    // H003
    @Test(arguments: ["b\r\n", "ffffffffffffffff\r\n", "7fffffffffffffff;", "9\r\n123456789\r\n2\r\n"])
    func `refuses a declared size beyond the limit before its data`(text: String) {
        #expect(throws: ChunkedDecoder.Fault.bodyTooLarge) { try decode(text, bodyLimit: 10) }
    }

    // H003
    @Test(arguments: [(9, true), (10, true), (11, false)])
    func `extensions and trailers share one budget`(length: Int, fits: Bool) {
        // "a" and its CR, twice, and "T:" with its CRLF are eight bytes.
        let text = "1;a\r\nx\r\n0;a\r\nT:" + String(repeating: "x", count: length - 8) + "\r\n\r\n"
        if fits {
            #expect(throws: Never.self) { try decode(text, overheadLimit: 10) }
        } else {
            #expect(throws: ChunkedDecoder.Fault.overheadTooLarge) { try decode(text, overheadLimit: 10) }
        }
    }

    @Test func `plain chunks cost no budget`() throws {
        let text = String(repeating: "1\r\nx\r\n", count: 50) + "0\r\n\r\n"
        #expect(try decode(text, overheadLimit: 0).body.utf8.count == 50)
    }
}
