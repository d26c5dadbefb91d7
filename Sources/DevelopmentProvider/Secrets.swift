import Cryptography

/// Generates the provider's secrets and their digests.
enum Secrets {
    /// `prefix` and 256 random bits in base64url. The prefix shows the kind of secret if one leaks.
    static func make(_ prefix: String) -> String {
        var generator = SystemRandomNumberGenerator()
        return prefix + Base64URL.encode((0..<32).map { _ in UInt8.random(in: .min ... .max, using: &generator) })
    }

    /// `count` letters from an alphabet that avoids confusable letters and vowels, so that codes form no words (RFC
    /// 8628 §6.1).
    static func makeUserCode(count: Int) -> String {
        var generator = SystemRandomNumberGenerator()
        return String((0..<count).map { _ in userCodeAlphabet.randomElement(using: &generator)! })
    }

    private static let userCodeAlphabet = Array("BCDFGHJKLMNPQRSTVWXZ")

    /// `count` letters and digits, of which each is random.
    static func makeAlphanumeric(count: Int) -> String {
        var generator = SystemRandomNumberGenerator()
        return String((0..<count).map { _ in alphanumerics.randomElement(using: &generator)! })
    }

    private static let alphanumerics = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")

    /// 32 letters and digits of Crockford's alphabet, 160 random bits.
    static func makeChallenge() -> String {
        var generator = SystemRandomNumberGenerator()
        return String((0..<32).map { _ in challengeAlphabet.randomElement(using: &generator)! })
    }

    private static let challengeAlphabet = Array("0123456789ABCDEFGHJKMNPQRSTVWXYZ")

    /// A random UUID (RFC 9562 §5.4).
    static func makeUUID() -> String {
        var generator = SystemRandomNumberGenerator()
        return uuid((0..<16).map { _ in UInt8.random(in: .min ... .max, using: &generator) }, version: 4)
    }

    /// The UUID of the account with this name, which is the same in every run (RFC 9562 §5.8).
    static func accountID(_ name: String) -> String {
        uuid(Array(SHA256.digest(Array(name.utf8)).prefix(16)), version: 8)
    }

    private static func uuid(_ bytes: [UInt8], version: UInt8) -> String {
        var bytes = bytes
        bytes[6] = bytes[6] & 0x0f | version << 4
        bytes[8] = bytes[8] & 0x3f | 0x80
        let digits = Hex.encode(bytes)
        var text = ""
        for (index, digit) in digits.enumerated() {
            if [8, 12, 16, 20].contains(index) { text.append("-") }
            text.append(digit)
        }
        return text
    }

    /// SHA-256 in hexadecimal, which tables, logs and the ledger contain instead of a secret.
    static func digest(_ secret: String) -> String {
        Hex.encode(SHA256.digest(Array(secret.utf8)))
    }

    /// The `code_challenge` of a `code_verifier` for the method S256 (RFC 7636 §4.2).
    static func challenge(_ verifier: String) -> String {
        Base64URL.encode(SHA256.digest(Array(verifier.utf8)))
    }

    /// The number of a user, which is the same in every run: the name itself if it is a positive number, otherwise nine
    /// digits from the digest of the name.
    static func userID(_ name: String) -> Int64 {
        if let number = Int64(name), number > 0 { return number }
        let value = SHA256.digest(Array(name.utf8)).prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
        return Int64(value % 900_000_000 + 100_000_000)
    }
}
