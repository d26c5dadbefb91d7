internal import CLinux
internal import Glibc
internal import Reactor

/// A call on the file system that is about to be made. Tests let one fail, as it would on a disk that is full or broken
/// or in a process that has died.
struct FileStep: Sendable, Equatable {
    enum Call: Sendable {
        case create, reserve, write, synchronizeFile, truncate, rename, remove, makeDirectory, synchronizeDirectory
        case read, list
    }

    let call: Call
    /// Relative to the store's directory; the target of a rename.
    let path: String
}

/// The errno with which a step fails, or nil to let it be done.
typealias FileFault = @Sendable (FileStep) -> CInt?

/// A directory, and the calls on the files in it. Every path is relative to the directory, which stays the same one
/// when somebody renames or replaces what stands at its path.
///
/// Not Sendable: belongs to one store and its thread. Calls block.
final class StoreDirectory {
    private let root: OwnedDescriptor
    private let fault: FileFault?

    /// Opens the directory at `path`, which is made for this user alone where it is missing (its parent is not).
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
            // Also where the directory is there already: the process that made it may have died before this.
            let descriptor = try Self.openDirectory(AT_FDCWD, parent.isEmpty ? "." : parent)
            try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
        } catch {
            // Whoever may not read the parent did not make the directory in it; its maker answers for it.
            if isNew || error.number != EACCES { throw error }
        }
    }

    /// Opens a directory that exists, and changes nothing.
    init(existing path: String, fault: FileFault? = nil) throws(SystemError) {
        self.fault = fault
        root = try Self.openDirectory(AT_FDCWD, path)
    }

    /// Makes a directory for this user alone.
    /// - Throws: with `EEXIST` where anything stands at the path.
    init(new path: String, fault: FileFault? = nil) throws(SystemError) {
        self.fault = fault
        try Self.step(.makeDirectory, path, fault)
        try retryingInterrupts("mkdir") { unsafe mkdir(path, 0o700) }
        root = try Self.openDirectory(AT_FDCWD, path)
    }

    struct Access {
        let belongsToThisUser: Bool
        /// Whether anybody else may do anything with the directory.
        let isShared: Bool
    }

    func access() throws(SystemError) -> Access {
        var status = stat()
        try retryingInterrupts("fstat") { unsafe fstat(root.rawValue, &status) }
        return Access(belongsToThisUser: status.st_uid == geteuid(), isShared: status.st_mode & 0o077 != 0)
    }

    /// A lock that nobody else holds as long as the descriptor is open. The kernel lets go of it when the process ends,
    /// however that happens.
    /// - Throws: with `EWOULDBLOCK` when another descriptor holds it.
    func lock(_ path: String) throws(SystemError) -> OwnedDescriptor {
        let descriptor = try open(path, O_RDWR | O_CREAT)
        try retryingInterrupts("flock") { flock(descriptor.rawValue, LOCK_EX | LOCK_NB) }
        return descriptor
    }

    /// A lock that any number of readers hold, and that keeps out who wants it alone; nil where there is no such file.
    /// - Throws: with `EWOULDBLOCK` when another descriptor holds it alone.
    func readersLock(_ path: String) throws(SystemError) -> OwnedDescriptor? {
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return nil }
        try retryingInterrupts("flock") { flock(descriptor.rawValue, LOCK_SH | LOCK_NB) }
        return descriptor
    }

    /// What the file holds from `offset` on; nil where there is none.
    /// - Throws: with `EFBIG` when that is longer than `limit`.
    func read(_ path: String, from offset: Int = 0, limit: Int) throws(SystemError) -> [UInt8]? {
        try step(.read, path)
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return nil }
        let size = try Self.size(descriptor)
        guard size - offset <= limit else { throw SystemError("read", number: EFBIG) }
        var bytes = [UInt8](repeating: 0, count: max(0, size - offset))
        var filled = 0
        while filled < bytes.count {
            let count = try retryingInterrupts("read") {
                unsafe bytes.withUnsafeMutableBytes { buffer in
                    unsafe pread(
                        descriptor.rawValue, buffer.baseAddress! + filled, buffer.count - filled, offset + filled)
                }
            }
            // Shorter than it said a moment ago: whoever decodes what there is will notice.
            if count == 0 { break }
            filled += count
        }
        bytes.removeLast(bytes.count - filled)
        return bytes
    }

    /// What other users may do with the file; nil where there is none.
    func access(_ path: String) throws(SystemError) -> FileAccess? {
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return nil }
        return try FileAccess(of: descriptor.rawValue)
    }

    /// Makes a file that is durable once its directory is synchronized. A failure may leave a part of it behind.
    /// - Throws: with `EEXIST` where a file stands already.
    func write(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        let descriptor = try make(path, bytes)
        try step(.synchronizeFile, path)
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
    }

    /// The same for a file that `synchronizeFile` makes durable later.
    func writeForNow(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        _ = try make(path, bytes)
    }

    private func make(_ path: String, _ bytes: [UInt8]) throws(SystemError) -> OwnedDescriptor {
        try step(.create, path)
        let descriptor = try open(path, O_WRONLY | O_CREAT | O_EXCL)
        try write(bytes, to: descriptor, path, at: 0)
        return descriptor
    }

    /// Writes the end of a file from `offset` on, which `synchronizeFile` makes durable later; what stood there goes. The
    /// file is made where it is missing and `offset` is 0. Doing it again changes nothing. A failure may leave a part of it
    /// behind.
    /// - Throws: with `ESPIPE` when the file ends before `offset`; with `ENOENT` where it is missing and should not be.
    func append(_ path: String, at offset: Int, _ bytes: [UInt8]) throws(SystemError) {
        try step(.create, path)
        let descriptor = try open(path, offset == 0 ? O_WRONLY | O_CREAT : O_WRONLY)
        let size = try Self.size(descriptor)
        guard size >= offset else { throw SystemError("append", number: ESPIPE) }
        try write(bytes, to: descriptor, path, at: offset)
        let end = offset + bytes.count
        if size > end {
            try step(.truncate, path)
            try retryingInterrupts("ftruncate") { ftruncate(descriptor.rawValue, end) }
        }
    }

    /// Keeps room for a file's octets up to `end`, so that writing them is not refused for want of it, as far as the file
    /// system can promise that; its content stays as it is. The file is made where it is missing. Where there is no way to
    /// keep room, or none for this process, nothing happens: the writing itself says what is wrong.
    /// - Throws: with `ENOSPC` or `EDQUOT` where there is no room.
    func reserve(_ path: String, upTo end: Int) throws(SystemError) {
        try step(.reserve, path)
        let descriptor = try open(path, O_WRONLY | O_CREAT)
        do throws(SystemError) {
            try retryingInterrupts("fallocate") { clinux_reserve_room(descriptor.rawValue, end) }
        } catch {
            guard [EOPNOTSUPP, ENOSYS, EINVAL, EPERM].contains(error.number) else { throw error }
        }
    }

    /// Writes over what a file has from `offset` on, durably; what is behind stays. A failure may leave anything of the
    /// old and the new there.
    /// - Throws: with `ENOENT` where there is no file.
    func overwrite(_ path: String, at offset: Int, _ bytes: [UInt8]) throws(SystemError) {
        let descriptor = try open(path, O_WRONLY)
        try write(bytes, to: descriptor, path, at: offset)
        try step(.synchronizeFile, path)
        // What describes the file is written where its size has changed and not otherwise.
        try retryingInterrupts("fdatasync") { fdatasync(descriptor.rawValue) }
    }

    /// Makes what a file holds durable. One that is missing stays so.
    func synchronizeFile(_ path: String) throws(SystemError) {
        try step(.synchronizeFile, path)
        guard let descriptor = try present({ () throws(SystemError) in try open(path, O_RDONLY) }) else { return }
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
    }

    /// Cuts off what the file has beyond `count`, and makes what remains durable. A file that is missing stays so.
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
        _ bytes: [UInt8], to descriptor: borrowing OwnedDescriptor, _ path: String, at offset: Int
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

    /// Takes the place of what stands at `target`, if anything does, in one step.
    func rename(_ source: String, to target: String) throws(SystemError) {
        try step(.rename, target)
        try retryingInterrupts("rename") { unsafe renameat(root.rawValue, source, root.rawValue, target) }
    }

    /// Whether there was a file to remove.
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

    /// Makes a directory for this user alone where there is none.
    func makeDirectory(_ path: String) throws(SystemError) {
        try step(.makeDirectory, path)
        do throws(SystemError) {
            try retryingInterrupts("mkdir") { unsafe mkdirat(root.rawValue, path, 0o700) }
        } catch {
            if error.number != EEXIST { throw error }
        }
    }

    /// Makes what was made, renamed and removed in a directory durable.
    func synchronize(_ path: String) throws(SystemError) {
        try step(.synchronizeDirectory, path)
        let descriptor = try Self.openDirectory(root.rawValue, path)
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
    }

    /// Makes everything durable that was written to the file system on which the directory is.
    func synchronizeFileSystem() throws(SystemError) {
        try step(.synchronizeFile, ".")
        try retryingInterrupts("syncfs") { clinux_synchronize_file_system(root.rawValue) }
    }

    /// What stands in a directory, in no order; nothing where there is none.
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
            // Nil is the end as well as a failure, which only errno tells apart.
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
        // The mode counts where a file is made: it is nobody else's from its first byte.
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

    /// Nil where nothing stands at the path that is opened.
    private func present(_ open: () throws(SystemError) -> OwnedDescriptor) throws(SystemError) -> OwnedDescriptor? {
        do throws(SystemError) {
            return try open()
        } catch {
            if error.number == ENOENT { return nil }
            throw error
        }
    }

    private func step(_ call: FileStep.Call, _ path: String) throws(SystemError) {
        try Self.step(call, path, fault)
    }

    static func step(_ call: FileStep.Call, _ path: String, _ fault: FileFault?) throws(SystemError) {
        if let number = fault?(FileStep(call: call, path: path)) { throw SystemError("\(call)", number: number) }
    }
}

extension SystemError {
    /// Whether it is the file, and not the disk, that cannot be read: something else stands in its place, or it is larger
    /// than any file of its kind.
    var isOfTheFile: Bool { [EFBIG, ELOOP, EISDIR, ENXIO].contains(number) }
}
