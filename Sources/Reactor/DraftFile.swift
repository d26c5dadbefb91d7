internal import Glibc

/// A file that is written piece by piece, and is at its path once it is complete: until then it is beside it under another name,
/// which goes with the last reference; a process that ends before leaves it behind. Only this user may read it. The calls block.
package final class DraftFile: Sendable {
    private let descriptor: OwnedDescriptor
    private let path: String
    private let draft: String

    /// - Parameter path: where the file will be.
    package init(for path: String) throws(SystemError) {
        let draft = path + "." + String(UInt64.random(in: .min ... .max), radix: 36)
        descriptor = OwnedDescriptor(
            adopting: try retryingInterrupts("open") {
                unsafe Glibc.open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
            })
        self.path = path
        self.draft = draft
    }

    deinit { SmallFile.remove(draft) }

    package func append(_ bytes: [UInt8]) throws(SystemError) { try writeAll(bytes, to: descriptor.rawValue) }

    /// Locks the file, which is this process's own, until `release` or the end of the process.
    func hold() throws(SystemError) {
        let number = descriptor.rawValue
        try retryingInterrupts("flock") { flock(number, LOCK_EX | LOCK_NB) }
    }

    /// Ends the lock. A child process that is being started has copies of all descriptors for a moment, which would keep it.
    func release() { _ = flock(descriptor.rawValue, LOCK_UN) }

    /// Puts the file at its path, durably.
    /// - Parameter replaces: whether it may take another file's place.
    /// - Throws: `EEXIST` when the path exists already and is not replaced.
    package func complete(replaces: Bool = false) throws(SystemError) {
        try retryingInterrupts("fsync") { fsync(descriptor.rawValue) }
        if replaces {
            try retryingInterrupts("rename") { unsafe rename(draft, path) }
        } else {
            // Unlike rename(2), link(2) never replaces a file.
            try retryingInterrupts("link") { unsafe link(draft, path) }
        }
        try SmallFile.synchronizeDirectory(of: path)
    }
}
