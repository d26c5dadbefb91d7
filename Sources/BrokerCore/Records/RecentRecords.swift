internal import Containers
internal import CredentialStore
internal import OAuth
internal import Reactor

/// What this process stored and removed lately beside credentials and sessions, in memory, and only where other processes write
/// to the store: the records of logins and of apps' codes; tenants, API keys, clients, biometric keys and operators' profiles. Safe
/// to use from any task.
final class RecentRecords: Sendable {
    /// What the last commit of this process has made of a record.
    enum Change: Sendable {
        case stored(OpenRecord)
        /// The record had that version, and exists no more.
        case removed(RecordID, version: Int64)

        var id: RecordID {
            switch self {
            case .stored(let record): record.id
            case .removed(let id, _): id
            }
        }
    }

    /// Records that are gone soon. Their removal need not be remembered.
    static let loginKinds: [RecordKind] = [.login, .device, .code]
    /// Records that stay until they are removed.
    static let settingKinds: [RecordKind] = [.tenant, .apiKey, .client, .biometricKey, .provider]

    /// Nil where no other process writes to the store.
    private let loginEntries: ExpiringTable<RecordID, OpenRecord>?
    private let settingEntries: ExpiringTable<RecordID, Change>?
    /// Those of biometric keys, which apps make and operators do not: they push out nothing else.
    private let biometricEntries: ExpiringTable<RecordID, Change>?

    /// - Parameter span: for how long records are kept; zero keeps none.
    init(span: Duration, time: any Time) {
        loginEntries = span > .zero ? ExpiringTable(validity: span, capacity: 8192, time: time) : nil
        settingEntries = span > .zero ? ExpiringTable(validity: span, capacity: 8192, time: time) : nil
        biometricEntries = span > .zero ? ExpiringTable(validity: span, capacity: 8192, time: time) : nil
    }

    /// Nil for other kinds than `settingKinds`.
    private func entries(of kind: RecordKind) -> ExpiringTable<RecordID, Change>? {
        guard Self.settingKinds.contains(kind) else { return nil }
        return kind == .biometricKey ? biometricEntries : settingEntries
    }

    /// This process has committed the changes.
    func note(_ changes: [VaultChange]) {
        for change in changes {
            switch change {
            case .insert(let record), .replace(let record, _, _):
                if Self.loginKinds.contains(record.id.kind) { loginEntries?.set(record.id, record) }
                entries(of: record.id.kind)?.set(record.id, .stored(record))
            case .remove(let id, let version):
                if Self.loginKinds.contains(id.kind) { loginEntries?.remove(id) }
                entries(of: id.kind)?.set(id, .removed(id, version: version))
            default: break
            }
        }
    }

    /// This process has removed the tenant with everything under it.
    /// - Parameter version: that its record had.
    func noteRemoval(of tenant: TenantName, version: Int64) {
        forget(tenant)
        let id = RecordID(.tenant, tenant)
        settingEntries?.set(id, .removed(id, version: version))
    }

    // MARK: Dropping

    /// Another process has changed the record of a login.
    /// - Parameter version: nil where it was removed.
    func forgetLogin(_ id: RecordID, olderThan version: Int64?) {
        loginEntries?.remove(id) { entry in version.map { $0 > entry.version } ?? true }
    }

    /// Another process has changed the record.
    /// - Parameter version: nil where it was removed. That this process has removed it is remembered.
    func forgetSetting(_ id: RecordID, olderThan version: Int64?) {
        entries(of: id.kind)?.remove(id) { change in
            switch change {
            case .stored(let record): version.map { $0 > record.version } ?? true
            case .removed(_, let removed): version.map { $0 > removed } ?? false
            }
        }
    }

    /// The tenant was removed. That this process has removed it is remembered.
    func forget(_ tenant: TenantName) {
        loginEntries?.removeAll { id in id.tenant == tenant }
        settingEntries?.removeAll { id in id.tenant == tenant && id.kind != .tenant }
        biometricEntries?.removeAll { id in id.tenant == tenant }
        settingEntries?.remove(RecordID(.tenant, tenant)) { change in
            if case .stored = change { return true }
            return false
        }
    }

    // MARK: Looking up

    var logins: [OpenRecord] { loginEntries?.values ?? [] }
    /// Those of each kind in the order in which they were made.
    var settings: [Change] { (settingEntries?.values ?? []) + (biometricEntries?.values ?? []) }
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
        for kind in RecentRecords.loginKinds {
            records.bus.onChange(of: kind) { [rollback = records.rollback] id, version in
                // After a loss of commits, a record that is not there may be one that was lost.
                if version != nil || !rollback.isRecent { recent.forgetLogin(id, olderThan: version) }
            }
        }
    }

    func takeUp() async throws(StoreError) -> Bool { false }

    func restoreLost(isLastTime: Bool) async throws(StoreError) {
        guard records.rollback.isRecent else { return }
        let vault = records.vault
        var restored = 0
        for batch in recent.logins.inBatches(of: Self.batch) {
            let versions = try await vault.versions(of: batch.map(\.id))
            let lost = zip(batch, versions).filter { ($1 ?? 0) < $0.version }
            restored += try await CredentialsRecords.count(lost, records.log) {
                (record, version) async throws(StoreError) in
                do throws(StoreError) {
                    try await vault.commit(
                        version.map { [.replace(record, version: $0)] }
                            ?? [.require(RecordID(.tenant, record.id.tenant)), .insert(record)])
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
