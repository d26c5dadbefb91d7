import Cryptography
import OAuth
import Reactor
import Synchronization

/// The whole content of a store as one value: what a `ValueRecordStore` keeps in a program's storage.
///
/// The contents of records and entries are sealed. Their names, versions and times are in the clear, behind a digest that shows
/// truncation.
struct ValueDocument {
    private static let mark = "TBvd"
    private static let format: UInt8 = 1
    /// The most octets of a value, for what is read into memory and for what is written: thousands of users.
    static let countLimit = 16 << 20

    /// The keys that seal the records, in the form of `Keyring.init(parsing:)`, where the store has its own; nil for keys that the
    /// program gives.
    var keys: String?
    var records: [StoredRecord] = []
    /// The times of the leases, by a clock that all users of the storage share; empty where there is one user at a time.
    var leases: [RecordID: LeaseTimes.Entry] = [:]
    var log: [PlacedLogEntry] = []
    var bounds = LogBounds()
    /// The blocks of each chain in their order.
    var audit: [AuditBlock] = []

    init(keys: String? = nil) {
        self.keys = keys
    }

    /// Takes over the times of leases that the value has still.
    mutating func keepLeases(of store: MemoryRecordStore) {
        let known = store.contents.withLock { $0.leases.entries }
        for record in records {
            guard let lease = record.lease, let times = known[record.id], times.lease.holder == lease.holder else {
                continue
            }
            leases[record.id] = times
        }
    }

    // MARK: Writing

    /// No two values are the same: each has 16 random octets, so that a writer knows its own value again.
    /// - Throws: `.randomnessUnavailable`; a retry may help.
    func encoded() throws(CryptographyError) -> [UInt8] {
        var fields = FieldWriter(capacity: 4096)
        fields.write(bare: try SecureRandom.bytes(Self.tagCount))
        fields.write(optional: keys.map { Array($0.utf8) })
        fields.write(UInt32(records.count))
        for record in records { Self.write(record, leases[record.id], to: &fields) }
        fields.write(bounds.trimmed)
        fields.write(bounds.last)
        fields.write(UInt32(log.count))
        for placed in log {
            fields.write(placed.sequence)
            fields.write(placed.entry.tenant.description)
            fields.write(placed.entry.key)
            fields.write(placed.entry.version)
            fields.write(placed.entry.time.milliseconds)
            fields.write(placed.entry.sealed)
        }
        fields.write(UInt32(audit.count))
        for block in audit {
            fields.write(block.chain)
            fields.write(block.first)
            fields.write(block.last)
            fields.write(block.time.milliseconds)
            fields.write(block.body)
            fields.write(block.hash)
            fields.write(optional: block.signature)
        }
        return FramedFile.encode(mark: Self.mark, format: Self.format, fields.bytes)
    }

    private static let tagCount = 16

    private static func write(_ record: StoredRecord, _ times: LeaseTimes.Entry?, to fields: inout FieldWriter) {
        fields.write(record.id.kind.rawValue)
        fields.write(record.id.tenant.description)
        fields.write(record.id.key)
        fields.write(record.version)
        fields.write(optional: record.lookup)
        fields.write(optional: record.expires?.milliseconds)
        fields.write(optional: record.due?.milliseconds)
        fields.write(record.sealed)
        fields.write(flag: record.lease != nil)
        guard let lease = times?.lease ?? record.lease else { return }
        fields.write(lease.holder)
        fields.write(flag: lease.wasGivenUp)
        fields.write(flag: lease.isOpen)
        fields.write(flag: lease.isSettled)
        fields.write(optional: lease.failure.map { Array($0.code.utf8) })
        fields.write(optional: times?.end.nanoseconds)
        fields.write(optional: times?.firstUse?.nanoseconds)
        fields.write(optional: times?.failureEnd?.nanoseconds)
        fields.write(optional: times?.recovery?.nanoseconds)
    }

    // MARK: Reading

    /// - Throws: `.damaged` for octets that no build has written; `.newerFormat` for those of a later build.
    init(decoding bytes: [UInt8]) throws(FramedFile.Failure) {
        guard bytes.count <= Self.countLimit else { throw .damaged }
        let body = try FramedFile.decode(bytes, mark: Self.mark, format: Self.format)
        var fields = FieldReader(body)
        // The digest is right, so what this build does not know was written by a later one.
        guard let document = Self(&fields), fields.isAtEnd else { throw .newerFormat }
        self = document
    }

    private init?(_ fields: inout FieldReader) {
        guard fields.bare(Self.tagCount) != nil, let keys = fields.optionalBytes() else { return nil }
        self.keys = keys.map { String(decoding: $0, as: UTF8.self) }
        guard let count = fields.integer(UInt32.self) else { return nil }
        for _ in 0..<count {
            guard let (record, times) = Self.record(&fields) else { return nil }
            records.append(record)
            leases[record.id] = times
        }
        guard let trimmed = fields.integer(Int64.self), let last = fields.integer(Int64.self),
            let entries = fields.integer(UInt32.self)
        else { return nil }
        bounds = LogBounds(trimmed: trimmed, last: last)
        for _ in 0..<entries {
            guard let entry = Self.entry(&fields) else { return nil }
            log.append(entry)
        }
        guard let blocks = fields.integer(UInt32.self) else { return nil }
        for _ in 0..<blocks {
            guard let block = Self.block(&fields) else { return nil }
            audit.append(block)
        }
    }

