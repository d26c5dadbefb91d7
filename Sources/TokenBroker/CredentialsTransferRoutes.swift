import BrokerCore
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON
import OAuth

/// The move from another broker and to another one: `/credentials/import` and `/credentials/export`.
struct CredentialsTransferRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/credentials/import", .admin, readsLines: true, takeIn),
            Route(.post, "/credentials/export", .admin, export),
        ]
    }

    /// The fields of an answer of lines. `X-Accel-Buffering`: see `EventRoutes`.
    private static let fields: Fields = [
        "Content-Type": "application/x-ndjson", "Cache-Control": "no-store", "X-Accel-Buffering": "no",
    ]

    // MARK: POST /credentials/import

    private func takeIn(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let replaces = query.bool("replace") ?? false
        let verifies = query.bool("verify") ?? false
        let isDry = query.bool("dry_run") ?? false
        if verifies, isDry { query.note("verify", "is not used together with dry_run, which asks no provider") }
        try query.finish()
        _ = try await broker.tenant(of: call)
        let importing = CredentialsImport(
            broker, call, replaces: replaces, isDry ? .dry : verifies ? .verifying : .plain)
        var response = Response(.ok, fields: Self.fields)
        // The audit log tells who causes what the stream does, too.
        let origin = AuditOrigin.current
        response.stream = { stream in
            await AuditOrigin.$current.withValue(origin) { await importing.run(stream) }
        }
        return response
    }

    // MARK: POST /credentials/export

    private func export(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let key = try await call.json { (json) throws(BrokerError) in try Self.key(json) }
        let tenant = try await broker.tenant(of: call)
        // The first page shows whether the store answers.
        let exporting = CredentialsExport(broker, CredentialsExporter.Order(tenant, for: key))
        let first = try await exporting.page(after: nil)
        try await broker.core.audit.tell(ofExportFrom: tenant.name, outcome: "begun", count: nil)
        broker.log.warning("credentials_export_begun", [.tenant(tenant.name)])
        var response = Response(.ok, fields: Self.fields)
        let origin = AuditOrigin.current
        response.stream = { stream in
            await AuditOrigin.$current.withValue(origin) { await exporting.run(first, stream) }
        }
        return response
    }

    private static let jwk: WireText = "jwk"

    private static func key(_ json: JSONValue) throws(BrokerError) -> EncryptionKey {
        guard let members = json.object else {
            throw BrokerError.invalidRequest("", "must be an object")
        }
        for name in members.keys.sorted() where name != Self.jwk {
            throw BrokerError.invalidRequest("/" + JSONValue.pointerToken(name.prefix(64)), "is not a known member")
        }
        guard let jwk = members[Self.jwk] else { throw BrokerError.invalidRequest("/jwk", "is required") }
        do throws(JSONWebKeyError) {
            return try EncryptionKey(jwk)
        } catch {
            throw BrokerError.invalidRequest(
                "/jwk",
                "must be the public JWK of an EC key on P-256 or of an X25519 key, for ECDH-ES. \(error.description)")
        }
    }
}
