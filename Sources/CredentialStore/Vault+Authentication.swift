package import Cryptography

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

/// Seals values that the broker gives out and takes back later, on any replica.
extension Keyring {
    /// Seals a value under the first key. The envelope is key identity (4) ‖ nonce (12) ‖ ciphertext ‖ tag (16).
    ///
    /// Each place has an AES-256-GCM key of its own, so that it does not count how many values strangers have the broker seal.
    /// - Parameters:
    ///   - label: what the value is.
    ///   - place: where alone it opens. Must not be used for many values.
    /// - Throws: `.randomnessUnavailable` (retrying later may help); `.invalidLength` for content of 2 GiB.
    func seal(
        _ content: SecretBytes, label: String, at place: [UInt8]
    ) throws(CryptographyError) -> [UInt8] {
        let nonce = try SecureRandom.bytes(AES256GCM.nonceCount)
        let sealed = try AES256GCM.seal(
            content, key: Self.sealingKey(label, place, primary), nonce: nonce, associatedData: place)
        return primary.identity.bytes + nonce + sealed
    }

    /// The value, if it was sealed for that place with any key of the keyring; else nil.
    func open(_ sealed: [UInt8], label: String, at place: [UInt8]) -> SecretBytes? {
        let headCount = KeyIdentity.count + AES256GCM.nonceCount
        guard sealed.count >= headCount + AES256GCM.tagCount,
            let key = key(KeyIdentity(bytes: Array(sealed[..<KeyIdentity.count])))
        else { return nil }
        return try? AES256GCM.open(
            Array(sealed[headCount...]), key: Self.sealingKey(label, place, key),
            nonce: Array(sealed[KeyIdentity.count..<headCount]), associatedData: place)
    }

    private static func sealingKey(_ label: String, _ place: [UInt8], _ key: Key) -> SecretBytes {
        let info = Array("token-broker sealed \(label)".utf8) + [0] + place
        return HKDF.sha256(key: key.bytes, salt: [], info: info, count: AES256GCM.keyCount)
    }
}

extension Vault {
    /// See `Keyring`.
    package func seal(_ content: SecretBytes, label: String, at place: [UInt8]) throws(CryptographyError) -> [UInt8] {
        try keyring.seal(content, label: label, at: place)
    }

    /// See `Keyring`.
    package func open(_ sealed: [UInt8], label: String, at place: [UInt8]) -> SecretBytes? {
        keyring.open(sealed, label: label, at: place)
    }

    /// See `Keyring`.
    package func authenticationCode(of message: [UInt8], label: String, count: Int) -> [UInt8] {
        keyring.authenticationCode(of: message, label: label, count: count)
    }

    /// See `Keyring`.
    package func isAuthentic(_ code: [UInt8], of message: [UInt8], label: String) -> Bool {
        keyring.isAuthentic(code, of: message, label: label)
    }
}
