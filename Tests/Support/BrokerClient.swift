import DevelopmentProvider
import ExternalText
package import HTTPCodec
import HTTPSClient
import JSON

/// Calls a broker over HTTP, as its users do.
package final class BrokerClient: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    private let baseURL: String
    private let client: HTTPSClient

    /// - Parameter port: on 127.0.0.1.
    package init(port: UInt16) throws {
        baseURL = "http://127.0.0.1:\(port)"
        var configuration = HTTPSClientConfiguration()
        configuration.targets = .everything
        configuration.firstByteTimeout = .seconds(60)
        configuration.exchangeTimeout = .seconds(60)
        configuration.maximumConnectionsPerOrigin = 128
        client = try HTTPSClient(
            configuration: configuration, loop: PostgresServer.loop, resolver: PostgresServer.resolver)
    }

    /// Sends a request with the admin key (or another, or none) and returns the answer.
    /// - Parameter target: a path of the broker's, or a whole URL.
    package func call(
        _ method: Method, _ target: String, key: String? = BrokerHarness.adminKey, tenant: String? = nil,
        body: String? = nil, fields: Fields = [:]
    ) async throws -> BrokerHarness.Answer {
        var fields = fields
        if let key { fields.append("Authorization", "Bearer \(key)") }
        if let tenant { fields.append("X-Tenant", tenant) }
        if body != nil, fields["Content-Type"] == nil { fields.append("Content-Type", "application/json") }
        guard let url = URLTarget(target.hasPrefix("/") ? baseURL + target : target) else {
            throw Failure(description: "not a URL: \(target)")
        }
        return BrokerHarness.Answer(
            try await client.send(
                ClientRequest(method: method, url: url, fields: fields, body: Array((body ?? "").utf8))))
    }

    /// Makes a tenant of the TIDAL preset at a development provider.
    package func makeTenant(_ name: String = "t1", at provider: RunningProvider) async throws {
        let client = provider.provider.configuration.clients[0]
        let secret = client.secret.map { #","client_secret":"\#($0)""# } ?? ""
        let answer = try await call(
            .put, "/tenants/\(name)",
            body: #"""
                {"client_id": "\#(client.id)"\#(secret), "login_service_base_uri": "\#(provider.baseURL)",
                 "auth_service_base_uri": "\#(provider.baseURL)/v1"}
                """#)
        guard answer.status < 300 else { throw Failure(description: answer.text) }
    }

    /// Logs a user in: opens the provider's page, sends its form, follows the redirect to the broker.
    package func logIn(
        tenant: String = "t1", storageKey: String = "default", user: String = "alice", at provider: RunningProvider
    ) async throws {
        let begun = try await call(
            .post, "/login/initialize", tenant: tenant, body: #"{"storage_key": "\#(storageKey)"}"#)
        guard let uri = begun.json["login_uri"]?.text else { throw Failure(description: begun.text) }
        let page = try await call(.get, uri, key: nil)
        guard let form = ProviderForm(html: page.text) else { throw Failure(description: page.text) }
        let decision = try await call(
            .post, provider.baseURL + form.action, key: nil,
            body: form.submission([.init("user", user), .init("decision", "approve")]),
            fields: ["Content-Type": "application/x-www-form-urlencoded"])
        guard let redirect = decision.fields["Location"]?.text else { throw Failure(description: decision.text) }
        let done = try await call(.get, redirect, key: nil)
        guard done.status == 200 else { throw Failure(description: done.text) }
    }

    package func close() async {
        await client.close()
    }
}
