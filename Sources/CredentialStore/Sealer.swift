package import Cryptography
internal import OAuth

/// Why a sealed record did not open. Retrying cannot help.
package enum SealError: Error, Equatable, Sendable {
    /// The envelope has a format that this build does not know.
    case unknownFormat
    /// It was sealed under a key that the keyring lacks.
    case unknownKey(KeyIdentity)
    /// Content, or something that the seal ties to it, was altered.
    case broken
}

/// Seals the content of records and ties it to all else that the record says, so that a row which was edited, moved to
/// another tenant, key or kind, or put back at a later version does not open.
///
/// The envelope is format (1) ‖ key identity (4) ‖ nonce (12) ‖ ciphertext ‖ tag (16). Every tenant and kind has its own
/// AES-256-GCM key, HKDF-SHA-256 of the keyring's with the tenant as the salt and the kind as the info. That keeps each
/// far below the 2³² random nonces which NIST SP 800-38D §8.3 allows a key.
package struct Sealer: Sendable {
    private static let format: UInt8 = 1
    private static let headCount = 1 + KeyIdentity.count + AES256GCM.nonceCount

    private let keyring: Keyring

    package init(keyring: Keyring) {
        self.keyring = keyring
    }

    /// The record in the form that a store keeps, sealed under the keyring's first key.
    /// - Throws: `.randomnessUnavailable` (retrying later may help); `.invalidLength` for content of 2 GiB.
    package func seal(_ record: OpenRecord) throws(CryptographyError) -> StoredRecord {
        var stored = StoredRecord(
            id: record.id, version: record.version, sealed: [], lookup: record.lookup, expires: record.expires)
        let nonce = try SecureRandom.bytes(AES256GCM.nonceCount)
        let sealed = try AES256GCM.seal(
            record.content, key: dataKey(keyring.primary, record.id), nonce: nonce,
            associatedData: associatedData(stored))
        stored.sealed = [Self.format] + keyring.primary.identity.bytes + nonce + sealed
        return stored
    }

    package func open(_ record: StoredRecord) throws(SealError) -> OpenRecord {
        guard let format = record.sealed.first else { throw .broken }
        guard format == Self.format else { throw .unknownFormat }
        guard let identity = Self.keyIdentity(of: record.sealed) else { throw .broken }
        guard let key = keyring.key(identity) else { throw .unknownKey(identity) }
        do {
            let content = try AES256GCM.open(
                Array(record.sealed[Self.headCount...]), key: dataKey(key, record.id),
                nonce: Array(record.sealed[(1 + KeyIdentity.count)..<Self.headCount]),
                associatedData: associatedData(record))
            return OpenRecord(
                id: record.id, version: record.version, content: content, lookup: record.lookup,
                expires: record.expires)
        } catch {
            throw .broken
        }
    }

    private static func keyIdentity(of envelope: [UInt8]) -> KeyIdentity? {
        guard envelope.count >= headCount + AES256GCM.tagCount else { return nil }
        return KeyIdentity(bytes: Array(envelope[1...KeyIdentity.count]))
    }

    private func dataKey(_ key: Keyring.Key, _ id: RecordID) -> SecretBytes {
        HKDF.sha256(
            key: key.bytes, salt: Array(id.tenant.description.utf8), info: Array(id.kind.rawValue.utf8),
            count: AES256GCM.keyCount)
    }

    private func associatedData(_ record: StoredRecord) -> [UInt8] {
        var fields = FieldWriter()
        fields.write(Self.format)
        fields.write(record.id.kind.rawValue)
        fields.write(record.id.tenant.description)
        fields.write(record.id.key)
        fields.write(record.version)
        fields.write(optional: record.lookup)
        fields.write(optional: record.expires?.milliseconds)
        return fields.bytes
    }
}
