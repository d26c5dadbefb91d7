/// One step by which a commit changes the store's files. Doing a step again, after all those of its commit, changes
/// nothing.
enum FileChange: Equatable, Sendable {
    /// Puts a finished file in its place.
    case place(from: String, to: String)
    case remove(String)
}

/// The steps of a commit, written down before the first is made, so that a process which dies between them leaves what
/// the next one needs to finish them.
enum CommitFile {
    private static let mark = "TBcm"
    private static let format: UInt8 = 1

    static func encode(_ changes: [FileChange]) -> [UInt8] {
        var fields = FieldWriter()
        for change in changes {
            switch change {
            case .place(let source, let target):
                fields.write(UInt8(1))
                fields.write(source)
                fields.write(target)
            case .remove(let path):
                fields.write(UInt8(2))
                fields.write(path)
            }
        }
        return FramedFile.encode(mark: mark, format: format, fields.bytes)
    }

    static func decode(_ bytes: [UInt8]) throws(FramedFile.Failure) -> [FileChange] {
        var fields = FieldReader(try FramedFile.decode(bytes, mark: mark, format: format))
        var changes: [FileChange] = []
        while !fields.isAtEnd {
            switch fields.integer(UInt8.self) {
            case 1:
                guard let source = fields.text(), let target = fields.text() else { throw .damaged }
                changes.append(.place(from: source, to: target))
            case 2:
                guard let path = fields.text() else { throw .damaged }
                changes.append(.remove(path))
            default: throw .damaged
            }
        }
        return changes
    }
}
