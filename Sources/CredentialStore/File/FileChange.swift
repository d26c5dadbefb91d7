/// One step by which a commit changes the store's files. Doing the steps of any number of commits again, in their order
/// and to the last of them, changes nothing.
enum FileChange: Equatable, Sendable {
    /// Gives a file this content.
    case write(to: String, [UInt8])
    case remove(String)
    /// Writes the end of a file of the log, where it begins at `offset`.
    case append(to: String, offset: Int, [UInt8])
    /// Puts a finished file in its place.
    case place(from: String, to: String)

    private enum Code {
        static let place: UInt8 = 1
        static let remove: UInt8 = 2
        static let append: UInt8 = 3
        static let write: UInt8 = 4
    }

    func encode(to fields: inout FieldWriter) {
        switch self {
        case .place(let source, let target):
            fields.write(Code.place)
            fields.write(source)
            fields.write(target)
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
        case Code.place:
            guard let source = fields.text(), let target = fields.text() else { throw .damaged }
            self = .place(from: source, to: target)
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
