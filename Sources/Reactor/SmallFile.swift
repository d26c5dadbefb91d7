internal import Glibc

/// Files that are read whole, before any event loop runs: the calls block.
package enum SmallFile {
    /// What the file holds, to its end; a pipe will do.
    /// - Throws: with `EFBIG` when that is more than `limit` bytes.
    package static func read(_ path: String, limit: Int) throws(SystemError) -> [UInt8] {
        let file = OwnedDescriptor(
            adopting: try retryingInterrupts("open") { unsafe open(path, O_RDONLY | O_CLOEXEC) })
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

    /// Whether the process may read what stands at `path`.
    package static func isReadable(_ path: String) -> Bool { unsafe access(path, R_OK) == 0 }
}
