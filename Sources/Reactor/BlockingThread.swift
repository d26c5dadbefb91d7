internal import Glibc
internal import Synchronization

/// The executor of actors whose calls block (files, name resolution): one named thread, so that blocking is deliberate
/// and stays away from every event loop.
package final class BlockingThread: SerialExecutor, Sendable {
    private struct Queue {
        var jobs: [UnownedJob] = []
        var isStopping = false
    }

    private let queue = Mutex(Queue())
    private let wakeUp: Semaphore
    private let owner = Atomic<UInt>(0)

    package init(name: String) throws(SystemError) {
        wakeUp = Semaphore()
        try Thread.start(name: name) { self.run() }.detach()
    }

    package func enqueue(_ job: consuming ExecutorJob) {
        let unowned = UnownedJob(job)
        queue.withLock { $0.jobs.append(unowned) }
        wakeUp.signal()
    }

    package func checkIsolated() {
        precondition(owner.load(ordering: .relaxed) == UInt(pthread_self()), "not on this blocking thread")
    }

    package func isIsolatingCurrentContext() -> Bool? { owner.load(ordering: .relaxed) == UInt(pthread_self()) }

    /// Ends the thread once its queue is empty.
    package func shutDown() {
        queue.withLock { $0.isStopping = true }
        wakeUp.signal()
    }

    private func run() {
        owner.store(UInt(pthread_self()), ordering: .relaxed)
        while true {
            wakeUp.wait()
            let (jobs, isStopping) = queue.withLock { queue in
                let jobs = queue.jobs
                queue.jobs = []
                return (jobs, queue.isStopping)
            }
            for job in jobs { unsafe job.runSynchronously(on: asUnownedSerialExecutor()) }
            if isStopping, queue.withLock({ $0.jobs.isEmpty }) { return }
        }
    }
}

/// A POSIX semaphore at an address that does not move.
@safe private final class Semaphore: @unchecked Sendable {
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
}
