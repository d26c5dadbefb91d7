/// A commit in the write-ahead log: the length (4), then a `FramedFile` with the commit's number and changes.
struct CommitFrame {
    private static let mark = "TBcf"
    private static let format: UInt8 = 1
    /// The numbers of frames: more than a store ever writes, and room to count on from the last one.
    private static let numbers: ClosedRange<Int64> = 1...1 << 62

    /// Rises by one from frame to frame during the whole life of the store, so that an old frame behind the valid ones
    /// is recognized by its lower number.
    let number: Int64
    let changes: [FileChange]
    /// The length of the frame in octets.
    let count: Int

    static func encode(_ changes: [FileChange], number: Int64) -> [UInt8] {
        var body = FieldWriter()
        body.write(number)
        for change in changes { change.encode(to: &body) }
        return FramedFile.encodePart(mark: mark, format: format, body.bytes)
    }

    /// The frame at the beginning of `bytes`.
    /// - Throws: `.damaged` when there is none, or only a part of one; `.newerFormat` when the digest is right and this
    ///   build does not know the content, which a later build has written then.
    init(decoding bytes: ArraySlice<UInt8>) throws(FramedFile.Failure) {
        let (body, count) = try FramedFile.decodePart(bytes, mark: Self.mark, format: Self.format)
        var fields = FieldReader(body)
        guard let number = fields.integer(Int64.self), Self.numbers.contains(number) else { throw .newerFormat }
        var changes: [FileChange] = []
        while !fields.isAtEnd {
            guard let change = try? FileChange(decoding: &fields) else { throw .newerFormat }
            changes.append(change)
        }
        self.number = number
        self.changes = changes
        self.count = count
    }

    /// Whether a whole frame with a higher number begins anywhere behind the first octet.
    ///
    /// Only what names a higher number is decoded. Frames do not overlap, so all of them together are no longer than
    /// `bytes`. The answer is also true when the frames that seem to begin are longer together: no store has written that,
    /// and to compute all their digests would take time by the square of the length.
    static func hasFrame(above number: Int64, behind bytes: ArraySlice<UInt8>) -> Bool {
        var room = bytes.count
        return FramedFile.hasPart(behind: bytes, mark: mark) { part in
            var fields = FieldReader(part)
            guard let count = fields.integer(UInt32.self), fields.bare(mark.utf8.count + 1) != nil,
                let claimed = fields.integer(Int64.self), claimed > number, count <= part.count
            else { return false }
            room -= Int(count)
            if room < 0 { return true }
            guard let frame = try? CommitFrame(decoding: part) else { return false }
            return frame.number > number
        }
    }
}
