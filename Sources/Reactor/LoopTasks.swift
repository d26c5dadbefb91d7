/// The preference of tasks for an event loop.
///
/// A suspended task that prefers nothing is resumed by way of the threads that all share, even where it goes on in an
/// actor of the loop's: two switches of threads for each wait, which cost more than most of what is waited for. One that
/// prefers the loop never leaves its thread.
///
/// It is an object of its own beside the loop, which is the executor of actors, because to the runtime a task is out of
/// place wherever it is not told to run in what the task prefers, and queues up again at every call of an actor
/// (swift_task_switch). The loop cannot see what a task prefers, but which way it came.
package final class LoopTasks: TaskExecutor {
    private let loop: EventLoop

    package init(_ loop: EventLoop) {
        self.loop = loop
    }

    package func enqueue(_ job: consuming ExecutorJob) {
        loop.enqueue(job, preferring: self)
    }
}

/// Runs `body`, in the caller's isolation, so that what it waits for is resumed by way of `executor` where the task
/// prefers nothing. Best where whoever resumes it runs.
package func resuming<R>(
    by executor: (any TaskExecutor)?, isolation: isolated (any Actor)? = #isolation, _ body: () async -> R
) async -> R {
    let hasPreference = unsafe withUnsafeCurrentTask { unsafe $0?.unownedTaskExecutor != nil }
    if hasPreference { return await body() }
    return await withTaskExecutorPreference(executor) {
        // The standard library takes a closure that would leave the actor. Capturing it keeps it.
        _ = isolation
        return await body()
    }
}
