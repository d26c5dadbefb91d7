import ExternalText
import HTTPCodec
import Testing

/// A head with copies of its parts.
@dynamicMemberLookup
struct ParsedHead {
    let length: Int
    let fieldLines: [FieldLine]
    private let head: ReceivedHead

    init(_ head: borrowing RequestHead, _ bytes: Span<UInt8>) {
        length = head.length
        fieldLines = head.section.lines
        self.head = head.copied(from: bytes)
    }

    subscript<Value>(dynamicMember member: KeyPath<ReceivedHead, Value>) -> Value { head[keyPath: member] }
}

extension RequestParser {
    /// The head, or nil when it has not all arrived.
    mutating func parsed(_ bytes: Span<UInt8>) throws(RequestFault) -> ParsedHead? {
        guard let head = try parse(bytes) else { return nil }
        return ParsedHead(head, bytes)
    }
}

/// What becomes of bytes given at once.
private func parse(_ text: String, _ limits: RequestLimits = RequestLimits()) -> Result<ParsedHead?, RequestFault> {
    parse(Array(text.utf8), limits)
}

private func parse(_ bytes: [UInt8], _ limits: RequestLimits = RequestLimits()) -> Result<ParsedHead?, RequestFault> {
    var parser = RequestParser(limits: limits)
    return Result { () throws(RequestFault) in try parser.parsed(bytes.span) }
}

private func fault(_ text: String, _ limits: RequestLimits = RequestLimits()) -> RequestFault? {
    if case .failure(let fault) = parse(text, limits) { return fault }
    return nil
}

private func head(_ text: String, _ limits: RequestLimits = RequestLimits()) throws -> ParsedHead {
    try #require(try parse(text, limits).get())
}

private struct Case: Sendable, CustomTestStringConvertible {
    let text: String
    let fault: RequestFault
    let why: String

    init(_ text: String, _ fault: RequestFault, _ why: String) {
        (self.text, self.fault, self.why) = (text, fault, why)
    }

    var testDescription: String { why }
}

@Suite struct `Request parser` {
    @Test func `reads method, path, query and fields`() throws {
        let head = try head(
            "GET /a/b%20c?x=1&y=? HTTP/1.1\r\nHost: example.org:8080\r\nAccept:\t*/* \t\r\nEmpty:\r\n\r\n")
        #expect(head.method == .get)
        #expect(head.path == "/a/b%20c")
        #expect(head.query == "x=1&y=?")
        #expect(head.fields == ["Host": "example.org:8080", "Accept": "*/*", "Empty": ""])
        #expect(head.framing == .none)
        #expect(head.keepsAlive)
        #expect(!head.isHTTP10)
    }

    @Test func `says where the head ends and does not look further`() throws {
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        let parsed = try head(text + "\0garbage\n")
        #expect(parsed.length == text.utf8.count)
    }

    @Test(arguments: [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /login?a HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        "\r\nOPTIONS * HTTP/1.1\r\nHost: a\r\nX: \u{e9}\r\n\r\n",
        "GET http://a/b HTTP/1.0\r\n\r\n",
    ])
    func `is partial at every byte until the last`(text: String) throws {
        let bytes = Array(text.utf8)
        let whole = try #require(try parse(text).get())
        // One parser that is fed byte by byte, and for every cut one that gets the rest at once.
        var parser = RequestParser()
        for end in 0..<bytes.count {
            #expect(try parser.parsed(bytes.span.extracting(0..<end)) == nil)
            var other = parser
            let head = try #require(try other.parsed(bytes.span))
            #expect(head.length == bytes.count)
            #expect(head.path == whole.path)
            #expect(head.fields == whole.fields)
        }
        #expect(try parser.parsed(bytes.span)?.length == bytes.count)
    }

