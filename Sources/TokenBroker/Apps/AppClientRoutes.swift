import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/tenants/{tenant}/clients`, for the admin.
struct AppClientRoutes {
    private let broker: Broker
    private var clients: AppClientDirectory { broker.core.apps.clients }

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/tenants/{tenant}/clients", .admin, list),
            Route(.get, "/tenants/{tenant}/clients/{client_id}", .admin, get),
            Route(.put, "/tenants/{tenant}/clients/{client_id}", .admin, put),
            Route(.delete, "/tenants/{tenant}/clients/{client_id}", .admin, delete),
        ]
    }

    private func list(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let page = Page(&query)
        try query.finish()
        let tenant = try await broker.tenantNamed(in: call)
        let after = try page.after { AppClient.isID($0) ? $0.text : nil }
        let found = try await clients.list(of: tenant, afterID: after, limit: page.limit + 1)
        return await Page.answer(found.count) { json in
            json.name("clients")
            json.array { json in
                for client in found.prefix(page.limit) { json.object { Self.encode(client, to: &$0) } }
            }
            if found.count > page.limit {
                json.member("next_cursor", Page.cursor(after: found[page.limit - 1].clientID))
            }
        }
    }

    private func get(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await broker.tenantNamed(in: call)
        guard let client = try await clients.client(call.parameters["client_id"] ?? "", of: tenant) else {
            throw Self.noSuchClient
        }
        return .json(.ok) { Self.encode(client, to: &$0) }
    }

    private func put(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let clientID = call.parameters["client_id"] ?? ""
        guard AppClient.isID(clientID) else {
            throw BrokerError.invalidRequest(
                "client_id", "A client's identifier is 1 to 200 characters of A-Z a-z 0-9 . _ ~ -")
        }
        let tenant = try await broker.tenantNamed(in: call)
        let settings = try await call.json { (json) throws(BrokerError) in try AppClient.Settings(json) }
        _ = try settings.storageKey?.writable()
        let (client, isNew) = try await clients.put(clientID, of: tenant, settings)
        broker.log.info("client_configured", [.tenant(tenant), .version(client.version)])
        return .json(isNew ? .created : .ok) { Self.encode(client, to: &$0) }
    }

    private func delete(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await broker.tenantNamed(in: call)
        let clientID = call.parameters["client_id"] ?? ""
        guard AppClient.isID(clientID), try await clients.delete(clientID, of: tenant) else { throw Self.noSuchClient }
        broker.log.info("client_deleted", [.tenant(tenant)])
        return .empty(.noContent)
    }

    private static let noSuchClient = BrokerError(.notFound, "The tenant has no client of this identifier.")

    private static func encode(_ client: AppClient, to json: inout JSONWriter) {
        json.member("client_id", client.clientID)
        client.settings.encode(to: &json)
    }
}

extension Broker {
    /// The name of the tenant in the path.
    /// - Throws: `not_found` where there is no such tenant.
    func tenantNamed(in call: Call) async throws(BrokerError) -> TenantName {
        guard let name = TenantName(call.parameters["tenant"] ?? ""), try await tenants.tenant(name) != nil else {
            throw BrokerError.noSuchTenant
        }
        return name
    }
}
