/// `HTTP-version = "HTTP" "/" DIGIT "." DIGIT`, case-sensitive (RFC 9112 §2.3).
struct HTTPVersion: Equatable {
    let major: UInt8
    let minor: UInt8

    init?(_ text: Span<UInt8>) {
        guard text.count == 8, text[0] == UInt8(ascii: "H"), text[1] == UInt8(ascii: "T"), text[2] == UInt8(ascii: "T"),
            text[3] == UInt8(ascii: "P"), text[4] == UInt8(ascii: "/"), ByteClass.isDigit(text[5]),
            text[6] == UInt8(ascii: "."), ByteClass.isDigit(text[7])
        else { return nil }
        major = text[5] - UInt8(ascii: "0")
        minor = text[7] - UInt8(ascii: "0")
    }
}
