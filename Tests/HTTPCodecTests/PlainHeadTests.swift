import ExternalText
import Testing

@testable import HTTPCodec

@Suite struct `A plain head` {
    private static let start = "GET /credentials"

    private static func plain(_ text: String) -> PlainHead? {
        PlainHead(Array(text.utf8).span, start: "GET /credentials", limits: RequestLimits())
    }

    private static func text(_ bytes: [UInt8], _ range: Range<Int>?) -> String? {
        range.map { String(decoding: bytes[$0], as: UTF8.self) }
    }

    @Test(arguments: [
        "GET /credentials HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /credentials?a=b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAuthorization: Bearer x\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nUser-Agent: curl/8\r\nHOST:h\r\nAccept: */*\r\nif-none-match:  \"1\" \r\n\r\n",
        "GET /credentials? HTTP/1.1\r\nHost: [::1]:1\r\nConnection: Close\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nX-A:\r\n\r\n",
    ])
    func `is read as the whole parser reads it, also with more behind it`(head: String) throws {
        for tail in ["", "G", "GET / HTTP/1.1\r\n"] {
            let bytes = Array((head + tail).utf8)
            try Self.compare(bytes, #require(Self.plain(head + tail)))
        }
    }

    @Test(arguments: [
        "GET /credentials HTTP/1.1\r\nHost: h\r\n\r", "GET /credentials HTTP/1.1\r\n\r\n",
        "GET /credentials HTTP/1.0\r\nHost: h\r\n\r\n", "GET /credentials HTTP/1.1\nHost: h\n\n",
        "get /credentials HTTP/1.1\r\nHost: h\r\n\r\n", "GET /credential HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /credentials/ HTTP/1.1\r\nHost: h\r\n\r\n", "HEAD /credentials HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "GET /credentials HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nConnection: close, x\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nAuthorization: a\r\nAuthorization: a\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nX-Tenant: t\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nX: \u{1}\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nX: a\tb\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nX: é\r\n\r\n",
        "GET  /credentials HTTP/1.1\r\nHost: h\r\n\r\n", "GET /credentials  HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nPrefer: wait=1\r\n\r\n",
    ])
    func `is nothing else: the whole parser is to judge`(head: String) {
        #expect(Self.plain(head) == nil)
    }

    /// Whatever is changed about a head: either it is not plain any more, or both readers agree about it.
    @Test func `agrees with the whole parser under every change of one byte`() throws {
        let head = Array(
            "GET /credentials?storage_key=a HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer k\r\nConnection: close\r\nIf-None-Match: \"1\"\r\n\r\n"
                .utf8)
        var plainCount = 0
        for index in head.indices {
            for byte in UInt8.min...UInt8.max where byte != head[index] {
                var changed = head
                changed[index] = byte
                guard let plain = PlainHead(changed.span, start: "GET /credentials", limits: RequestLimits()) else {
                    continue
                }
                plainCount += 1
                // What stands in a query is looked at by whoever takes it.
                if let query = plain.query, query.contains(index) { continue }
                try Self.compare(changed, plain)
            }
        }
        #expect(plainCount > 1000)
    }

    @Test func `heeds the server's limits, to the byte`() {
        let value = String(repeating: "x", count: 100)
        let head = Array("GET /credentials HTTP/1.1\r\nHost: h\r\nX: \(value)\r\n\r\n".utf8)
        for (change, isPlain) in [(-1, false), (0, true), (1, true)] {
            var limits = RequestLimits()
            limits.headBytes = head.count + change
            #expect((PlainHead(head.span, start: "GET /credentials", limits: limits) != nil) == isPlain)
            limits = RequestLimits()
            limits.fieldCount = 2 + change
            #expect((PlainHead(head.span, start: "GET /credentials", limits: limits) != nil) == isPlain)
            limits = RequestLimits()
            limits.requestLineBytes = "GET /credentials HTTP/1.1".utf8.count + change
            #expect((PlainHead(head.span, start: "GET /credentials", limits: limits) != nil) == isPlain)
        }
    }

    @Test(
        arguments: [
            ("Bearer k", "k"), ("bearer k", "k"), ("BEARER abc.~", "abc.~"), ("Bearer  k", nil), ("Bearer k k", nil),
            ("Bearer ", nil), ("Bearer", nil), ("Basic k", nil), ("Bearerk", nil), ("", nil),
        ] as [(String, String?)])
    func `has a bearer token in the value of a field, or has not`(value: String, token: String?) {
        let bytes = Array("x\(value)y".utf8)
        let range = PlainHead.bearerToken(bytes.span, 1..<bytes.count - 1)
        #expect(Self.text(bytes, range) == token)
    }

    @Test func `has a token of 512 bytes at most`() {
        for (count, isToken) in [(511, true), (512, true), (513, false)] {
            let bytes = Array(("Bearer " + String(repeating: "k", count: count)).utf8)
            #expect((PlainHead.bearerToken(bytes.span, 0..<bytes.count) != nil) == isToken)
        }
    }

    private static func compare(_ bytes: [UInt8], _ plain: PlainHead) throws {
        var parser = RequestParser()
        let head = try #require(try parser.parse(bytes.span))
        #expect(head.length == plain.length)
        #expect(head.method == .get)
        #expect(head.path == "/credentials")
        #expect(head.query == text(bytes, plain.query))
        #expect(head.fields["Authorization"]?.text == text(bytes, plain.authorization))
        #expect(head.fields["If-None-Match"]?.text == text(bytes, plain.ifNoneMatch))
        #expect(head.keepsAlive == !plain.closes)
        #expect(head.framing == .none && !head.isHTTP10 && !head.expectsContinue)
        for name in ["X-Tenant", "Prefer", "Expect", "Content-Length", "Transfer-Encoding"] {
            #expect(head.fields.values(name).isEmpty)
        }
    }
}
