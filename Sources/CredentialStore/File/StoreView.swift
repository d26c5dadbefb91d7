internal import OAuth
internal import Reactor

/// What a store's directory holds once the steps in `commits` are made, without making them.
///
/// Not Sendable. Calls block.
final class StoreView {
    private let directory: StoreDirectory
    /// What files hold, or that they are gone (nil), where it is not what stands on the disk.
    private var changed: [String: [UInt8]?] = [:]

    init(_ directory: StoreDirectory) {
        self.directory = directory
    }

    /// - Parameter isCertain: whether these commits are all that there are. Otherwise later ones may have been made, and
    ///   what stands on the disk is kept where it is as new.
    func make(_ commits: [[FileChange]], isCertain: Bool) {
        for change in commits.joined() {
            switch change {
            case .write(let path, let bytes):
                if !isCertain, isNewer(path, than: bytes) { continue }
                changed.updateValue(bytes, forKey: path)
            case .remove(let path): changed.updateValue(nil, forKey: path)
            case .append(let path, let offset, let bytes):
                guard let before = try? read(path) ?? [], before.count >= offset else { continue }
                if !isCertain, before[offset...].starts(with: bytes) { continue }
                changed.updateValue(before[..<offset] + bytes, forKey: path)
            case .place: continue
            }
        }
    }

    /// What the file holds; nil where there is none.
    func read(_ path: String) throws(FileFlaw) -> [UInt8]? {
        if let bytes = changed[path] { return bytes }
        do throws(SystemError) {
            return try directory.read(path, limit: CommitLog.countLimit)
        } catch {
            throw .unreadable(error)
        }
    }

    /// The names in a directory, in their order; none where there is no directory.
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
