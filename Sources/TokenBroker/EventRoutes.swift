import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import OAuth

/// `/events`: Server-Sent Events (WHATWG HTML, "Server-sent events").
struct EventRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] { [Route(.get, "/events", .tenant(.events), listen)] }

    private func listen(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let position = try Self.position(call.request.fields)
        let tenant = try await tenant(of: call)
        // `X-Accel-Buffering` turns buffering off in nginx and in proxies that follow its convention. A proxy that
        // buffers answers would hold back events until the stream ends.
        var response = Response(
            .ok,
            fields: ["Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"])
        if call.request.method == .head {
            // HEAD gets the same head as GET, and the stream is never run.
            response.stream = { _ in }
            return response
        }
        let listener = try await broker.events.listener(
            .init(
                tenant: tenant, storageKeys: call.narrowedStorageKeys, apiKey: call.apiKey?.recordID,
                keyVersion: call.apiKey?.version ?? 0, expires: call.apiKey?.expires), after: position)
        let request = call.request
        response.stream = { [broker] stream in
            await listener.run(
                while: { await Self.mayListen(request, to: tenant, broker) },
                send: { piece in
                    do throws(StreamEnded) {
                        try await stream.write(piece.bytes)
                        return true
                    } catch {
                        return false
                    }
                })
        }
        return response
    }

    /// The tenant whose events the caller gets; nil means all tenants, which only the admin may ask for.
    private func tenant(of call: Call) async throws(BrokerError) -> TenantName? {
        if case .admin? = call.caller, call.request.fields.values("X-Tenant").isEmpty { return nil }
        return try await broker.tenant(of: call).name
    }

    /// The position to continue at. An `EventSource` that is refused does not reconnect (WHATWG HTML, "fail the
    /// connection"). So an id that this broker never issued is treated like an id whose events are no longer kept.
    private static func position(_ fields: Fields) throws(BrokerError) -> EventPosition? {
        let values = fields.values("Last-Event-ID")
        guard values.count <= 1 else { throw BrokerError(.invalidRequest, "Send Last-Event-ID once.") }
        // An `EventSource` without an id sends no such field. An empty field means the same.
        guard let text = values.first, !text.isEmpty else { return nil }
        return EventPosition(text) ?? .unknown
    }

    /// Whether the key is still valid and the tenant still exists. While the store does not answer, or the keys that verify a
    /// workload's token are not there, the stream goes on.
    private static func mayListen(_ request: Request, to tenant: TenantName?, _ broker: Broker) async -> Bool {
        do throws(BrokerError) {
            let caller = try await broker.authenticator.caller(of: request)
            guard let tenant else { return true }
            // A key of several tenants may be valid in others only by now.
            if case .key(let key) = caller, key.tenant != tenant { return false }
            return try await broker.tenants.tenant(tenant) != nil
        } catch {
            return error.code == .storageUnavailable || error.code == .retryableError
        }
    }
}
