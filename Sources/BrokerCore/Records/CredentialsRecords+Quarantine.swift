import CredentialStore
import Cryptography
import OAuth

/// Credentials whose session has ended, which are kept aside for some days.
extension CredentialsRecords {
    /// What a change of credentials does to the quarantined ones.
    enum QuarantineChange: Equatable {
        case none
        /// Quarantines these credentials in place of those that are quarantined already. With a duration of zero, quarantines
        /// none.
        case keep(HeldCredentials, for: Duration, after: EndedSession)
        case drop
    }

    /// The changes of the store's present records that `quarantine` needs. Their commit is a conflict if those records change.
    func changes(_ quarantine: QuarantineChange, _ id: CredentialsID) async throws(StoreError) -> [VaultChange] {
        if quarantine == .none { return [] }
        // Only the version is read: a record that cannot be opened any more must not keep the new one from being stored.
        let present = try await vault.version(of: Self.quarantineID(id))
        guard case .keep(let held, let duration, let session) = quarantine, duration > .zero else {
            return present.map { [.remove(Self.quarantineID(id), version: $0)] } ?? []
        }
        let content = QuarantinedCredentials(
            credentials: held, until: session.time.advanced(by: duration), session: session)
        return [change(quarantining: content, id, over: present)]
    }

    /// The change that writes quarantined credentials, which ends a lease on them.
    /// - Parameter version: the version that is replaced; nil where there is none.
    func change(quarantining content: QuarantinedCredentials, _ id: CredentialsID, over version: Int64?) -> VaultChange
    {
        let record = OpenRecord(
            id: Self.quarantineID(id), version: nextVersion(after: version ?? 0), content: SecretBytes(content.encoded),
            expires: content.until)
        return version.map { .replace(record, version: $0) } ?? .insert(record)
    }

    /// What is stored of the quarantined credentials of a storage key.
    struct Quarantine {
        let content: QuarantinedCredentials
        let version: Int64
        /// The lease of a call that presents their refresh token to the provider; nil where there is none.
        let lease: Lease?
        /// The change that removes exactly these.
        let removal: VaultChange
    }

    /// The quarantined credentials; nil where there are none.
    func quarantined(_ id: CredentialsID) async throws(StoreError) -> Quarantine? {
        guard let record = try await vault.read(Self.quarantineID(id)) else { return nil }
        guard let content = QuarantinedCredentials(decoding: record.content.revealedBytes) else {
            throw .damaged("a quarantine record of tenant \(id.tenant) cannot be read by this version")
        }
        return Quarantine(
            content: content, version: record.version, lease: record.lease,
            removal: .remove(Self.quarantineID(id), version: record.version))
    }
}