    // H005 H061
    @Test(arguments: [
        Case("GET / HTTP/1.1\nHost: a\n\n", .lineEnd, "bare LF everywhere"),
        Case("GET / HTTP/1.1\r\nHost: a\n\r\n", .lineEnd, "bare LF after a field"),
        Case("GET / HTTP/1.1\r\nHost: a\r\n\n", .lineEnd, "bare LF at the end"),
        Case("GET / HTTP/1.1\rHost: a\r\r", .lineEnd, "bare CR"),
        Case("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", .lineEnd, "CR in a value"),
        Case("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", .lineEnd, "NUL in a value"),
        Case("GET / HTTP/1.1\r\nHost: a\r\nX: a\u{7f}b\r\n\r\n", .lineEnd, "DEL in a value"),
        Case("GET / HTTP/1.1\r\nHost: a\r\nX: a\u{b}b\r\n\r\n", .lineEnd, "vertical tab in a value"),
        Case("\u{16}\u{3}\u{1}", .lineEnd, "a TLS greeting"),
        Case("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", .fieldLine, "a line folded by a space"),
        Case("GET / HTTP/1.1\r\nHost: a\r\n\tfolded: b\r\n\r\n", .fieldLine, "a line folded by a tab"),
        Case("GET / HTTP/1.1\r\n Host: a\r\n\r\n", .fieldLine, "a space in front of the first field"),
        Case("GET / HTTP/1.1\r\nHost : a\r\n\r\n", .fieldLine, "a space before the colon"),
        Case("GET / HTTP/1.1\r\nHost: a\r\nX\t: a\r\n\r\n", .fieldLine, "a tab before the colon"),
        Case("GET / HTTP/1.1\r\nHost: a\r\n: a\r\n\r\n", .fieldLine, "an empty name"),
        Case("GET / HTTP/1.1\r\nHost: a\r\nnocolon\r\n\r\n", .fieldLine, "no colon"),
        Case("GET / HTTP/1.1\r\nHost: a\r\nX(y): a\r\n\r\n", .fieldLine, "a name that is no token"),
        Case("GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: a\r\n\r\n", .fieldLine, "a name beyond ASCII"),
        Case("GET /\r\n\r\n", .requestLine, "HTTP/0.9"),
        Case("GET  / HTTP/1.1\r\n", .target, "two spaces after the method"),
        Case("GET / HTTP/1.1 \r\n", .requestLine, "a space after the version"),
        Case(" GET / HTTP/1.1\r\n", .requestLine, "a space before the method"),
        Case("G@T / HTTP/1.1\r\n", .requestLine, "a method that is no token"),
        Case("GET / http/1.1\r\n", .requestLine, "a version in lower case"),
        Case("GET / HTTP/1.10\r\n", .requestLine, "a version of two digits"),
        Case("GET / HTTP/11\r\n", .requestLine, "a version without a dot"),
        Case("GET HTTP/1.1\r\n", .requestLine, "no target"),
        Case("GET\r\n", .requestLine, "nothing but a method"),
        Case("\r\n\r\nGET / HTTP/1.1\r\n", .requestLine, "two empty lines in front"),
        Case("GET / HTTP/2.0\r\n", .version, "HTTP/2"),
        Case("PRI * HTTP/2.0\r\n\r\n", .version, "the preface of HTTP/2"),
        Case("GET / HTTP/0.9\r\n", .version, "an explicit 0.9"),
        Case("GET /a b HTTP/1.1\r\n", .target, "a space in the target"),
        Case("GET /a\tb HTTP/1.1\r\n", .target, "a tab in the target"),
        Case("GET /a#b HTTP/1.1\r\n", .target, "a fragment"),
        Case("GET /a%2 HTTP/1.1\r\n", .target, "half a percent escape"),
        Case("GET /a%zz HTTP/1.1\r\n", .target, "a percent escape that is not hexadecimal"),
        Case("GET /\u{e9} HTTP/1.1\r\n", .target, "a target beyond ASCII"),
        Case("GET /a\\b HTTP/1.1\r\n", .target, "a backslash"),
        Case("GET a/b HTTP/1.1\r\n", .target, "a relative target"),
        Case("GET * HTTP/1.1\r\n", .target, "an asterisk without OPTIONS"),
        Case("GET ftp://a/ HTTP/1.1\r\n", .target, "a foreign scheme"),
        Case("GET http:/// HTTP/1.1\r\n", .target, "an absolute target without a host"),
        Case("GET http://u@a/ HTTP/1.1\r\n", .target, "user information in the target"),
        Case("GET http://a:99999/ HTTP/1.1\r\n", .target, "a port out of range"),
        Case("GET http://a b/ HTTP/1.1\r\n", .target, "a space in the authority"),
        Case("GET http://a b HTTP/1.1\r\n", .target, "a space in an authority without a path"),
        Case("GET http://a /x HTTP/1.1\r\n", .target, "a space behind the authority"),
        Case("GET http:// a/ HTTP/1.1\r\n", .target, "a space before the authority"),
        Case("GET http://a%20b/ HTTP/1.1\r\n", .target, "an escaped space in the authority"),
        Case("GET http://a%00b/ HTTP/1.1\r\n", .target, "an escaped NUL in the authority"),
        Case("GET http://a%2fb/ HTTP/1.1\r\n", .target, "an escaped slash in the authority"),
        Case("GET http://u%40a/ HTTP/1.1\r\n", .target, "escaped user information in the target"),
        Case("GET http://a%c3%a9/ HTTP/1.1\r\n", .target, "an escaped authority beyond ASCII"),
        Case("GET http://a%4/ HTTP/1.1\r\n", .target, "half an escape in the authority"),
        Case("GET http://a:80 80/ HTTP/1.1\r\n", .target, "a space in the port"),
        Case("GET http://[::1 ]/ HTTP/1.1\r\n", .target, "a space in an IPv6 address"),
        Case("GET http://a\tb/ HTTP/1.1\r\n", .target, "a tab in the authority"),
        Case("GET http://a\u{e9}/ HTTP/1.1\r\n", .target, "an authority beyond ASCII"),
        Case("GET http://a\"b/ HTTP/1.1\r\n", .target, "a quote in the authority"),
        Case("GET http://a\\b/ HTTP/1.1\r\n", .target, "a backslash in the authority"),
        Case("GET http://a<b>/ HTTP/1.1\r\n", .target, "angle brackets in the authority"),
        Case("GET http://a#b/ HTTP/1.1\r\n", .target, "a fragment in place of the path"),
        Case("GET http://u:p@a/ HTTP/1.1\r\n", .target, "a password in the target"),
        Case("GET http://@a/ HTTP/1.1\r\n", .target, "empty user information in the target"),
        Case("GET http:// HTTP/1.1\r\n", .target, "an absolute target that is a scheme only"),
        Case("GET http://?a HTTP/1.1\r\n", .target, "a query in place of the authority"),
        Case("GET http://:80/ HTTP/1.1\r\n", .target, "a port without a host"),
        Case("GET http://[]/ HTTP/1.1\r\n", .target, "an empty IPv6 address"),
        Case("GET http://[:::]/ HTTP/1.1\r\n", .target, "brackets around what is no IPv6 address"),
        Case("GET http://[::1]a/ HTTP/1.1\r\n", .target, "text behind an IPv6 address"),
        Case("GET http:/a/ HTTP/1.1\r\n", .target, "one slash behind the scheme"),
        Case("GET //a b/ HTTP/1.1\r\n", .target, "a space in a path that looks like an authority"),
        Case("G\u{e9}T / HTTP/1.1\r\n", .requestLine, "a method beyond ASCII"),
        Case("GET\t/ HTTP/1.1\r\n", .requestLine, "a tab behind the method"),
        Case("GET /\tHTTP/1.1\r\n", .requestLine, "a tab before the version"),
        Case("CONNECT a:443 HTTP/1.1\r\n", .method, "CONNECT"),
        Case("TRACE / HTTP/1.1\r\n", .method, "TRACE"),
    ])
    private func `refuses what breaks the grammar`(example: Case) {
        #expect(fault(example.text) == example.fault)
        // The same verdict when it trickles in.
        var parser = RequestParser()
        let bytes = Array(example.text.utf8)
        var found: RequestFault?
        for end in 0...bytes.count where found == nil {
            do throws(RequestFault) {
                if try parser.parse(bytes.span.extracting(0..<end)) != nil { break }
            } catch {
                found = error
            }
        }
        #expect(found == example.fault)
    }

