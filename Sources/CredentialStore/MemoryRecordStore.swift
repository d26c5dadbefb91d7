import ExternalText
package import OAuth
package import Reactor
import Synchronization

/// Records in the memory of the process, for tests and development.
///
/// Its calls never wait and throw conflicts only.
package final class MemoryRecordStore: RecordStore {
    // Called from any task.
    let contents: Mutex<Contents>
    private let timeOfDay: (@Sendable () -> Timestamp)?

    /// - Parameters:
    ///   - now: the clock that measures leases.
    ///   - timeOfDay: the clock that the users of a shared store share; nil for a store with one writer.
    package init(
        now: @escaping @Sendable () -> MonotonicInstant = { .now }, timeOfDay: (@Sendable () -> Timestamp)? = nil
    ) {
        self.timeOfDay = timeOfDay
        contents = Mutex(Contents(now: now, timeOfDay: timeOfDay))
    }

    init(_ contents: Contents, timeOfDay: (@Sendable () -> Timestamp)?) {
        self.contents = Mutex(contents)
        self.timeOfDay = timeOfDay
    }

    /// Another store with the same content.
    package func copy() -> MemoryRecordStore {
        MemoryRecordStore(contents.withLock { $0 }, timeOfDay: timeOfDay)
    }

    package var revalidateAfter: Duration? { nil }

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        contents.withLock { $0.record(id) }
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        contents.withLock { contents in
            contents.holders[LookupKey(kind: kind, digest: lookup)].flatMap { contents.record($0) }
        }
    }

    package func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        contents.withLock { contents in ids.map { contents.records[$0]?.version } }
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        contents.withLock { contents in
            let ids = contents.records.keys
            return contents.listings.page(kind, tenant: tenant, after: after, limit: limit) {
                ids.filter { $0.kind == kind && (tenant == nil || tenant == $0.tenant) }
            }.compactMap { contents.record($0) }
        }
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try contents.withLock { contents throws(StoreError) in
            let plan = try CommitPlan(changes, on: contents)
            // As in PostgreSQL: the writer goes on in another chain.
            if let block = plan.block, let end = contents.audit[WireText(block.chain)]?.last, block.first <= end.last {
                throw .unavailable
            }
            contents.apply(plan)
        }
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        contents.withLock { contents in
            let expired = contents.records.values.filter { record in record.expires.map { $0 < now } ?? false }
            for record in expired.prefix(limit) {
                contents.remove(record.id)
                contents.leases.note(record.id, record: nil)
            }
            return min(expired.count, limit)
        }
    }

    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        let records = contents.withLock { $0.timedRecords }
        var due: [(time: Timestamp, record: StoredRecord)] = []
        for record in records where record.id.kind == kind {
            if let time = record.due, time < now { due.append((time, record)) }
        }
        return due.sorted { ($0.time, $0.record.id) < ($1.time, $1.record.id) }.prefix(limit).map(\.record)
    }

    package func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        contents.withLock { contents in
            contents.records.values.lazy.filter { $0.id.kind == kind }.compactMap(\.due).min()
        }
    }

    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        contents.withLock { contents in
            min(
                limit,
                contents.records.values.count { record in
                    record.id.kind == kind && record.id.tenant == tenant && record.due.map { $0 > now } ?? false
                })
        }
    }

    package func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int {
        try contents.withLock { contents throws(StoreError) in
            let plan = try CommitPlan(resealing: changes, on: contents)
            contents.apply(plan)
            return plan.outcomes.count + contents.resealLog(changes)
        }
    }

    package func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        contents.withLock { contents in
            let lapsed = contents.records.values.compactMap { record -> (MonotonicInstant, LapsedLease)? in
                guard record.id.kind == kind, let lease = record.lease,
                    let lapse = contents.leases.lapse(record.id, wasGivenUp: lease.wasGivenUp)
                else { return nil }
                return (lapse, LapsedLease(id: record.id, version: record.version, holder: lease.holder))
            }
            return lapsed.sorted { ($0.0, $0.1.id) < ($1.0, $1.1.id) }.prefix(limit).map(\.1)
        }
    }

    package func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {}

    package func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        contents.withLock { contents in
            let read = contents.log.lazy.filter { placed in
                placed.sequence > sequence && (tenant.map { $0 == placed.entry.tenant } ?? true)
            }
            return Array(read.prefix(limit))
        }
    }

    package func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool {
        contents.withLock { contents in contents.log.contains { $0.entry == entry } }
    }

    package func logBounds() async throws(StoreError) -> LogBounds { contents.withLock { $0.bounds } }

    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        contents.withLock { contents in
            let old = contents.log.prefix(max(0, limit)).prefix { $0.entry.time < time }.count
            contents.trim(old)
            return old + contents.thin(keeping: count, limit: max(0, limit) - old)
        }
    }

    package func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        let chains = contents.withLock { contents in contents.audit.values.compactMap { AuditChain($0) } }
        return AuditPage(of: chains, order, since: since, after: place, limit: limit)
    }

    package func auditBlocks(
        of chain: String, after first: Int64, limit: Int
    ) async throws(StoreError) -> [AuditBlock] {
        contents.withLock { Array(($0.audit[WireText(chain)] ?? []).lazy.filter { $0.first > first }.prefix(limit)) }
    }

    package func removeAuditChain(_ chain: String) async throws(StoreError) {
        contents.withLock { $0.audit[WireText(chain)] = nil }
    }

    package func clock() async throws(StoreError) -> Timestamp? { timeOfDay?() }

    package func check() async throws(StoreError) {}

    package func close() async {}

    struct Contents: CommitBasis {
        private(set) var records: [RecordID: StoredRecord] = [:]
        private(set) var holders: [LookupKey: RecordID] = [:]
        /// Ordered by sequence.
        private(set) var log: [PlacedLogEntry] = []
        private(set) var bounds = LogBounds()
        /// The blocks of each chain of the audit log, in order.
        fileprivate(set) var audit: [WireText: [AuditBlock]] = [:]
        fileprivate(set) var leases: LeaseTimes
        var listings = RecordListings()

        private let timeOfDay: (@Sendable () -> Timestamp)?

        init(now: @escaping @Sendable () -> MonotonicInstant, timeOfDay: (@Sendable () -> Timestamp)?) {
            leases = LeaseTimes(now: now)
            self.timeOfDay = timeOfDay
        }

        /// Contents that were written down; nil where they contradict themselves.
        init?(_ document: ValueDocument, leases: LeaseTimes, timeOfDay: (@Sendable () -> Timestamp)?) {
            self.leases = leases
            self.timeOfDay = timeOfDay
            for record in document.records {
                guard records.updateValue(record, forKey: record.id) == nil else { return nil }
                guard let lookup = record.lookup else { continue }
                let key = LookupKey(kind: record.id.kind, digest: lookup)
                guard holders.updateValue(record.id, forKey: key) == nil else { return nil }
            }
            (log, bounds) = (document.log, document.bounds)
            audit = Dictionary(grouping: document.audit) { WireText($0.chain) }
        }

        var time: Timestamp? { timeOfDay?() }

        var timedRecords: [StoredRecord] { records.values.map(leases.timed) }

        func head(_ id: RecordID) throws(StoreError) -> RecordHead? {
            records[id].map { RecordHead(version: $0.version, lookup: $0.lookup) }
        }

        func record(_ id: RecordID) -> StoredRecord? { records[id].map(leases.timed) }

        func holder(of lookup: LookupKey) -> RecordID? { holders[lookup] }

        func members(of tenant: TenantName) throws(StoreError) -> [RecordID: [UInt8]?] {
            records.filter { $0.key.tenant == tenant }.mapValues(\.lookup)
        }

        mutating func apply(_ plan: CommitPlan) {
            if !plan.clearedTenants.isEmpty { log.removeAll { plan.clearedTenants.contains($0.entry.tenant) } }
            for entry in plan.entries {
                bounds.last += 1
                log.append(PlacedLogEntry(sequence: bounds.last, entry: entry))
            }
            if let block = plan.block { audit[WireText(block.chain), default: []].append(block) }
            // Removals first, because a look-up digest may move from one record to another.
            for id in plan.outcomes.keys { remove(id) }
            for (id, record) in plan.outcomes { leases.note(id, record: record, recovery: plan.recoveries[id]) }
            for case (let id, let record?) in plan.outcomes {
                records[id] = record
                listings.note(id, exists: true)
                if let lookup = record.lookup { holders[LookupKey(kind: id.kind, digest: lookup)] = id }
            }
        }

        /// Returns how many entries got other octets.
        mutating func resealLog(_ changes: [Reseal]) -> Int {
            var count = 0
            for change in changes {
                guard case .entry(let read) = change.item, let place = log.firstIndex(of: read) else { continue }
                log[place].entry.sealed = change.sealed
                count += 1
            }
            return count
        }

        mutating func trim(_ count: Int) {
            guard count > 0 else { return }
            bounds.trimmed = log[count - 1].sequence
            log.removeFirst(count)
        }

        /// Removes up to `limit` of the entries that are too many. Returns how many were removed.
        mutating func thin(keeping count: Int, limit: Int) -> Int {
            if log.count <= count { return 0 }
            var counts: [TenantName: Int] = [:]
            for placed in log where !placed.entry.isMarker { counts[placed.entry.tenant, default: 0] += 1 }
            let total = counts.values.reduce(0, +)
            let surplus = LogShares.surplus(of: counts, keeping: max(count, total - limit))
            if surplus.isEmpty { return 0 }
            var left = surplus
            var kept: [PlacedLogEntry] = []
            for var placed in log {
                guard let others = left[placed.entry.tenant], others > 0 else {
                    kept.append(placed)
                    continue
                }
                if placed.entry.isMarker { continue }
                left[placed.entry.tenant] = others - 1
                guard others == 1 else { continue }
                placed.entry = placed.entry.marker
                kept.append(placed)
            }
            log = kept
            return surplus.values.reduce(0, +)
        }

        /// Keeps the lease's times: a commit that writes the record anew goes on with them.
        mutating func remove(_ id: RecordID) {
            listings.note(id, exists: false)
            guard let lookup = records.removeValue(forKey: id)?.lookup else { return }
            holders[LookupKey(kind: id.kind, digest: lookup)] = nil
        }
    }
}
