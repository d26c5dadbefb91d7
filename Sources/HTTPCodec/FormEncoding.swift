package import ExternalText

/// Percent-encoding (RFC 3986 §2.1) and `application/x-www-form-urlencoded` (WHATWG URL §5).
package enum FormEncoding {
    package struct Pair: Sendable, Equatable {
        package let name: WireText
        package let value: WireText

        package init(_ name: WireText, _ value: WireText) {
            self.name = name
            self.value = value
        }

        package init(_ name: String, _ value: String) {
            self.init(WireText(name), WireText(value))
        }
    }

    /// A text has a broken percent escape, or is not UTF-8.
    package struct Malformed: Error, Equatable {}

    /// The limits of a form or a query. Each limit is inclusive.
    package struct Limits: Sendable {
        /// The number of pairs, including those with equal names.
        package var pairs: Int
        /// The bytes of a name after percent-decoding.
        package var nameBytes: Int

        /// - Parameters:
        ///   - pairs: 128 unless given.
        ///   - nameBytes: 128 unless given.
        package init(pairs: Int = 128, nameBytes: Int = 128) {
            self.pairs = pairs
            self.nameBytes = nameBytes
        }
    }

    /// Why a text cannot be read as pairs.
    package enum Fault: Error, Equatable {
        /// A broken percent escape, or bytes that are not UTF-8.
        case malformed
        /// More pairs than the limit.
        case tooManyPairs(limit: Int)
        /// A name of more bytes than the limit.
        case nameTooLong(limit: Int)
    }

    /// Encodes pairs as `a=1&b=2`. Every byte outside RFC 3986's unreserved set becomes %XX. A space becomes %20, which
    /// all readers of forms and of URL queries accept.
    package static func encode(_ pairs: [Pair]) -> String {
        var bytes: [UInt8] = []
        bytes.reserveCapacity(pairs.reduce(0) { $0 + $1.name.count + $1.value.count + 2 })
        for pair in pairs {
            if !bytes.isEmpty { bytes.append(UInt8(ascii: "&")) }
            append(pair.name.text, to: &bytes)
            bytes.append(UInt8(ascii: "="))
            append(pair.value.text, to: &bytes)
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// Reads pairs in order, including repeated names. `+` stands for a space. A name without `=` has an empty value.
    /// Empty pieces between ampersands are skipped.
    package static func decode(_ text: Span<UInt8>, limits: Limits = Limits()) throws(Fault) -> [Pair] {
        var pairs: [Pair] = []
        var cursor = Cursor(limits: limits)
        while let place = try cursor.next(in: text) {
            pairs.append(
                Pair(try cursor.name(place.name, in: text), try Cursor.decode(text.extracting(place.value))))
        }
        return pairs
    }

    /// Finds the pairs of a text one after the other, without copying them.
    package struct Cursor {
        private let limits: Limits
        private var start = 0
        private var count = 0

        package init(limits: Limits = Limits()) {
            self.limits = limits
        }

        /// The ranges of the next pair's name and value, not decoded; nil after the last pair.
        package mutating func next(in text: Span<UInt8>) throws(Fault) -> (name: Range<Int>, value: Range<Int>)? {
            while start < text.count {
                let piece = start..<ByteRun.first(UInt8(ascii: "&"), text, start..<text.count)
                start = piece.upperBound + 1
                if piece.isEmpty { continue }
                if count == limits.pairs { throw .tooManyPairs(limit: limits.pairs) }
                count += 1
                let nameEnd = ByteRun.first(UInt8(ascii: "="), text, piece)
                return (piece.lowerBound..<nameEnd, min(nameEnd + 1, piece.upperBound)..<piece.upperBound)
            }
            return nil
        }

        /// A pair's name.
        package func name(_ range: Range<Int>, in text: Span<UInt8>) throws(Fault) -> WireText {
            let name = try Self.decode(text.extracting(range))
            if name.count > limits.nameBytes { throw .nameTooLong(limit: limits.nameBytes) }
            return name
        }

        /// Decodes a name or a value.
        package static func decode(_ text: Span<UInt8>) throws(Fault) -> WireText {
            do throws(Malformed) {
                return try percentDecode(text, plusIsSpace: true)
            } catch {
                throw .malformed
            }
        }

        /// Whether the text is ASCII without escapes, so that names and values need no decoding.
        package static func isPlain(_ text: Span<UInt8>) -> Bool { ByteRun.hasNeither("%", "+", text) }
    }

    package static func decode(_ text: WireText, limits: Limits = Limits()) throws(Fault) -> [Pair] {
        try decode(text.utf8.span, limits: limits)
    }

    package static func percentEncode(_ text: String) -> String {
        if text.utf8.allSatisfy(isUnreserved) { return text }
        var bytes: [UInt8] = []
        append(text, to: &bytes)
        return String(decoding: bytes, as: UTF8.self)
    }

    private static func append(_ text: String, to bytes: inout [UInt8]) {
        let text = text.utf8.span
        for index in text.indices {
            let byte = text[index]
            if isUnreserved(byte) {
                bytes.append(byte)
            } else {
                bytes.append(UInt8(ascii: "%"))
                bytes.append(hexDigit(byte >> 4))
                bytes.append(hexDigit(byte & 15))
            }
        }
    }

    package static func percentDecode(
        _ text: Span<UInt8>, plusIsSpace: Bool = false
    ) throws(Malformed) -> WireText {
        // Most bytes need no encoding, so they are copied in runs.
        var plain = 0
        while plain < text.count, text[plain] != UInt8(ascii: "%"), !plusIsSpace || text[plain] != UInt8(ascii: "+") {
            plain += 1
        }
        var result: [UInt8] = []
        if plain < text.count {
            result.reserveCapacity(text.count)
            var index = 0
            while index < text.count {
                let byte = text[index]
                if byte == UInt8(ascii: "%") {
                    guard index + 2 < text.count, let high = ByteClass.hexValue(text[index + 1]),
                        let low = ByteClass.hexValue(text[index + 2])
                    else { throw Malformed() }
                    result.append(high << 4 | low)
                    index += 3
                } else {
                    result.append(plusIsSpace && byte == UInt8(ascii: "+") ? UInt8(ascii: " ") : byte)
                    index += 1
                }
            }
        }
        let decoded = result.isEmpty ? WireText(validating: text) : WireText(validating: result.span)
        guard let decoded else { throw Malformed() }
        return decoded
    }

    private static func isUnreserved(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"),
            UInt8(ascii: "~"):
            true
        default: false
        }
    }

    private static func hexDigit(_ value: UInt8) -> UInt8 {
        value < 10 ? UInt8(ascii: "0") + value : UInt8(ascii: "A") + value - 10
    }
}