    // H001 H002 H004
    @Test(arguments: [
        Case("", .host, "no Host"),
        Case("Host: a\r\nHost: a\r\n", .host, "two Hosts, even equal ones"),
        Case("Host:\r\n", .host, "an empty Host"),
        Case("Host: a b\r\n", .host, "a space in Host"),
        Case("Host: a,b\r\n@: x\r\n", .fieldLine, "a bad name after a good Host"),
        Case("Host: a/b\r\n", .host, "a path in Host"),
        Case("Host: u@a\r\n", .host, "user information in Host"),
        Case("Host: a:b\r\n", .host, "a port that is no number"),
        Case("Host: a:65536\r\n", .host, "a port out of range"),
        Case("Host: [::1\r\n", .host, "an open bracket"),
        Case("Host: []\r\n", .host, "empty brackets"),
        Case("Host: :80\r\n", .host, "a port alone"),
        Case("Host: a%2\r\n", .host, "half a percent escape"),
        Case("Host: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n", .contentLength, "two equal lengths"),
        Case("Host: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n", .contentLength, "two different lengths"),
        Case("Host: a\r\nContent-Length: 5, 5\r\n", .contentLength, "a list of lengths"),
        Case("Host: a\r\nContent-Length: +5\r\n", .contentLength, "a plus sign"),
        Case("Host: a\r\nContent-Length: -5\r\n", .contentLength, "a minus sign"),
        Case("Host: a\r\nContent-Length: 0x5\r\n", .contentLength, "hexadecimal"),
        Case("Host: a\r\nContent-Length: 5 5\r\n", .contentLength, "a space between digits"),
        Case("Host: a\r\nContent-Length:\r\n", .contentLength, "an empty length"),
        Case("Host: a\r\nContent-Length: 9223372036854775808\r\n", .contentLength, "2^63"),
        Case("Host: a\r\nContent-Length: 18446744073709551621\r\n", .contentLength, "2^64 + 5"),
        Case("Host: a\r\nContent-Length: 340282366920938463463374607431768211461\r\n", .contentLength, "2^128 + 5"),
        Case("Host: a\r\nContent-Length: 4294967301\r\n", .contentTooLarge, "2^32 + 5 is merely huge"),
        Case("Host: a\r\nContent-Length: 9223372036854775807\r\n", .contentTooLarge, "2^63 - 1 is merely huge"),
        Case("Host: a\r\nContent-Length: 65537\r\n", .contentTooLarge, "one byte over the limit"),
        Case(
            "Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n", .conflictingLength, "length, then coding"),
        Case(
            "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n", .conflictingLength, "coding, then length"),
        Case("Host: a\r\nTransfer-Encoding: gzip, chunked\r\n", .unknownTransferCoding, "gzip below chunked"),
        Case(
            "Host: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", .unknownTransferCoding, "two lines"),
        Case("Host: a\r\nTransfer-Encoding: chunked, gzip\r\n", .transferEncoding, "chunked not last"),
        Case("Host: a\r\nTransfer-Encoding: identity\r\n", .transferEncoding, "not chunked at all"),
        Case("Host: a\r\nTransfer-Encoding: chunked, chunked\r\n", .transferEncoding, "chunked twice"),
        Case("Host: a\r\nTransfer-Encoding: xchunked\r\n", .transferEncoding, "a name that ends like chunked"),
        Case("Host: a\r\nTransfer-Encoding: chunked;q=1\r\n", .transferEncoding, "chunked with a parameter"),
        Case("Host: a\r\nTransfer-Encoding: chunk ed\r\n", .transferEncoding, "a space in the coding"),
        Case("Host: a\r\nTransfer-Encoding: \"chunked\"\r\n", .transferEncoding, "quotes around the coding"),
        Case("Host: a\r\nTransfer-Encoding:\r\n", .transferEncoding, "no coding"),
        Case("Host: a\r\nTransfer-Encoding: ,chunked\r\n", .transferEncoding, "an empty member"),
        Case("Host: a\r\nContent-Length: 1\r\nExpect: 200-ok\r\n", .expectation, "an unknown expectation"),
        Case("Host: a\r\nExpect: 100-continue\r\nExpect: x\r\n", .expectation, "a known and an unknown expectation"),
    ])
    private func `refuses fields that could be read in two ways`(example: Case) {
        #expect(fault("POST / HTTP/1.1\r\n" + example.text + "\r\n") == example.fault)
    }

