internal import CredentialStore
internal import ExternalText
internal import OAuth

extension CredentialsRecords {
    /// The changes that have sessions and biometric keys of apps ended whose user's login ends with the same commit; none where
    /// there are none.
    func sessionEndings(
        of id: CredentialsID, by cause: BrokerEvent.SessionEnd, _ now: Timestamp
    ) async throws(StoreError) -> [VaultChange] {
        let prefix = PendingSessionEnding.keyPrefix(of: id.storageKey)
        var isAny = false
        for kind in [RecordKind.session, .biometricKey] where !isAny {
            let next = try await vault.listSealed(
                kind, tenant: id.tenant, after: RecordID(kind, id.tenant, key: prefix), limit: 1)
            isAny = next.first.map { WireText($0.id.key).starts(with: WireText(prefix)) } ?? false
        }
        guard isAny else { return [] }
        let ending = PendingSessionEnding(.of(id.storageKey), cause: cause, before: now)
        return [ending.insertion(in: id.tenant, version: nextVersion(after: 0))]
    }
}
