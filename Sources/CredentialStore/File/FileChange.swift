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

    /// - Throws: `.damaged` also for a path that commits do not change. The digest of the log is no seal, so a path in a
    ///   log that was forged could lead to any file of the machine.
    init(decoding fields: inout FieldReader) throws(FramedFile.Failure) {
        let code = fields.integer(UInt8.self)
        guard code == Code.remove || code == Code.append || code == Code.write else { throw .newerFormat }
        guard let path = fields.text(), Self.isChangedByCommits(path) else { throw .damaged }
        switch code {
        case Code.remove: self = .remove(path)
        case Code.append:
            guard let offset = fields.integer(Int64.self), offset >= 0, let bytes = fields.bytes() else {
                throw .damaged
            }
            self = .append(to: path, offset: Int(offset), bytes)
        default:
            guard let bytes = fields.bytes() else { throw .damaged }
            self = .write(to: path, bytes)
        }
    }

    /// Whether the path is that of a record, of the catalog, of the log of events or of the audit log.
    private static func isChangedByCommits(_ path: String) -> Bool {
        // The system reads a path up to the first zero.
        if path.utf8.contains(0) { return false }
        if let place = RecordPath(parsing: path) { return place.text.utf8.elementsEqual(path.utf8) }
        return FileLog.segment(at: path) != nil || AuditFrame.isChain(at: path)
            || [Catalog.name, FileLog.statePath].contains { $0.utf8.elementsEqual(path.utf8) }
    }
}
