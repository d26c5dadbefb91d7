internal import Cryptography

/// What the provider makes up, and how it recognises it again.
enum Secrets {
    /// `prefix` and 256 random bits in base64url. The prefix tells in a leak what leaked.
    static func make(_ prefix: String) -> String {
        var generator = SystemRandomNumberGenerator()
        return prefix + Base64URL.encode((0..<32).map { _ in UInt8.random(in: .min ... .max, using: &generator) })
    }

    /// `count` letters that cannot be misread or spell a word (RFC 8628 §6.1).
    static func makeUserCode(count: Int) -> String {
        var generator = SystemRandomNumberGenerator()
        return String((0..<count).map { _ in userCodeAlphabet.randomElement(using: &generator)! })
    }

    private static let userCodeAlphabet = Array("BCDFGHJKLMNPQRSTVWXZ")

    /// SHA-256 in hexadecimal: what tables, logs and the ledger hold in a secret's place.
    static func digest(_ secret: String) -> String {
        Hex.encode(SHA256.digest(Array(secret.utf8)))
    }

    /// `code_challenge` of a `code_verifier` with the method S256 (RFC 7636 §4.2).
    static func challenge(_ verifier: String) -> String {
        Base64URL.encode(SHA256.digest(Array(verifier.utf8)))
    }

    /// A number for a user that stays the same from one run to the next: the name's own number, else one of nine
    /// digits from its digest.
    static func userID(_ name: String) -> Int64 {
        if let number = Int64(name), number > 0 { return number }
        let value = SHA256.digest(Array(name.utf8)).prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
        return Int64(value % 900_000_000 + 100_000_000)
    }
}
