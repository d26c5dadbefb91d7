import CLinux
import Glibc
import OAuth
import Reactor

/// A call on the file system that is about to be made. Tests let calls fail as they would on a full or broken disk, or
/// in a process that has died.
struct FileStep: Sendable, Equatable {
    enum Call: Sendable {
        case create, reserve, write, synchronizeFile, truncate, rename, remove, makeDirectory, synchronizeDirectory
        case read, list
    }

    let call: Call
    /// Relative to the store's directory; the target of a rename.
    let path: String
}

/// Returns the errno with which a call must fail, or nil to make the call.
typealias FileFault = @Sendable (FileStep) -> CInt?

/// A directory, and the calls on the files in it. All paths are relative to the open directory, so the calls reach the
/// same directory after it has been renamed, or replaced at its path.
///
/// Not Sendable: belongs to one store and its thread. Calls block.
final class StoreDirectory {
    private let root: OwnedDescriptor
    private let fault: FileFault?

    /// Opens the directory at `path`. A missing one is created, with access for this user only; its parent must exist.
    init(_ path: String, fault: FileFault?) throws(SystemError) {
        self.fault = fault
        let isNew: Bool
        do throws(SystemError) {
            try retryingInterrupts("mkdir") { unsafe mkdir(path, 0o700) }
            isNew = true
        } catch {
            guard error.number == EEXIST else { throw error }
            isNew = false
        }
        root = try Self.openDirectory(AT_FDCWD, path)
        let trimmed = path.reversed().drop { $0 == "/" }
        let parent = String(trimmed.drop { $0 != "/" }.reversed())
        do throws(SystemError) {
            // Also for a directory that exists: the process that created it may have died before it synchronized the
            // parent.
            let descriptor = try Self.openDirectory(AT_FDCWD, parent.isEmpty ? "." : parent)
            try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
        } catch {
            // A user who cannot read the parent cannot have created the directory in it. Its creator must make it
            // durable.
            if isNew || error.number != EACCES { throw error }
        }
    }

    /// Opens an existing directory.
    init(existing path: String, fault: FileFault? = nil) throws(SystemError) {
        self.fault = fault
        root = try Self.openDirectory(AT_FDCWD, path)
    }

    /// Creates a directory with access for this user only.
    /// - Throws: with `EEXIST` when the path exists.
    init(new path: String, fault: FileFault? = nil) throws(SystemError) {
        self.fault = fault
        try Self.step(.makeDirectory, at: path, fault: fault)
        try retryingInterrupts("mkdir") { unsafe mkdir(path, 0o700) }
        root = try Self.openDirectory(AT_FDCWD, path)
    }

    struct Access {
        let belongsToThisUser: Bool
        /// Whether other users have any access to the directory.
        let isShared: Bool
    }

    func access() throws(SystemError) -> Access {
        var status = stat()
        try retryingInterrupts("fstat") { unsafe fstat(root.rawValue, &status) }
        return Access(belongsToThisUser: status.st_uid == geteuid(), isShared: status.st_mode & 0o077 != 0)
    }

    /// An exclusive lock, held as long as the descriptor is open. The kernel releases it when the process ends in any
    /// way.
    /// - Throws: with `EWOULDBLOCK` when another descriptor holds it.
    func lock(_ path: String) throws(SystemError) -> OwnedDescriptor {
        let descriptor = try open(path, O_RDWR | O_CREAT)
        try retryingInterrupts("flock") { flock(descriptor.rawValue, LOCK_EX | LOCK_NB) }
        return descriptor
    }

