/// A commit in the write-ahead log: the length (4), then a `FramedFile` with the commit's number and changes.
struct CommitFrame {
    private static let mark = "TBcf"
    private static let format: UInt8 = 1

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
        guard let number = fields.integer(Int64.self), number > 0 else { throw .newerFormat }
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
    static func hasFrame(above number: Int64, behind bytes: ArraySlice<UInt8>) -> Bool {
        FramedFile.hasPart(behind: bytes, mark: mark) { part in
            guard let frame = try? CommitFrame(decoding: part) else { return false }
            return frame.number > number
        }
    }
}
