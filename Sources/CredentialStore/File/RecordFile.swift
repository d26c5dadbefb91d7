internal import OAuth

/// A record as the content of a file, its identity included: a file that was renamed or moved is noticed.
enum RecordFile {
    private static let mark = "TBrc"
    /// 2 has the due mark in front of the content; 3 has the due mark, or that there is none, and the lease's holder and
    /// whether that gave it up. What needs neither is written as 1, and what needs no lease as 2: stores have them from
    /// before.
    private static let formats: ClosedRange<UInt8> = 1...3
    /// Octets that a file may have: far more than a record ever needs, and a bound on what is read into memory.
    static let countLimit = 64 << 20

    static func encode(_ record: StoredRecord) -> [UInt8] {
        var fields = FieldWriter()
        fields.write(record.id.kind.rawValue)
        fields.write(record.id.tenant.description)
        fields.write(record.id.key)
        fields.write(record.version)
        fields.write(optional: record.lookup)
        fields.write(optional: record.expires?.milliseconds)
        let format: UInt8
        if let lease = record.lease {
            format = 3
            fields.write(optional: record.due?.milliseconds)
            fields.write(lease.holder)
            fields.write(UInt8(lease.wasGivenUp ? 1 : 0))
        } else if let due = record.due {
            format = 2
            fields.write(due.milliseconds)
        } else {
            format = 1
        }
        fields.write(record.sealed)
        return FramedFile.encode(mark: mark, format: format, fields.bytes)
    }

    /// The record, with a lease that has run out where it has one: only the process that gave it knows better.
    /// - Throws: `.damaged` also when the file is another record's than `id`'s.
    static func decode(_ bytes: [UInt8], id: RecordID) throws(FramedFile.Failure) -> StoredRecord {
        let (format, body) = try FramedFile.decode(bytes, mark: mark, formats: formats)
        var fields = FieldReader(body)
        guard fields.text() == id.kind.rawValue, fields.text() == id.tenant.description, fields.text() == id.key,
            let version = fields.integer(Int64.self), let lookup = fields.optionalBytes(),
            let expires = fields.optionalInteger()
        else { throw .damaged }
        var due: Timestamp?
        var lease: Lease?
        switch format {
        case 2:
            guard let milliseconds = fields.integer(Int64.self) else { throw .damaged }
            due = Timestamp(milliseconds: milliseconds)
        case 3:
            guard let milliseconds = fields.optionalInteger(), let holder = fields.text(),
                let wasGivenUp = fields.integer(UInt8.self), wasGivenUp <= 1
            else { throw .damaged }
            due = milliseconds.map { Timestamp(milliseconds: $0) }
            lease = Lease(holder: holder, remaining: .zero, wasGivenUp: wasGivenUp == 1)
        default: break
        }
        guard let sealed = fields.bytes(), fields.isAtEnd else { throw .damaged }
        return StoredRecord(
            id: id, version: version, sealed: sealed, lookup: lookup,
            expires: expires.map { Timestamp(milliseconds: $0) }, due: due, lease: lease)
    }
}
