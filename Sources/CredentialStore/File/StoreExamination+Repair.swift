internal import Glibc
internal import OAuth
package import Reactor

/// Why what is whole was not written as a new store. Retrying helps once what the text names is out of the way.
package enum RepairError: Error, Equatable, Sendable, CustomStringConvertible {
    /// Something stands at the path already.
    case targetExists(path: String)
    /// A repair with the same target is under way, or was broken off; what it left has to be removed.
    case draftExists(path: String)
    /// The new store would stand in the directory of the old one, which stays as it is.
    case targetInside(path: String)
    case system(path: String, SystemError)
    /// A file that was whole a moment ago is not any more.
    case changed(path: String)

    package var description: String {
        switch self {
        case .targetExists(let path): "\(path) exists already; name a directory that does not"
        case .draftExists(let path):
            "\(path) is in the way: another repair is writing it, or one that was broken off has left it; in that case "
                + "remove it"
        case .targetInside(let path): "\(path) would stand in the damaged directory, which is not changed"
        case .system(let path, let error): "cannot write \(path): \(error)"
        case .changed(let path): "\(path) was whole when it was examined, and is not any more"
        }
    }
}

extension StoreExamination {
    /// Writes all that is whole as a new store; to be called after `examine`. The examined directory stays as it is.
    ///
    /// The target appears in one step, whole and durable. Until then the store is made beside it, in a directory whose
    /// name ends in `.incomplete`, which a failure or the death of the process leaves behind.
    /// - Parameter target: where nothing stands yet. Its parent exists.
    package func repair(into target: String) throws(RepairError) {
        try repair(into: target, fault: nil)
    }

    func repair(into target: String, fault: FileFault?) throws(RepairError) {
        var target = target
        while target.utf8.count > 1, target.utf8.last == UInt8(ascii: "/") { target.removeLast() }
        let draft = target + ".incomplete"
        if SmallFile.exists(target) { throw .targetExists(path: target) }
        if Self.isInside(Self.parent(of: target), path) { throw .targetInside(path: target) }
        let directory: StoreDirectory
        do throws(SystemError) {
            directory = try StoreDirectory(new: draft, fault: fault)
        } catch {
            throw error.number == EEXIST ? .draftExists(path: draft) : .system(path: draft, error)
        }
        try write(to: directory, draft)
        do throws(SystemError) {
            try directory.synchronizeFileSystem()
            try StoreDirectory.step(.rename, target, fault)
            try retryingInterrupts("rename") { unsafe rename(draft, target) }
            try StoreDirectory.step(.synchronizeDirectory, target, fault)
            try SmallFile.synchronizeDirectory(of: target)
        } catch {
            throw .system(path: target, error)
        }
    }

    private func write(to directory: StoreDirectory, _ draft: String) throws(RepairError) {
        var content = Catalog.Content(segment: log.segments.last ?? 0)
        var made: Set<String> = []
        func put(_ name: String, _ bytes: [UInt8]) throws(RepairError) {
            do throws(SystemError) {
                var parent = ""
                for part in name.utf8.split(separator: UInt8(ascii: "/")).dropLast() {
                    parent += (parent.isEmpty ? "" : "/") + String(decoding: part, as: UTF8.self)
                    if made.insert(parent).inserted { try directory.makeDirectory(parent) }
                }
                try directory.writeForNow(name, bytes)
            } catch {
                throw .system(path: "\(draft)/\(name)", error)
            }
        }
        do throws(SystemError) {
            for name in RecordPath.Tree.allCases.map(\.rawValue) + [StoreFormat.newName, FileLog.directoryName] {
                try directory.makeDirectory(name)
            }
        } catch {
            throw .system(path: draft, error)
        }
        for place in records {
            try put(place.text, try whole(place.text) { bytes in (try? RecordFile.decode(bytes, id: place.id)) != nil })
            content.records.insert(place.id)
        }
        for segment in log.segments {
            let name = FileLog.path(of: segment)
            try put(name, try whole(name) { LogFrame.frames(of: $0, in: segment).flaw == nil })
        }
        for secret in secrets { try put(secret.rawValue, try whole(secret.rawValue) { !$0.isEmpty }) }
        try put(FileLog.statePath, log.state.encode())
        try put(Catalog.name, Catalog.encode(content))
        try put(CommitLog.name, CommitLog.empty)
        try put(StoreFormat.name, StoreFormat.content)
    }

    /// What a file holds that was whole when it was examined.
    private func whole(_ name: String, _ isWhole: ([UInt8]) -> Bool) throws(RepairError) -> [UInt8] {
        guard let bytes = try? view.read(name), isWhole(bytes) else { throw .changed(path: "\(path)/\(name)") }
        return bytes
    }

    private static func parent(of path: String) -> String {
        guard let slash = path.utf8.lastIndex(of: UInt8(ascii: "/")) else { return "." }
        return slash == path.startIndex ? "/" : String(path[..<slash])
    }

    /// Whether one directory is another one or lies below it. False where either cannot be found.
    private static func isInside(_ inner: String, _ outer: String) -> Bool {
        guard let inner = resolved(inner), let outer = resolved(outer) else { return false }
        return inner == outer || inner.starts(with: outer + [UInt8(ascii: "/")])
    }

    private static func resolved(_ path: String) -> [UInt8]? {
        guard let text = unsafe realpath(path, nil) else { return nil }
        defer { unsafe free(text) }
        return unsafe Array(String(cString: text).utf8)
    }
}
