/// Reads the head of a request from bytes that may arrive one at a time (RFC 9112 §3, §5, §6).
///
/// Each finished line is checked when its CRLF arrives and not looked at again, so the work is linear however the head
/// is cut up, and a head that can no longer be valid is refused without waiting for its end.
package struct RequestParser {
    private struct RequestLine {
        var method: Range<Int>
        var target: RequestTarget
        var minorVersion: UInt8
    }

    private let limits: RequestLimits
    private var lineReader = LineReader()
    private var skippedEmptyLine = false
    private var requestLine: RequestLine?
    private var lines: [Fields.Line] = []

    package init(limits: RequestLimits = RequestLimits()) {
        self.limits = limits
    }

    /// The head, or nil when it has not all arrived. Not to be called again after a head or a fault.
    /// - Parameter bytes: the stream from the head's first byte on, with everything given before. What follows the head
    ///   is not looked at.
    package mutating func parse(_ bytes: Span<UInt8>) throws(RequestFault) -> RequestHead? {
        while let line = try nextLine(bytes) {
            guard requestLine != nil else {
                // RFC 9112 §2.2: an empty line in front of the request line is ignored; one, not any number.
                if line.isEmpty, !skippedEmptyLine {
                    skippedEmptyLine = true
                    continue
                }
                guard line.count <= limits.requestLineBytes else { throw .requestLineTooLong }
                requestLine = try Self.parseRequestLine(bytes, line)
                // Most heads have about this many; growing from one would allocate four times.
                lines.reserveCapacity(min(16, limits.fieldCount))
                continue
            }
            guard lineReader.start <= limits.headBytes else { throw .headTooLarge }
            if line.isEmpty { return try finish(bytes.extracting(0..<lineReader.start)) }
            guard lines.count < limits.fieldCount else { throw .tooManyFields }
            do throws(FieldLine.Malformed) {
                lines.append(try FieldLine.parse(bytes, line))
            } catch {
                throw .fieldLine
            }
        }
        if requestLine == nil {
            guard lineReader.unfinishedLength <= limits.requestLineBytes else { throw .requestLineTooLong }
        } else {
            // At least one more byte must come.
            guard bytes.count < limits.headBytes else { throw .headTooLarge }
        }
        return nil
    }

    private mutating func nextLine(_ bytes: Span<UInt8>) throws(RequestFault) -> Range<Int>? {
        do throws(LineReader.Fault) {
            return try lineReader.next(in: bytes)
        } catch {
            throw .lineEnd
        }
    }

    /// `method SP request-target SP HTTP-version` (RFC 9112 §3), with exactly one space at each place.
    private static func parseRequestLine(
        _ bytes: Span<UInt8>, _ line: Range<Int>
    ) throws(RequestFault) -> RequestLine {
        var methodEnd = line.lowerBound
        while methodEnd < line.upperBound, ByteClass.isToken(bytes[methodEnd]) { methodEnd += 1 }
        let targetStart = methodEnd + 1
        let targetEnd = line.upperBound - 9
        guard methodEnd > line.lowerBound, targetEnd > targetStart, bytes[methodEnd] == UInt8(ascii: " "),
            bytes[targetEnd] == UInt8(ascii: " "),
            let version = HTTPVersion(bytes.extracting(targetEnd + 1..<line.upperBound))
        else { throw .requestLine }
        guard version.major == 1 else { throw .version }
        let method = line.lowerBound..<methodEnd
        guard !equals(bytes, method, "CONNECT"), !equals(bytes, method, "TRACE") else { throw .method }
        let isOptions = equals(bytes, method, "OPTIONS")
        guard let target = RequestTarget(bytes, targetStart..<targetEnd, isOptions: isOptions) else { throw .target }
        return RequestLine(method: method, target: target, minorVersion: version.minor)
    }

    private mutating func finish(_ head: Span<UInt8>) throws(RequestFault) -> RequestHead {
        guard let requestLine else { throw .requestLine }
        let target = requestLine.target
        let text = [UInt8](capacity: head.count) { output in
            for index in head.indices { output.append(head[index]) }
        }
        var fields = Fields(bytes: text, lines: lines)
        // A higher minor version of HTTP/1 is answered as 1.1 (RFC 9110 §2.5).
        let isHTTP10 = requestLine.minorVersion == 0
        let message = try messageFields(fields, isHTTP10: isHTTP10)
        if let host = message.host {
            guard RequestTarget.isHost(head, host) else { throw .host }
        } else if !isHTTP10 {
            throw .host
        }
        let framing = try framing(of: message)
        if !isHTTP10, message.expectation == .unknown { throw .expectation }
        if let authority = target.authority {
            fields.set("Host", Self.string(text, authority))
        }
        let method = Method(Self.string(text, requestLine.method))
        let path: String
        if target.path.isEmpty {
            // RFC 9112 §3.2.1 and §3.2.4: an absolute-form target without a path means the root, or the server as a
            // whole for OPTIONS.
            path = method == .options && target.query == nil ? "*" : "/"
        } else {
            path = Self.string(text, target.path)
        }
        return RequestHead(
            length: head.count, method: method, path: path, query: target.query.map { Self.string(text, $0) },
            fields: fields, framing: framing, isHTTP10: isHTTP10,
            keepsAlive: !message.hasClose && (!isHTTP10 || message.hasKeepAlive),
            expectsContinue: !isHTTP10 && message.expectation == .continue && framing != .none)
    }

    private func messageFields(_ fields: Fields, isHTTP10: Bool) throws(RequestFault) -> MessageFields {
        do throws(MessageFields.Fault) {
            return try MessageFields(fields, allowsTransferEncoding: !isHTTP10)
        } catch {
            switch error {
            case .contentLength: throw .contentLength
            case .conflictingLength: throw .conflictingLength
            case .transferEncoding: throw .transferEncoding
            case .unknownTransferCoding: throw .unknownTransferCoding
            case .repeatedHost: throw .host
            }
        }
    }

    private func framing(of message: MessageFields) throws(RequestFault) -> BodyFraming {
        if message.isChunked { return .chunked }
        guard let length = message.contentLength, length > 0 else { return .none }
        guard length <= limits.bodyBytes else { throw .contentTooLarge }
        return .length(length)
    }

    private static func string(_ bytes: [UInt8], _ range: Range<Int>) -> String {
        String(decoding: bytes[range], as: UTF8.self)
    }

    private static func equals(_ bytes: Span<UInt8>, _ range: Range<Int>, _ wanted: String) -> Bool {
        let wanted = wanted.utf8.span
        guard range.count == wanted.count else { return false }
        for index in wanted.indices where bytes[range.lowerBound + index] != wanted[index] { return false }
        return true
    }
}
