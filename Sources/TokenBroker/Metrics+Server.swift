import BrokerCore
import HTTPServer

/// What the HTTP server counts.
extension Metrics {
    /// Has each text show the counts of the server for callers.
    func show(server counts: @escaping @Sendable () -> ServerStatistics) {
        show(.httpConnections) { counts().connectionsOpen }
        show(.httpConnectionsTotal) { counts().connectionsAccepted }
        showEach(.httpConnectionsRefused) {
            Self.reasons([.connections, .source], in: counts())
        }
        showEach(.httpConnectionsEvicted) {
            let counts = counts()
            return [
                (#"state="waiting""#, counts.connectionsEvicted),
                (#"state="in_use""#, counts.refusals[.displacement] ?? 0),
            ]
        }
        showEach(.httpRequestsRefused) { Self.reasons([.overload, .contents], in: counts()) }
        showEach(.httpConnectionsStalled) {
            let counts = counts()
            return [
                (#"reason="time""#, counts.connectionsStalled),
                (#"reason="answers""#, counts.refusals[.answers] ?? 0),
            ]
        }
    }

    /// The same for the server of probes and metrics.
    func show(operationsServer counts: @escaping @Sendable () -> ServerStatistics) {
        show(.operationsConnectionsRefused) {
            let counts = counts()
            return (counts.refusals[.connections] ?? 0) + (counts.refusals[.source] ?? 0)
        }
    }

    private static func reasons(_ reasons: [Refusal], in counts: ServerStatistics) -> [LabelledValue] {
        reasons.map { (#"reason="\#($0.name)""#, counts.refusals[$0] ?? 0) }
    }
}
