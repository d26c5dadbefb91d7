import Glibc

/// Reads and creates small files in one piece. The calls block, so use them before an event loop runs or on a blocking
/// thread.
package enum SmallFile {
    /// Reads the file, or a pipe, to its end.
    /// - Throws: `EFBIG` when the content is longer than `limit` bytes.
    package static func read(_ path: String, limit: Int) throws(SystemError) -> [UInt8] {
        try read(try open(path), limit)
    }

    /// Like `read`, and returns what other users may do with the file. A symbolic link is followed, and the access is
    /// that of its target.
    package static func readWithAccess(
        _ path: String, limit: Int
    ) throws(SystemError) -> (bytes: [UInt8], access: FileAccess) {
        let file = try open(path)
        // Examines the open file, since the path may name another file by now.
        let access = try FileAccess(of: file.rawValue)
        return (try read(file, limit), access)
    }

    /// Like `read`, for a path that a configuration of a tenant names: it never waits for the other end of a pipe.
    /// - Parameter directories: where the file must be, whatever the path goes through; nil for anywhere.
    /// - Throws: `EINVAL` where the path is no regular file's, and `EXDEV` where that is in none of the directories, also for a path
    ///   outside of them that leads to nothing: it does not say what is there.
    package static func readRegular(
        _ path: String, limit: Int, below directories: [String]? = nil
    ) throws(SystemError) -> [UInt8] {
        let file = try openWithoutWaiting(path, below: directories)
        if let directories, try !FilePlace(of: file.rawValue).isBelow(directories) {
            throw SystemError("open", number: EXDEV)
        }
        var status = stat()
        try retryingInterrupts("fstat") { unsafe fstat(file.rawValue, &status) }
        guard status.st_mode & S_IFMT == S_IFREG else { throw SystemError("open", number: EINVAL) }
        return try read(file, limit)
    }

    /// Creates a file that only this user may read. Once the call returns, the whole file is durable; if the process
    /// ends earlier, the path holds the whole file or nothing.
    ///
    /// A process that is killed during the call can leave behind a file whose name is the path and a random suffix.
    /// - Throws: `EEXIST` when the path exists already.
    package static func create(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        let draft = try DraftFile(for: path)
        try draft.append(bytes)
        try draft.complete()
    }

    /// Like `create`, and replaces the file if the path exists already.
    package static func replace(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        let draft = try DraftFile(for: path)
        try draft.append(bytes)
        try draft.complete(replaces: true)
    }

    /// The path behind symbolic links: what is put there leaves them as they are. It may lead to nothing yet.
    package static func pathBehindLinks(_ path: String) -> String {
        var path = path
        // As many as the kernel follows; one more is a circle, of which any call on the path says so.
        for _ in 0..<40 {
            guard let target = try? FilePlace.target(ofLink: path) else { return path }
            let directory = path.lastIndex(of: "/").map { path[...$0] } ?? ""
            let text = String(decoding: target, as: UTF8.self)
            path = text.hasPrefix("/") ? text : directory + text
        }
        return path
    }

    /// Makes the directories that a file at the path needs, each for this user only.
    package static func makeDirectories(above path: String) throws(SystemError) {
        var parents: [Substring] = []
        var rest = path[...]
        while let slash = rest.lastIndex(of: "/"), slash != rest.startIndex {
            rest = rest[..<slash]
            parents.append(rest)
        }
        for parent in parents.reversed() {
            do throws(SystemError) {
                try retryingInterrupts("mkdir") { unsafe mkdir(String(parent), 0o700) }
            } catch {
                if error.number != EEXIST { throw error }
            }
        }
    }

    /// Removes the file, if it exists.
    package static func remove(_ path: String) { _ = unsafe unlink(path) }

    /// Makes the directory entry of `path` durable.
    package static func synchronizeDirectory(of path: String) throws(SystemError) {
        let slash = path.utf8.lastIndex(of: UInt8(ascii: "/"))
        let parent = slash.map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
        let directory = OwnedDescriptor(
            adopting: try retryingInterrupts("open") {
                unsafe Glibc.open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            })
        try retryingInterrupts("fsync") { fsync(directory.rawValue) }
    }

    /// Opens a path without waiting for the other end of a pipe.
    static func openWithoutWaiting(
        _ path: String, below directories: [String]? = nil
    ) throws(SystemError) -> OwnedDescriptor {
        do throws(SystemError) {
            return OwnedDescriptor(
                adopting: try retryingInterrupts("open") {
                    unsafe Glibc.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
                })
        } catch {
            guard let directories, !FilePlace(ofEntry: path).isBelow(directories) else { throw error }
            throw SystemError("open", number: EXDEV)
        }
    }

    private static func open(_ path: String) throws(SystemError) -> OwnedDescriptor {
        OwnedDescriptor(
            adopting: try retryingInterrupts("open") { unsafe Glibc.open(path, O_RDONLY | O_CLOEXEC) })
    }

    static func read(_ file: consuming OwnedDescriptor, _ limit: Int) throws(SystemError) -> [UInt8] {
        let number = file.rawValue
        // One byte more than the limit, to detect longer content.
        var bytes = [UInt8](repeating: 0, count: limit + 1)
        var filled = 0
        while filled < bytes.count {
            let count = try retryingInterrupts("read") {
                unsafe bytes.withUnsafeMutableBytes { buffer in
                    unsafe Glibc.read(number, buffer.baseAddress! + filled, buffer.count - filled)
                }
            }
            if count == 0 { return Array(bytes[..<filled]) }
            filled += count
        }
        throw SystemError("read", number: EFBIG)
    }

    /// Whether `path` exists. A symbolic link without a target counts.
    package static func exists(_ path: String) -> Bool {
        unsafe faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0
    }

    /// Whether the process may read the file at `path`.
    package static func isReadable(_ path: String) -> Bool { unsafe access(path, R_OK) == 0 }
}
