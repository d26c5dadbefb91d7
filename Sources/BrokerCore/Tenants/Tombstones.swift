package import CredentialStore
package import OAuth
internal import Reactor
internal import Waiting

/// Tells records that were put back into the database after they had ended: API keys that were deleted or rotated, credentials of
/// users who have logged out.
///
/// A record is sealed, so an attacker who can write to the database cannot make one. But a row that was removed, or the row that
/// a later one has replaced, can be inserted again. So the commit that ends a record writes a tombstone, which says up to which
/// version the record has ended: see `TombstonePage`. A tombstone could be replaced by an earlier row, too; therefore a second
/// record of the tenant has the least version of each page: see `TombstoneMark`.
///
/// The commit that ends a record writes its page and the mark, so all three go back together where the store goes back as a
/// whole. What the caches have may then be newer than the store. So a record only counts as ended when the store says so.
///
/// Safe to use from any task.
package final class Tombstones: Sendable {
    private let vault: Vault
    private let time: any Time
    private let log: Log
    private let metrics: Metrics
    private let pages: RevalidatingCache<TombstonePage.ID, TombstonePage>
    private let marks: RevalidatingCache<TenantName, TombstoneMark>
    private let versions = VersionSource()
    /// Commits of one tenant's tombstones, one after the other: each replaces the same mark.
    private let turns = Turns<TenantName>()

    private static let tries = 32
    /// As long as a statement may take.
    private static let longestWait: Duration = .seconds(5)

    package init(vault: Vault, bus: EventBus, instruments: Instruments) {
        self.vault = vault
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        pages = RevalidatingCache(bytes: 16 << 20, validity: bus.cacheValidity) { id, page in
            MemorySize.text(id.tenant.description) + page.memorySize
        } version: {
            $0.version
        }
        marks = RevalidatingCache(bytes: 16 << 20, validity: bus.cacheValidity) { tenant, mark in
            // Tenants without tombstones share one mark.
            MemorySize.text(tenant.description) + (mark.version == 0 ? 0 : MemorySize.bytes(8 * mark.pages.count))
        } version: {
            $0.version
        }
        bus.onChange(of: .tombstones) { [pages] id, version in
            if let id = TombstonePage.ID(id) { pages.invalidate(id, olderThan: version) }
        }
        bus.onChange(of: .tombstoneMark) { [marks] id, version in marks.invalidate(id.tenant, olderThan: version) }
        bus.onRemoval { [pages, marks] tenant in
            pages.removeAll { id, _ in id.tenant == tenant }
            marks.remove(tenant)
        }
    }

    /// The caches, for `CacheRevalidation`.
    var revalidatedCaches: [AnyRevalidatingCache] {
        [
            AnyRevalidatingCache(pages) { id, _ in id.recordID },
            AnyRevalidatingCache(marks) { tenant, _ in TombstoneMark.recordID(tenant) },
        ]
    }

    // MARK: Asking

    /// Whether the record has ended, and was put back. Says so in the log.
    /// - Throws: `damaged` where the tombstones themselves were put back, so that they cannot tell.
    func isPutBack(_ record: OpenRecord) async throws(StoreError) -> Bool {
        guard try await isOver(record.id, version: record.version) else { return false }
        // A record that ended while it was being read was not put back: it is what the store had when it was read.
        guard try await vault.versions(of: [record.id]) == [record.version] else { return false }
        log.error(
            "record_put_back", [.tenant(record.id.tenant), .recordKind(record.id.kind), .version(record.version)])
        metrics.recordPutBack()
        return true
    }

    /// Whether that version of the record has ended. Does not suspend while the caches say that it has not.
    func isOver(_ id: RecordID, version: Int64) async throws(StoreError) -> Bool {
        guard version <= (try await lastEnded(id)) else { return false }
        // The store may have lost the commit that ended the record, which the cache still has.
        return version <= (try await storedPage(TombstonePage.ID(of: id)).lastEnded(id))
    }

    /// Whether the store's tombstones say that the record has ended.
    func hasEnded(_ record: OpenRecord) async throws(StoreError) -> Bool {
        record.version <= (try await storedPage(TombstonePage.ID(of: record.id)).lastEnded(record.id))
    }

    /// Up to which version the record has ended, as far as the caches know; 0 where it has no tombstone. Does not suspend while
    /// the caches have what it takes.
    private func lastEnded(_ record: RecordID) async throws(StoreError) -> Int64 {
        let id = TombstonePage.ID(of: record)
        if let page = pages.fresh(id, now: time.monotonic) { return page.lastEnded(record) }
        if let mark = marks.fresh(id.tenant, now: time.monotonic), mark.pages[Int(id.number)] == 0 { return 0 }
        return try await storedPage(id).lastEnded(record)
    }

    /// The page as the store has it.
    private func storedPage(_ id: TombstonePage.ID) async throws(StoreError) -> TombstonePage {
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                let mark = try await self.readMark(id.tenant)
                if mark.pages[Int(id.number)] == 0 { return TombstonePage(version: 0) }
                let ticket = self.pages.ticket(id, now: self.time.monotonic)
                let page = try await self.readPage(id, mark)
                self.pages.fill(id, page, ticket)
                return page
            }
        } catch .conflict {
            throw .unavailable
        }
    }

    /// - Parameter mark: read before. It is not ahead of a page that is read later, unless the store has lost commits meanwhile.
    /// - Throws: `conflict` where that is so.
    private func readPage(
        _ id: TombstonePage.ID, _ mark: TombstoneMark
    ) async throws(StoreError) -> TombstonePage {
        let page = try await vault.read(id.recordID).map { record throws(StoreError) in try TombstonePage(record) }
        let version = page?.version ?? 0
        if version < mark.pages[Int(id.number)] {
            let present = try await vault.versions(of: [TombstoneMark.recordID(id.tenant), id.recordID])
            guard (present[0] ?? 0, present[1] ?? 0) == (mark.version, version) else { throw .conflict }
            throw .damaged(
                "the tombstones '\(id.recordID.key)' of tenant \(id.tenant) were replaced by earlier ones; see token-broker restored"
            )
        }
        return page ?? TombstonePage(version: 0)
    }

    /// - Throws: `conflict` where the mark is just written for the first time, or removed.
    private func readMark(_ tenant: TenantName) async throws(StoreError) -> TombstoneMark {
        let ticket = marks.ticket(tenant, now: time.monotonic)
        let mark: TombstoneMark
        if let record = try await vault.read(TombstoneMark.recordID(tenant)) {
            mark = try TombstoneMark(record)
        } else {
            // The first page comes with the mark, and both are removed with their tenant.
            if let page = try await vault.listSealed(.tombstones, tenant: tenant, limit: 1).first {
                let present = try await vault.versions(of: [TombstoneMark.recordID(tenant), page.id])
                guard present == [nil, page.version] else { throw .conflict }
                throw .damaged("the mark of the tombstones of tenant \(tenant) is gone; see token-broker restored")
            }
            mark = .none
        }
        marks.fill(tenant, mark, ticket)
        return mark
    }

    // MARK: Ending records

    /// Makes a commit that ends records: passes it the changes that write their tombstones. `commit` is called again where other
    /// tombstones were written meanwhile.
    /// - Parameter ended: records of one tenant, each with the version up to which it has ended: `Int64.max` for one that never
    ///   exists again.
    /// - Throws: what `commit` throws; `conflict` for what the commit itself changes, so that the caller reads it again.
    package func ending<R>(
        _ ended: [(id: RecordID, version: Int64)],
        _ commit: (_ tombstones: [VaultChange]) async throws(StoreError) -> R
    ) async throws(StoreError) -> R {
        guard let tenant = ended.first?.id.tenant else { return try await commit([]) }
        let arrival = time.monotonic
        return try await turns.take(tenant) { () async throws(StoreError) in
            // While the store hangs, those behind the first one do not hang one after the other.
            if arrival.duration(to: self.time.monotonic) > Self.longestWait { throw .unavailable }
            for _ in 0..<Self.tries {
                let plan: Plan
                do throws(StoreError) {
                    plan = try await self.plan(ended, tenant)
                } catch .damaged(let text) {
                    // Tombstones that were put back must not keep a user from logging out.
                    self.log.storeFailed(.damaged(text))
                    return try await commit([])
                }
                do throws(StoreError) {
                    let result = try await commit(plan.changes)
                    for (id, (page, ticket)) in plan.pages { self.pages.put(id, page, ticket) }
                    self.marks.put(tenant, plan.mark, plan.markTicket)
                    return result
                } catch {
                    for id in plan.pages.keys { self.pages.remove(id) }
                    self.marks.remove(tenant)
                    guard error == .conflict, try await self.vault.versions(of: plan.ids) != plan.versions else {
                        throw error
                    }
                }
            }
            throw .conflict
        }
    }

    /// The changes that write tombstones.
    private struct Plan {
        var changes: [VaultChange] = []
        var pages: [TombstonePage.ID: (TombstonePage, RevalidatingCache<TombstonePage.ID, TombstonePage>.Ticket)] = [:]
        var mark: TombstoneMark
        let markTicket: RevalidatingCache<TenantName, TombstoneMark>.Ticket
        /// The records that are replaced, with their versions.
        var ids: [RecordID] = []
        var versions: [Int64?] = []

        mutating func write(_ record: OpenRecord, over version: Int64) {
            changes.append(version == 0 ? .insert(record) : .replace(record, version: version))
            ids.append(record.id)
            versions.append(version == 0 ? nil : version)
        }
    }

    private func plan(
        _ ended: [(id: RecordID, version: Int64)], _ tenant: TenantName
    ) async throws(StoreError) -> Plan {
        let ticket = marks.ticket(tenant, now: time.monotonic)
        let mark = try await readMark(tenant)
        var plan = Plan(mark: mark, markTicket: ticket)
        var written: [UInt8: Int64] = [:]
        for (id, tombstones) in Dictionary(grouping: ended, by: { TombstonePage.ID(of: $0.id) }) {
            let ticket = pages.ticket(id, now: time.monotonic)
            let present = try await readPage(id, mark)
            let page = present.adding(tombstones, version: versions.next(after: present.version, at: time.now))
            plan.write(page.record(id), over: present.version)
            plan.pages[id] = (page, ticket)
            written[id.number] = page.version
        }
        plan.mark = mark.with(written, version: versions.next(after: mark.version, at: time.now))
        plan.write(plan.mark.record(tenant), over: mark.version)
        // What is inserted would outlive a tenant that is removed meanwhile.
        if plan.versions.contains(nil), tenant != .broker {
            plan.changes.insert(.require(RecordID(.tenant, tenant)), at: 0)
        }
        return plan
    }

    // MARK: After a restore

    /// What the store has of a tenant's tombstones.
    private struct Contents {
        /// Nil where there is none, or none that can be read.
        var mark: TombstoneMark?
        var markVersion: Int64
        /// By the numbers of the pages.
        var pages: [Int64?]

        /// How many pages are older than the mark says, or all of them where the mark is missing.
        var flaws: Int {
            guard let mark else { return pages.count { $0 != nil } + (markVersion == 0 ? 0 : 1) }
            return zip(pages, mark.pages).count { ($0 ?? 0) < $1 }
        }
    }

    /// - Throws: `conflict` where the mark is written meanwhile.
    private func contents(of tenant: TenantName) async throws(StoreError) -> Contents {
        let ids = (0...UInt8.max).map { TombstonePage.ID(tenant: tenant, number: $0).recordID }
        let markID = TombstoneMark.recordID(tenant)
        let versions = try await vault.versions(of: [markID] + ids)
        let mark = try await readable(markID) { record throws(StoreError) in try TombstoneMark(record) }
        if try await vault.versions(of: [markID]) != [versions[0]] { throw .conflict }
        return Contents(mark: mark, markVersion: versions[0] ?? 0, pages: Array(versions[1...]))
    }

    /// Nil for a record that does not exist, or cannot be read.
    private func readable<Content>(
        _ id: RecordID, _ decode: (OpenRecord) throws(StoreError) -> Content
    ) async throws(StoreError) -> Content? {
        do throws(StoreError) {
            return try await vault.read(id).map(decode)
        } catch .damaged {
            return nil
        }
    }

    /// The numbers of the pages that exist and cannot be read.
    private func unreadable(_ contents: Contents, of tenant: TenantName) async throws(StoreError) -> Set<UInt8> {
        var numbers: Set<UInt8> = []
        for number in 0...UInt8.max where contents.pages[Int(number)] != nil {
            let id = TombstonePage.ID(tenant: tenant, number: number).recordID
            let page = try await readable(id) { record throws(StoreError) in try TombstonePage(record) }
            if page == nil { numbers.insert(number) }
        }
        return numbers
    }

    /// How many of the tenant's records of tombstones were put back, lack their mark, or cannot be read.
    package func flaws(of tenant: TenantName) async throws(StoreError) -> Int {
        try await retryingConflicts { () async throws(StoreError) in
            let contents = try await self.contents(of: tenant)
            return try await contents.flaws + self.unreadable(contents, of: tenant).count
        }
    }

    /// Takes the tombstones that the store has for the tenant's newest ones: an operator has restored them deliberately. A page
    /// that cannot be read becomes an empty one.
    /// - Returns: how many records were taken that had been put back, or could not be read.
    package func accept(_ tenant: TenantName) async throws(StoreError) -> Int {
        try await retryingConflicts { () async throws(StoreError) in
            let contents = try await self.contents(of: tenant)
            let unreadable = try await self.unreadable(contents, of: tenant)
            let count = contents.flaws + unreadable.count
            var (changes, versions) = ([VaultChange](), [UInt8: Int64]())
            for number in 0...UInt8.max {
                let id = TombstonePage.ID(tenant: tenant, number: number)
                guard let version = contents.pages[Int(number)] else {
                    versions[number] = 0
                    continue
                }
                versions[number] = version
                if !unreadable.contains(number) { continue }
                let empty = TombstonePage(version: self.versions.next(after: version, at: self.time.now))
                changes.append(.replace(empty.record(id), version: version))
                versions[number] = empty.version
            }
            if count == 0 { return 0 }
            let mark = TombstoneMark.none.with(
                versions, version: self.versions.next(after: contents.markVersion, at: self.time.now)
            ).record(tenant)
            if tenant != .broker { changes.append(.require(RecordID(.tenant, tenant))) }
            changes.append(
                contents.markVersion == 0 ? .insert(mark) : .replace(mark, version: contents.markVersion))
            try await self.vault.commit(changes)
            return count
        }
    }
}
