import ExternalText
import HTTPCodec
import HTTPSClient
import OAuth
import Reactor

/// What is read of HTTP, of its fields and of addresses.
enum HTTPReaders {
    /// A head means the same whether it arrives whole or in pieces.
    static func readRequest(_ bytes: [UInt8]) {
        func outcome(_ head: borrowing RequestHead) -> String {
            let copy = head.copied(from: bytes.span)
            return "\(head.length) \(copy.method) \(copy.path) \(copy.query ?? "-") \(copy.fields) \(copy.framing) "
                + "\(copy.isHTTP10) \(copy.keepsAlive) \(copy.expectsContinue)"
        }
        func read(by step: Int) -> String {
            var parser = RequestParser()
            var count = 0
            while count < bytes.count {
                count = min(bytes.count, count + step)
                do throws(RequestFault) {
                    if let head = try parser.parse(bytes.span.extracting(..<count)) { return outcome(head) }
                } catch {
                    return "\(error)"
                }
            }
            return "incomplete"
        }
        let once = read(by: max(1, bytes.count))
        let pieces = read(by: 1)
        require(once == pieces, "at once: \(once); by octets: \(pieces)")
    }

    static func readResponse(_ bytes: [UInt8]) {
        for method in [Method.get, .head] {
            func outcome(by step: Int) -> String {
                var parser = ResponseParser(requestMethod: method)
                var used = 0
                do throws(ResponseFault) {
                    while used < bytes.count {
                        let end = min(bytes.count, used + step)
                        switch try parser.consume(bytes.span.extracting(used..<end)) {
                        case .needsMore: used = end
                        case .complete(let count): return text(parser.response, used + count)
                        }
                    }
                    return text(try parser.peerClosed(), used)
                } catch {
                    return "\(error)"
                }
            }
            func text(_ response: ParsedResponse, _ used: Int) -> String {
                "\(used) \(response.status) \(response.fields) \(response.body.count) "
                    + "\(WireText(response.body).text) \(response.allowsReuse)"
            }
            let (once, pieces) = (outcome(by: max(1, bytes.count)), outcome(by: 1))
            require(once == pieces, "at once: \(once); by octets: \(pieces)")
        }
    }

    /// Content is the same however its chunks arrive, and however it is divided into chunks.
    static func readChunks(_ bytes: [UInt8]) {
        let (once, pieces) = (chunks(bytes, by: max(1, bytes.count)), chunks(bytes, by: 1))
        require(once == pieces, "at once: \(once); by octets: \(pieces)")
        require(once.content.count <= bytes.count, "there is more content than input")
        var output: [UInt8] = []
        let step = 1 + Int(bytes.first ?? 0)
        for start in stride(from: 0, to: bytes.count, by: step) {
            ResponseEncoder.appendChunk(Array(bytes[start..<min(bytes.count, start + step)]), to: &output)
        }
        ResponseEncoder.appendLastChunk(to: &output)
        let again = chunks(output, by: 13)
        require(
            again.content == bytes && again.end == "complete at \(output.count)", "encoded, it is read as \(again)")
    }

    private static func chunks(_ bytes: [UInt8], by step: Int) -> (content: [UInt8], end: String) {
        var decoder = ChunkedDecoder(bodyLimit: 1 << 20)
        var content: [UInt8] = []
        var start = 0
        while start < bytes.count {
            let end = min(bytes.count, start + step)
            var offset = start
            reading: while true {
                do throws(ChunkedDecoder.Fault) {
                    switch try decoder.next(bytes.span.extracting(..<end), from: offset) {
                    case .data(let range):
                        content += bytes[range]
                        offset = range.upperBound
                    case .needsMore: break reading
                    case .complete(let end): return (content, "complete at \(end)")
                    }
                } catch {
                    return (content, "\(error)")
                }
            }
            start = end
        }
        return (content, "incomplete")
    }

    /// What was decoded says the same after it was encoded again.
    static func readForm(_ bytes: [UInt8]) {
        guard let pairs = try? FormEncoding.decode(bytes.span) else { return }
        let again = try? FormEncoding.decode(Array(FormEncoding.encode(pairs).utf8).span)
        require(again == pairs, "\(pairs) became \(String(describing: again))")
    }

    static func readHeader(_ bytes: [UInt8]) {
        if let range = BearerToken.find(bytes.span, 0..<bytes.count) {
            require(!range.isEmpty && range.count <= BearerToken.longest, "a bearer token has \(range.count) octets")
        }
        guard let text = WireText(validating: bytes.span) else { return }
        let now = Timestamp(seconds: 1_700_000_000)
        for status in [429, 503] {
            if let wait = RetryAfter.parse(text, status: status, now: now) {
                require(wait >= .zero && wait <= RetryAfter.longest, "\(status): the wait is \(wait)")
            }
        }
        if let date = HTTPDate.parse(text) {
            let form = HTTPDate.format(secondsSince1970: date.seconds)
            // The day of the week is not read, and earlier years cannot be written.
            require(date.seconds < 0 || form.dropFirst(3) == bytes.dropFirst(3), "a date is written as \(form)")
        }
        if let time = Timestamp(rfc3339: text.text) {
            require(Timestamp(rfc3339: time.description)?.seconds == time.seconds, "a time is written as \(time)")
        }
        let type = MediaType(text)
        require(type.name.count + type.parameters.reduce(0) { $0 + $1.count } <= bytes.count, "a media type grew")
        var fields = Fields()
        fields.append("A", text.text)
        for member in fields.list("a") { require(!member.isEmpty, "a member of a list is empty") }
        _ = ScopeSet(granted: text)
    }

    static func readAddress(_ bytes: [UInt8]) {
        guard let text = WireText(validating: bytes.span) else { return }
        if let url = URLTarget(text.text) {
            let again = URLTarget("\(url.scheme.rawValue)://\(url.origin.authority)\(url.pathAndQuery)")
            require(again == url, "\(url) became \(String(describing: again))")
        }
        _ = URLTarget.refusedPort(of: text.text)
        _ = try? OutboundProxy(parsing: text.text)
        _ = try? PinSet(parsing: text.split(at: ",").map(\.text))
        if let address = NetworkAddress(parsing: bytes[...]) {
            require(
                NetworkAddress(parsing: Array(address.description.utf8)[...]) == address, "\(address) is not itself")
        }
        _ = NetworkRange(parsing: text.text)
        if let request = AppToAppRequest(link: text) {
            let again = AppToAppRequest(link: WireText(request.link(to: "https://a.example/authorize")))
            require(again == request, "a request between apps became \(String(describing: again))")
            require(AbsoluteURI.isValid(WireText(request.answer(code: "c"))), "no answer can be sent to \(request)")
        }
        _ = try? AuthorizationResponse(query: text)
        if let key = StorageKey(text.text) { require(StorageKey(key.description) == key, "\(key) is not itself") }
        if let name = TenantName(text.text) { require(TenantName(name.description) == name, "\(name) is not itself") }
    }
}
