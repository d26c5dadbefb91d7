internal import OAuth

/// What one commit adds to the log, as it stands in a segment: its length (4), then a `FramedFile` with the first
/// entry's sequence and the entries. One frame for all of them, so that they are there together or not at all.
struct LogFrame {
    private static let mark = "TBle"
    private static let format: UInt8 = 1

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
        return FramedFile.encodePart(mark: mark, format: format, body.bytes)
    }

    /// The frame with which `bytes` begin.
    init(decoding bytes: ArraySlice<UInt8>) throws(FramedFile.Failure) {
        let (body, count) = try FramedFile.decodePart(bytes, mark: Self.mark, format: Self.format)
        var fields = FieldReader(body)
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
        self.count = count
    }

    /// Whether a whole frame begins anywhere behind the first octet.
    static func hasFrame(behind bytes: ArraySlice<UInt8>) -> Bool {
        FramedFile.hasPart(behind: bytes, mark: mark) { (try? LogFrame(decoding: $0)) != nil }
    }
}
