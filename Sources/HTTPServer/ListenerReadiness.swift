internal import Reactor

/// Leads a listener's readiness to its worker.
final class ListenerReadiness: ReadinessHandler, Sendable {
    private let worker: Worker

    init(worker: Worker) {
        self.worker = worker
    }

    func becameReady(_ readiness: Readiness, tag: Int) {
        worker.assumeIsolated { _ = $0.acceptConnections() }
    }
}
