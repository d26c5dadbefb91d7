/// Makes an event loop the preferred executor of a task.
///
/// Without a preference, Swift resumes a suspended task on a thread of its global pool, even when the task continues in
/// an actor of the loop. That switches threads twice for each wait, which usually costs more than the awaited work. A
/// task that prefers the loop stays on the loop's thread.
///
/// This is a separate object because the runtime compares executors (swift_task_switch): if the loop, which is also the
/// actors' executor, were the preference as well, each call of an actor would queue the task again. The runtime does
/// not tell the loop what a task prefers, so the loop learns it from the executor that enqueues the job.
package final class EventLoopTaskExecutor: TaskExecutor {
    private let loop: EventLoop

    package init(_ loop: EventLoop) {
        self.loop = loop
    }

    package func enqueue(_ job: consuming ExecutorJob) {
        loop.enqueue(job, preferring: self)
    }
}

/// Runs `body` in the caller's isolation with `executor` as the task's preferred executor, unless the task has a
/// preference already. Use the executor that resumes what `body` waits for.
package func withDefaultTaskExecutor<R>(
    _ executor: (any TaskExecutor)?, isolation: isolated (any Actor)? = #isolation, _ body: () async -> R
) async -> R {
    let hasPreference = unsafe withUnsafeCurrentTask { unsafe $0?.unownedTaskExecutor != nil }
    if hasPreference { return await body() }
    return await withTaskExecutorPreference(executor) {
        // The closure would leave the actor if it did not capture it.
        _ = isolation
        return await body()
    }
}
