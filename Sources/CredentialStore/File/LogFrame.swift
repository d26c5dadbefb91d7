import OAuth

/// The entries that one commit adds to the log: the length (4), then a `FramedFile` with the sequence of the first
/// entry and the entries. All entries of a commit are in one frame, so that none of them is missing when another is
/// there.
///
/// A frame of the second format has no entries, but the first and the last sequence of a gap: of entries that did not count
/// any more when their segment was written again. Builds that do not know it do not open such a store.
struct LogFrame {
    private static let mark = "TBle"
    private static let format: UInt8 = 1
    private static let gapFormat: UInt8 = 2
    /// The sequences that entries can have: more than a store ever gives, and room to count on from the last one.
    static let sequences: ClosedRange<Int64> = 1...1 << 62

    /// In order. The sequences rise by one. None in a gap.
    let entries: [PlacedLogEntry]
    let first: Int64
    let last: Int64
    /// The length of the frame in octets.
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

    static func encode(gap: ClosedRange<Int64>) -> [UInt8] {
        var body = FieldWriter()
        body.write(gap.lowerBound)
        body.write(gap.upperBound)
        return FramedFile.encodePart(mark: mark, format: gapFormat, body.bytes)
    }

    /// The frame at the beginning of `bytes`.
    init(decoding bytes: ArraySlice<UInt8>) throws(FramedFile.Failure) {
        let format: UInt8
        let body: ArraySlice<UInt8>
        (format, body, count) = try FramedFile.decodePart(
            bytes, mark: Self.mark, formats: Self.format...Self.gapFormat)
        var fields = FieldReader(body)
        guard var sequence = fields.integer(Int64.self) else { throw .damaged }
        first = sequence
        if format == Self.gapFormat {
            guard let end = fields.integer(Int64.self), fields.isAtEnd, first <= end,
                Self.sequences.contains(first), Self.sequences.contains(end)
            else { throw .damaged }
            (self.entries, last) = ([], end)
            return
        }
        var entries: [PlacedLogEntry] = []
        while !fields.isAtEnd {
            guard let tenant = fields.text().flatMap(TenantName.init(stored:)), let key = fields.text(),
                let version = fields.integer(Int64.self), let time = fields.integer(Int64.self),
                let sealed = fields.bytes(), Self.sequences.contains(sequence)
            else { throw .damaged }
            let entry = StoredLogEntry(
                tenant: tenant, key: key, version: version, time: Timestamp(milliseconds: time), sealed: sealed)
            entries.append(PlacedLogEntry(sequence: sequence, entry: entry))
            sequence += 1
        }
        // A frame without entries has no place in the log.
        if entries.isEmpty { throw .damaged }
        self.entries = entries
        last = sequence - 1
    }

    /// The position of a frame in a segment.
    struct Extent: Equatable {
        let first: Int64
        let last: Int64
        let offset: Int
    }

    /// The intact frames at the beginning of a segment, and the flaw behind them, if there is one.
    /// - Parameters:
    ///   - segment: the sequence of the first entry.
    ///   - visit: called with each entry of these frames.
    static func frames(
        of bytes: [UInt8], in segment: Int64, visit: (PlacedLogEntry) -> Void = { _ in }
    ) -> (frames: [Extent], flaw: FileFlaw?) {
        var frames: [Extent] = []
        var rest = bytes[...]
        var next = segment
        while !rest.isEmpty {
            do throws(FramedFile.Failure) {
                let frame = try LogFrame(decoding: rest)
                guard frame.first == next else { return (frames, .otherFile) }
                frames.append(Extent(first: frame.first, last: frame.last, offset: rest.startIndex))
                for placed in frame.entries { visit(placed) }
                next = frame.last + 1
                rest = rest.dropFirst(frame.count)
            } catch {
                return (frames, FramedFile.flaw(error, ofPart: rest))
            }
        }
        return (frames, frames.isEmpty ? .empty : nil)
    }
}
