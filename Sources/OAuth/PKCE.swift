package import Cryptography
package import ExternalText

/// Proof Key for Code Exchange (RFC 7636), only with the method S256.
package struct PKCE: Sendable, Equatable {
    /// `code_challenge_method`.
    package static let method: WireText = "S256"

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

/// The code challenge of a client's request, of the method S256 only (RFC 7636 §4.3).
package enum CodeChallenge {
    package enum Fault: Error, Equatable {
        case missing
        /// The method is another one, or is not named, which means `plain`.
        case otherMethod
        /// It is not the base64url form of a SHA-256 digest.
        case malformed
    }

    /// Checks `code_challenge` and `code_challenge_method` of a request.
    /// - Returns: the challenge.
    package static func read(_ challenge: WireText?, method: WireText?) throws(Fault) -> WireText {
        guard let challenge else { throw .missing }
        guard method == PKCE.method else { throw .otherMethod }
        guard challenge.count == 43, Base64URL.decode(challenge.text)?.count == SHA256.digestCount else {
            throw .malformed
        }
        return challenge
    }
}
