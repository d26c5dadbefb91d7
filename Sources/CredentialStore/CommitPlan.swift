import OAuth

/// A look-up digest with its kind, within which it is unique.
struct LookupKey: Hashable, Sendable {
    let kind: RecordKind
    let digest: [UInt8]
}

/// The part of a record that decides whether a change is a conflict.
struct RecordHead: Sendable, Equatable {
    let version: Int64
    let lookup: [UInt8]?
}

/// The state of a store before a commit.
protocol CommitBasis {
    func head(_ id: RecordID) throws(StoreError) -> RecordHead?
    /// The time of day by the store's clock; nil when commits are always complete before their call returns.
    var time: Timestamp? { get }
    /// The record, with the remaining time of its lease.
    func record(_ id: RecordID) throws(StoreError) -> StoredRecord?
    func holder(of lookup: LookupKey) -> RecordID?
    /// All records of the tenant, each with its look-up digest or nil.
    func members(of tenant: TenantName) throws(StoreError) -> [RecordID: [UInt8]?]
}

/// The effects of the changes of a commit, computed without changing the store. The store then carries the outcomes
/// out, in any order.
struct CommitPlan {
    /// The records that the commit writes; nil for each record that it removes.
    private(set) var outcomes: [RecordID: StoredRecord?] = [:]
    /// The tenants whose entries are removed from the log before `entries` are added.
    private(set) var clearedTenants: Set<TenantName> = []
    /// The entries that the commit adds to the log, in order.
    private(set) var entries: [StoredLogEntry] = []
    /// The block that the commit adds to the audit log.
    private(set) var block: AuditBlock?
    /// For each lease that the commit gives up: after how long a replica should take it over; nil for never.
    private(set) var recoveries: [RecordID: Duration?] = [:]
    /// The records that have a look-up digest after the changes so far; nil for a digest that became free.
    private var holders: [LookupKey: RecordID?] = [:]

    /// - Throws: `.conflict`, and what `basis` throws.
    init(_ changes: [RecordChange], on basis: some CommitBasis) throws(StoreError) {
        for change in changes {
            switch change {
            case .insert(let record):
                guard try head(record.id, basis) == nil else { throw .conflict }
                try write(record, in: basis)
            case .replace(let record, let version, let rule):
                guard let current = try head(record.id, basis), current.version == version else { throw .conflict }
                let lease = rule == .ended ? nil : try basis.record(record.id)?.lease
                if case .fenced(let holder) = rule, let lease, lease.holder != holder, !lease.hasRunOut {
                    throw .conflict
                }
                release(current.lookup, of: record.id)
                try write(record, lease: rule == .kept ? lease : nil, in: basis)
            case .remove(let id, let version):
                guard let current = try head(id, basis), current.version == version else { throw .conflict }
                release(current.lookup, of: id)
                outcomes.updateValue(nil, forKey: id)
            case .require(let id):
                guard try head(id, basis) != nil else { throw .conflict }
            case .removeAll(let tenant):
                for (id, lookup) in try basis.members(of: tenant) where outcomes[id] == nil {
                    release(lookup, of: id)
                    outcomes.updateValue(nil, forKey: id)
                }
                for (id, record) in outcomes where id.tenant == tenant {
                    release(record?.lookup, of: id)
                    outcomes.updateValue(nil, forKey: id)
                }
                clearedTenants.insert(tenant)
            case .settleDue(let id, let version, let due, let next):
                guard var record = try current(id, basis), record.version == version, let mark = record.due,
                    due == nil || due == mark
                else { throw .conflict }
                record.due = next
                outcomes[id] = record
            case .claim(let id, let version, let claim):
                guard var record = try current(id, basis), record.version == version,
                    Self.admits(claim, on: record.lease, at: basis.time)
                else { throw .conflict }
                record.lease = Self.lease(claim, after: record.lease)
                outcomes[id] = record
            case .release(let id, let version, let holder, let release):
                guard var record = try current(id, basis), record.version == version, let lease = record.lease,
                    lease.holder == holder
                else { throw .conflict }
                record.lease = Self.lease(lease, after: release)
                outcomes[id] = record
                if case .unknown(let recovery) = release.outcome { recoveries.updateValue(recovery, forKey: id) }
            case .append(let entry): entries.append(entry)
            case .audit(let block): self.block = block
            }
        }
    }

    /// The plan for `RecordStore.reseal`: the records that are still as they were read, with their other octets.
    init(resealing changes: [Reseal], on basis: some CommitBasis) throws(StoreError) {
        for change in changes {
            guard case .record(let read) = change.item, var record = try basis.record(read.id),
                record.version == read.version, record.sealed == read.sealed
            else { continue }
            record.sealed = change.sealed
            outcomes[record.id] = record
        }
    }

    private static func admits(_ claim: LeaseClaim, on lease: Lease?, at time: Timestamp?) -> Bool {
        if let time, let latest = claim.notAfter, time > latest { return false }
        guard let lease else { return claim.replacing == nil }
        if lease.holder == claim.holder { return !lease.wasGivenUp }
        let isOver = lease.wasGivenUp || lease.remaining <= .zero - claim.overdue
        return lease.holder == claim.replacing && (claim.replacesStanding || isOver)
    }

    private static func lease(_ claim: LeaseClaim, after standing: Lease?) -> Lease {
        let age = claim.restartsUse ? .zero : standing?.sinceFirstUse ?? .zero
        return Lease(
            holder: claim.holder, remaining: claim.duration, sinceFirstUse: claim.marksUse ? age : nil,
            isOpen: claim.isOpen)
    }

    private static func lease(_ standing: Lease, after release: LeaseRelease) -> Lease? {
        var lease = standing
        (lease.remaining, lease.failure) = (.zero, release.failure)
        switch release.outcome {
        case .settled:
            if release.failure == nil { return nil }
            (lease.wasGivenUp, lease.isSettled, lease.isOpen, lease.sinceFirstUse) = (true, true, false, nil)
        case .unknown: (lease.wasGivenUp, lease.isOpen) = (true, false)
        case .open: lease.isOpen = true
        }
        return lease
    }

    private func current(_ id: RecordID, _ basis: some CommitBasis) throws(StoreError) -> StoredRecord? {
        if let outcome = outcomes[id] { return outcome }
        return try basis.record(id)
    }

    private func head(_ id: RecordID, _ basis: some CommitBasis) throws(StoreError) -> RecordHead? {
        if let outcome = outcomes[id] {
            return outcome.map { RecordHead(version: $0.version, lookup: $0.lookup) }
        }
        return try basis.head(id)
    }

    private mutating func write(
        _ record: StoredRecord, lease: Lease? = nil, in basis: some CommitBasis
    ) throws(StoreError) {
        if let lookup = record.lookup {
            let key = LookupKey(kind: record.id.kind, digest: lookup)
            let holder = holders[key] ?? basis.holder(of: key)
            guard holder == nil else { throw .conflict }
            holders[key] = record.id
        }
        var record = record
        record.lease = lease
        outcomes[record.id] = record
    }

    private mutating func release(_ lookup: [UInt8]?, of id: RecordID) {
        guard let lookup else { return }
        holders.updateValue(nil, forKey: LookupKey(kind: id.kind, digest: lookup))
    }
}
