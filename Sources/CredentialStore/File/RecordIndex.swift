import OAuth

/// An index, in memory, of the records that have a look-up digest, an expiry, a due mark or a lease.
struct RecordIndex {
    struct Entry {
        let version: Int64
        let lookup: [UInt8]?
        let expires: Timestamp?
    }

    private(set) var entries: [RecordID: Entry] = [:]
    private(set) var holders: [LookupKey: RecordID] = [:]
    private(set) var leases: [RecordID: (holder: String, wasGivenUp: Bool)] = [:]
    private var dueTimes: [RecordKind: [RecordID: Timestamp]] = [:]

    /// Adds a record. Returns false, and adds nothing, when another record has the look-up digest.
    mutating func insert(_ record: StoredRecord) -> Bool {
        if let lookup = record.lookup {
            let key = LookupKey(kind: record.id.kind, digest: lookup)
            guard holders[key] == nil else { return false }
            holders[key] = record.id
        }
        entries[record.id] = Entry(version: record.version, lookup: record.lookup, expires: record.expires)
        if let lease = record.lease { leases[record.id] = (lease.holder, lease.wasGivenUp) }
        if let due = record.due { dueTimes[record.id.kind, default: [:]][record.id] = due }
        return true
    }

    mutating func remove(_ id: RecordID) {
        dueTimes[id.kind]?[id] = nil
        leases[id] = nil
        guard let lookup = entries.removeValue(forKey: id)?.lookup else { return }
        holders[LookupKey(kind: id.kind, digest: lookup)] = nil
    }

    /// Up to `limit` records that expire before `now`, the earliest first.
    func expired(before now: Timestamp, limit: Int) -> [RecordID] {
        var expired: [(expires: Timestamp, id: RecordID)] = []
        for (id, entry) in entries {
            if let expires = entry.expires, expires < now { expired.append((expires, id)) }
        }
        return expired.sorted { ($0.expires, $0.id) < ($1.expires, $1.id) }.prefix(limit).map(\.id)
    }

    /// Up to `limit` records that are due before `now`, the earliest first.
    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) -> [RecordID] {
        let due = dueTimes[kind, default: [:]].filter { $0.value < now }
        return due.sorted { ($0.value, $0.key) < ($1.value, $1.key) }.prefix(limit).map(\.key)
    }

    func nextDue(_ kind: RecordKind) -> Timestamp? { dueTimes[kind]?.values.min() }

    /// How many records of the tenant are due after `now`.
    func countDue(_ kind: RecordKind, tenant: TenantName, after now: Timestamp) -> Int {
        (dueTimes[kind] ?? [:]).count { $0.value > now && $0.key.tenant == tenant }
    }
}
