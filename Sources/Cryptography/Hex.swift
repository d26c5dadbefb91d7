import COpenSSL

/// Base 16 as in RFC 4648 §8. Written in lower case; read in either case.
package enum Hex {
    package static func encode(_ bytes: [UInt8]) -> String {
        if bytes.isEmpty { return "" }
        // libcrypto ends what it writes with a zero octet.
        var text = [CChar](repeating: 0, count: bytes.count * 2 + 1)
        let isDone = unsafe OPENSSL_buf2hexstr_ex(&text, text.count, nil, bytes, bytes.count, 0)
        precondition(isDone == 1, "libcrypto encoded no hexadecimal digits")
        // libcrypto writes capitals. The bit that makes them small is set in the codes of the digits 0 to 9 anyway.
        return String(decoding: text.dropLast().lazy.map { UInt8(bitPattern: $0) | 0x20 }, as: UTF8.self)
    }

    /// Nil for an odd number of characters, and for a character that is no hexadecimal digit.
    package static func decode(_ text: String) -> [UInt8]? {
        if text.isEmpty { return [] }
        var bytes = [UInt8](repeating: 0, count: text.utf8.count / 2)
        var count = 0
        let isDone = withCleanErrorQueue {
            unsafe OPENSSL_hexstr2buf_ex(&bytes, bytes.count, &count, text, 0)
        }
        // To C, a text ends at its first zero octet: then fewer octets come back than the text has pairs.
        return isDone == 1 && count * 2 == text.utf8.count ? bytes : nil
    }
}