    /// A shared lock, which excludes the exclusive one; nil when the file does not exist.
    /// - Throws: with `EWOULDBLOCK` when another descriptor holds the exclusive lock.
    func readersLock(_ path: String) throws(SystemError) -> OwnedDescriptor? {
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return nil }
        try retryingInterrupts("flock") { flock(descriptor.rawValue, LOCK_SH | LOCK_NB) }
        return descriptor
    }

    /// The content of a file from `offset` on; nil when the file does not exist.
    /// - Parameter most: reads no more octets than that.
    /// - Throws: with `EFBIG` when the content is longer than `limit`.
    func read(
        _ path: String, from offset: Int = 0, limit: Int, count most: Int = .max
    ) throws(SystemError) -> [UInt8]? {
        try step(.read, path)
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return nil }
        let size = try Self.size(descriptor)
        guard size - offset <= limit else { throw SystemError("read", number: EFBIG) }
        var bytes = [UInt8](repeating: 0, count: min(most, max(0, size - offset)))
        var filled = 0
        while filled < bytes.count {
            let count = try retryingInterrupts("read") {
                unsafe bytes.withUnsafeMutableBytes { buffer in
                    unsafe pread(
                        descriptor.rawValue, buffer.baseAddress! + filled, buffer.count - filled, offset + filled)
                }
            }
            // The file has become shorter since fstat. Decoding it detects that.
            if count == 0 { break }
            filled += count
        }
        bytes.removeLast(bytes.count - filled)
        return bytes
    }

    /// The access that other users have to the file; nil when the file does not exist.
    func access(_ path: String) throws(SystemError) -> FileAccess? {
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return nil }
        return try FileAccess(of: descriptor.rawValue)
    }

    /// When the file was written last, by the clock of the file system; nil when it does not exist.
    func modified(_ path: String) throws(SystemError) -> Timestamp? {
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return nil }
        let number = descriptor.rawValue
        var status = stat()
        try retryingInterrupts("fstat") { unsafe fstat(number, &status) }
        return Timestamp(seconds: Int64(status.st_mtim.tv_sec))
    }

    /// Creates a file. It is durable when its directory is synchronized. A failure may leave a part of it.
    /// - Throws: with `EEXIST` when the path exists.
    func write(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        let descriptor = try make(path, bytes)
        try step(.synchronizeFile, path)
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
    }

    /// Like `write`, for a file that `synchronizeFile` makes durable later.
    func writeForNow(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        _ = try make(path, bytes)
    }

    private func make(_ path: String, _ bytes: [UInt8]) throws(SystemError) -> OwnedDescriptor {
        try step(.create, path)
        let descriptor = try open(path, O_WRONLY | O_CREAT | O_EXCL)
        try write(bytes, to: descriptor, of: path, at: 0)
        return descriptor
    }

    /// Replaces the content of a file from `offset` on; `synchronizeFile` makes that durable later. Creates a missing
    /// file when `offset` is 0. A second call has no effect. A failure may leave a part of the new content.
    /// - Throws: with `ESPIPE` when the file ends before `offset`; with `ENOENT` when it is missing and `offset` is not
    ///   0.
    func append(_ bytes: [UInt8], to path: String, at offset: Int) throws(SystemError) {
        try step(.create, path)
        let descriptor = try open(path, offset == 0 ? O_WRONLY | O_CREAT : O_WRONLY)
        let size = try Self.size(descriptor)
        guard size >= offset else { throw SystemError("append", number: ESPIPE) }
        try write(bytes, to: descriptor, of: path, at: offset)
        let end = offset + bytes.count
        if size > end {
            try step(.truncate, path)
            try retryingInterrupts("ftruncate") { ftruncate(descriptor.rawValue, end) }
        }
    }

    /// Lengthens a file that is shorter than `count` octets by zeros. Creates a missing file.
    func extend(_ path: String, to count: Int) throws(SystemError) {
        try step(.create, path)
        let descriptor = try open(path, O_WRONLY | O_CREAT)
        guard try Self.size(descriptor) < count else { return }
        try step(.truncate, path)
        try retryingInterrupts("ftruncate") { ftruncate(descriptor.rawValue, count) }
    }

    /// Reserves disk space for a file's octets up to `end`, so that writing them does not fail with a full disk, as far
    /// as the file system can guarantee that. The content does not change. Creates a missing file. Does nothing when
    /// the file system cannot reserve space, or not for this process; a later write reports the error.
    /// - Throws: with `ENOSPC` or `EDQUOT` when there is not enough space.
    func reserve(_ path: String, upTo end: Int) throws(SystemError) {
        try step(.reserve, path)
        let descriptor = try open(path, O_WRONLY | O_CREAT)
        do throws(SystemError) {
            try retryingInterrupts("fallocate") { clinux_reserve_room(descriptor.rawValue, end) }
        } catch {
            guard [EOPNOTSUPP, ENOSYS, EINVAL, EPERM].contains(error.number) else { throw error }
        }
    }

    /// Overwrites octets of a file from `offset` on, durably; the octets behind them stay. A failure may leave any
    /// mixture of old and new octets.
    /// - Throws: with `ENOENT` when the file does not exist.
    func overwrite(_ path: String, at offset: Int, with bytes: [UInt8]) throws(SystemError) {
        let descriptor = try open(path, O_WRONLY)
        try write(bytes, to: descriptor, of: path, at: offset)
        try step(.synchronizeFile, path)
        // fdatasync writes the metadata of the file only when its size has changed.
        try retryingInterrupts("fdatasync") { fdatasync(descriptor.rawValue) }
    }

    /// Makes the content of a file durable. Does nothing when the file does not exist.
    func synchronizeFile(_ path: String) throws(SystemError) {
        try step(.synchronizeFile, path)
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return }
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
    }

    /// Shortens a file to `count` octets, and makes them durable. Does nothing when the file does not exist.
    func truncate(_ path: String, to count: Int) throws(SystemError) {
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_WRONLY) }) else { return }
        if try Self.size(descriptor) > count {
            try step(.truncate, path)
            try retryingInterrupts("ftruncate") { ftruncate(descriptor.rawValue, count) }
        }
        try step(.synchronizeFile, path)
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
    }

    private func write(
        _ bytes: [UInt8], to descriptor: borrowing OwnedDescriptor, of path: String, at offset: Int
    ) throws(SystemError) {
        try step(.write, path)
        let number = descriptor.rawValue
        var written = 0
        while written < bytes.count {
            written += try retryingInterrupts("write") {
                unsafe bytes.withUnsafeBytes { buffer in
                    unsafe pwrite(number, buffer.baseAddress! + written, buffer.count - written, offset + written)
                }
            }
        }
    }

    private static func size(_ descriptor: borrowing OwnedDescriptor) throws(SystemError) -> Int {
        let number = descriptor.rawValue
        var status = stat()
        try retryingInterrupts("fstat") { unsafe fstat(number, &status) }
        return Int(status.st_size)
    }

    /// Renames a file. A file at `target` is replaced atomically.
    func rename(_ source: String, to target: String) throws(SystemError) {
        try step(.rename, target)
        try retryingInterrupts("rename") { unsafe renameat(root.rawValue, source, root.rawValue, target) }
    }

    /// Removes a file. Returns false when it does not exist.
    @discardableResult
    func remove(_ path: String) throws(SystemError) -> Bool {
        try step(.remove, path)
        do throws(SystemError) {
            try retryingInterrupts("unlink") { unsafe unlinkat(root.rawValue, path, 0) }
            return true
        } catch {
            if error.number == ENOENT { return false }
            throw error
        }
    }

    func exists(_ path: String) throws(SystemError) -> Bool {
        var status = stat()
        do throws(SystemError) {
            try retryingInterrupts("fstatat") {
                unsafe fstatat(root.rawValue, path, &status, AT_SYMLINK_NOFOLLOW)
            }
            return true
        } catch {
            if error.number == ENOENT { return false }
            throw error
        }
    }

    /// Creates a directory, with access for this user only, unless it exists.
    func makeDirectory(_ path: String) throws(SystemError) {
        try step(.makeDirectory, path)
        do throws(SystemError) {
            try retryingInterrupts("mkdir") { unsafe mkdirat(root.rawValue, path, 0o700) }
        } catch {
            if error.number != EEXIST { throw error }
        }
    }

    /// Makes the creation, renaming and removal of files in a directory durable.
    func synchronize(_ path: String) throws(SystemError) {
        try step(.synchronizeDirectory, path)
        let descriptor = try Self.openDirectory(root.rawValue, path)
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
    }

    /// Makes everything durable that was written to the directory's file system.
    func synchronizeFileSystem() throws(SystemError) {
        try step(.synchronizeFile, ".")
        try retryingInterrupts("syncfs") { clinux_synchronize_file_system(root.rawValue) }
    }

    /// The names in a directory, in no order; none when the directory does not exist.
    func names(in path: String) throws(SystemError) -> [String] {
        try step(.list, path)
        guard
            let descriptor = try present({ () throws(SystemError) in try Self.openDirectory(root.rawValue, path) })
        else { return [] }
        let number = descriptor.relinquish()
        guard let stream = unsafe fdopendir(number) else {
            let error = SystemError.last("fdopendir")
            _ = OwnedDescriptor(adopting: number)
            throw error
        }
        defer { unsafe closedir(stream) }
        var names: [String] = []
        while true {
            // Nil means the end or a failure, which errno distinguishes.
            errno = 0
            guard let entry = unsafe readdir(stream) else {
                let error = SystemError.last("readdir")
                if error.number == 0 { return names }
                throw error
            }
            let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) { name in
                unsafe name.withMemoryRebound(to: CChar.self, capacity: 256) { unsafe String(cString: $0) }
            }
            if name != "." && name != ".." { names.append(name) }
        }
    }

    private func open(_ path: String, _ flags: CInt) throws(SystemError) -> OwnedDescriptor {
        // The mode applies to a new file, so no other user can ever read it.
        OwnedDescriptor(
            adopting: try retryingInterrupts("open") {
                unsafe openat(root.rawValue, path, flags | O_CLOEXEC | O_NOFOLLOW, 0o600)
            })
    }

    private static func openDirectory(_ base: CInt, _ path: String) throws(SystemError) -> OwnedDescriptor {
        OwnedDescriptor(
            adopting: try retryingInterrupts("open") {
                unsafe openat(base, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            })
    }

    /// The descriptor that `open` returns; nil when the path does not exist.
    private func present(_ open: () throws(SystemError) -> OwnedDescriptor) throws(SystemError) -> OwnedDescriptor? {
        do throws(SystemError) {
            return try open()
        } catch {
            if error.number == ENOENT { return nil }
            throw error
        }
    }

    private func step(_ call: FileStep.Call, _ path: String) throws(SystemError) {
        try Self.step(call, at: path, fault: fault)
    }

    static func step(_ call: FileStep.Call, at path: String, fault: FileFault?) throws(SystemError) {
        if let number = fault?(FileStep(call: call, path: path)) { throw SystemError("\(call)", number: number) }
    }
}

extension SystemError {
    /// Whether the file causes the error, and not the disk: the path is no regular file, or the file is larger than any
    /// file of its kind.
    var isOfTheFile: Bool { [EFBIG, ELOOP, EISDIR, ENXIO].contains(number) }

    /// Whether other files may be readable nevertheless: also where the disk or its owner does not let this process read the file.
    var leavesOtherFiles: Bool { isOfTheFile || number == EIO || number == EACCES }
}
