internal import Containers
internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Waiting

/// Carries out again what the store has lost with its last commits of tenants, API keys, clients, biometric keys and operators'
/// profiles: that this process has created, changed or removed them. Else an API key that was deleted would open everything again, for as long as
/// it is not deleted once more.
///
/// A record keeps the version that it had, so a change that came after it, in the store as it is now, has a higher one and stays.
struct SettingsRecovery: RestoredRecords {
    private static let batch = 200

    private let recent: RecentRecords
    private let records: CredentialsRecords

    private var vault: Vault { records.vault }

    /// - Parameter recent: is told of the commits of the vault that `records` use.
    init(_ recent: RecentRecords, records: CredentialsRecords) {
        self.recent = recent
        self.records = records
        for kind in RecentRecords.settingKinds {
            records.bus.onChange(of: kind) { [rollback = records.rollback] id, version in
                // While the replicas store again what is lost, a record that is not there may be one that was lost. After that
                // it was removed.
                if version != nil || rollback.remainingHold == nil { recent.forgetSetting(id, olderThan: version) }
            }
        }
        records.bus.onRemoval { recent.forget($0) }
    }

    func takeUp() async throws(StoreError) -> Bool { false }

    func restoreLost(isLastTime: Bool) async throws(StoreError) {
        guard records.rollback.isRecent else { return }
        // Records of a tenant that is not there yet cannot be stored.
        let (tenants, others) = recent.settings.reduce(into: ([RecentRecords.Change](), [RecentRecords.Change]())) {
            if $1.id.kind == .tenant { $0.0.append($1) } else { $0.1.append($1) }
        }
        var count = 0
        for changes in [tenants, others] {
            for batch in Self.groups(changes).inBatches(of: Self.batch) {
                let versions = try await vault.versions(of: batch.flatMap { $0.map(\.id) })
                let lost = Set(zip(batch.joined(), versions).filter { Self.isLost($0, $1) }.map { Self.owner($0.0) })
                let groups = batch.filter { lost.contains(Self.owner($0[0])) }
                count += try await CredentialsRecords.count(groups, records.log) { group async throws(StoreError) in
                    try await self.restoreUnlessChanged(group)
                }
            }
        }
        if count > 0 { records.log.warning("settings_stored_again", [.restored(count)]) }
    }

    /// - Parameter stored: the version in the store; nil for none.
    private static func isLost(_ change: RecentRecords.Change, _ stored: Int64?) -> Bool {
        switch change {
        case .stored(let record): stored ?? 0 < record.version
        case .removed(_, let version): stored.map { $0 <= version } ?? false
        }
    }

    /// The records of one API key are changed by one commit, since the one takes over the digest that the other one gives up.
    private static func owner(_ change: RecentRecords.Change) -> RecordID {
        change.id.kind == .apiKey ? .apiKey(change.id.apiKeyID, of: change.id.tenant) : change.id
    }

    /// What belongs together.
    private static func groups(_ changes: [RecentRecords.Change]) -> [[RecentRecords.Change]] {
        var groups: [[RecentRecords.Change]] = []
        var places: [RecordID: Int] = [:]
        for change in changes {
            let id = owner(change)
            if let place = places[id] {
                groups[place].append(change)
            } else {
                places[id] = groups.count
                groups.append([change])
            }
        }
        return groups
    }

    private static let tries = 3

    /// - Returns: whether the store had lost something of it.
    private func restoreUnlessChanged(_ group: [RecentRecords.Change]) async throws(StoreError) -> Bool {
        for _ in 0..<Self.tries {
            do throws(StoreError) {
                return try await restore(group)
            } catch .conflict {
                // Another replica was faster, the tenant is gone, or another record has the look-up digest.
                continue
            }
        }
        return false
    }

    private func restore(_ group: [RecentRecords.Change]) async throws(StoreError) -> Bool {
        let versions = try await vault.versions(of: group.map(\.id))
        var (changes, insertions, ended) = ([VaultChange](), [VaultChange](), [(id: RecordID, version: Int64)]())
        var changed: [(id: RecordID, version: Int64?)] = []
        for (change, stored) in zip(group, versions) {
            switch change {
            case .stored(let record):
                guard Self.isLost(change, stored) else { continue }
                if record.id.kind == .apiKey, record.id.tenant != .broker,
                    try await records.tombstones.isOver(record.id, version: record.version)
                {
                    continue
                }
                if let stored {
                    changes.append(.replace(record, version: stored))
                    ended.append((record.id, stored))
                } else {
                    insertions.append(.insert(record))
                }
                changed.append((record.id, record.version))
            case .removed(let id, _):
                guard let stored, Self.isLost(change, stored) else { continue }
                if id.kind == .tenant { return try await removeTenant(id, version: stored) }
                changes.append(.remove(id, version: stored))
                if id.kind == .client { changes.append(sessionEnding(of: id)) }
                ended.append((id, id.isOfEarlierSecret ? stored : .max))
                changed.append((id, nil))
            }
        }
        guard let tenant = changed.first?.id.tenant else { return false }
        // The secrets of a key of several tenants and the profiles of providers are under no tenant.
        if !insertions.isEmpty, group.first?.id.kind != .tenant, tenant != .broker {
            changes.insert(.require(RecordID(.tenant, tenant)), at: 0)
        }
        // Only API keys have tombstones, of what is stored here.
        let tombstones = try await records.tombstones.changes(ending: ended.filter { $0.id.kind == .apiKey })
        try await vault.commit(changes + insertions + tombstones.filter { !changes.contains($0) })
        // The store's notifications may be late, or not come.
        for (id, version) in changed { records.bus.announce(id, version: version) }
        if changes.contains(where: \.insertsSessionEnding) { records.sessionEndings.signal(0) }
        return true
    }

    /// - Parameter version: that was compared. A tenant that was made anew has a higher one.
    private func removeTenant(_ id: RecordID, version: Int64) async throws(StoreError) -> Bool {
        try await vault.commit([.remove(id, version: version), .removeAll(id.tenant)])
        records.bus.announce(removalOf: id.tenant)
        return true
    }

    /// Has the sessions of a client that was removed ended, as the commit did that the store has lost.
    private func sessionEnding(of client: RecordID) -> VaultChange {
        PendingSessionEnding(.ofClient(client.key), cause: .clientRemoved, before: records.time.now)
            .insertion(in: client.tenant, version: records.nextVersion(after: 0))
    }
}

extension VaultChange {
    fileprivate var insertsSessionEnding: Bool {
        if case .insert(let record) = self { record.id.kind == .sessionEnding } else { false }
    }
}