    // H004
    @Test func `refuses a second Host also beside an absolute target`() {
        #expect(fault("GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n") == .host)
        #expect(fault("GET http://a/ HTTP/1.1\r\n\r\n") == .host)
    }

    @Test(arguments: ["a", "example.org", "127.0.0.1:80", "[::1]", "[::ffff:1.2.3.4]:65535", "a:", "a_b-c~d", "%41b"])
    func `takes a valid Host`(host: String) throws {
        #expect(try head("GET / HTTP/1.1\r\nHost: \(host)\r\n\r\n").fields["host"]?.text == host)
    }

    @Test(arguments: [
        ("a", true), ("a:", true), ("a:80", true), ("a%41", true), ("a!$&'()*+,;=~_.-", true), ("[::]", true),
        ("[::1]:80", true),
        ("[1::]", true), ("[1:2:3:4:5:6:7:8]", true), ("[1:2:3:4:5:6:7::]", true), ("[::2:3:4:5:6:7:8]", true),
        ("[1::3:4:5:6:7:8]", true), ("[::ffff:192.0.2.1]", true), ("[1:2:3:4:5:6:192.0.2.1]", true),
        ("[1::2:3:4:5:6:7:8]", false), ("[1:2:3:4:5:6:7]", false), ("[1:2:3:4:5:6:7:8:9]", false),
        ("[1:2:3:4:5:6:7:]", false),
        ("[1:2:3:4:5:6:7:8:]", false), ("[:1:2:3:4:5:6:7]", false), ("[::1::]", false), ("[:::]", false),
        ("[:]", false),
        ("[12345::]", false), ("[::g]", false), ("[::1", false), ("[::192.0.2]", false), ("[::192.0.2.256]", false),
        ("[::192.0.02.1]", false), ("[192.0.2.1]", false), ("[1:2:3:4:5:6:7:192.0.2.1]", false),
        ("[::192.0.2.1:1]", false),
        ("[::%25lo]", false), ("[v1.a]", false), ("a%20b", false), ("a b", false), ("a\u{7f}", false), ("a@b", false),
    ])
    func `a host is a name, or an address in brackets`(host: String, isHost: Bool) {
        for text in ["GET / HTTP/1.1\r\nHost: \(host)\r\n\r\n", "GET http://\(host)/ HTTP/1.1\r\nHost: a\r\n\r\n"] {
            #expect((fault(text) == nil) == isHost, "\(text)")
        }
    }

