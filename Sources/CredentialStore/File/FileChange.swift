/// A change of one file of the store, as the write-ahead log records it. Making the changes of any number of commits
/// again, in order and all of them, has no effect.
enum FileChange: Equatable, Sendable {
    /// Writes a whole file.
    case write(to: String, [UInt8])
    case remove(String)
    /// Writes the end of a file from `offset` on.
    case append(to: String, offset: Int, [UInt8])

    /// 1 is not used any more.
    private enum Code {
        static let remove: UInt8 = 2
        static let append: UInt8 = 3
        static let write: UInt8 = 4
    }

    /// The path of the file, relative to the store's directory.
    var path: String {
        switch self {
        case .write(let path, _), .remove(let path), .append(let path, _, _): path
        }
    }

    func encode(to fields: inout FieldWriter) {
        switch self {
        case .remove(let path):
            fields.write(Code.remove)
            fields.write(path)
        case .append(let path, let offset, let bytes):
            fields.write(Code.append)
            fields.write(path)
            fields.write(Int64(offset))
            fields.write(bytes)
        case .write(let path, let bytes):
            fields.write(Code.write)
            fields.write(path)
            fields.write(bytes)
        }
    }

    init(decoding fields: inout FieldReader) throws(FramedFile.Failure) {
        switch fields.integer(UInt8.self) {
        case Code.remove:
            guard let path = fields.text() else { throw .damaged }
            self = .remove(path)
        case Code.append:
            guard let path = fields.text(), let offset = fields.integer(Int64.self), offset >= 0,
                let bytes = fields.bytes()
            else { throw .damaged }
            self = .append(to: path, offset: Int(offset), bytes)
        case Code.write:
            guard let path = fields.text(), let bytes = fields.bytes() else { throw .damaged }
            self = .write(to: path, bytes)
        default: throw .newerFormat
        }
    }
}
