import Glibc
import Synchronization

/// A file that is written piece by piece, and is at its path once it is complete: until then it is beside it under another name,
/// which goes with the last reference, or with `Console.exit`; a process that is killed leaves it behind. Only this user may read it.
/// The calls block.
package final class DraftFile: Sendable {
    private let descriptor: OwnedDescriptor
    private let path: String
    private let draft: String

    /// - Parameter path: where the file will be.
    package init(for path: String) throws(SystemError) {
        let draft = path + "." + String(UInt64.random(in: .min ... .max), radix: 36)
        Self.drafts.withLock { _ = $0.insert(draft) }
        do throws(SystemError) {
            descriptor = OwnedDescriptor(
                adopting: try retryingInterrupts("open") {
                    unsafe Glibc.open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
                })
        } catch {
            Self.drafts.withLock { _ = $0.remove(draft) }
            throw error
        }
        self.path = path
        self.draft = draft
    }

    deinit {
        SmallFile.remove(draft)
        Self.drafts.withLock { _ = $0.remove(draft) }
    }

    /// The names of what is not complete.
    private static let drafts = Mutex<Set<String>>([])

    /// Removes the files of this process that are not complete, before it ends without releasing anything.
    static func removeAll() { drafts.withLock { for draft in $0 { SmallFile.remove(draft) } } }

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
