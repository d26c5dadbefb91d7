import BrokerCore
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// Probes, metrics and the description of the API.
struct OperationRoutes {
    private let broker: Broker
    /// Whether only operators can reach the listener. They are shown reasons that callers are not.
    private let isForOperators: Bool

    init(_ broker: Broker, isForOperators: Bool) {
        self.broker = broker
        self.isForOperators = isForOperators
    }

    var all: [Route] {
        [
            Route(.get, "/", .open, front),
            Route(.get, "/livez", .open, live),
            Route(.get, "/healthz", .open, live),
            Route(.get, "/readyz", .open, ready),
            Route(.get, "/metrics", .open, metrics),
            Route(.get, "/openapi.yaml", .open, openAPI),
            Route(.get, "/docs", .open, page),
        ]
    }

    /// The answer of `/`: a page for browsers, JSON for programs.
    private func front(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return FrontPage.response(
            version: broker.settings.version, hasProbes: !broker.settings.hasOperationsListener,
            prefersJSON: Accept.prefersJSON(call.request.fields)
        ).varyingByAccept
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
        case .storeUnavailable:
            return Self.state(
                .serviceUnavailable, "store_unavailable", reason: isForOperators ? broker.health.reason : nil)
        }
    }

    private static func state(_ status: Status, _ text: String, reason: String? = nil) -> Response {
        Response(
            status, fields: ["Content-Type": "application/json"],
            body: JSONWriter.object { json in
                json.member("status", text)
                json.memberIfPresent("reason", reason)
            })
    }

    private func metrics(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return Response(
            .ok, fields: ["Content-Type": "text/plain; version=0.0.4; charset=utf-8"],
            body: Array(broker.metrics.text().utf8))
    }

    private func openAPI(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return Response(.ok, fields: ["Content-Type": "application/yaml"], body: OpenAPIDescription.bytes)
    }

    private func page(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        return DescriptionPage.response
    }
}
