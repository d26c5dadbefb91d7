import Glibc

/// Where a file is: its path without symbolic links and without `..`, as bytes.
struct FilePlace {
    private let path: [UInt8]

    /// Where an open file is, whatever its path leads to by now.
    /// - Throws: `ENAMETOOLONG`, and `ENOENT` where the process has no `/proc`.
    init(of number: CInt) throws(SystemError) {
        path = try Self.target(ofLink: "/proc/self/fd/\(number)")
    }

    /// What a symbolic link says.
    /// - Throws: `ENAMETOOLONG`, and `ENOENT` where there is no such link.
    static func target(ofLink link: String) throws(SystemError) -> [UInt8] {
        var bytes = [UInt8](repeating: 0, count: Int(PATH_MAX) + 1)
        let count = try retryingInterrupts("readlink") {
            unsafe bytes.withUnsafeMutableBytes { buffer in
                // Writes at most as many bytes as the buffer has, and no zero behind them.
                unsafe readlink(link, buffer.baseAddress!.assumingMemoryBound(to: CChar.self), buffer.count)
            }
        }
        if count == bytes.count { throw SystemError("readlink", number: ENAMETOOLONG) }
        return Array(bytes[..<count])
    }

    /// Where the entry of a directory is that cannot be opened: by the directory, which may be there. A directory that is not there
    /// counts as it is spelled, and as nowhere with a `..`.
    init(ofEntry path: String) {
        let bytes = Array(path.utf8)
        let slash = bytes.lastIndex(of: UInt8(ascii: "/")) ?? 0
        let parent = String(decoding: bytes[..<slash], as: UTF8.self)
        let isPlain = !bytes.split(separator: UInt8(ascii: "/")).contains(Array("..".utf8)[...])
        self.path = Self.resolved(parent.isEmpty ? "/" : parent).map { $0 + bytes[slash...] } ?? (isPlain ? bytes : [])
    }

    /// Whether the file is in one of the directories, or below. One that is not there has no files.
    func isBelow(_ directories: [String]) -> Bool {
        directories.contains { directory in
            guard let resolved = Self.resolved(directory) else { return false }
            return path.starts(with: resolved.last == UInt8(ascii: "/") ? resolved : resolved + [UInt8(ascii: "/")])
        }
    }

    /// The path without symbolic links and `..`; nil where it leads to nothing.
    private static func resolved(_ path: String) -> [UInt8]? {
        // A new text of its own, which ends with a zero, or null.
        guard let resolved = unsafe realpath(path, nil) else { return nil }
        defer { unsafe free(resolved) }
        return unsafe Array(UnsafeRawBufferPointer(start: resolved, count: strlen(resolved)))
    }
}
