package import Cryptography
import OAuth

/// Why a sealed record did not open. Retrying cannot help.
package enum SealError: Error, Equatable, Sendable {
    /// The envelope has a format that this build does not know.
    case unknownFormat
    /// It was sealed under a key that is not in the keyring.
    case unknownKey(KeyIdentity)
    /// The content, or associated data of the seal, was altered.
    case broken
}

/// Seals the contents of records and log entries.
///
/// The associated data of a record's seal are all its members except the due mark and the lease. So a row that was
/// edited, moved to another tenant, key or kind, or copied to another version does not open. The associated data of an
/// entry are all its members and a label, so that an entry does not open as a record. The sequence of an entry is not
/// among them, because the store assigns it later.
///
/// The envelope is format (1) ‖ key identity (4) ‖ nonce (12) ‖ ciphertext ‖ tag (16). Each tenant and kind has its own
/// AES-256-GCM key: HKDF-SHA-256 of the keyring's key, with the tenant as salt and the kind as info. That keeps each
/// key far below the 2³² random nonces that NIST SP 800-38D §8.3 allows per key.
package struct Sealer: Sendable {
    private static let format: UInt8 = 1
    private static let headCount = 1 + KeyIdentity.count + AES256GCM.nonceCount

    private let current: CurrentKeyring
    private let dataKeys = DataKeys()

    package init(keyring: Keyring) {
        self.init(CurrentKeyring(keyring))
    }

    init(_ current: CurrentKeyring) {
        self.current = current
    }

    /// Uses other keys from now on.
    func replaceKeys(_ keyring: Keyring) {
        current.replace(with: keyring)
        dataKeys.removeAll()
    }

    /// Seals the record under the keyring's first key.
    /// - Throws: `.randomnessUnavailable` (retrying later may help); `.invalidLength` for content of 2 GiB.
    package func seal(_ record: OpenRecord) throws(CryptographyError) -> StoredRecord {
        record.with(content: try seal(record.content, as: Self.subject(of: record)))
    }

    package func open(_ record: StoredRecord) throws(SealError) -> OpenRecord {
        record.with(content: try open(record.sealed, as: Self.subject(of: record)))
    }

    /// Seals the entry under the keyring's first key. The nonce is random, so no two entries have the same sealed
    /// octets.
    /// - Throws: `.randomnessUnavailable` (retrying later may help); `.invalidLength` for content of 2 GiB.
    package func seal(_ entry: OpenLogEntry) throws(CryptographyError) -> StoredLogEntry {
        entry.with(content: try seal(entry.content, as: Self.subject(of: entry)))
    }

    package func open(_ entry: StoredLogEntry) throws(SealError) -> OpenLogEntry {
        entry.with(content: try open(entry.sealed, as: Self.subject(of: entry)))
    }

    /// The owner of a sealed content.
    private struct Subject {
        let tenant: TenantName
        /// The kind of a record, or "event", which is no kind.
        let label: String
        let associatedData: [UInt8]
    }

    private func seal(_ content: SecretBytes, as subject: Subject) throws(CryptographyError) -> [UInt8] {
        let key = current.keyring.primary
        let nonce = try SecureRandom.bytes(AES256GCM.nonceCount)
        let sealed = try AES256GCM.seal(
            content, key: dataKey(key, subject), nonce: nonce, associatedData: subject.associatedData)
        var envelope: [UInt8] = []
        envelope.reserveCapacity(Self.headCount + sealed.count)
        envelope.append(Self.format)
        envelope += key.identity.bytes
        envelope += nonce
        envelope += sealed
        return envelope
    }

    private func open(_ sealed: [UInt8], as subject: Subject) throws(SealError) -> SecretBytes {
        guard let format = sealed.first else { throw .broken }
        guard format == Self.format else { throw .unknownFormat }
        guard let identity = Self.keyIdentity(of: sealed) else { throw .broken }
        guard let key = current.keyring.key(identity) else { throw .unknownKey(identity) }
        do {
            return try AES256GCM.open(
                Array(sealed[Self.headCount...]), key: dataKey(key, subject),
                nonce: Array(sealed[(1 + KeyIdentity.count)..<Self.headCount]),
                associatedData: subject.associatedData)
        } catch {
            throw .broken
        }
    }

    /// The key under which the octets were sealed; nil when they are no envelope.
    static func keyIdentity(of envelope: [UInt8]) -> KeyIdentity? {
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

    private static func subject<Content>(of record: Record<Content>) -> Subject {
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

    private static func subject<Content>(of entry: LogEntry<Content>) -> Subject {
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
