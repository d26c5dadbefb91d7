import Postgres
import Synchronization

/// The task that listens for the commits of other replicas, from `watch` to `close`.
final class CommitFeed: Sendable {
    private enum State {
        case unused
        case listening(Task<Void, Never>)
        case closed
    }

    // Called from any task.
    private let state = Mutex(State.unused)
    private let executor: any TaskExecutor
    private let makeListener:
        @Sendable (_ notify: @escaping @Sendable (PostgresListener.Event) -> Void) -> PostgresListener?
    private let report: @Sendable (PostgresError) -> Void

    /// - Parameters:
    ///   - executor: the executor of the listener's loop.
    ///   - report: called with each error of the listener.
    ///   - makeListener: makes the listener; returns nil when this store does not listen.
    init(
        on executor: any TaskExecutor, report: @escaping @Sendable (PostgresError) -> Void,
        makeListener:
            @escaping @Sendable (_ notify: @escaping @Sendable (PostgresListener.Event) -> Void) -> PostgresListener?
    ) {
        self.executor = executor
        self.report = report
        self.makeListener = makeListener
    }

    /// Begins to listen, the first time that it is called.
    func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {
        let report = report
        state.withLock { state in
            guard case .unused = state,
                let listener = makeListener({ event in
                    switch event {
                    case .following: notify(.following)
                    case .alive: notify(.alive)
                    case .heard(let payload): notify(CommitNotice.notification(in: payload))
                    case .lost(let error):
                        report(error)
                        notify(.lost)
                    }
                })
            else { return }
            state = .listening(Task(executorPreference: executor) { await listener.run() })
        }
    }

    /// Stops listening. `notify` is not called after this has returned.
    func close() async {
        let last = state.withLock { state in
            defer { state = .closed }
            return state
        }
        guard case .listening(let task) = last else { return }
        task.cancel()
        await task.value
    }
}
