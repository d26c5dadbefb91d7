internal import Cryptography
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

    /// What is wrong with a file that is not the record's, or not whole.
    static func flaw(_ failure: FramedFile.Failure, of bytes: [UInt8]) -> FileFlaw {
        FramedFile.flaw(failure, of: bytes, expected: expectedCount(of: bytes))
    }

    /// How many octets the file has by what its fields say of themselves; nil where they say nothing that can be.
    private static func expectedCount(of bytes: [UInt8]) -> Int? {
        guard bytes.count > mark.utf8.count else { return nil }
        let format = bytes[mark.utf8.count]
        var rest = bytes.count - mark.utf8.count - 1
        var fields = FieldReader(bytes.dropFirst(mark.utf8.count + 1))
        /// False where the file ends before the field does.
        func read(_ count: Int) -> Bool {
            rest -= count
            return fields.bare(count) != nil
        }
        func readText() -> Bool {
            guard let count = fields.integer(UInt32.self) else { return false }
            rest -= 4
            return read(Int(count))
        }
        func readOptional(_ readValue: () -> Bool) -> Bool {
            guard let flag = fields.integer(UInt8.self) else { return false }
            rest -= 1
            return flag == 0 || readValue()
        }
        let readHead = readText() && readText() && readText() && read(8) && readOptional(readText)
        let readMarks =
            switch format {
            case 2: readHead && readOptional { read(8) } && read(8)
            case 3: readHead && readOptional { read(8) } && readOptional { read(8) } && readText() && read(1)
            default: readHead && readOptional { read(8) }
            }
        guard readMarks, readText() else { return .max }
        return bytes.count - rest + SHA256.digestCount
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