    private static func record(_ fields: inout FieldReader) -> (StoredRecord, LeaseTimes.Entry?)? {
        guard let kind = fields.text().flatMap({ RecordKind(rawValue: $0) }),
            let tenant = fields.text().flatMap({ TenantName(stored: $0) }), let key = fields.text(),
            let version = fields.integer(Int64.self), let lookup = fields.optionalBytes(),
            let expires = fields.optionalInteger(), let due = fields.optionalInteger(), let sealed = fields.bytes(),
            let isLeased = fields.flag()
        else { return nil }
        var record = StoredRecord(
            id: RecordID(kind, tenant, key: key), version: version, sealed: sealed, lookup: lookup,
            expires: expires.map { Timestamp(milliseconds: $0) }, due: due.map { Timestamp(milliseconds: $0) })
        if !isLeased { return (record, nil) }
        guard let (lease, times) = lease(&fields) else { return nil }
        record.lease = lease
        return (record, times)
    }

    private static func lease(_ fields: inout FieldReader) -> (Lease, LeaseTimes.Entry?)? {
        guard let holder = fields.text(), let wasGivenUp = fields.flag(), let isOpen = fields.flag(),
            let isSettled = fields.flag(), let code = fields.optionalBytes(), let end = fields.optionalInteger(),
            let firstUse = fields.optionalInteger(), let failureEnd = fields.optionalInteger(),
            let recovery = fields.optionalInteger()
        else { return nil }
        let failure = code.map { LeaseFailure(code: String(decoding: $0, as: UTF8.self), remaining: .zero) }
        let lease = Lease(
            holder: holder, remaining: .zero, wasGivenUp: wasGivenUp, isOpen: isOpen, isSettled: isSettled,
            failure: failure)
        func instant(_ nanoseconds: Int64?) -> MonotonicInstant? { nanoseconds.map { .init(nanoseconds: $0) } }
        let times = instant(end).map { end in
            LeaseTimes.Entry(
                lease: lease, end: end, firstUse: instant(firstUse), failureEnd: instant(failureEnd),
                recovery: instant(recovery))
        }
        return (lease, times)
    }

    private static func entry(_ fields: inout FieldReader) -> PlacedLogEntry? {
        guard let sequence = fields.integer(Int64.self), let tenant = fields.text().flatMap({ TenantName(stored: $0) }),
            let key = fields.text(), let version = fields.integer(Int64.self), let time = fields.integer(Int64.self),
            let sealed = fields.bytes()
        else { return nil }
        let entry = StoredLogEntry(
            tenant: tenant, key: key, version: version, time: Timestamp(milliseconds: time), sealed: sealed)
        return PlacedLogEntry(sequence: sequence, entry: entry)
    }

    private static func block(_ fields: inout FieldReader) -> AuditBlock? {
        guard let chain = fields.text(), let first = fields.integer(Int64.self), let last = fields.integer(Int64.self),
            let time = fields.integer(Int64.self), let body = fields.bytes(), let hash = fields.bytes(),
            let signature = fields.optionalBytes()
        else { return nil }
        return AuditBlock(
            chain: chain, first: first, last: last, time: Timestamp(milliseconds: time), body: body, hash: hash,
            signature: signature)
    }
}

extension FieldWriter {
    fileprivate mutating func write(flag: Bool) { write(UInt8(flag ? 1 : 0)) }
}

extension FieldReader {
    fileprivate mutating func flag() -> Bool? {
        integer(UInt8.self).flatMap { $0 <= 1 ? $0 == 1 : nil }
    }
}

extension MemoryRecordStore {
    /// What the store has, to be written down.
    /// - Parameter isShared: whether the times of leases are written, for other users of the storage.
    func document(keys: String?, isShared: Bool) -> ValueDocument {
        let contents = contents.withLock { $0 }
        var document = ValueDocument(keys: keys)
        document.records = contents.records.values.sorted { $0.id < $1.id }
        if isShared { document.leases = contents.leases.entries }
        (document.log, document.bounds) = (contents.log, contents.bounds)
        document.audit = contents.audit.values.joined().sorted { ($0.chain, $0.first) < ($1.chain, $1.first) }
        return document
    }

    /// The store that was written down; nil where the document contradicts itself.
    convenience init?(
        _ document: ValueDocument, now: @escaping @Sendable () -> MonotonicInstant,
        timeOfDay: (@Sendable () -> Timestamp)?
    ) {
        let leases = LeaseTimes(entries: document.leases, now: now)
        guard let contents = Contents(document, leases: leases, timeOfDay: timeOfDay) else { return nil }
        self.init(contents, timeOfDay: timeOfDay)
    }
}
