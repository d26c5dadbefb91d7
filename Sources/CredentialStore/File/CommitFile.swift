/// One step by which a commit changes the store's files. Doing a step again, after all those of its commit, changes
/// nothing.
enum FileChange: Equatable, Sendable {
    /// Puts a finished file in its place.
    case place(from: String, to: String)
    case remove(String)
    /// Writes the end of a file of the log, where it begins at `offset`.
    case append(to: String, offset: Int, [UInt8])
}

/// The steps of a commit, written down before the first is made, so that a process which dies between them leaves what
/// the next one needs to finish them.
enum CommitFile {
    private static let mark = "TBcm"
    /// 2 may append. A commit that does not is written as 1, which older builds can finish.
    private static let formats: ClosedRange<UInt8> = 1...2

    static func encode(_ changes: [FileChange]) -> [UInt8] {
        var fields = FieldWriter()
        var format = formats.lowerBound
        for change in changes {
            switch change {
            case .place(let source, let target):
                fields.write(UInt8(1))
                fields.write(source)
                fields.write(target)
            case .remove(let path):
                fields.write(UInt8(2))
                fields.write(path)
            case .append(let path, let offset, let bytes):
                format = formats.upperBound
                fields.write(UInt8(3))
                fields.write(path)
                fields.write(Int64(offset))
                fields.write(bytes)
            }
        }
        return FramedFile.encode(mark: mark, format: format, fields.bytes)
    }

    static func decode(_ bytes: [UInt8]) throws(FramedFile.Failure) -> [FileChange] {
        var fields = FieldReader(try FramedFile.decode(bytes, mark: mark, formats: formats).body)
        var changes: [FileChange] = []
        while !fields.isAtEnd {
            switch fields.integer(UInt8.self) {
            case 1:
                guard let source = fields.text(), let target = fields.text() else { throw .damaged }
                changes.append(.place(from: source, to: target))
            case 2:
                guard let path = fields.text() else { throw .damaged }
                changes.append(.remove(path))
            case 3:
                guard let path = fields.text(), let offset = fields.integer(Int64.self), offset >= 0,
                    let bytes = fields.bytes()
                else { throw .damaged }
                changes.append(.append(to: path, offset: Int(offset), bytes))
            default: throw .damaged
            }
        }
        return changes
    }
}