    @Test func `an absolute target replaces Host`() throws {
        let head = try head("GET HTTP://real:80/p?q HTTP/1.1\r\nHost: false\r\nX: y\r\n\r\n")
        #expect(head.path == "/p")
        #expect(head.query == "q")
        #expect(head.fields.values("host") == ["real:80"])
        #expect(head.fields["x"] == "y")
    }

    @Test(arguments: [
        ("GET http://a HTTP/1.1", "/"), ("GET http://a?q HTTP/1.1", "/"), ("OPTIONS http://a HTTP/1.1", "*"),
        ("OPTIONS * HTTP/1.1", "*"), ("OPTIONS /x HTTP/1.1", "/x"),
    ])
    func `an absolute target without a path means the root or the server`(line: String, path: String) throws {
        #expect(try head(line + "\r\nHost: a\r\n\r\n").path == path)
    }

    @Test func `keeps unknown methods for the handler`() throws {
        #expect(try head("BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n").method == Method("BREW"))
        #expect(try head("get / HTTP/1.1\r\nHost: a\r\n\r\n").method == Method("get"))
    }

    @Test func `HTTP 1.0 needs no Host and knows no transfer coding`() throws {
        let head = try head("POST / HTTP/1.0\r\nContent-Length: 2\r\nExpect: anything\r\n\r\n")
        #expect(head.isHTTP10)
        #expect(head.framing == .length(2))
        #expect(!head.keepsAlive)
        #expect(!head.expectsContinue)
        #expect(fault("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == .transferEncoding)
        #expect(fault("POST / HTTP/1.0\r\nTransfer-Encoding: gzip, chunked\r\n\r\n") == .transferEncoding)
        #expect(fault("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n") == .host)
    }

