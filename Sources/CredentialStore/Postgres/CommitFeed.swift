internal import Postgres
internal import Reactor
internal import Synchronization

/// The listener of a store, from `watch` to `close`.
final class CommitFeed: Sendable {
    private enum State {
        case unused
        case listening(PostgresListener)
        case closed
    }

    private let state = Mutex(State.unused)
    private let make: @Sendable (_ hear: @escaping @Sendable (PostgresListener.Event) -> Void) -> PostgresListener?
    private let report: @Sendable (PostgresError) -> Void

    /// - Parameter make: makes the listener; nil where there is none to be.
    init(
        report: @escaping @Sendable (PostgresError) -> Void,
        _ make: @escaping @Sendable (_ hear: @escaping @Sendable (PostgresListener.Event) -> Void) -> PostgresListener?
    ) {
        self.report = report
        self.make = make
    }

    func watch(_ hear: @escaping @Sendable (StoreNews) -> Void) {
        let report = report
        let listener = state.withLock { state -> PostgresListener? in
            guard case .unused = state,
                let listener = make({ event in
                    switch event {
                    case .following: hear(.following)
                    case .alive: hear(.alive)
                    case .heard(let payload): hear(CommitNotice.news(payload))
                    case .lost(let error):
                        report(error)
                        hear(.lost)
                    }
                })
            else { return nil }
            state = .listening(listener)
            return listener
        }
        if let listener { Task { await listener.start() } }
    }

    func close() async {
        let last = state.withLock { state in
            defer { state = .closed }
            return state
        }
        if case .listening(let listener) = last { await listener.close() }
    }
}
