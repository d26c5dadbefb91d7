import ExternalText

/// Reads JSON text (RFC 8259 §2 to §8) in one pass, strictly.
///
/// Where the RFC leaves a choice: a byte order mark before the text is ignored (§8.1). Repeated members (§4), nesting
/// beyond `JSONValue.maximumDepth`, numbers beyond the range of a double (§6) and escapes of half a surrogate pair
/// (§8.2) are refused.
struct JSONReader {
    private let bytes: [UInt8]
    private let longestName: Int
    /// Whether an object may have a member more than once, as long as no value of it is read that is not the only one.
    private let isLenient: Bool
    /// Whether what is wrong within a string or a number is replaced: U+FFFD, and null.
    private let repairsText: Bool
    private var position = 0

    /// Longer numbers are refused: their further digits do not change the double.
    private static let longestNumber = 1024

    init(_ bytes: [UInt8], longestName: Int, isLenient: Bool = false, repairsText: Bool = false) {
        self.bytes = bytes
        self.longestName = longestName
        self.isLenient = isLenient
        self.repairsText = repairsText
        if bytes.starts(with: [0xef, 0xbb, 0xbf]) { position = 3 }
    }

    /// Reads the text, which must be exactly one value.
    mutating func document() throws(JSONValue.Fault) -> JSONValue {
        let value = try value(depth: 0)
        skipSpace()
        guard position == bytes.count else { throw .malformed }
        return value
    }

    /// Reads the value that the text begins with, whatever follows it.
    mutating func beginning() throws(JSONValue.Fault) -> JSONValue { try value(depth: 0) }

    // MARK: Structure

    private mutating func value(depth: Int) throws(JSONValue.Fault) -> JSONValue {
        skipSpace()
        switch next {
        case UInt8(ascii: "\""): return .string(try string())
        case UInt8(ascii: "{"): return .object(try object(depth: try below(depth)))
        case UInt8(ascii: "["): return .array(try array(depth: try below(depth)))
        case UInt8(ascii: "t"): return try literal("true", .bool(true))
        case UInt8(ascii: "f"): return try literal("false", .bool(false))
        case UInt8(ascii: "n"): return try literal("null", .null)
        default: return try number()
        }
    }

    private func below(_ depth: Int) throws(JSONValue.Fault) -> Int {
        if depth == JSONValue.maximumDepth { throw .tooDeep }
        return depth + 1
    }

    private mutating func object(depth: Int) throws(JSONValue.Fault) -> [WireText: JSONValue] {
        var members: [WireText: JSONValue] = [:]
        var ambiguous: Set<WireText> = []
        position += 1
        skipSpace()
        if take(UInt8(ascii: "}")) { return members }
        members.reserveCapacity(8)
        repeat {
            skipSpace()
            guard next == UInt8(ascii: "\"") else { throw .malformed }
            let name = try string()
            guard name.count <= longestName else {
                throw .nameTooLong(pointer: "/" + JSONValue.pointerToken(name), limit: longestName)
            }
            skipSpace()
            guard take(UInt8(ascii: ":")) else { throw .malformed }
            let member: JSONValue
            do throws(JSONValue.Fault) {
                member = try value(depth: depth)
            } catch {
                throw error.within(JSONValue.pointerToken(name))
            }
            if let first = members.updateValue(member, forKey: name) {
                guard isLenient else { throw .repeatedMember(pointer: "/" + JSONValue.pointerToken(name)) }
                if first != member { ambiguous.insert(name) }
            }
            skipSpace()
        } while take(UInt8(ascii: ","))
        guard take(UInt8(ascii: "}")) else { throw .malformed }
        for name in ambiguous { members[name] = nil }
        return members
    }

    private mutating func array(depth: Int) throws(JSONValue.Fault) -> [JSONValue] {
        var elements: [JSONValue] = []
        position += 1
        skipSpace()
        if take(UInt8(ascii: "]")) { return elements }
        repeat {
            do throws(JSONValue.Fault) {
                elements.append(try value(depth: depth))
            } catch {
                throw error.within("\(elements.count)")
            }
            skipSpace()
        } while take(UInt8(ascii: ","))
        guard take(UInt8(ascii: "]")) else { throw .malformed }
        return elements
    }

    private mutating func literal(_ text: StaticString, _ value: JSONValue) throws(JSONValue.Fault) -> JSONValue {
        for byte in text.description.utf8 where !take(byte) { throw .malformed }
        return value
    }

    // MARK: Numbers

    private mutating func number() throws(JSONValue.Fault) -> JSONValue {
        let start = position
        _ = take(UInt8(ascii: "-"))
        if !take(UInt8(ascii: "0")) { try digits() }
        var isInteger = true
        if take(UInt8(ascii: ".")) {
            isInteger = false
            try digits()
        }
        if take(UInt8(ascii: "e")) || take(UInt8(ascii: "E")) {
            isInteger = false
            if !take(UInt8(ascii: "+")) { _ = take(UInt8(ascii: "-")) }
            try digits()
        }
        guard position - start <= Self.longestNumber else { return try unreadableNumber() }
        let text = String(decoding: bytes[start..<position], as: UTF8.self)
        if isInteger, let value = Int64(text) { return .integer(value) }
        guard let value = Double(text), value.isFinite else { return try unreadableNumber() }
        // 1.0 and 1e3 are integers in another spelling. Above 2^53 a double can no longer represent every integer.
        if !isInteger, value.magnitude < 0x1p53, let integer = Int64(exactly: value) { return .integer(integer) }
        return .number(value)
    }

