import CredentialStore
import Cryptography
import OAuth
import Reactor

/// Records of failures: of one user's renewals, or of a tenant's client (`ClientFaults`).
extension CredentialsRecords {
    /// For how long a failure is kept if no other failure follows.
    private static let troubleLife: Duration = .seconds(30 * 86_400)

    static func troubleID(_ id: CredentialsID) -> RecordID {
        RecordID(.trouble, id.tenant, key: id.storageKey.description)
    }

    /// The record of the user's failed renewals, with its version; nil where there is none. The content is nil where this build
    /// cannot read it.
    func trouble(_ id: CredentialsID) async throws(StoreError) -> (content: RenewalTrouble?, version: Int64)? {
        guard let note = try await note(Self.troubleID(id)) else { return nil }
        return (note.content.flatMap { RenewalTrouble(decoding: $0.revealedBytes) }, note.version)
    }

    /// The change that writes the record.
    /// - Parameter version: the version that is replaced; nil where there is none.
    func change(of trouble: RenewalTrouble, _ id: CredentialsID, over version: Int64?) -> VaultChange {
        change(
            ofNote: trouble.encoded, Self.troubleID(id), until: time.now.advanced(by: Self.troubleLife), over: version)
    }

    /// A record that may be replaced even where it cannot be opened; its content is nil then. Nil where there is no record.
    func note(_ id: RecordID) async throws(StoreError) -> (content: SecretBytes?, version: Int64)? {
        guard let stored = try await vault.readSealed(id) else { return nil }
        return (try? vault.open(stored).content, stored.version)
    }

    /// The change that writes such a record.
    /// - Parameter version: the version that is replaced; nil where there is none.
    func change(
        ofNote content: [UInt8], _ id: RecordID, until expiry: Timestamp, over version: Int64?
    ) -> VaultChange {
        let record = OpenRecord(
            id: id, version: nextVersion(after: version ?? 0), content: SecretBytes(content), expires: expiry)
        return version.map { .replace(record, version: $0) } ?? .insert(record)
    }
}