    @Test func `a higher minor version counts as 1.1`() throws {
        #expect(try head("GET / HTTP/1.2\r\nHost: a\r\n\r\n").keepsAlive)
    }

    @Test(arguments: [
        ("HTTP/1.1", "", true), ("HTTP/1.1", "Connection: close\r\n", false),
        ("HTTP/1.1", "Connection: x, Close ,y\r\n", false), ("HTTP/1.1", "Connection: closed\r\n", true),
        ("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n", false), ("HTTP/1.0", "", false),
        ("HTTP/1.0", "Connection: Keep-Alive\r\n", true), ("HTTP/1.0", "Connection: keep-alive, close\r\n", false),
    ])
    func `Connection decides about persistence`(version: String, field: String, keepsAlive: Bool) throws {
        #expect(try head("GET / \(version)\r\nHost: a\r\n\(field)\r\n").keepsAlive == keepsAlive)
    }

    @Test(arguments: [
        ("Content-Length: 5", BodyFraming.length(5), false), ("Content-Length: 005", .length(5), false),
        ("Content-Length: 0", .none, false), ("Content-Length: 65536", .length(65_536), false),
        ("Transfer-Encoding: chunked", .chunked, false), ("transfer-encoding:\t CHUNKED \t", .chunked, false),
        ("Content-Length: 5\r\nExpect: 100-Continue", .length(5), true), ("Expect: 100-continue", .none, false),
    ])
    func `finds the framing`(field: String, framing: BodyFraming, expectsContinue: Bool) throws {
        let head = try head("POST / HTTP/1.1\r\nHost: a\r\n\(field)\r\n\r\n")
        #expect(head.framing == framing)
        #expect(head.expectsContinue == expectsContinue)
    }

    @Test(arguments: [(99, nil), (100, nil), (101, RequestFault.requestLineTooLong)])
    func `bounds the request line`(length: Int, expected: RequestFault?) {
        let line = "GET /" + String(repeating: "a", count: length - 14) + " HTTP/1.1"
        #expect(line.utf8.count == length)
        let limits = RequestLimits(requestLineBytes: 100)
        #expect(fault(line + "\r\nHost: a\r\n\r\n", limits) == expected)
        #expect(fault(line + "\r", limits) == expected)
        #expect(fault(line, limits) == expected)
    }

