/// Reads the head of a request from bytes that may arrive one at a time (RFC 9112 §3, §5, §6).
///
/// Each line is checked once, when its CRLF arrives. So the work is linear, into however many pieces the head is
/// divided, and an invalid head is refused before its end arrives.
///
/// A parser can be reused for the next head. It keeps its memory, so that a head which arrives in one piece costs no
/// allocation.
package struct RequestParser {
    private let limits: RequestLimits
    private let sections: FieldSections
    /// The position in `sections` that is tried first for the head's fields.
    private var expected = 0
    private var lineReader = LineReader()
    private var skippedEmptyLine = false
    private var requestLine: RequestLine?
    /// The start of the fields, once the request line is read. The offsets of `lineReader` and of the field lines count
    /// from there.
    private var fieldsStart = 0
    private var lines: [FieldLine] = []
    /// A bit for each known name among the lines, and a bit for each that occurs more than once.
    private var names: UInt16 = 0
    private var repeatedNames: UInt16 = 0
    /// The value of the last Host field.
    private var host = 0..<0
    /// The section for fields that are not in the cache.
    private let section = FieldSection()

    /// - Parameter sections: the cache of field sections. The parsers of one thread may share it.
    package init(limits: RequestLimits = RequestLimits(), sections: FieldSections = FieldSections()) {
        self.limits = limits
        self.sections = sections
    }

    /// Prepares the parser for the next head.
    /// - Parameter section: `RequestHead.section` of the last head of the same connection; nil for its first head.
    package mutating func reset(section: Int? = nil) {
        expected = section ?? sections.latest
        lineReader = LineReader()
        skippedEmptyLine = false
        requestLine = nil
    }

    /// A parser with the same limits and cache, for a head that is read while this parser's head is incomplete.
    package func another() -> RequestParser { RequestParser(limits: limits, sections: sections) }

    /// The head; nil if it is incomplete. After a head or a fault, call `reset` before the next call.
    /// - Parameter bytes: all received bytes from the head's first byte on, including those of earlier calls. Bytes
    ///   after the head are ignored.
    package mutating func parse(_ bytes: Span<UInt8>) throws(RequestFault) -> RequestHead? {
        let section: FieldSection
        if requestLine == nil {
            guard try readRequestLine(bytes) else { return nil }
            let fields = bytes.extracting(fieldsStart...)
            if let known = knownSection(fields) {
                section = known
            } else {
                (names, repeatedNames) = (0, 0)
                lines.removeAll(keepingCapacity: true)
                // Most heads have at most this many lines. Growing from one line would allocate four times.
                if lines.capacity == 0 { lines.reserveCapacity(min(16, limits.fieldCount)) }
                guard let read = try readFields(fields) else { return nil }
                section = read
            }
        } else {
            guard let read = try readFields(bytes.extracting(fieldsStart...)) else { return nil }
            section = read
        }
        guard let requestLine else { throw .requestLine }
        return RequestHead(requestLine, fieldsStart: fieldsStart, section)
    }

    /// Returns whether the request line is complete.
    private mutating func readRequestLine(_ bytes: Span<UInt8>) throws(RequestFault) -> Bool {
        while let line = try nextLine(bytes) {
            // One empty line before the request line is ignored (RFC 9112 §2.2).
            if line.isEmpty, !skippedEmptyLine {
                skippedEmptyLine = true
                continue
            }
            guard line.count <= limits.requestLineBytes else { throw .requestLineTooLong }
            requestLine = try Self.parseRequestLine(bytes, line)
            fieldsStart = lineReader.start
            lineReader = LineReader()
            return true
        }
        guard lineReader.unfinishedLength <= limits.requestLineBytes else { throw .requestLineTooLong }
        return false
    }

    /// The cached section whose text the fields begin with, if it is within the limits.
    private func knownSection(_ fields: Span<UInt8>) -> FieldSection? {
        guard let requestLine, !requestLine.isHTTP10, let section = sections.find(fields, at: expected),
            fieldsStart + section.length <= limits.headBytes
        else { return nil }
        return section
    }

    /// The parsed fields; nil if they are incomplete.
    private mutating func readFields(_ fields: Span<UInt8>) throws(RequestFault) -> FieldSection? {
        while let line = try nextLine(fields) {
            guard fieldsStart + lineReader.start <= limits.headBytes else { throw .headTooLarge }
            if line.isEmpty { return try finish(fields) }
            guard lines.count < limits.fieldCount else { throw .tooManyFields }
            do throws(FieldLine.Malformed) {
                let line = try FieldLine.parse(fields, line)
                let name = line.known.bit
                repeatedNames |= names & name
                names |= name
                if case .host = line.known { host = line.value }
                lines.append(line)
            } catch {
                throw .fieldLine
            }
        }
        // At least one more byte will follow.
        guard fieldsStart + fields.count < limits.headBytes else { throw .headTooLarge }
        return nil
    }

    private mutating func nextLine(_ bytes: Span<UInt8>) throws(RequestFault) -> Range<Int>? {
        do throws(LineReader.Fault) {
            return try lineReader.next(in: bytes)
        } catch {
            throw lineFault(bytes)
        }
    }

    /// The fault at an octet that no line can have. Beyond a limit it is that of the limit: a head that arrives octet by octet
    /// is refused for its length before that octet is there.
    private func lineFault(_ bytes: Span<UInt8>) -> RequestFault {
        if requestLine == nil {
            return lineReader.unfinishedLength > limits.requestLineBytes ? .requestLineTooLong : .lineEnd
        }
        let place = lineReader.start + lineReader.unfinishedLength
        // A CR is a fault when the octet behind it is there.
        let received = bytes[place] == UInt8(ascii: "\r") ? place + 1 : place
        return fieldsStart + received < limits.headBytes ? .lineEnd : .headTooLarge
    }

    /// `method SP request-target SP HTTP-version` (RFC 9112 §3), each time with exactly one space.
    private static func parseRequestLine(
        _ bytes: Span<UInt8>, _ line: Range<Int>
    ) throws(RequestFault) -> RequestLine {
        let methodEnd = min(ByteRun.end(of: .token, bytes, from: line.lowerBound), line.upperBound)
        let targetStart = methodEnd + 1
        let targetEnd = line.upperBound - 9
        guard methodEnd > line.lowerBound, targetEnd > targetStart, bytes[methodEnd] == UInt8(ascii: " "),
            bytes[targetEnd] == UInt8(ascii: " "),
            let version = HTTPVersion(bytes.extracting(targetEnd + 1..<line.upperBound))
        else { throw .requestLine }
        guard version.major == 1 else { throw .version }
        let method = line.lowerBound..<methodEnd
        let isOptions: Bool
        switch method.count {
        case 5 where ByteRun.hasExactly("TRACE", bytes, at: method.lowerBound): throw .method
        case 7 where ByteRun.hasExactly("CONNECT", bytes, at: method.lowerBound): throw .method
        case 7: isOptions = ByteRun.hasExactly("OPTIONS", bytes, at: method.lowerBound)
        default: isOptions = false
        }
        guard let target = RequestTarget(bytes, targetStart..<targetEnd, isOptions: isOptions) else { throw .target }
        return RequestLine(method: method, target, isHTTP10: version.minor == 0)
    }

    private mutating func finish(_ fields: Span<UInt8>) throws(RequestFault) -> FieldSection {
        guard let requestLine else { throw .requestLine }
        let isHTTP10 = requestLine.isHTTP10
        // Of the fields that control a message, most heads have only one Host.
        let message: MessageFields
        if names & MessageFields.names == FieldName.host.bit, repeatedNames & FieldName.host.bit == 0 {
            message = MessageFields(host: host)
        } else {
            message = try messageFields(fields, isHTTP10: isHTTP10)
        }
        if let host = message.host {
            guard RequestTarget.isHost(fields, host) else { throw .host }
        } else if !isHTTP10 {
            throw .host
        }
        let framing = try framing(of: message)
        if !isHTTP10, message.expectation == .unknown { throw .expectation }
        let held = isHTTP10 ? nil : sections.makeRoom(for: fields.extracting(..<lineReader.start))
        let section = held ?? section
        section.set(
            &lines, names: names, length: lineReader.start, framing: framing,
            keepsAlive: !message.hasClose && (!isHTTP10 || message.hasKeepAlive),
            expectsContinue: !isHTTP10 && message.expectation == .continue && framing != .none)
        return section
    }

    private func messageFields(_ bytes: Span<UInt8>, isHTTP10: Bool) throws(RequestFault) -> MessageFields {
        do throws(MessageFields.Fault) {
            return try MessageFields(bytes, lines.span, allowsTransferEncoding: !isHTTP10)
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
}
