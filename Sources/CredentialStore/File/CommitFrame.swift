/// A commit as it stands in the file of commits: its length (4), then a `FramedFile` with its number and its steps.
struct CommitFrame {
    private static let mark = "TBcf"
    private static let format: UInt8 = 1

    /// Rises by one from frame to frame, for as long as the store exists: a frame that is left over from earlier has a
    /// lower one than follows.
    let number: Int64
    let changes: [FileChange]
    /// Octets that the frame takes up.
    let count: Int

    static func encode(_ changes: [FileChange], number: Int64) -> [UInt8] {
        var body = FieldWriter()
        body.write(number)
        for change in changes { change.encode(to: &body) }
        return FramedFile.encodePart(mark: mark, format: format, body.bytes)
    }

    /// The frame with which `bytes` begin.
    /// - Throws: `.damaged` where none does, or only a part of one. What has its digest and is no frame that this build
    ///   knows was written by a later one: it was not broken off.
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

    /// Whether a whole frame with a number above that one begins anywhere behind the first octet.
    static func hasFrame(above number: Int64, behind bytes: ArraySlice<UInt8>) -> Bool {
        FramedFile.hasPart(behind: bytes, mark: mark) { part in
            guard let frame = try? CommitFrame(decoding: part) else { return false }
            return frame.number > number
        }
    }
}
