import ExternalText
import Glibc
package import OAuth
import Reactor
import Synchronization

/// The audit log in a store's directory, for reading, also while a process uses the store.
///
/// Of a store that no process uses, this is the log as it was when it was opened. It stays readable while a process that starts
/// later uses the store, because a process writes its own chains only, and makes changes of the write-ahead log in its recovery
/// that are part of what was read here.
///
/// Calls block. Errors of the disk are `.damaged`, with the path in the text.
package final class AuditDirectory: AuditReading {
    private let index: AuditIndex
    private let state: Mutex<State>

    private struct State: ~Copyable {
        let files: StoreFiles
        /// What the chains are that the write-ahead log changes; nil for a removed one.
        let changed: [WireText: [UInt8]?]
        /// Whether a process used the store when it was opened.
        let isInUse: Bool
        /// The chain that was read last, because a caller reads a chain in pages.
        var last: (chain: WireText, file: AuditFile)?
    }

    /// Opens the directory. A process that starts in this moment finds the store in use; not after this returns.
    package init(_ path: String) throws(FileStoreError) {
        let directory: StoreDirectory
        do throws(SystemError) {
            directory = try StoreDirectory(existing: path)
        } catch {
            throw .system(path: path, error)
        }
        let files = StoreFiles(path: path, directory: directory)
        guard try files.exists(StoreFormat.name) else { throw .notAStore(directory: path) }
        _ = try StoreFormat.read(files)
        let lock: OwnedDescriptor?
        let isInUse: Bool
        do throws(SystemError) {
            lock = try directory.readersLock(StoreFormat.lockName)
            isInUse = false
        } catch {
            guard error.number == EWOULDBLOCK else { throw .system(path: "\(path)/\(StoreFormat.lockName)", error) }
            lock = nil
            isInUse = true
        }
        // A process that uses the store has made all changes of the write-ahead log in the files.
        let changed = isInUse ? [:] : try Self.changes(files)
        var names = try files.names(in: AuditFrame.directoryName).filter { changed[WireText($0)] == nil }
        names += changed.filter { $0.value != nil }.map(\.key.text)
        index = AuditIndex(try Self.places(names, files, changed))
        state = Mutex(State(files: files, changed: changed, isInUse: isInUse, last: nil))
        _ = consume lock
    }

    /// The chains that the write-ahead log changes.
    private static func changes(_ files: StoreFiles) throws(FileStoreError) -> [WireText: [UInt8]?] {
        guard let bytes = try files.read(CommitLog.name, limit: CommitLog.countLimit) else { return [:] }
        let read = CommitLog.decode(bytes)
        let commits = read.commits.map { $0.filter { AuditFrame.isChain(at: $0.path) } }
        let view = StoreView(files.directory)
        view.apply(commits, isComplete: read.flaw == nil)
        var changed: [WireText: [UInt8]?] = [:]
        for path in Set(commits.joined().map { WireText($0.path) }) {
            let chain = WireText(path.utf8.dropFirst(AuditFrame.directoryName.utf8.count + 1))
            // What cannot be read is read again, and named, when its turn comes.
            if let bytes = try? view.read(path.text) { changed.updateValue(bytes, forKey: chain) }
        }
        return changed
    }

    private static func places(
        _ names: [String], _ files: StoreFiles, _ changed: [WireText: [UInt8]?]
    ) throws(FileStoreError) -> [AuditPlace] {
        var places: [AuditPlace] = []
        for name in names {
            guard let bytes = changed[WireText(name)].flatMap(\.self) else { continue }
            let first = AuditFrame.blocks(of: bytes).blocks.first?.time
            places.append(AuditPlace(begun: AuditChainName.begun(name) ?? first ?? .latest, chain: name))
        }
        return places + (try files.auditPlaces(names.filter { changed[WireText($0)] == nil }))
    }

    /// The text of a secret beside the records, without the newline at its end; nil when there is none.
    package func secret(_ secret: StoreSecret) throws(FileStoreError) -> String? {
        try state.withLock { state throws(FileStoreError) in
            guard let bytes = try state.files.read(secret.rawValue, limit: 65_536) else { return nil }
            return String(validating: bytes, as: UTF8.self).map { String($0.prefix { !$0.isNewline }) }
        }
    }

    package func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        let (places, next) = index.page(order, after: place, limit: limit)
        var page = AuditPage(next: next)
        for place in places {
            let file = try file(of: place.chain)
            if let damage = file.damage {
                page.damaged.append(damage)
            } else if let chain = AuditChain(file.blocks), since.map({ chain.written >= $0 }) ?? true {
                page.chains.append(chain)
            }
        }
        return page
    }

    package func auditBlocks(
        of chain: String, after first: Int64, limit: Int
    ) async throws(StoreError) -> [AuditBlock] {
        let blocks = try file(of: chain).blocks
        return Array(blocks.lazy.filter { $0.first > first }.prefix(limit))
    }

    private func file(of chain: String) throws(StoreError) -> AuditFile {
        let name = WireText(chain)
        return try state.withLock { state throws(StoreError) in
            if let (last, file) = state.last, last == name { return file }
            let file: AuditFile
            if let changed = state.changed[name] {
                file = AuditFile(changed ?? [], of: chain, at: "\(state.files.path)/\(AuditFrame.path(of: chain))")
            } else {
                do throws(FileStoreError) {
                    file = try state.files.auditFile(of: chain, mayGrow: state.isInUse)
                } catch {
                    throw .damaged("\(error)")
                }
            }
            state.last = (name, file)
            return file
        }
    }
}
