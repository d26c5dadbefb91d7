internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor

/// Records of what fails: of one user's renewals, or of a tenant's client (`ClientFaults`).
extension CredentialsRecords {
    /// For how long a failure is remembered that is the last one.
    private static let troubleLife: Duration = .seconds(30 * 86_400)

    static func troubleID(_ id: CredentialsID) -> RecordID {
        RecordID(.trouble, id.tenant, key: id.storageKey.description)
    }

    /// What renewals have failed with so far, with the version of the record that says so; nil where there is none.
    func trouble(_ id: CredentialsID) async throws(StoreError) -> (content: RenewalTrouble?, version: Int64)? {
        guard let standing = try await note(Self.troubleID(id)) else { return nil }
        return (standing.content.flatMap { RenewalTrouble(decoding: $0.revealedBytes) }, standing.version)
    }

    /// The change that has the record say so.
    /// - Parameter version: of the record as it stands; nil where there is none.
    func change(of trouble: RenewalTrouble, _ id: CredentialsID, over version: Int64?) -> VaultChange {
        change(
            ofNote: trouble.encoded, Self.troubleID(id), until: time.now.advanced(by: Self.troubleLife), over: version)
    }

    /// A record that says nothing where it cannot be read, and can be replaced then; nil where there is none.
    func note(_ id: RecordID) async throws(StoreError) -> (content: SecretBytes?, version: Int64)? {
        guard let stored = try await vault.readSealed(id) else { return nil }
        return (try? vault.open(stored).content, stored.version)
    }

    /// The change that writes such a record.
    /// - Parameter version: of the record as it stands; nil where there is none.
    func change(
        ofNote content: [UInt8], _ id: RecordID, until expiry: Timestamp, over version: Int64?
    ) -> VaultChange {
        let record = OpenRecord(
            id: id, version: nextVersion(after: version ?? 0), content: SecretBytes(content), expires: expiry)
        return version.map { .replace(record, version: $0) } ?? .insert(record)
    }
}
