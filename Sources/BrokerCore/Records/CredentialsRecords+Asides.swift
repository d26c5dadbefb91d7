import CredentialStore
import Cryptography
import ExternalText
import OAuth

/// Refresh tokens that the provider has given in exchange for those of an import's lines, and that are not stored under the lines'
/// storage keys. They may be of another user than the storage key's, and no session has ended with them. So they are never
/// restored: only a line with the same refresh token takes one up.
extension CredentialsRecords {
    /// For how long one is kept at least, also where nothing is quarantined.
    private static let shortestAside: Duration = .seconds(86_400)
    /// How many of them a logout removes. The others expire.
    private static let asidesRemovedAtMost = 100

    /// What the keys of a storage key's records begin with.
    private static func asidePrefix(_ id: CredentialsID) -> String {
        Base64URL.encode(Array(SHA256.digest(Array(id.storageKey.description.utf8)).prefix(16))) + "."
    }

    static func asideID(_ id: CredentialsID, _ grant: ImportedGrant) -> RecordID {
        RecordID(.aside, id.tenant, key: asidePrefix(id) + Base64URL.encode(grant.digest))
    }

    /// What was put aside of a line's grant, and the change that removes exactly this; nil where there is nothing.
    func aside(
        _ id: CredentialsID, of grant: ImportedGrant
    ) async throws(StoreError) -> (credentials: HeldCredentials, removal: VaultChange)? {
        let recordID = Self.asideID(id, grant)
        guard let record = try await vault.read(recordID) else { return nil }
        guard let content = QuarantinedCredentials(decoding: record.content.revealedBytes) else {
            throw .damaged("what an import into tenant \(id.tenant) put aside cannot be read by this version")
        }
        guard content.until > time.now, content.credentials.refreshToken != nil else { return nil }
        return (content.credentials, .remove(recordID, version: record.version))
    }

    /// The changes that put the refresh token of an imported set aside, in place of an earlier one of the same line. Its access token
    /// is not kept. Their commit is a conflict if the record changes.
    /// - Parameter quarantine: for how long it is kept, a day at least.
    func changes(
        puttingAside held: HeldCredentials, _ id: CredentialsID, for quarantine: Duration
    ) async throws(StoreError) -> [VaultChange] {
        guard let grant = held.imported, held.refreshToken != nil else { return [] }
        let (recordID, now) = (Self.asideID(id, grant), time.now)
        let content = QuarantinedCredentials(
            credentials: held.unserved(at: now), until: now.advanced(by: max(quarantine, Self.shortestAside)))
        // Only the version is read: a record that cannot be opened any more must not keep the new one from being stored.
        let present = try await vault.version(of: recordID)
        return [change(ofNote: content.encoded, recordID, until: content.until, over: present)]
    }

    /// The changes that remove what imports have put aside under a storage key.
    func changesRemovingAsides(_ id: CredentialsID) async throws(StoreError) -> [VaultChange] {
        let prefix = Self.asidePrefix(id)
        let place = RecordID(.aside, id.tenant, key: prefix)
        let found = try await vault.listSealed(
            .aside, tenant: id.tenant, after: place, limit: Self.asidesRemovedAtMost)
        return found.prefix { WireText($0.id.key).starts(with: WireText(prefix)) }
            .map { .remove($0.id, version: $0.version) }
    }
}