    @Test(arguments: [(199, nil), (200, nil), (201, RequestFault.headTooLarge)])
    func `bounds the head`(length: Int, expected: RequestFault?) {
        let start = "GET / HTTP/1.1\r\nHost: a\r\nX: "
        let text = start + String(repeating: "a", count: length - start.utf8.count - 4) + "\r\n\r\n"
        #expect(text.utf8.count == length)
        let limits = RequestLimits(headBytes: 200)
        #expect(fault(text, limits) == expected)
        // An endless line is refused without its end.
        #expect(fault(start + String(repeating: "a", count: 200), limits) == .headTooLarge)
    }

    /// A bad line end whose octets stand just before a limit, at it and behind it.
    @Test(arguments: ["\n", "\r\r", "\0"], 195...204)
    func `refuses a bad line end for the same reason however much arrives at once`(end: String, length: Int) throws {
        let limits = RequestLimits(requestLineBytes: 200, headBytes: 200)
        for start in ["GET /", "GET / HTTP/1.1\r\nHost: a\r\nX: "] {
            let text = start + String(repeating: "a", count: length - start.utf8.count) + end + "a\r\n\r\n"
            var parser = RequestParser(limits: limits)
            var byOctets: RequestFault?
            for count in 1...text.utf8.count where byOctets == nil {
                do throws(RequestFault) {
                    #expect(try parser.parse(Array(text.utf8.prefix(count)).span) == nil)
                } catch {
                    byOctets = error
                }
            }
            #expect(fault(text, limits) == byOctets)
            // The last place of the end at which it is refused for itself. A CR is a fault when the octet behind it is there.
            let last = start.utf8.count == 5 ? 200 : end.utf8.first == UInt8(ascii: "\r") ? 198 : 199
            #expect(byOctets != nil && (byOctets == .lineEnd) == (length <= last))
        }
    }

    @Test(arguments: [(9, nil), (10, nil), (11, RequestFault.tooManyFields)])
    func `bounds the number of fields`(count: Int, expected: RequestFault?) {
        let fields = String(repeating: "X: y\r\n", count: count - 1)
        #expect(fault("GET / HTTP/1.1\r\nHost: a\r\n\(fields)\r\n", RequestLimits(fieldCount: 10)) == expected)
    }

    @Test func `every fault has an error status and a text`() {
        for fault in RequestFault.allCases {
            #expect((400...599).contains(fault.status.code))
            #expect(!fault.detail.isEmpty)
        }
    }

    // MARK: Heads of reads

    private static let plainHeads = [
        "GET /credentials HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /credentials?a=b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAuthorization: Bearer x\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nUser-Agent: curl/8\r\nHOST:h\r\nAccept: */*\r\nif-none-match:  \"1\" \r\n\r\n",
        "GET /credentials? HTTP/1.1\r\nHost: [::1]:1\r\nConnection: Close\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nX-A:\r\n\r\n",
    ]

    private static let otherHeads = [
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
        "GET /credentials HTTP/1.1\r\nHost: h\r\nX: \u{e9}\r\n\r\n",
        "GET  /credentials HTTP/1.1\r\nHost: h\r\n\r\n", "GET /credentials  HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /credentials HTTP/1.1\r\nHost: h\r\nPrefer: wait=1\r\n\r\n",
    ]

    /// What a parser says of a head that comes in pieces which end there.
    private static func outcome(_ bytes: [UInt8], _ ends: [Int], _ limits: RequestLimits = RequestLimits()) -> String {
        var parser = RequestParser(limits: limits)
        for end in ends {
            do throws(RequestFault) {
                guard let head = try parser.parsed(bytes.span.extracting(0..<end)) else { continue }
                let fields = head.fields.all.map { "\($0.name): \($0.value)" }
                let names = head.fieldLines.map(\.known)
                return
                    "\(head.length) \(head.method) \(head.path) \(head.query ?? "-") \(fields) \(names) \(head.framing) "
                    + "\(head.isHTTP10) \(head.keepsAlive) \(head.expectsContinue)"
            } catch {
                return "\(error)"
            }
        }
        return "partial"
    }

