/// Decodes the chunked transfer coding (RFC 9112 §7.1), strictly and without storing any bytes.
///
/// The caller passes the stream piece by piece, and the decoder returns the ranges of the content. Trailer fields are
/// checked and dropped, as RFC 9112 §7.1.2 allows. Merged into the head they could change what was decided already.
package struct ChunkedDecoder {
    package enum Fault: Error, Equatable {
        /// The framing violates the grammar. The rest of the stream cannot be interpreted.
        case malformed
        /// Chunk extensions, or extensions and trailers together, exceed their limit.
        case overheadTooLarge
        /// The declared chunk sizes exceed the content's limit.
        case bodyTooLarge
    }

    package enum Step: Equatable {
        /// Content, as offsets into the given bytes. Call `next` again from the upper bound.
        case data(Range<Int>)
        /// All given bytes were used.
        case needsMore
        /// The coding ended before this offset.
        case complete(Int)
    }

    private enum State {
        case size, sizeLineFeed
        case extensionName, extensionValue, extensionToken, extensionQuoted, extensionEscape, extensionEnd
        case data, dataReturn, dataLineFeed
        case trailerStart, trailerName, trailerValue, trailerLineFeed, lastLineFeed
        case done
    }

    private var state = State.size
    private var size: UInt64 = 0
    private var digits = 0
    private var remainingBody: Int
    private var remainingOverhead: Int

    /// - Parameters:
    ///   - bodyLimit: the most bytes of content. A chunk's declared size is checked before its data arrives.
    ///   - overheadLimit: the most bytes of extensions and trailers, of all chunks together.
    package init(bodyLimit: Int, overheadLimit: Int = 8192) {
        remainingBody = bodyLimit
        remainingOverhead = overheadLimit
    }

    /// Continues reading at `start`.
    package mutating func next(_ bytes: Span<UInt8>, from start: Int) throws(Fault) -> Step {
        var index = start
        while index < bytes.count {
            if state == .data {
                let end = index + Int(min(size, UInt64(bytes.count - index)))
                size -= UInt64(end - index)
                if size == 0 { state = .dataReturn }
                return .data(index..<end)
            }
            if state == .done { return .complete(index) }
            try consume(bytes[index])
            index += 1
        }
        return state == .done ? .complete(index) : .needsMore
    }

    private mutating func consume(_ byte: UInt8) throws(Fault) {
        switch state {
        case .size:
            try consumeSize(byte)
        case .sizeLineFeed:
            try require(byte, "\n")
            try beginChunk()
        case .extensionName, .extensionValue, .extensionToken, .extensionQuoted, .extensionEscape, .extensionEnd:
            try spendOverhead()
            try consumeExtension(byte)
        case .dataReturn:
            try require(byte, "\r")
            state = .dataLineFeed
        case .dataLineFeed:
            try require(byte, "\n")
            (state, size, digits) = (.size, 0, 0)
        case .trailerStart, .trailerName, .trailerValue, .trailerLineFeed:
            // The CR of the empty line that ends the body does not belong to a trailer.
            if state != .trailerStart || byte != UInt8(ascii: "\r") { try spendOverhead() }
            try consumeTrailer(byte)
        case .lastLineFeed:
            try require(byte, "\n")
            state = .done
        case .data, .done:
            preconditionFailure("content and what follows the coding are not framing")
        }
    }

    private mutating func consumeSize(_ byte: UInt8) throws(Fault) {
        if let digit = ByteClass.hexValue(byte) {
            digits += 1
            // A size of sixteen digits fills 64 bits. Some readers truncate longer sizes and others do not.
            guard digits <= 16 else { throw .malformed }
            size = size << 4 | UInt64(digit)
            return
        }
        guard digits > 0 else { throw .malformed }
        guard size <= UInt64(remainingBody) else { throw .bodyTooLarge }
        try afterSizeOrExtension(byte)
    }

    private mutating func afterSizeOrExtension(_ byte: UInt8) throws(Fault) {
        switch byte {
        case UInt8(ascii: "\r"): state = .sizeLineFeed
        case UInt8(ascii: ";"): state = .extensionName
        default: throw .malformed
        }
        digits = 0
    }

    /// `chunk-ext = *( ";" token [ "=" ( token / quoted-string ) ] )`, without the "bad" white space that a sender
    /// must not generate. `digits` counts the characters of the current name or token.
    private mutating func consumeExtension(_ byte: UInt8) throws(Fault) {
        switch state {
        case .extensionName, .extensionToken:
            if ByteClass.isToken(byte) {
                digits += 1
                return
            }
            guard digits > 0 else { throw .malformed }
            if state == .extensionName, byte == UInt8(ascii: "=") {
                state = .extensionValue
            } else {
                try afterSizeOrExtension(byte)
            }
        case .extensionValue:
            if byte == UInt8(ascii: "\"") {
                state = .extensionQuoted
            } else if ByteClass.isToken(byte) {
                (state, digits) = (.extensionToken, 1)
            } else {
                throw .malformed
            }
        case .extensionQuoted:
            guard !ByteClass.isForbiddenControl(byte) else { throw .malformed }
            if byte == UInt8(ascii: "\"") { state = .extensionEnd }
            if byte == UInt8(ascii: "\\") { state = .extensionEscape }
        case .extensionEscape:
            guard !ByteClass.isForbiddenControl(byte) else { throw .malformed }
            state = .extensionQuoted
        default:
            try afterSizeOrExtension(byte)
        }
    }

    private mutating func beginChunk() throws(Fault) {
        // The last chunk is the one of size zero; the trailer section follows it.
        if size == 0 {
            state = .trailerStart
        } else {
            remainingBody -= Int(size)
            state = .data
        }
    }

    private mutating func consumeTrailer(_ byte: UInt8) throws(Fault) {
        switch state {
        case .trailerStart where byte == UInt8(ascii: "\r"):
            state = .lastLineFeed
        case .trailerStart:
            guard ByteClass.isToken(byte) else { throw .malformed }
            state = .trailerName
        case .trailerName:
            if byte == UInt8(ascii: ":") {
                state = .trailerValue
            } else if !ByteClass.isToken(byte) {
                throw .malformed
            }
        case .trailerValue:
            if byte == UInt8(ascii: "\r") {
                state = .trailerLineFeed
            } else if ByteClass.isForbiddenControl(byte) {
                throw .malformed
            }
        default:
            try require(byte, "\n")
            state = .trailerStart
        }
    }

    private mutating func spendOverhead() throws(Fault) {
        remainingOverhead -= 1
        if remainingOverhead < 0 { throw .overheadTooLarge }
    }

    private func require(_ byte: UInt8, _ expected: Unicode.Scalar) throws(Fault) {
        guard byte == UInt8(ascii: expected) else { throw .malformed }
    }
}
