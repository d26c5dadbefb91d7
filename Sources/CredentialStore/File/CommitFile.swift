/// The steps of a commit as stores of the first format wrote them down: in a file of its own that stood while they were
/// made. A process of that time that died between them has left it.
enum CommitFile {
    private static let mark = "TBcm"
    /// 2 may append.
    private static let formats: ClosedRange<UInt8> = 1...2

    static func decode(_ bytes: [UInt8]) throws(FramedFile.Failure) -> [FileChange] {
        var fields = FieldReader(try FramedFile.decode(bytes, mark: mark, formats: formats).body)
        var changes: [FileChange] = []
        while !fields.isAtEnd { changes.append(try FileChange(decoding: &fields)) }
        return changes
    }
}
