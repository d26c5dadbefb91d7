import CredentialStore
import OAuth
import Reactor
import Waiting

/// Carries out again what the store has lost with its last commits of tenants, API keys, clients, biometric keys and operators'
/// profiles: that this process has created, changed or removed them. Else an API key that was deleted would open everything again, for as long as
/// it is not deleted once more.
///
/// A record keeps the version that it had, so a change that came after it, in the store as it is now, has a higher one and stays.
struct SettingsRecovery: RecordRestorer {
    private let records: CredentialsRecords

    private var vault: Vault { records.vault }

    init(records: CredentialsRecords) { self.records = records }

    let event: StaticString = "settings_stored_again"
    let needsKnownLoss = true
    /// Records of a tenant that is not there yet cannot be stored.
    let stages: [[RecordKind]] = [[.tenant], [.apiKey, .client, .biometricKey, .provider]]

    /// The records of one API key are changed by one commit, since the one takes over the digest that the other one gives up.
    func owner(of id: RecordID) -> RecordID {
        id.kind == .apiKey ? .apiKey(id.apiKeyID, of: id.tenant) : id
    }

    func restore(_ group: [RecordID]) async throws(StoreError) -> Bool {
        let known = records.memory.known(group)
        let versions = try await vault.versions(of: known.map(\.id))
        var (changes, insertions, ended) = ([VaultChange](), [VaultChange](), [(id: RecordID, version: Int64)]())
        var changed: [(id: RecordID, version: Int64?)] = []
        // An API key that is there in an older version was not removed meanwhile, and has lost both records of its rotation.
        let isOlder = zip(known, versions).contains { known, stored in
            stored != nil && known.id == owner(of: known.id) && Newness.isNewer(known, than: stored)
        }
        for (var known, stored) in zip(known, versions) {
            if isOlder { known.isTakenUp = false }
            guard Newness.isNewer(known, than: stored) else { continue }
            if known.isRemoved {
                guard let stored else { continue }
                if known.id.kind == .tenant { return try await removeTenant(known.id, version: stored) }
                changes.append(.remove(known.id, version: stored))
                if known.id.kind == .client { changes.append(sessionEnding(of: known.id)) }
                ended.append((known.id, known.id.isOfEarlierSecret ? stored : .max))
                changed.append((known.id, nil))
                continue
            }
            guard let record = try records.memory.commit(known.id)?.record else { continue }
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
        }
        guard let first = changed.first?.id else { return false }
        // The secrets of a key of several tenants and the profiles of providers are under no tenant.
        if !insertions.isEmpty, first.kind != .tenant, first.tenant != .broker {
            changes.insert(.require(RecordID(.tenant, first.tenant)), at: 0)
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
