internal import Reactor

/// Leads a descriptor's readiness to its connection's worker. It names the connection instead of holding it, so that the
/// compiler can see that no connection leaves its worker.
final class ConnectionReadiness: ReadinessHandler, Sendable {
    private let worker: Worker
    private let id: ConnectionID

    init(worker: Worker, id: ConnectionID) {
        self.worker = worker
        self.id = id
    }

    func becameReady(_ readiness: Readiness) {
        worker.assumeIsolated { $0.becameReady(id, readiness) }
    }
}

/// The same for a worker's listener.
final class ListenerReadiness: ReadinessHandler, Sendable {
    private let worker: Worker

    init(worker: Worker) {
        self.worker = worker
    }

    func becameReady(_ readiness: Readiness) {
        worker.assumeIsolated { $0.acceptConnections() }
    }
}
