import Glibc

/// The exclusive use of a path among the processes of a machine, held as long as the descriptor is open. The kernel releases it
/// when the process ends in any way.
package enum FileLock {
    /// Waits for the lock, so that it is for threads that may block. The file is made where it is missing, for this user only, and
    /// stays: a lock on a file that another process has removed would exclude no one.
    package static func take(_ path: String) throws(SystemError) -> OwnedDescriptor {
        let descriptor = OwnedDescriptor(
            adopting: try retryingInterrupts("open") {
                unsafe open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600)
            })
        let number = descriptor.rawValue
        try retryingInterrupts("flock") { flock(number, LOCK_EX) }
        return descriptor
    }
}