    private func unreadableNumber() throws(JSONValue.Fault) -> JSONValue {
        guard repairsText else { throw .malformed }
        return .null
    }

    private mutating func digits() throws(JSONValue.Fault) {
        let start = position
        while let next, (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(next) { position += 1 }
        if position == start { throw .malformed }
    }

    // MARK: Strings

    private mutating func string() throws(JSONValue.Fault) -> WireText {
        position += 1
        if let plain = try plainString() { return plain }
        var start = position
        var unescaped: [UInt8] = []
        while let byte = next {
            switch byte {
            case UInt8(ascii: "\""):
                let end = position
                position += 1
                unescaped += bytes[start..<end]
                return try text(unescaped.span)
            case UInt8(ascii: "\\"):
                unescaped += bytes[start..<position]
                position += 1
                unescaped += UTF8.encode(try escape())!
                start = position
            case 0..<0x20:
                guard repairsText else { throw .malformed }
                position += 1
            default: position += 1
            }
        }
        throw .malformed
    }

    /// The rest of a string without escapes, which is the common case. Nil, without reading on, for other strings.
    private mutating func plainString() throws(JSONValue.Fault) -> WireText? {
        guard let end = Self.endOfPlain(bytes.span, from: position) else { return nil }
        defer { position = end + 1 }
        return try text(bytes.span.extracting(position..<end))
    }

    /// The index of the closing quotation mark; nil if an escape or an invalid byte comes first.
    private static func endOfPlain(_ bytes: Span<UInt8>, from start: Int) -> Int? {
        for index in start..<bytes.count {
            let byte = bytes[index]
            if byte == UInt8(ascii: "\"") { return index }
            if byte == UInt8(ascii: "\\") || byte < 0x20 { return nil }
        }
        return nil
    }

    private func text(_ bytes: Span<UInt8>) throws(JSONValue.Fault) -> WireText {
        if let text = WireText(validating: bytes) { return text }
        guard repairsText else { throw .malformed }
        let octets = bytes.indices.map { bytes[$0] }
        return WireText(String(decoding: octets, as: UTF8.self))
    }

    private mutating func escape() throws(JSONValue.Fault) -> Unicode.Scalar {
        guard let byte = next else { throw .malformed }
        position += 1
        switch byte {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): return Unicode.Scalar(byte)
        case UInt8(ascii: "b"): return "\u{8}"
        case UInt8(ascii: "f"): return "\u{c}"
        case UInt8(ascii: "n"): return "\n"
        case UInt8(ascii: "r"): return "\r"
        case UInt8(ascii: "t"): return "\t"
        case UInt8(ascii: "u"):
            let unit = try codeUnit()
            if let scalar = Unicode.Scalar(unit) { return scalar }
            // The first half of a surrogate pair; the second half must follow.
            let start = position
            if UTF16.isLeadSurrogate(unit), take(UInt8(ascii: "\\")), take(UInt8(ascii: "u")) {
                let second = try codeUnit()
                if UTF16.isTrailSurrogate(second) { return UTF16.decode(UTF16.EncodedScalar([unit, second])) }
            }
            guard repairsText else { throw .malformed }
            position = start
            return "\u{fffd}"
        default: throw .malformed
        }
    }

    /// Reads four hexadecimal digits.
    private mutating func codeUnit() throws(JSONValue.Fault) -> UInt16 {
        var unit: UInt16 = 0
        for _ in 0..<4 {
            let digit: UInt8
            switch next {
            case (UInt8(ascii: "0")...UInt8(ascii: "9"))?: digit = bytes[position] - UInt8(ascii: "0")
            case (UInt8(ascii: "a")...UInt8(ascii: "f"))?: digit = bytes[position] - UInt8(ascii: "a") + 10
            case (UInt8(ascii: "A")...UInt8(ascii: "F"))?: digit = bytes[position] - UInt8(ascii: "A") + 10
            default: throw .malformed
            }
            unit = unit << 4 | UInt16(digit)
            position += 1
        }
        return unit
    }

    // MARK: Bytes

    private var next: UInt8? { position < bytes.count ? bytes[position] : nil }

    private mutating func take(_ byte: UInt8) -> Bool {
        guard next == byte else { return false }
        position += 1
        return true
    }

    private mutating func skipSpace() {
        while true {
            switch next {
            case UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\n"), UInt8(ascii: "\r"): position += 1
            default: return
            }
        }
    }
}

extension JSONValue.Fault {
    /// The same fault with the path extended by the enclosing member or element `token`.
    fileprivate func within(_ token: String) -> JSONValue.Fault {
        switch self {
        case .repeatedMember(let pointer): .repeatedMember(pointer: "/" + token + pointer)
        case .nameTooLong(let pointer, let limit): .nameTooLong(pointer: "/" + token + pointer, limit: limit)
        case .malformed, .tooDeep: self
        }
    }
}
