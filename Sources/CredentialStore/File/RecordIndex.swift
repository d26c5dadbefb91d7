internal import OAuth

/// What is kept in memory about the records that have a look-up digest or an expiry.
struct RecordIndex {
    struct Entry {
        let version: Int64
        let lookup: [UInt8]?
        let expires: Timestamp?
    }

    private(set) var entries: [RecordID: Entry] = [:]
    private(set) var holders: [LookupKey: RecordID] = [:]

    /// False, with nothing noted, when another record has the look-up digest.
    mutating func insert(_ record: StoredRecord) -> Bool {
        if let lookup = record.lookup {
            let key = LookupKey(kind: record.id.kind, digest: lookup)
            guard holders[key] == nil else { return false }
            holders[key] = record.id
        }
        entries[record.id] = Entry(version: record.version, lookup: record.lookup, expires: record.expires)
        return true
    }

    mutating func remove(_ id: RecordID) {
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
}
