import CredentialStore
import OAuth

/// Stores the records of logins and of apps' codes again that the store has lost with its last commits. Else a login that has ended
/// would be pending again, and its code would be presented to the provider a second time, which ends the session that was granted for
/// it.
struct LoginRecovery: RecordRestorer {
    private let records: CredentialsRecords

    init(records: CredentialsRecords) { self.records = records }

    let event: StaticString = "logins_stored_again"
    let needsKnownLoss = true
    let stages: [[RecordKind]] = [[.login, .device, .code]]

    func restore(_ group: [RecordID]) async throws(StoreError) -> Bool {
        guard let known = records.memory.known(group).first, let record = try records.memory.commit(known.id)?.record,
            record.version == known.version
        else { return false }
        let stored = try await records.vault.version(of: known.id)
        guard Newness.isNewer(known, than: stored) else { return false }
        try await records.vault.commit(
            stored.map { [.replace(record, version: $0)] }
                ?? [.require(RecordID(.tenant, record.id.tenant)), .insert(record)])
        return true
    }
}
