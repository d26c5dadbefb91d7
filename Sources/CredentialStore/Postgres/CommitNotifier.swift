internal import Postgres
internal import Reactor
internal import Synchronization

/// Makes up for notices of commits of which nobody knows whether they were sent: the other replicas are told that
/// anything may have changed, as soon as the database can be reached again.
final class CommitNotifier: Sendable {
    private struct State {
        var isOwed = false
        var isClosed = false
        var task: Task<Void, Never>?
    }

    private let pool: PostgresPool
    private let timeout: Duration
    private let state = Mutex(State())

    private static let pause: Duration = .milliseconds(500)

    init(_ pool: PostgresPool, timeout: Duration) {
        self.pool = pool
        self.timeout = timeout
    }

    /// Notes a doubt. Many of them come to one notice.
    func doubt() {
        state.withLock { state in
            state.isOwed = true
            if state.task == nil, !state.isClosed { state.task = Task { await self.run() } }
        }
    }

    /// What is owed then goes unsaid.
    func close() async {
        let task = state.withLock { state in
            state.isClosed = true
            return state.task
        }
        task?.cancel()
        await task?.value
    }

    private func run() async {
        while isOwed() {
            do throws(PostgresError) {
                _ = try await pool.execute(
                    Statements.notify, [.text(CommitNotice.anything)], until: .after(timeout))
            } catch {
                // Operators learn of the database from whoever needs an answer of it.
                state.withLock { $0.isOwed = true }
                try? await Task.sleep(for: Self.pause)
            }
        }
    }

    /// Takes the debt over; where there is none, or it need not be paid any more, the task is over.
    private func isOwed() -> Bool {
        state.withLock { state in
            defer { state.isOwed = false }
            if state.isOwed, !state.isClosed { return true }
            state.task = nil
            return false
        }
    }
}
