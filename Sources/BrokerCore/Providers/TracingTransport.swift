import HTTPCodec
import HTTPSClient

/// Adds a `traceparent` field to each request to a provider that a traced request causes.
struct TracingTransport: ProviderTransport {
    private let base: any ProviderTransport

    init(_ base: any ProviderTransport) {
        self.base = base
    }

    var executor: (any TaskExecutor)? { base.executor }

    func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        guard let trace = TraceContext.current else { return try await base.send(request) }
        var request = request
        request.fields.append("traceparent", trace.child())
        return try await base.send(request)
    }
}
