internal import BrokerCore
internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import OAuth

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
        // `X-Accel-Buffering`, as nginx and those after it read it: a proxy that collects an answer before it passes
        // it on would hold events back for as long as the stream lasts.
        var response = Response(
            .ok,
            fields: ["Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"])
        if call.request.method == .head {
            // The same head as with GET; nothing of it is run.
            response.stream = { _ in }
            return response
        }
        let listener = try await broker.events.listener(
            .init(
                tenant: tenant, storageKeys: call.narrowedStorageKeys, apiKey: call.apiKey?.recordID,
                expires: call.apiKey?.expires), after: position)
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

    /// Whose events the caller hears; nil for every tenant's, which only the admin does.
    private func tenant(of call: Call) async throws(BrokerError) -> TenantName? {
        if case .admin? = call.caller, call.request.fields.values("X-Tenant").isEmpty { return nil }
        return try await broker.tenant(of: call).name
    }

    /// An `EventSource` that is refused never comes back (WHATWG HTML, "fail the connection"). One that brings an id that
    /// was never given out here is therefore answered as one whose id is no longer kept.
    private static func position(_ fields: Fields) throws(BrokerError) -> EventPosition? {
        let values = fields.values("Last-Event-ID")
        guard values.count <= 1 else { throw BrokerError(.invalidRequest, "Send Last-Event-ID once.") }
        // Without an id, an `EventSource` sends no such field; an empty one means the same.
        guard let text = values.first, !text.isEmpty else { return nil }
        return EventPosition(text) ?? .unknown
    }

    /// Whether the key is still valid and the tenant still there. While the store cannot say, nothing has changed.
    private static func mayListen(_ request: Request, to tenant: TenantName?, _ broker: Broker) async -> Bool {
        do throws(BrokerError) {
            _ = try await broker.authenticator.caller(of: request)
            guard let tenant else { return true }
            return try await broker.tenants.tenant(tenant) != nil
        } catch {
            return error.code == .storageUnavailable
        }
    }
}
