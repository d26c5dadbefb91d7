internal import Glibc
package import OAuth
internal import Reactor
internal import Synchronization

/// The audit log in a store's directory, for reading, also while a process uses the store.
///
/// Calls block. Errors of the disk and damaged files are `.damaged`, with the path in the text.
package final class AuditDirectory: AuditReading {
    private let path: String
    private let state: Mutex<State>

    private struct State: ~Copyable {
        let files: StoreFiles
        /// What the write-ahead log adds to the files of a store that no process uses; nil while one does, which has
        /// written everything itself.
        let view: StoreView?
        let lock: OwnedDescriptor?
        /// The chain that was read last, because a caller reads a chain in pages.
        var last: (chain: String, blocks: [AuditBlock])?
    }

    /// Opens the directory.
    package init(_ path: String) throws(FileStoreError) {
        self.path = path
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
        let isFree: Bool
        do throws(SystemError) {
            lock = try directory.readersLock(StoreFormat.lockName)
            isFree = true
        } catch {
            guard error.number == EWOULDBLOCK else { throw .system(path: "\(path)/\(StoreFormat.lockName)", error) }
            lock = nil
            isFree = false
        }
        var view: StoreView?
        if isFree {
            let commits = StoreView(directory)
            if let bytes = try files.read(CommitLog.name, limit: CommitLog.countLimit) {
                let read = CommitLog.decode(bytes)
                commits.apply(read.commits, isComplete: read.flaw == nil)
            }
            view = commits
        }
        state = Mutex(State(files: files, view: view, lock: lock, last: nil))
    }

    /// The text of a secret beside the records, without the newline at its end; nil when there is none.
    package func secret(_ secret: StoreSecret) throws(FileStoreError) -> String? {
        try state.withLock { state throws(FileStoreError) in
            guard let bytes = try state.files.read(secret.rawValue, limit: 65_536) else { return nil }
            return String(validating: bytes, as: UTF8.self).map { String($0.prefix { !$0.isNewline }) }
        }
    }

    package func auditChains(since: Timestamp?) async throws(StoreError) -> [AuditChain] {
        try state.withLock { state throws(StoreError) in
            let names: [String]
            do throws(FileStoreError) {
                names = try state.files.names(in: AuditFrame.directoryName).sorted()
            } catch {
                throw .damaged("\(error)")
            }
            var chains: [AuditChain] = []
            for name in names {
                guard let chain = AuditChain(try Self.blocks(of: name, in: path, &state)) else { continue }
                if since.map({ chain.written >= $0 }) ?? true { chains.append(chain) }
            }
            return chains
        }
    }

    package func auditBlocks(
        of chain: String, after first: Int64, limit: Int
    ) async throws(StoreError) -> [AuditBlock] {
        let blocks = try blocks(of: chain)
        return Array(blocks.lazy.filter { $0.first > first }.prefix(limit))
    }

    private func blocks(of chain: String) throws(StoreError) -> [AuditBlock] {
        try state.withLock { state throws(StoreError) in try Self.blocks(of: chain, in: path, &state) }
    }

    private static func blocks(
        of chain: String, in path: String, _ state: inout State
    ) throws(StoreError) -> [AuditBlock] {
        if let (name, blocks) = state.last, name.utf8.elementsEqual(chain.utf8) { return blocks }
        let name = AuditFrame.path(of: chain)
        var bytes: [UInt8]?
        do throws(FileStoreError) {
            bytes = try state.files.read(name, limit: CommitLog.countLimit)
        } catch {
            throw .damaged("\(error)")
        }
        if let view = state.view {
            do throws(FileFlaw) {
                bytes = try view.read(name)
            } catch {
                throw .damaged("\(path)/\(name) is damaged: \(error.text)")
            }
        }
        let (blocks, _, flaw) = AuditFrame.blocks(of: bytes ?? [])
        // A process that uses the store may be writing the last block.
        if let flaw, state.view != nil || flaw != .truncated {
            throw .damaged("\(path)/\(name) is damaged behind \(blocks.count) blocks: \(flaw.text)")
        }
        state.last = (chain, blocks)
        return blocks
    }
}
