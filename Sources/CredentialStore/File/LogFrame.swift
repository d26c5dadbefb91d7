internal import OAuth

/// What one commit adds to the log, as it stands in a segment: its length (4), then a `FramedFile` with the first
/// entry's sequence and the entries. One frame for all of them, so that they are there together or not at all.
struct LogFrame {
    private static let mark = "TBle"
    private static let format: UInt8 = 1
    private static let lengthCount = 4

    /// In order; the sequences rise by one.
    let entries: [PlacedLogEntry]
    /// Octets that the frame takes up.
    let count: Int

    static func encode(_ entries: [StoredLogEntry], first sequence: Int64) -> [UInt8] {
        var body = FieldWriter()
        body.write(sequence)
        for entry in entries {
            body.write(entry.tenant.description)
            body.write(entry.key)
            body.write(entry.version)
            body.write(entry.time.milliseconds)
            body.write(entry.sealed)
        }
        var frame = FieldWriter()
        frame.write(FramedFile.encode(mark: mark, format: format, body.bytes))
        return frame.bytes
    }

    /// The frame with which `bytes` begin.
    init(decoding bytes: ArraySlice<UInt8>) throws(FramedFile.Failure) {
        var frame = FieldReader(bytes)
        guard let framed = frame.bytes() else { throw .damaged }
        var fields = FieldReader(try FramedFile.decode(framed, mark: Self.mark, format: Self.format))
        guard var sequence = fields.integer(Int64.self) else { throw .damaged }
        var entries: [PlacedLogEntry] = []
        while !fields.isAtEnd {
            guard let tenant = fields.text().flatMap(RecordPath.tenant), let key = fields.text(),
                let version = fields.integer(Int64.self), let time = fields.integer(Int64.self),
                let sealed = fields.bytes()
            else { throw .damaged }
            let entry = StoredLogEntry(
                tenant: tenant, key: key, version: version, time: Timestamp(milliseconds: time), sealed: sealed)
            entries.append(PlacedLogEntry(sequence: sequence, entry: entry))
            sequence += 1
        }
        self.entries = entries
        count = Self.lengthCount + framed.count
    }

    /// Whether a whole frame begins anywhere behind the first octet.
    static func hasFrame(behind bytes: ArraySlice<UInt8>) -> Bool {
        for start in bytes.indices.dropFirst().dropLast(lengthCount)
        where bytes[(start + lengthCount)...].starts(with: mark.utf8) {
            if (try? LogFrame(decoding: bytes[start...])) != nil { return true }
        }
        return false
    }
}
