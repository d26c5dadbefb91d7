import CLinux
import Glibc

/// A POSIX semaphore at a fixed address.
///
/// `@unchecked Sendable`: sem_post(3) and sem_wait(3) may be called from any thread, and the pointer never changes.
@safe final class Semaphore: @unchecked Sendable {
    private let semaphore: UnsafeMutablePointer<sem_t>

    init() {
        unsafe semaphore = .allocate(capacity: 1)
        unsafe semaphore.initialize(to: sem_t())
        _ = unsafe sem_init(semaphore, 0, 0)
    }

    deinit {
        _ = unsafe sem_destroy(semaphore)
        unsafe semaphore.deallocate()
    }

    func signal() {
        _ = unsafe sem_post(semaphore)
    }

    func wait() {
        while unsafe sem_wait(semaphore) == -1 {}
    }

    /// Waits until the semaphore is signalled or `limit` has passed.
    func wait(for limit: Duration) {
        _ = unsafe clinux_wait_for_semaphore(semaphore, max(0, limit.nanoseconds))
    }
}
