/// Text from outside the process: from callers, browsers, providers, the database, files.
///
/// Equality, order and hashing of `String` follow Unicode: they normalise, which takes quadratic time for maliciously
/// chosen combining marks, and different spellings of a text are equal. A `WireText` compares its UTF-8 bytes, in
/// linear time. It cannot be compared with a `String`, so that the compiler rejects the slow comparison.
package struct WireText: Sendable, ExpressibleByStringLiteral, CustomStringConvertible {
    /// The text as a `String`, for sending, storing or showing it, and for readers that use only its bytes.
    package let text: String

    /// Takes constant time if `text` is in Swift's native encoding, otherwise linear time.
    package init(_ text: String) {
        var text = text
        text.makeContiguousUTF8()
        self.text = text
    }

    package init(stringLiteral text: String) {
        self.init(text)
    }

    /// A part of a text. Both of its ends must be next to an ASCII character or at an end of the text.
    package init(_ part: Substring.UTF8View) {
        self.init(String(Substring(part)))
    }

    /// Decodes UTF-8. Invalid sequences are replaced by U+FFFD.
    package init(_ bytes: [UInt8]) {
        text = String(decoding: bytes, as: UTF8.self)
    }

    /// Nil for bytes that are not UTF-8.
    package init?(validating bytes: Span<UInt8>) {
        do throws(UTF8.ValidationError) {
            text = String(copying: try UTF8Span(validating: bytes))
        } catch {
            return nil
        }
    }

    package var description: String { text }

    package var utf8: String.UTF8View { text.utf8 }

    package var isEmpty: Bool { text.utf8.isEmpty }

    /// The length in bytes of UTF-8.
    package var count: Int { text.utf8.count }
}

extension WireText: Hashable, Comparable {
    package static func == (left: WireText, right: WireText) -> Bool {
        left.count == right.count && Self.haveEqualBytes(left.utf8.span, in: right.utf8.span, at: 0)
    }

    package static func < (left: WireText, right: WireText) -> Bool {
        let (left, right) = (left.utf8.span, right.utf8.span)
        for index in 0..<min(left.count, right.count) where left[index] != right[index] {
            return left[index] < right[index]
        }
        return left.count < right.count
    }

    package func hash(into hasher: inout Hasher) {
        let bytes = utf8.span
        hasher.combine(bytes.count)
        var word: UInt64 = 0
        for index in bytes.indices {
            word = word << 8 | UInt64(bytes[index])
            if index & 7 == 7 {
                hasher.combine(word)
                word = 0
            }
        }
        if bytes.count & 7 != 0 { hasher.combine(word) }
    }

    /// Whether `whole` contains `part` at the offset `start`. There must be room for `part` from that offset on.
    private static func haveEqualBytes(_ part: Span<UInt8>, in whole: Span<UInt8>, at start: Int) -> Bool {
        for index in part.indices where part[index] != whole[start + index] { return false }
        return true
    }
}

// MARK: Questions about bytes

extension WireText {
    package func starts(with other: WireText) -> Bool {
        other.count <= count && Self.haveEqualBytes(other.utf8.span, in: utf8.span, at: 0)
    }

    package func ends(with other: WireText) -> Bool {
        other.count <= count && Self.haveEqualBytes(other.utf8.span, in: utf8.span, at: count - other.count)
    }

    /// - Parameter character: an ASCII character.
    package func contains(_ character: Unicode.Scalar) -> Bool {
        utf8.contains(UInt8(ascii: character))
    }

    /// Whether the two texts are equal apart from the case of ASCII letters.
    package func equalsIgnoringCase(_ other: WireText) -> Bool {
        let (left, right) = (utf8.span, other.utf8.span)
        guard left.count == right.count else { return false }
        for index in left.indices where Self.lowercased(left[index]) != Self.lowercased(right[index]) { return false }
        return true
    }

    private static func lowercased(_ byte: UInt8) -> UInt8 {
        byte >= UInt8(ascii: "A") && byte <= UInt8(ascii: "Z") ? byte | 0x20 : byte
    }
}

// MARK: Parts

extension WireText {
    /// The text with its ASCII letters in lower case.
    package var lowercased: WireText {
        if utf8.allSatisfy({ $0 < UInt8(ascii: "A") || $0 > UInt8(ascii: "Z") }) { return self }
        return WireText(utf8.map(Self.lowercased))
    }

    /// The text without the spaces and tabs at both ends.
    package var trimmed: WireText {
        let isSpace = { (byte: UInt8) in byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") }
        guard let first = utf8.firstIndex(where: { !isSpace($0) }), let last = utf8.lastIndex(where: { !isSpace($0) })
        else { return "" }
        return WireText(utf8[first...last])
    }

    /// The text without its first bytes.
    /// - Parameter count: at most the length of the text. It must not end within a character.
    package func dropping(_ count: Int) -> WireText {
        WireText(utf8.dropFirst(count))
    }

    /// The longest prefix of whole Unicode scalars that has at most `count` bytes.
    package func prefix(_ count: Int) -> WireText {
        if self.count <= count { return self }
        var end = utf8.index(utf8.startIndex, offsetBy: count)
        // A byte of the form 10xxxxxx continues the scalar before it.
        while utf8[end] & 0xc0 == 0x80 { utf8.formIndex(before: &end) }
        return WireText(utf8[..<end])
    }

    /// The parts between the separators, including empty parts.
    /// - Parameters:
    ///   - separator: an ASCII character.
    ///   - limit: the most parts; the last part contains the rest of the text.
    package func split(at separator: Unicode.Scalar, limit: Int = .max) -> [WireText] {
        utf8.split(separator: UInt8(ascii: separator), maxSplits: limit - 1, omittingEmptySubsequences: false)
            .map { WireText($0) }
    }
}

extension RawRepresentable where Self: CaseIterable, RawValue == String {
    /// The case with this raw value; nil when there is none.
    package init?(_ text: WireText) {
        guard let value = Self.allCases.first(where: { WireText($0.rawValue) == text }) else { return nil }
        self = value
    }
}
