/// One pass over JSON text for what Foundation's decoder does not tell: how deep it nests, whether an object repeats a
/// member, and whether a comma has nothing after it. It is lenient about everything else, which the decoder judges
/// afterwards.
struct JSONScan {
    private let bytes: [UInt8]

    init(_ bytes: [UInt8]) {
        self.bytes = bytes
    }

    private enum Level {
        case array(index: Int)
        case object(members: Set<String>, current: String, expectsName: Bool)
    }

    func check() throws(JSONValue.Fault) {
        var levels: [Level] = []
        var position = 0
        var isAfterComma = false
        while position < bytes.count {
            let byte = bytes[position]
            switch byte {
            // The decoder takes such bytes for UTF-16 or UTF-32 and reads another text than this scan does. No JSON
            // text in UTF-8 has them.
            case 0: throw .malformed
            case UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\n"), UInt8(ascii: "\r"):
                position += 1
                continue
            case UInt8(ascii: "{"), UInt8(ascii: "["):
                if levels.count == JSONValue.maximumDepth { throw .tooDeep }
                levels.append(
                    byte == UInt8(ascii: "[")
                        ? .array(index: 0) : .object(members: [], current: "", expectsName: true))
            case UInt8(ascii: "}"), UInt8(ascii: "]"):
                if isAfterComma || levels.popLast() == nil { throw .malformed }
            case UInt8(ascii: ","):
                switch levels.last {
                case .array(let index): levels[levels.count - 1] = .array(index: index + 1)
                case .object(let members, let current, _):
                    levels[levels.count - 1] = .object(members: members, current: current, expectsName: true)
                case nil: throw .malformed
                }
            case UInt8(ascii: "\""):
                let text = try string(at: &position)
                if case .object(var members, _, true) = levels.last {
                    levels.removeLast()
                    let isNew = members.insert(text).inserted
                    levels.append(.object(members: members, current: text, expectsName: false))
                    if !isNew { throw .repeatedMember(pointer: pointer(levels)) }
                }
                isAfterComma = false
                continue
            default: break
            }
            isAfterComma = byte == UInt8(ascii: ",")
            position += 1
        }
    }

    /// The text of the string that begins at `position`, escapes resolved, so that `"a"` and `"\u0061"` are one name.
    private func string(at position: inout Int) throws(JSONValue.Fault) -> String {
        var text: [UInt16] = []
        var plain: [UInt8] = []
        func flush(_ plain: inout [UInt8], into text: inout [UInt16]) {
            text.append(contentsOf: String(decoding: plain, as: UTF8.self).utf16)
            plain = []
        }
        position += 1
        while position < bytes.count {
            let byte = bytes[position]
            position += 1
            if byte == UInt8(ascii: "\"") {
                flush(&plain, into: &text)
                return String(decoding: text, as: UTF16.self)
            }
            if byte != UInt8(ascii: "\\") {
                plain.append(byte)
                continue
            }
            guard position < bytes.count else { break }
            let escape = bytes[position]
            position += 1
            switch escape {
            case UInt8(ascii: "u"):
                guard position + 4 <= bytes.count,
                    let unit = UInt16(String(decoding: bytes[position..<position + 4], as: UTF8.self), radix: 16)
                else { throw .malformed }
                position += 4
                flush(&plain, into: &text)
                text.append(unit)
            case UInt8(ascii: "n"): plain.append(0x0a)
            case UInt8(ascii: "t"): plain.append(0x09)
            case UInt8(ascii: "r"): plain.append(0x0d)
            case UInt8(ascii: "b"): plain.append(0x08)
            case UInt8(ascii: "f"): plain.append(0x0c)
            default: plain.append(escape)
            }
        }
        throw .malformed
    }

    private func pointer(_ levels: [Level]) -> String {
        levels.map { level in
            switch level {
            case .array(let index): "/\(index)"
            case .object(_, let current, _): "/" + JSONValue.pointerToken(current)
            }
        }.joined()
    }
}
