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

/// Seals the content of records and ties it to all else that the record says but its due mark, so that a row which was
/// edited, moved to another tenant, key or kind, or put back at a later version does not open. An entry of the log is
/// tied to all that it says, and cannot pass for a record; its sequence is the store's, and no seal knows it.
///
/// The envelope is format (1) ‖ key identity (4) ‖ nonce (12) ‖ ciphertext ‖ tag (16). Every tenant and kind has its own
/// AES-256-GCM key, HKDF-SHA-256 of the keyring's with the tenant as the salt and the kind as the info. That keeps each
/// far below the 2³² random nonces which NIST SP 800-38D §8.3 allows a key.
package struct Sealer: Sendable {
    private static let format: UInt8 = 1
    private static let headCount = 1 + KeyIdentity.count + AES256GCM.nonceCount

    private let keyring: Keyring
    private let dataKeys = DataKeys()

    package init(keyring: Keyring) {
        self.keyring = keyring
    }

    /// The record in the form that a store keeps, sealed under the keyring's first key.
    /// - Throws: `.randomnessUnavailable` (retrying later may help); `.invalidLength` for content of 2 GiB.
    package func seal(_ record: OpenRecord) throws(CryptographyError) -> StoredRecord {
        var stored = StoredRecord(
            id: record.id, version: record.version, sealed: [], lookup: record.lookup, expires: record.expires,
            due: record.due)
        stored.sealed = try seal(record.content, as: Self.subject(of: stored))
        return stored
    }

    package func open(_ record: StoredRecord) throws(SealError) -> OpenRecord {
        OpenRecord(
            id: record.id, version: record.version, content: try open(record.sealed, as: Self.subject(of: record)),
            lookup: record.lookup, expires: record.expires, due: record.due, lease: record.lease)
    }

    /// The entry in the form that a store keeps, sealed under the keyring's first key. No two have the same sealed
    /// octets.
    /// - Throws: `.randomnessUnavailable` (retrying later may help); `.invalidLength` for content of 2 GiB.
    package func seal(_ entry: OpenLogEntry) throws(CryptographyError) -> StoredLogEntry {
        var stored = StoredLogEntry(
            tenant: entry.tenant, key: entry.key, version: entry.version, time: entry.time, sealed: [])
        stored.sealed = try seal(entry.content, as: Self.subject(of: stored))
        return stored
    }

    package func open(_ entry: StoredLogEntry) throws(SealError) -> OpenLogEntry {
        OpenLogEntry(
            tenant: entry.tenant, key: entry.key, version: entry.version, time: entry.time,
            content: try open(entry.sealed, as: Self.subject(of: entry)))
    }

    /// What a sealed content belongs to.
    private struct Subject {
        let tenant: TenantName
        /// A record's kind, or "event", which no kind is called.
        let label: String
        let associatedData: [UInt8]
    }

    private func seal(_ content: SecretBytes, as subject: Subject) throws(CryptographyError) -> [UInt8] {
        let nonce = try SecureRandom.bytes(AES256GCM.nonceCount)
        let sealed = try AES256GCM.seal(
            content, key: dataKey(keyring.primary, subject), nonce: nonce, associatedData: subject.associatedData)
        var envelope: [UInt8] = []
        envelope.reserveCapacity(Self.headCount + sealed.count)
        envelope.append(Self.format)
        envelope += keyring.primary.identity.bytes
        envelope += nonce
        envelope += sealed
        return envelope
    }

    private func open(_ sealed: [UInt8], as subject: Subject) throws(SealError) -> SecretBytes {
        guard let format = sealed.first else { throw .broken }
        guard format == Self.format else { throw .unknownFormat }
        guard let identity = Self.keyIdentity(of: sealed) else { throw .broken }
        guard let key = keyring.key(identity) else { throw .unknownKey(identity) }
        do {
            return try AES256GCM.open(
                Array(sealed[Self.headCount...]), key: dataKey(key, subject),
                nonce: Array(sealed[(1 + KeyIdentity.count)..<Self.headCount]),
                associatedData: subject.associatedData)
        } catch {
            throw .broken
        }
    }

    private static func keyIdentity(of envelope: [UInt8]) -> KeyIdentity? {
        guard envelope.count >= headCount + AES256GCM.tagCount else { return nil }
        return KeyIdentity(bytes: Array(envelope[1...KeyIdentity.count]))
    }

    private func dataKey(_ key: Keyring.Key, _ subject: Subject) -> SecretBytes {
        dataKeys.key(DataKeys.Name(key: key.identity, tenant: subject.tenant, label: subject.label)) {
            HKDF.sha256(
                key: key.bytes, salt: Array(subject.tenant.description.utf8), info: Array(subject.label.utf8),
                count: AES256GCM.keyCount)
        }
    }

    private static func subject(of record: StoredRecord) -> Subject {
        var fields = FieldWriter(capacity: 128)
        fields.write(format)
        fields.write(record.id.kind.rawValue)
        fields.write(record.id.tenant.description)
        fields.write(record.id.key)
        fields.write(record.version)
        fields.write(optional: record.lookup)
        fields.write(optional: record.expires?.milliseconds)
        return Subject(tenant: record.id.tenant, label: record.id.kind.rawValue, associatedData: fields.bytes)
    }

    private static func subject(of entry: StoredLogEntry) -> Subject {
        let label = "event"
        var fields = FieldWriter(capacity: 128)
        fields.write(format)
        fields.write(label)
        fields.write(entry.tenant.description)
        fields.write(entry.key)
        fields.write(entry.version)
        fields.write(entry.time.milliseconds)
        return Subject(tenant: entry.tenant, label: label, associatedData: fields.bytes)
    }
}
