internal import Containers
internal import CredentialStore
internal import OAuth
internal import Reactor

/// The records of logins and of apps' codes that this process stored lately, in memory, and only where other processes write to
/// the store. Safe to use from any task.
final class RecentRecords: Sendable {
    static let kinds: [RecordKind] = [.login, .device, .code]

    /// Nil where no other process writes to the store.
    private let entries: ExpiringTable<RecordID, OpenRecord>?

    /// - Parameter span: for how long records are kept; zero keeps none.
    init(span: Duration, time: any Time) {
        entries = span > .zero ? ExpiringTable(validity: span, capacity: 8192, time: time) : nil
    }

    /// This process has committed the changes.
    func note(_ changes: [VaultChange]) {
        guard let entries else { return }
        for change in changes {
            switch change {
            case .insert(let record), .replace(let record, _, _):
                if Self.kinds.contains(record.id.kind) { entries.set(record.id, record) }
            case .remove(let id, _) where Self.kinds.contains(id.kind): entries.remove(id)
            default: break
            }
        }
    }

    /// Another process has changed the record.
    /// - Parameter version: nil where it was removed.
    func forget(_ id: RecordID, olderThan version: Int64?) {
        entries?.remove(id) { entry in version.map { $0 > entry.version } ?? true }
    }

    func forget(_ tenant: TenantName) { entries?.removeAll { id in id.tenant == tenant } }

    var all: [OpenRecord] { entries?.values ?? [] }
}

/// Stores the records of logins again that the store has lost with its last commits. Else a login that has ended would be pending
/// again, and its code would be presented to the provider a second time, which ends the session that was granted for it.
struct LoginRecovery: RestoredRecords {
    private static let batch = 500

    private let recent: RecentRecords
    private let records: CredentialsRecords

    /// - Parameter recent: is told of the commits of the vault that `records` use.
    init(_ recent: RecentRecords, records: CredentialsRecords) {
        self.recent = recent
        self.records = records
        for kind in RecentRecords.kinds {
            records.bus.onChange(of: kind) { [rollback = records.rollback] id, version in
                // After a loss of commits, a record that is not there may be one that was lost.
                if version != nil || !rollback.isRecent { recent.forget(id, olderThan: version) }
            }
        }
        records.bus.onRemoval { recent.forget($0) }
    }

    func takeUp() async throws(StoreError) -> Bool { false }

    func restoreLost(isLastTime: Bool) async throws(StoreError) {
        guard records.rollback.isRecent else { return }
        let vault = records.vault
        var restored = 0
        for batch in recent.all.inBatches(of: Self.batch) {
            let versions = try await vault.versions(of: batch.map(\.id))
            let lost = zip(batch, versions).filter { ($1 ?? 0) < $0.version }
            restored += try await CredentialsRecords.count(lost, records.log) {
                (record, version) async throws(StoreError) in
                do throws(StoreError) {
                    try await vault.commit([version.map { .replace(record, version: $0) } ?? .insert(record)])
                    return true
                } catch .conflict {
                    // Another replica was faster, or the tenant is gone.
                    return false
                }
            }
        }
        if restored > 0 { records.log.warning("logins_stored_again", [.restored(restored)]) }
    }
}
