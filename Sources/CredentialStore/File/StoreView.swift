import OAuth
import Reactor

/// The content that a store's directory will have when the changes in the write-ahead log have been made. Changes no
/// file.
///
/// Not Sendable. Calls block.
final class StoreView {
    private let directory: StoreDirectory
    /// The files whose content differs from the disk; nil for a removed file.
    private var changed: [String: [UInt8]?] = [:]

    init(_ directory: StoreDirectory) {
        self.directory = directory
    }

    /// Applies the changes of the commits.
    /// - Parameter isComplete: whether the write-ahead log has no other commits. If not, later commits may have changed
    ///   files on the disk, and a file that is at least as new as a change is kept.
    func apply(_ commits: [[FileChange]], isComplete: Bool) {
        for change in commits.joined() {
            switch change {
            case .write(let path, let bytes):
                if !isComplete, isNewer(path, than: bytes) { continue }
                changed.updateValue(bytes, forKey: path)
            case .remove(let path): changed.updateValue(nil, forKey: path)
            case .append(let path, let offset, let bytes):
                guard var before = try? read(path) ?? [] else { continue }
                if before.count < offset {
                    guard AuditFrame.isChain(at: path) else { continue }
                    before += [UInt8](repeating: 0, count: offset - before.count)
                }
                if !isComplete, before[offset...].starts(with: bytes) { continue }
                changed.updateValue(before[..<offset] + bytes, forKey: path)
            }
        }
    }

    /// The content of a file; nil when there is none.
    func read(_ path: String) throws(FileFlaw) -> [UInt8]? {
        if let bytes = changed[path] { return bytes }
        do throws(SystemError) {
            return try directory.read(path, limit: CommitLog.countLimit)
        } catch {
            throw .unreadable(error)
        }
    }

    /// The sorted names in a directory; none when there is no directory.
    func names(in parent: String) throws(FileFlaw) -> [String] {
        var names: Set<String>
        do throws(SystemError) {
            names = Set(try directory.names(in: parent))
        } catch {
            throw .unreadable(error)
        }
        let prefix = Array((parent + "/").utf8)
        for (path, bytes) in changed where path.utf8.starts(with: prefix) {
            let rest = path.utf8.dropFirst(prefix.count)
            let name = String(decoding: rest.prefix { $0 != UInt8(ascii: "/") }, as: UTF8.self)
            if bytes != nil { names.insert(name) } else if rest.count == name.utf8.count { names.remove(name) }
        }
        return names.sorted()
    }

    /// Whether the file on the disk is at least as new as `bytes`.
    private func isNewer(_ path: String, than bytes: [UInt8]) -> Bool {
        guard let place = RecordPath(parsing: path) else {
            return (try? read(path)).flatMap { $0.flatMap { try? LogState(decoding: $0) } } != nil
        }
        guard let found = try? read(path), let standing = try? RecordFile.decode(found, id: place.id),
            let other = try? RecordFile.decode(bytes, id: place.id)
        else { return false }
        return standing.version >= other.version
    }
}
