internal import Glibc

/// Files that are read whole, before any event loop runs: the calls block.
package enum SmallFile {
    /// What the file holds, to its end; a pipe will do.
    /// - Throws: with `EFBIG` when that is more than `limit` bytes.
    package static func read(_ path: String, limit: Int) throws(SystemError) -> [UInt8] {
        try read(try open(path), limit)
    }

    /// The same, with what other users may do with the file; symbolic links are followed, and it is their target's.
    package static func readWithAccess(
        _ path: String, limit: Int
    ) throws(SystemError) -> (bytes: [UInt8], access: FileAccess) {
        let file = try open(path)
        // Of the file that is read, whatever stands at the path by then.
        let access = try FileAccess(of: file.rawValue)
        return (try read(file, limit), access)
    }

    /// Makes a file for this user alone, which then stands there whole and durably, whatever happens meanwhile.
    ///
    /// A process that dies in between can leave a file behind whose name has more letters.
    /// - Throws: with `EEXIST` where something stands at the path already.
    package static func create(_ path: String, _ bytes: [UInt8]) throws(SystemError) {
        var suffix = UInt64.random(in: .min ... .max)
        var draft = path + "."
        for _ in 0..<16 {
            draft.append(Character(Unicode.Scalar(UInt8(ascii: "a") + UInt8(suffix & 15))))
            suffix >>= 4
        }
        let file = OwnedDescriptor(
            adopting: try retryingInterrupts("open") {
                unsafe Glibc.open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
            })
        // Where a link was made, the name of the draft is one too many; where none was, so is the draft.
        defer { _ = unsafe unlink(draft) }
        let number = file.rawValue
        var written = 0
        while written < bytes.count {
            written += try retryingInterrupts("write") {
                unsafe bytes.withUnsafeBytes { buffer in
                    unsafe Glibc.write(number, buffer.baseAddress! + written, buffer.count - written)
                }
            }
        }
        try retryingInterrupts("fsync") { fsync(number) }
        // Unlike a rename, this replaces nothing.
        try retryingInterrupts("link") { unsafe link(draft, path) }
        try synchronizeDirectory(of: path)
    }

    /// Makes durable that a file stands at `path`.
    package static func synchronizeDirectory(of path: String) throws(SystemError) {
        let slash = path.utf8.lastIndex(of: UInt8(ascii: "/"))
        let parent = slash.map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
        let directory = OwnedDescriptor(
            adopting: try retryingInterrupts("open") {
                unsafe Glibc.open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            })
        try retryingInterrupts("fsync") { fsync(directory.rawValue) }
    }

    private static func open(_ path: String) throws(SystemError) -> OwnedDescriptor {
        OwnedDescriptor(
            adopting: try retryingInterrupts("open") { unsafe Glibc.open(path, O_RDONLY | O_CLOEXEC) })
    }

    private static func read(_ file: consuming OwnedDescriptor, _ limit: Int) throws(SystemError) -> [UInt8] {
        let number = file.rawValue
        // One more shows that there is more.
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

    /// Whether anything stands at `path`, be it a symbolic link that leads nowhere.
    package static func exists(_ path: String) -> Bool {
        unsafe faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0
    }

    /// Whether the process may read what stands at `path`.
    package static func isReadable(_ path: String) -> Bool { unsafe access(path, R_OK) == 0 }
}
