/// Percent-encoding (RFC 3986 §2.1) and `application/x-www-form-urlencoded` (WHATWG URL §5).
package enum FormEncoding {
    package struct Pair: Sendable, Equatable {
        package let name: String
        package let value: String

        package init(_ name: String, _ value: String) {
            self.name = name
            self.value = value
        }
    }

    /// Text that is not a sequence of well-formed pairs: a broken percent escape or bytes that are not UTF-8.
    package struct Malformed: Error, Equatable {}

    /// `a=1&b=2`, with every byte outside RFC 3986's unreserved set as %XX; a space is %20, which every form decoder
    /// and every URL query takes.
    package static func encode(_ pairs: [Pair]) -> String {
        pairs.map { percentEncode($0.name) + "=" + percentEncode($0.value) }.joined(separator: "&")
    }

    /// Reads pairs in order, repeated names included. `+` is a space; a name without `=` has an empty value; empty
    /// pieces between ampersands are skipped.
    package static func decode(_ text: String) throws(Malformed) -> [Pair] {
        var pairs: [Pair] = []
        for piece in text.utf8.split(separator: UInt8(ascii: "&")) {
            let halves = piece.split(separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
            let value = halves.count > 1 ? try percentDecode(halves[1], plusIsSpace: true) : ""
            pairs.append(Pair(try percentDecode(halves[0], plusIsSpace: true), value))
        }
        return pairs
    }

    package static func percentEncode(_ text: String) -> String {
        var bytes: [UInt8] = []
        bytes.reserveCapacity(text.utf8.count)
        for byte in text.utf8 {
            if isUnreserved(byte) {
                bytes.append(byte)
            } else {
                bytes.append(UInt8(ascii: "%"))
                bytes.append(hexDigit(byte >> 4))
                bytes.append(hexDigit(byte & 15))
            }
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    package static func percentDecode(
        _ bytes: some Sequence<UInt8>, plusIsSpace: Bool = false
    ) throws(Malformed) -> String {
        var result: [UInt8] = []
        var iterator = bytes.makeIterator()
        while let byte = iterator.next() {
            switch byte {
            case UInt8(ascii: "%"):
                guard let high = iterator.next().flatMap(ByteClass.hexValue),
                    let low = iterator.next().flatMap(ByteClass.hexValue)
                else { throw Malformed() }
                result.append(high << 4 | low)
            case UInt8(ascii: "+") where plusIsSpace:
                result.append(UInt8(ascii: " "))
            default:
                result.append(byte)
            }
        }
        guard let text = String(validating: result, as: UTF8.self) else { throw Malformed() }
        return text
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
