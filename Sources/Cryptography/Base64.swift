import COpenSSL

/// Base 64 as in RFC 4648 §4: with padding, and with no character outside the alphabet.
package enum Base64 {
    package static func encode(_ bytes: [UInt8]) -> String {
        String(decoding: characters(of: bytes), as: UTF8.self)
    }

    /// Nil unless `encode` could have made `text`: white space, missing or surplus padding, and leftover bits that are
    /// not zero are refused.
    package static func decode(_ text: String) -> [UInt8]? { decode(Array(text.utf8)) }

    static func characters(of bytes: [UInt8]) -> [UInt8] {
        // libcrypto ends what it writes with a zero octet.
        var text = [UInt8](repeating: 0, count: (bytes.count + 2) / 3 * 4 + 1)
        let written = unsafe EVP_EncodeBlock(&text, bytes, length(of: bytes))
        precondition(Int(written) == text.count - 1, "libcrypto encoded no Base 64")
        text.removeLast()
        return text
    }

    static func decode(_ text: [UInt8]) -> [UInt8]? {
        guard text.count % 4 == 0 else { return nil }
        var bytes = [UInt8](repeating: 0, count: text.count / 4 * 3)
        let written = withCleanErrorQueue { unsafe EVP_DecodeBlock(&bytes, text, length(of: text)) }
        guard Int(written) == bytes.count else { return nil }
        // libcrypto decodes padding to zero octets.
        bytes.removeLast(text.suffix(2).count { $0 == UInt8(ascii: "=") })
        // libcrypto takes white space and leftover bits. With either, one value would have many spellings (RFC 4648
        // §3.5).
        return characters(of: bytes) == text ? bytes : nil
    }

    /// The length as libcrypto takes it. Texts of 2 GiB do not occur.
    private static func length(of bytes: [UInt8]) -> CInt { CInt(bytes.count) }
}
