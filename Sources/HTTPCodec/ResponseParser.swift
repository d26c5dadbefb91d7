/// Reads one response piece by piece, as strictly as `RequestParser` reads requests.
package struct ResponseParser {
    package enum Progress: Equatable {
        /// All given bytes were used, and the response is incomplete.
        case needsMore
        /// The response is complete. This many of the given bytes belong to it. No request asked for the bytes after
        /// them.
        case complete(Int)
    }

    private enum State {
        case head
        case length(remaining: Int)
        case chunked(ChunkedDecoder)
        case untilClose
        case complete
    }

    private struct Head {
        var status: Status
        var fields: Fields
        var allowsReuse: Bool
    }

    private let limits: ResponseLimits
    private let requestMethod: Method
    private var state = State.head
    /// The bytes of the current head while it is incomplete.
    private var buffer: [UInt8] = []
    private var lineReader = LineReader()
    private var statusLine: (status: Status, minorVersion: UInt8)?
    private var lines: [FieldLine] = []
    /// The number of bytes of the interim heads before the current head.
    private var earlierHeadBytes = 0
    private var interimCount = 0
    private var head: Head?
    private var body: [UInt8] = []

    /// - Parameter requestMethod: the method of the request, because the response to HEAD has no content.
    package init(limits: ResponseLimits = ResponseLimits(), requestMethod: Method) {
        self.limits = limits
        self.requestMethod = requestMethod
    }

    /// Reads the bytes that follow those of the earlier calls. Must not be called after `.complete` or a fault.
    package mutating func consume(_ bytes: Span<UInt8>) throws(ResponseFault) -> Progress {
        var index = 0
        while true {
            switch state {
            case .head:
                guard let end = try consumeHead(bytes, from: index) else { return .needsMore }
                index = end
            case .length(let remaining):
                let count = min(remaining, bytes.count - index)
                Self.append(bytes.extracting(index..<index + count), to: &body)
                index += count
                if count < remaining {
                    state = .length(remaining: remaining - count)
                    return .needsMore
                }
                state = .complete
            case .chunked(var decoder):
                let end = try consumeChunks(bytes, from: index, &decoder)
                guard let end else {
                    state = .chunked(decoder)
                    return .needsMore
                }
                index = end
                state = .complete
            case .untilClose:
                guard bytes.count - index <= limits.bodyBytes - body.count else { throw .bodyTooLarge }
                Self.append(bytes.extracting(index..<bytes.count), to: &body)
                return .needsMore
            case .complete:
                return .complete(index)
            }
        }
    }

    /// Call this when the server has closed its side properly. With TLS that means close_notify, because nothing else
    /// protects the length of a close-delimited body (RFC 9112 §9.8).
    package mutating func peerClosed() throws(ResponseFault) -> ParsedResponse {
        switch state {
        case .complete:
            break
        case .untilClose:
            state = .complete
        case .head:
            throw buffer.isEmpty && earlierHeadBytes == 0 ? .closedBeforeResponse : .truncated
        case .length, .chunked:
            throw .truncated
        }
        return response
    }

    /// The response.
    /// - Precondition: `consume` returned `.complete` or `peerClosed` returned.
    package var response: ParsedResponse {
        guard case .complete = state, let head else { preconditionFailure("the response is not complete") }
        return ParsedResponse(status: head.status, fields: head.fields, body: body, allowsReuse: head.allowsReuse)
    }

    /// The head of the final response; nil until it is complete.
    package var receivedHead: (status: Status, fields: Fields)? { head.map { ($0.status, $0.fields) } }

    /// Takes the content that has come since the last call, for a reader that does not want it whole: `response` is then without
    /// it, and `ResponseLimits.bodyBytes` bounds what comes between two calls where the connection's end is that of the content.
    package mutating func takeBody() -> [UInt8] {
        // As in `append`: the storage of empty arrays is not written.
        if body.isEmpty { return [] }
        defer { body = [] }
        return body
    }

    // MARK: Head

    /// Returns the end of the head in `bytes`; nil if the head is incomplete.
    private mutating func consumeHead(_ bytes: Span<UInt8>, from start: Int) throws(ResponseFault) -> Int? {
        let before = buffer.count
        // One byte beyond the limit is enough to detect that the limit is exceeded.
        let room = limits.headBytes - earlierHeadBytes - before + 1
        let taken = min(bytes.count - start, max(0, room))
        Self.append(bytes.extracting(start..<start + taken), to: &buffer)
        while let line = try nextLine() {
            guard lineReader.start <= limits.headBytes - earlierHeadBytes else { throw .headTooLarge }
            if statusLine == nil {
                statusLine = try Self.parseStatusLine(buffer.span, line)
            } else if !line.isEmpty {
                guard lines.count < limits.fieldCount else { throw .headTooLarge }
                do throws(FieldLine.Malformed) {
                    lines.append(try FieldLine.parse(buffer.span, line))
                } catch {
                    throw .malformedHead
                }
            } else {
                let end = lineReader.start
                try headReceived(length: end)
                return start + end - before
            }
        }
        guard buffer.count <= limits.headBytes - earlierHeadBytes else { throw .headTooLarge }
        return nil
    }

    private mutating func nextLine() throws(ResponseFault) -> Range<Int>? {
        var reader = lineReader
        defer { lineReader = reader }
        do throws(LineReader.Fault) {
            return try reader.next(in: buffer.span)
        } catch {
            throw .malformedHead
        }
    }

    /// `HTTP-version SP status-code SP [ reason-phrase ]` (RFC 9112 §4).
    private static func parseStatusLine(
        _ bytes: Span<UInt8>, _ line: Range<Int>
    ) throws(ResponseFault) -> (status: Status, minorVersion: UInt8) {
        let text = bytes.extracting(line)
        guard text.count >= 13, let version = HTTPVersion(text.extracting(0..<8)), text[8] == UInt8(ascii: " "),
            text[12] == UInt8(ascii: " ")
        else { throw .malformedHead }
        guard version.major == 1 else { throw .unsupportedVersion }
        var code = 0
        for index in 9..<12 {
            guard ByteClass.isDigit(text[index]) else { throw .malformedHead }
            code = code * 10 + Int(text[index] - UInt8(ascii: "0"))
        }
        guard (100...599).contains(code) else { throw .malformedHead }
        return (Status(code), version.minor)
    }

    private mutating func headReceived(length: Int) throws(ResponseFault) {
        guard let (status, minorVersion) = statusLine else { throw .malformedHead }
        buffer.removeSubrange(length...)
        let fields = Fields(bytes: buffer, lines: lines)
        earlierHeadBytes += length
        buffer = []
        lines = []
        lineReader = LineReader()
        statusLine = nil
        if status.code < 200 {
            guard status.code != 101 else { throw .unexpectedUpgrade }
            interimCount += 1
            guard interimCount <= limits.interimResponses else { throw .tooManyInterimResponses }
            return
        }
        let message: MessageFields
        do throws(MessageFields.Fault) {
            message = try MessageFields(
                fields.bytes.span, fields.lines.span, allowsTransferEncoding: minorVersion > 0)
        } catch {
            switch error {
            case .contentLength, .conflictingLength: throw .ambiguousLength
            case .transferEncoding, .unknownTransferCoding: throw .unsupportedTransferCoding
            case .repeatedHost: throw .malformedHead
            }
        }
        var allowsReuse = !message.hasClose && (minorVersion > 0 || message.hasKeepAlive)
        if requestMethod == .head || status.forbidsContent {
            // A server must not send a length with 204 (RFC 9110 §8.6). Content might follow, so the response is
            // refused.
            if status.code == 204, message.contentLength ?? 0 > 0 || message.isChunked { allowsReuse = false }
            state = .complete
        } else if message.isChunked {
            state = .chunked(
                ChunkedDecoder(bodyLimit: limits.bodyBytes, overheadLimit: limits.chunkOverheadBytes))
        } else if let length = message.contentLength {
            guard length <= limits.bodyBytes else { throw .bodyTooLarge }
            state = .length(remaining: length)
        } else {
            allowsReuse = false
            state = .untilClose
        }
        head = Head(status: status, fields: fields, allowsReuse: allowsReuse)
    }

    // MARK: Body

    private static func append(_ bytes: Span<UInt8>, to array: inout [UInt8]) {
        // Appending no elements to an empty array writes the count 0 into the storage that all empty arrays share.
        // Thread sanitizers report this data race in Swift's library (6.3).
        if bytes.isEmpty { return }
        array.append(addingCapacity: bytes.count) { output in
            for index in bytes.indices { output.append(bytes[index]) }
        }
    }

    private mutating func consumeChunks(
        _ bytes: Span<UInt8>, from start: Int, _ decoder: inout ChunkedDecoder
    ) throws(ResponseFault) -> Int? {
        var index = start
        while true {
            let step: ChunkedDecoder.Step
            do throws(ChunkedDecoder.Fault) {
                step = try decoder.next(bytes, from: index)
            } catch {
                throw error == .bodyTooLarge ? .bodyTooLarge : .malformedChunk
            }
            switch step {
            case .data(let range):
                Self.append(bytes.extracting(range), to: &body)
                index = range.upperBound
            case .needsMore:
                return nil
            case .complete(let end):
                return end
            }
        }
    }
}
