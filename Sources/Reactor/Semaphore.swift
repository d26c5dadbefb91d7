internal import CLinux
internal import Glibc

/// A POSIX semaphore at an address that does not move. Safe from any thread; that is what it is.
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

    /// Waits until signalled or until the time is over.
    func wait(for limit: Duration) {
        _ = unsafe clinux_wait_for_semaphore(semaphore, max(0, limit.nanoseconds))
    }
}