    @Test(arguments: plainHeads + otherHeads)
    func `reads a head in the same way however it is cut up, also with more behind it`(text: String) {
        let whole = Self.outcome(Array(text.utf8), [text.utf8.count])
        #expect(whole == Self.outcome(Array(text.utf8), Array(0...text.utf8.count)))
        if whole == "partial" { return }
        for tail in ["G", "GET / HTTP/1.1\r\n"] {
            let bytes = Array((text + tail).utf8)
            #expect(Self.outcome(bytes, [bytes.count]) == whole)
            #expect(Self.outcome(bytes, Array(0...bytes.count)) == whole)
        }
    }

    @Test func `reads each head as the one before it had never been`() throws {
        var parser = RequestParser()
        for text in Self.plainHeads + Self.otherHeads + Self.plainHeads {
            parser.reset()
            let bytes = Array(text.utf8)
            let alone = parse(text)
            let again = Result { () throws(RequestFault) in try parser.parsed(bytes.span) }
            switch (alone, again) {
            case (.failure(let one), .failure(let other)): #expect(one == other)
            case (.success(let one), .success(let other)):
                #expect(one?.fields == other?.fields)
                #expect(one?.length == other?.length)
            default: Issue.record("\(text)")
            }
        }
    }

    @Test func `reads a head in the same way however it is cut up, under every change of one byte`() {
        let head = Array(
            "GET /credentials?storage_key=a HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer k\r\nConnection: close\r\nIf-None-Match: \"1\"\r\n\r\n"
                .utf8)
        var readCount = 0
        for index in head.indices {
            for byte in UInt8.min...UInt8.max where byte != head[index] {
                var changed = head
                changed[index] = byte
                let whole = Self.outcome(changed, [head.count])
                if whole.first?.isNumber == true { readCount += 1 }
                #expect(Self.outcome(changed, [index, index + 1, head.count]) == whole)
            }
        }
        #expect(readCount > 1000)
    }

    @Test func `heeds the limits of a read's head, to the byte`() {
        let value = String(repeating: "x", count: 100)
        let head = Array("GET /credentials HTTP/1.1\r\nHost: h\r\nX: \(value)\r\n\r\n".utf8)
        for (change, isRead) in [(-1, false), (0, true), (1, true)] {
            let limits = [
                RequestLimits(headBytes: head.count + change), RequestLimits(fieldCount: 2 + change),
                RequestLimits(requestLineBytes: "GET /credentials HTTP/1.1".utf8.count + change),
            ]
            for limits in limits {
                #expect((Self.outcome(head, [head.count], limits).first?.isNumber == true) == isRead)
                #expect((Self.outcome(head, Array(0...head.count), limits).first?.isNumber == true) == isRead)
            }
        }
    }

    @Test(
        arguments: [
            ("Host", .host), ("CONNECTION", .connection), ("content-length", .contentLength),
            ("Transfer-Encoding", .transferEncoding), ("Expect", .expect), ("authorization", .authorization),
            ("AuthorizatioN", .authorization), ("If-None-Match", .ifNoneMatch), ("Prefer", .prefer),
            ("X-Tenant", .tenant), ("Hos", .other), ("Hosts", .other), ("Authorizatio", .other),
            ("Authorizations", .other), ("X-Tenants", .other), ("If_None_Match", .other), ("X", .other),
            ("DPoP-Htm", .proof), ("dpop-HTU", .proof), ("DPoP-Ht", .other), ("DPoP-Hta", .other),
            ("DPoP-Nonce", .other),
        ] as [(String, FieldName)])
    func `knows the names that are looked for`(name: String, known: FieldName) {
        let fields = Fields(dictionaryLiteral: ("A", "b"), (name, "value"))
        #expect(fields.lines.map(\.known) == [.other, known])
        let text = "OPTIONS * HTTP/1.0\r\n\(name): 0\r\n\r\n"
        if case .success(let head?) = parse(text) { #expect(head.fieldLines.map(\.known) == [known]) }
    }
}
