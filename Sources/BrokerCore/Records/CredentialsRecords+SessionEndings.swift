import CredentialStore
import ExternalText
import OAuth

extension CredentialsRecords {
    /// The changes that have sessions and biometric keys of apps ended whose login ends with the same commit; none where there are
    /// none.
    /// - Parameters:
    ///   - login: `HeldCredentials.loggedInSince` of the login that ends; nil for every login under the storage key.
    ///   - time: when it ends.
    func sessionEndings(
        of id: CredentialsID, login: Timestamp?, by cause: BrokerEvent.SessionEnd, _ time: Timestamp
    ) async throws(StoreError) -> [VaultChange] {
        let prefix = PendingSessionEnding.keyPrefix(of: id.storageKey)
        var isAny = false
        for kind in [RecordKind.session, .biometricKey] where !isAny {
            let next = try await vault.listSealed(
                kind, tenant: id.tenant, after: RecordID(kind, id.tenant, key: prefix), limit: 1)
            isAny = next.first.map { WireText($0.id.key).starts(with: WireText(prefix)) } ?? false
        }
        guard isAny else { return [] }
        let ending = PendingSessionEnding(.of(id.storageKey), login: login, cause: cause, before: time)
        return [ending.insertion(in: id.tenant, version: nextVersion(after: 0))]
    }

    /// The changes that have sessions and biometric keys ended whose login ends because a record replaces another one.
    /// - Parameter cause: with `logout`, all sessions under the storage key end, also those of an earlier login.
    func sessionEndings(
        of id: CredentialsID, from earlier: CredentialRecord?, to next: CredentialRecord,
        by cause: BrokerEvent.SessionEnd
    ) async throws(StoreError) -> [VaultChange] {
        let login = HeldCredentials.login(of: earlier?.held, endedBy: next.held)
        if login == nil, cause != .logout { return [] }
        return try await sessionEndings(of: id, login: login, by: cause, self.time.now)
    }
}
