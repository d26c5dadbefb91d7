internal import Cryptography

/// Authenticates values that the broker writes or gives out and recognizes later, on any replica.
extension Keyring {
    /// A message authentication code (a key derivation of RFC 5869 from the sealing key, with the message as its purpose).
    /// - Parameters:
    ///   - label: what the value is; two labels give unrelated codes.
    ///   - count: the length of the code in octets, 1 to 32.
    func authenticationCode(of message: [UInt8], label: String, count: Int) -> [UInt8] {
        Self.code(of: message, label, count, primary)
    }

    /// Whether the code is the message's, made with any key of the keyring. Takes the same time for every wrong code.
    func isAuthentic(_ code: [UInt8], of message: [UInt8], label: String) -> Bool {
        all.reduce(false) { isFound, key in
            ConstantTime.equal(code, Self.code(of: message, label, code.count, key)) || isFound
        }
    }

    private static func code(of message: [UInt8], _ label: String, _ count: Int, _ key: Key) -> [UInt8] {
        let info = Array("token-broker \(label)".utf8) + [0] + message
        return HKDF.sha256(key: key.bytes, salt: [], info: info, count: count).revealedBytes
    }
}

extension Vault {
    /// See `Keyring`.
    package func authenticationCode(of message: [UInt8], label: String, count: Int) -> [UInt8] {
        keyring.authenticationCode(of: message, label: label, count: count)
    }

    /// See `Keyring`.
    package func isAuthentic(_ code: [UInt8], of message: [UInt8], label: String) -> Bool {
        keyring.isAuthentic(code, of: message, label: label)
    }
}
