import Cryptography
import OAuth

/// A record as the content of a file. The content includes the identity, so that a renamed or moved file is noticed.
enum RecordFile {
    private static let mark = "TBrc"
    /// Format 1 has neither due mark nor lease. Format 2 has a due mark in front of the content. Format 3 has an
    /// optional due mark, the holder of the lease, and whether the lease was given up. Each record is written in the
    /// lowest format that fits, because earlier builds have written 1 and 2.
    private static let formats: ClosedRange<UInt8> = 1...3
    /// The most octets of a file: far more than a record needs, and a limit for what is read into memory.
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

    /// The flaw of a file that did not decode.
    static func flaw(_ failure: FramedFile.Failure, of bytes: [UInt8]) -> FileFlaw {
        FramedFile.flaw(failure, of: bytes, expected: expectedCount(of: bytes))
    }

    /// The length of the file in octets that follows from its fields; `.max` when the file ends within them; nil when
    /// it has no fields.
    private static func expectedCount(of bytes: [UInt8]) -> Int? {
        guard bytes.count > mark.utf8.count else { return nil }
        let format = bytes[mark.utf8.count]
        var rest = bytes.count - mark.utf8.count - 1
        var fields = FieldReader(bytes.dropFirst(mark.utf8.count + 1))
        /// Returns false when the file ends before the field.
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

    /// The record. Its lease, if it has one, counts as expired, because only the process that granted it knows its
    /// time.
    /// - Throws: `.damaged` also when the file contains another record than `id`.
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
