internal import BrokerCore
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import OAuth

/// Probes, metrics and the description of the API.
struct OperationRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/livez", .open, live),
            Route(.get, "/healthz", .open, live),
            Route(.get, "/readyz", .open, ready),
            Route(.get, "/metrics", .open, metrics),
            Route(.get, "/openapi.yaml", .open, openAPI),
        ]
    }

    private func live(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return Self.state(.ok, "live")
    }

    private func ready(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        switch await broker.health.readiness() {
        case .ready: return Self.state(.ok, "ready")
        case .draining: return Self.state(.serviceUnavailable, "draining")
        case .storeUnavailable: return Self.state(.serviceUnavailable, "store_unavailable")
        }
    }

    private static func state(_ status: Status, _ text: String) -> Response {
        Response(
            status, fields: ["Content-Type": "application/json"],
            body: JSONWriter.object { $0.member("status", text) })
    }

    private func metrics(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let places = broker.core.budget.usage
        var gauges: [Metrics.Reading] = [
            (
                "provider_places_in_use", "gauge", "Renewals that hold a place at their provider.",
                [("", places.inUse)]
            ),
            ("provider_places_waiting", "gauge", "Renewals that wait for a place.", [("", places.waiting)]),
            (
                "journal_entries", "gauge", "New credentials that wait in the journal for the store.",
                [("", broker.credentials.countInJournal)]
            ),
            ("event_listeners", "gauge", "Open streams of events.", [("", broker.events.listenerCount)]),
            (
                "events_sent_total", "counter", "Events sent, once for each listener, by kind.",
                broker.events.sent.map { (#"kind="\#($0.kind.rawValue)""#, $0.count) }
            ),
        ]
        if let server = broker.currentServerStatistics {
            gauges += [
                ("http_connections", "gauge", "Connections that are open.", [("", server.connectionsOpen)]),
                ("http_connections_total", "counter", "Connections accepted.", [("", server.connectionsAccepted)]),
                (
                    "http_connections_refused_total", "counter", "Connections refused over a limit.",
                    [("", server.connectionsRefused)]
                ),
                (
                    "http_connections_stalled_total", "counter", "Connections reset because their peer did not read.",
                    [("", server.connectionsStalled)]
                ),
            ]
        }
        return Response(
            .ok, fields: ["Content-Type": "text/plain; version=0.0.4; charset=utf-8"],
            body: Array(broker.metrics.text(gauges: gauges).utf8))
    }

    private func openAPI(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return Response(.ok, fields: ["Content-Type": "application/yaml"], body: OpenAPIDescription.bytes)
    }
}
