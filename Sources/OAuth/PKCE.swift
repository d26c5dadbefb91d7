package import Cryptography

/// Proof Key for Code Exchange (RFC 7636), only with the method S256.
package struct PKCE: Sendable, Equatable {
    /// `code_verifier`: 43 characters, 256 bits from the system's random source (§4.1, §7.1).
    package let codeVerifier: SecretBytes

    package init() throws(CryptographyError) {
        codeVerifier = SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
    }

    package init(codeVerifier: SecretBytes) {
        self.codeVerifier = codeVerifier
    }

    /// `code_challenge = BASE64URL-ENCODE(SHA256(ASCII(code_verifier)))` (§4.2).
    package var codeChallenge: String {
        Base64URL.encode(codeVerifier.withRevealed { SHA256.digest($0) })
    }
}
