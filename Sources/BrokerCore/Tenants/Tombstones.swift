import Containers
package import CredentialStore
import Cryptography
import OAuth
import Reactor

/// Tells records that were put back into the database after they had ended: API keys that were deleted or rotated, credentials of
/// users who have logged out.
///
/// A record is sealed, so an attacker who can write to the database cannot make one. But a row that was removed, or the row that
/// a later one has replaced, can be inserted again. So the commit that ends a record also writes a tombstone, whose version is
/// that up to which the record has ended. A record that is read counts as ended if its version is not higher than that.
///
/// A tombstone is a row of its own, without content: what is wrong with it concerns no other record. It is not opened, because an
/// attacker who can change its version can as well remove it, or the record that it tells of. Neither is noticed.
///
/// Nothing of it is kept in memory, since the store may go back as a whole: a record only counts as ended when the store says so.
///
/// Safe to use from any task.
package final class Tombstones: Sendable {
    private let vault: Vault
    private let time: any Time
    private let log: Log
    private let metrics: Metrics
    /// As they were read last. A page counts in the version that the store has.
    private let pages: RevalidatingCache<TombstonePage.ID, TombstonePage>

    /// For how many records the store is asked at once: two versions for each.
    private static let batch = 2500
    /// More than the clocks of two replicas differ, also where one is set wrong: a page that is read in vain costs only the read.
    private static let clockDifference: Duration = .seconds(3600)

    package init(vault: Vault, bus: EventBus, instruments: Instruments) {
        self.vault = vault
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        pages = RevalidatingCache(bytes: 16 << 20, validity: bus.cacheValidity) { id, page in
            MemorySize.text(id.tenant.description) + page.memorySize
        } version: {
            $0.version
        }
        bus.onRemoval { [pages] tenant in pages.removeAll { id, _ in id.tenant == tenant } }
    }

    // MARK: Asking

    /// What the store has about the end of a record.
    struct Told {
        /// The version of its tombstone, up to which it has ended; nil for none.
        let ended: Int64?
        /// The version of the page of earlier builds that may have its tombstone; nil for none.
        let page: Int64?
    }

    /// The record, and what the store told with it of its end. By one call of the store.
    func read(_ id: RecordID) async throws(StoreError) -> (record: OpenRecord, told: Told)? {
        guard let found = try await vault.read(id, with: Self.places(of: id)) else { return nil }
        return (found.record, Told(ended: found.versions[0], page: found.versions[1]))
    }

    /// Whether the record has ended, and was put back. Says so in the log.
    /// - Parameter told: with the record; nil to ask the store now.
    /// - Throws: `damaged` where the page of an earlier build that may have its tombstone cannot be read.
    func isPutBack(_ record: OpenRecord, _ told: Told? = nil) async throws(StoreError) -> Bool {
        try await isPutBack(record.id, version: record.version, told)
    }

    private func isPutBack(_ id: RecordID, version: Int64, _ told: Told?) async throws(StoreError) -> Bool {
        guard try await isOver(id, version: version, told) else { return false }
        // A record that ended while it was being read was not put back: it is what the store had when it was read.
        guard try await vault.versions(of: [id]) == [version] else { return false }
        log.error("record_put_back", [.tenant(id.tenant), .recordKind(id.kind), .version(version)])
        metrics.recordPutBack()
        return true
    }

    /// Those of the records that were put back, for a list. A record of which that cannot be told is not among them, so that it
    /// keeps no other one from being listed: what uses it asks for itself.
    func putBack(among records: [(id: RecordID, version: Int64)]) async throws(StoreError) -> Set<RecordID> {
        var putBack: Set<RecordID> = []
        for batch in records.inBatches(of: Self.batch) {
            for (record, told) in zip(batch, try await told(of: batch.map(\.id))) {
                do throws(StoreError) {
                    if try await isPutBack(record.id, version: record.version, told) { putBack.insert(record.id) }
                } catch .damaged(let text) {
                    log.storeFailed(.damaged(text))
                }
            }
        }
        return putBack
    }

    /// Whether that version of the record has ended.
    func isOver(_ id: RecordID, version: Int64, _ told: Told? = nil) async throws(StoreError) -> Bool {
        let told = if let told { told } else { try await self.told(of: [id])[0] }
        if let ended = told.ended, version <= ended { return true }
        guard let page = told.page, Self.canTell(page, of: version) else { return false }
        return version <= (try await read(TombstonePage.ID(of: id), version: page)?.lastEnded(id) ?? 0)
    }

    private func told(of ids: [RecordID]) async throws(StoreError) -> [Told] {
        let versions = try await vault.versions(of: ids.flatMap(Self.places))
        return ids.indices.map { Told(ended: versions[2 * $0], page: versions[2 * $0 + 1]) }
    }

    /// The records that may tell of its end: its tombstone, and the page of an earlier build.
    private static func places(of id: RecordID) -> [RecordID] { [id.tombstone, TombstonePage.ID(of: id).recordID] }

    /// Whether a page of that version may have the tombstone of a record of that version: not if the record was written later.
    private static func canTell(_ page: Int64, of version: Int64) -> Bool {
        VersionSource.time(of: version) <= VersionSource.time(of: page).advanced(by: clockDifference)
    }

    /// The page; nil if it is gone by now.
    /// - Parameter version: the page's, as the store told it a moment ago.
    private func read(_ id: TombstonePage.ID, version: Int64) async throws(StoreError) -> TombstonePage? {
        if let page = pages.any(id), page.version == version { return page }
        let ticket = pages.ticket(id, now: time.monotonic)
        let page = try await vault.read(id.recordID).map { record throws(StoreError) in try TombstonePage(record) }
        pages.fill(id, page, ticket)
        return page
    }

    // MARK: Ending records

    /// What a commit that ends records changes beside them. If another replica ends one of them first, that commit is a
    /// conflict, and its caller reads everything again.
    /// - Parameter ended: records of one tenant, each with the version up to which it has ended: `Int64.max` for one that never
    ///   exists again.
    func changes(ending ended: [(id: RecordID, version: Int64)]) async throws(StoreError) -> [VaultChange] {
        guard let tenant = ended.first?.id.tenant else { return [] }
        let latest = Dictionary(ended.map { ($0.id.tombstone, $0.version) }, uniquingKeysWith: max).sorted {
            $0.key < $1.key
        }
        var changes: [VaultChange] = []
        var hasNew = false
        for ((id, version), present) in zip(latest, try await vault.versions(of: latest.map(\.key))) {
            let tombstone = OpenRecord(id: id, version: version, content: SecretBytes([]))
            if let present {
                if present < version { changes.append(.replace(tombstone, version: present)) }
            } else {
                changes.append(.insert(tombstone))
                hasNew = true
            }
        }
        // What is inserted would outlive a tenant that is removed meanwhile.
        if hasNew, tenant != .broker { changes.insert(.require(RecordID(.tenant, tenant)), at: 0) }
        return changes
    }
}

extension RecordID {
    /// The record's tombstone.
    var tombstone: RecordID { RecordID(.tombstone, tenant, key: Hex.encode(tombstoneDigest)) }

    /// 16 bytes by which tombstones name the record, whose key may be as long as any.
    var tombstoneDigest: [UInt8] { Array(SHA256.digest(Array("\(kind.rawValue) \(key)".utf8)).prefix(16)) }
}
