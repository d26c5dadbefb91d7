package import ExternalText

/// What a resource says of the token that a request lacks: the challenge `Bearer` of `WWW-Authenticate` (RFC 6750 §3).
package struct BearerChallenge: Sendable, Equatable {
    /// The address of the resource's metadata (RFC 9728 §5.1); nil where the challenge names none.
    package var resourceMetadata: WireText?
    /// The scopes that the request needs; nil where the challenge names none.
    package var scope: WireText?

    /// Reads the first challenge `Bearer` of the fields. Nil where there is none.
    ///
    /// A field may have several challenges, with commas between them as between the parameters of one (RFC 9110 §11.6.1): a
    /// word begins a challenge where no `=` follows it.
    package init?(_ fields: [WireText]) {
        for field in fields {
            var reader = Reader(field)
            while let scheme = reader.nextScheme() {
                let parameters = reader.parameters()
                guard scheme.equalsIgnoringCase("Bearer") else { continue }
                resourceMetadata = parameters["resource_metadata"]
                scope = parameters["scope"]
                return
            }
        }
        return nil
    }

    private struct Reader {
        private let bytes: [UInt8]
        private var place = 0

        init(_ field: WireText) { bytes = Array(field.utf8) }

        private var current: UInt8? { place < bytes.count ? bytes[place] : nil }

        private mutating func skip(_ isSkipped: (UInt8) -> Bool) {
            while let byte = current, isSkipped(byte) { place += 1 }
        }

        private static func isBlank(_ byte: UInt8) -> Bool { byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") }

        /// A character of a token (RFC 9110 §5.6.2), or of a token68.
        private static func isWord(_ byte: UInt8) -> Bool {
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"):
                true
            default: WireText("!#$%&'*+-.^_`|~/").contains(Unicode.Scalar(byte))
            }
        }

        private mutating func word() -> WireText {
            let start = place
            skip(Self.isWord)
            return WireText(Array(bytes[start..<place]))
        }

        mutating func nextScheme() -> WireText? {
            skip { Self.isBlank($0) || $0 == UInt8(ascii: ",") }
            let word = word()
            return word.isEmpty ? nil : word
        }

        /// The parameters up to the next challenge, by their names in small letters. Of a repeated one, the first counts.
        mutating func parameters() -> [WireText: WireText] {
            var found: [WireText: WireText] = [:]
            while true {
                let start = place
                skip { Self.isBlank($0) || $0 == UInt8(ascii: ",") }
                let name = word().lowercased
                skip(Self.isBlank)
                guard !name.isEmpty, current == UInt8(ascii: "=") else {
                    place = start
                    return found
                }
                place += 1
                skip(Self.isBlank)
                let value = current == UInt8(ascii: "\"") ? quoted() : word()
                // The padding of a token68.
                skip { $0 == UInt8(ascii: "=") }
                if found[name] == nil { found[name] = value }
            }
        }

        /// A quoted string (RFC 9110 §5.6.4); the rest of the field where its end is missing.
        private mutating func quoted() -> WireText {
            place += 1
            var value: [UInt8] = []
            while let byte = current {
                place += 1
                if byte == UInt8(ascii: "\"") { break }
                if byte == UInt8(ascii: "\\"), let escaped = current {
                    value.append(escaped)
                    place += 1
                } else {
                    value.append(byte)
                }
            }
            return WireText(value)
        }
    }
}
