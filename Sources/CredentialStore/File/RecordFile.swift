internal import OAuth

/// A record as the content of a file, its identity included: a file that was renamed or moved is noticed.
enum RecordFile {
    private static let mark = "TBrc"
    /// 2 has the due mark in front of the content. What needs none is written as 1, which older builds can read.
    private static let formats: ClosedRange<UInt8> = 1...2
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
        if let due = record.due { fields.write(due.milliseconds) }
        fields.write(record.sealed)
        return FramedFile.encode(mark: mark, format: record.due == nil ? 1 : 2, fields.bytes)
    }

    /// - Throws: `.damaged` also when the file is another record's than `id`'s.
    static func decode(_ bytes: [UInt8], id: RecordID) throws(FramedFile.Failure) -> StoredRecord {
        let (format, body) = try FramedFile.decode(bytes, mark: mark, formats: formats)
        var fields = FieldReader(body)
        guard fields.text() == id.kind.rawValue, fields.text() == id.tenant.description, fields.text() == id.key,
            let version = fields.integer(Int64.self), let lookup = fields.optionalBytes(),
            let expires = fields.optionalInteger()
        else { throw .damaged }
        var due: Timestamp?
        if format == 2 {
            guard let milliseconds = fields.integer(Int64.self) else { throw .damaged }
            due = Timestamp(milliseconds: milliseconds)
        }
        guard let sealed = fields.bytes(), fields.isAtEnd else { throw .damaged }
        return StoredRecord(
            id: id, version: version, sealed: sealed, lookup: lookup,
            expires: expires.map { Timestamp(milliseconds: $0) }, due: due)
    }
}
