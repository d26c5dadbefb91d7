import Glibc

/// A regular file that is read in pieces, from any place and more than once. The calls block.
package final class InputFile: Sendable {
    private let descriptor: OwnedDescriptor
    /// In bytes, when it was opened.
    package let size: Int

    /// Nil for what is no regular file: a pipe, a device, a directory.
    /// - Throws: where the path cannot be opened.
    package init?(_ path: String) throws(SystemError) {
        let descriptor = try SmallFile.openWithoutWaiting(path)
        var status = stat()
        let number = descriptor.rawValue
        try retryingInterrupts("fstat") { unsafe fstat(number, &status) }
        guard status.st_mode & S_IFMT == S_IFREG else { return nil }
        self.descriptor = descriptor
        size = Int(status.st_size)
    }

    /// The bytes from `offset` on, `count` at most; none at the end of the file.
    package func read(at offset: Int, upTo count: Int) throws(SystemError) -> [UInt8] {
        var bytes = [UInt8](repeating: 0, count: count)
        var filled = 0
        while filled < count {
            let part = try retryingInterrupts("read") {
                unsafe bytes.withUnsafeMutableBytes { buffer in
                    unsafe pread(
                        descriptor.rawValue, buffer.baseAddress! + filled, buffer.count - filled,
                        off_t(offset + filled))
                }
            }
            if part == 0 { break }
            filled += part
        }
        return filled == count ? bytes : Array(bytes[..<filled])
    }
}
