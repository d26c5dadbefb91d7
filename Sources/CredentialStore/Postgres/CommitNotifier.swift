import Postgres
import Reactor
import Synchronization

/// Sends a replacement for notices that may not have been sent: as soon as the database can be reached again, the other
/// replicas are told that anything may have changed.
final class CommitNotifier: Sendable {
    private struct State {
        var isNoticeDue = false
        var isClosed = false
        var task: Task<Void, Never>?
    }

    private let pool: PostgresPool
    private let timeout: Duration
    // Called from any task.
    private let state = Mutex(State())

    private static let pause: Duration = .milliseconds(500)

    init(_ pool: PostgresPool, timeout: Duration) {
        self.pool = pool
        self.timeout = timeout
    }

    /// Notes that a notice may not have been sent. Several calls lead to one replacement.
    func noticeMayBeLost() {
        state.withLock { state in
            state.isNoticeDue = true
            if state.task == nil, !state.isClosed { state.task = Task { await self.run() } }
        }
    }

    /// Ends the task. A notice that is still due is not sent.
    func close() async {
        let task = state.withLock { state in
            state.isClosed = true
            return state.task
        }
        task?.cancel()
        await task?.value
    }

    private func run() async {
        while takeDueNotice() {
            do throws(PostgresError) {
                _ = try await pool.execute(
                    Statements.notify, [.text(CommitNotice.anything)], until: .after(timeout))
            } catch {
                // Not reported: the calls of the store report a database that cannot be reached.
                state.withLock { $0.isNoticeDue = true }
                try? await Task.sleep(for: Self.pause)
            }
        }
    }

    /// Marks the due notice as taken. Returns false, and ends the task, when no notice is due or the notifier is
    /// closed.
    private func takeDueNotice() -> Bool {
        state.withLock { state in
            defer { state.isNoticeDue = false }
            if state.isNoticeDue, !state.isClosed { return true }
            state.task = nil
            return false
        }
    }
}
