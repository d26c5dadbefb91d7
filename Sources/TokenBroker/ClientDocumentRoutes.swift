import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// The documents by which authorization servers know the broker's clients (client ID metadata documents).
struct ClientDocumentRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] { [Route(.get, "/oauth-client/{tenant}", .open, show)] }

    private func show(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        guard let name = TenantName(call.parameters["tenant"] ?? ""),
            let tenant = try await broker.tenants.tenant(name),
            let document = broker.core.discovery.clientDocument(of: tenant)
        else { throw BrokerError(.notFound, "There is no client of that name.") }
        return Response(
            .ok, fields: ["Content-Type": "application/json", "Cache-Control": "no-store"], body: document)
    }
}
