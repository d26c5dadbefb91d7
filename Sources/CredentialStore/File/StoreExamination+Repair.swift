import Glibc
import OAuth
package import Reactor

/// Why a repair did not write a new store. Retrying helps when the cause that the text names has been removed.
package enum RepairError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The target path exists already.
    case targetExists(path: String)
    /// Another repair with the same target is running, or was interrupted and has left its draft, which must be
    /// removed.
    case draftExists(path: String)
    /// The target is in the damaged directory, which a repair does not change.
    case targetInside(path: String)
    case system(path: String, SystemError)
    /// A file that was intact when it was examined is not intact any more.
    case changed(path: String)

    package var description: String {
        switch self {
        case .targetExists(let path): "\(path) exists already; name a directory that does not exist"
        case .draftExists(let path):
            "\(path) exists: another repair is writing it, or an interrupted repair has left it; in the second case "
                + "remove it"
        case .targetInside(let path): "\(path) would be in the damaged directory, which a repair does not change"
        case .system(let path, let error): "cannot write \(path): \(error)"
        case .changed(let path): "\(path) was intact when it was examined, and is not intact any more"
        }
    }
}

extension StoreExamination {
    /// Writes everything that is intact as a new store. To be called after `examine`. The examined directory is not
    /// changed.
    ///
    /// The target appears atomically, complete and durable. Until then the draft of the store is beside it, in a
    /// directory whose name ends in `.incomplete`; a failure or the death of the process leaves that directory.
    /// - Parameter target: a path that does not exist, in a directory that does.
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
            try StoreDirectory.step(.rename, at: target, fault: fault)
            try retryingInterrupts("rename") { unsafe rename(draft, target) }
            try StoreDirectory.step(.synchronizeDirectory, at: target, fault: fault)
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
            for name in RecordPath.Tree.allCases.map(\.rawValue) + [StoreFormat.draftsName, FileLog.directoryName] {
                try directory.makeDirectory(name)
            }
        } catch {
            throw .system(path: draft, error)
        }
        for place in records {
            let bytes = try intact(place.text) { bytes in (try? RecordFile.decode(bytes, id: place.id)) != nil }
            try put(place.text, bytes)
            content.records.insert(place.id)
        }
        for segment in log.segments {
            let name = FileLog.path(of: segment)
            try put(name, try intact(name) { LogFrame.frames(of: $0, in: segment).flaw == nil })
        }
        for name in audit {
            // Evidence is kept as it is.
            guard let bytes = try? view.read(name) else { throw .changed(path: "\(path)/\(name)") }
            try put(name, bytes)
        }
        for secret in secrets { try put(secret.rawValue, try intact(secret.rawValue) { !$0.isEmpty }) }
        try put(FileLog.statePath, log.state.encode())
        try put(Catalog.name, Catalog.encode(content))
        try put(CommitLog.name, CommitLog.empty)
        try put(StoreFormat.name, StoreFormat.content)
    }

    /// The content of a file that was intact when it was examined.
    private func intact(_ name: String, where isIntact: ([UInt8]) -> Bool) throws(RepairError) -> [UInt8] {
        guard let bytes = try? view.read(name), isIntact(bytes) else { throw .changed(path: "\(path)/\(name)") }
        return bytes
    }

    private static func parent(of path: String) -> String {
        guard let slash = path.utf8.lastIndex(of: UInt8(ascii: "/")) else { return "." }
        return slash == path.startIndex ? "/" : String(path[..<slash])
    }

    /// Whether `inner` is the same directory as `outer` or below it. False when either does not exist.
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
