import Glibc
import Synchronization

/// The executor of actors whose calls block (files, name resolution). It has one named thread of its own, so that a
/// blocking call cannot stop an event loop.
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

    /// Ends the thread once its queue is empty. Returns without waiting for the end.
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
