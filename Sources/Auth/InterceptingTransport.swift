import BrokerCore
import ExternalText
import FoundationEssentials
import HTTPCodec
import HTTPSClient
import OAuth
import Reactor
import Waiting

/// Shows each request to the program before it is sent.
struct InterceptingTransport: ProviderTransport {
    private let base: any ProviderTransport
    private let interceptor: RequestInterceptor
    private let time: any Time
    private let log: Log

    /// The time of a request that names no limit.
    private static let usualLimit: Duration = .seconds(10)
    /// What the program does not see: fields that authenticate.
    private static let secret: Set<WireText> = ["authorization", "cookie", "proxy-authorization"]

    init(_ base: any ProviderTransport, _ interceptor: @escaping RequestInterceptor, time: any Time, log: Log) {
        self.base = base
        self.interceptor = interceptor
        self.time = time
        self.log = log
    }

    var executor: (any TaskExecutor)? { base.executor }

    func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        guard let shown = ProviderRequest(request, without: Self.secret) else { throw .invalidURL }
        let (interceptor, time) = (interceptor, time)
        let (limit, start) = (request.timeLimit ?? Self.usualLimit, time.monotonic)
        // The program's work is not awaited for longer than the request may take, and does not run on the event loop.
        let flight = SingleFlight<Int, Result<[String: String], any Error>>()
        let expire: @Sendable () async -> Void = { try? await time.sleep(for: limit) }
        let result = await flight.run(0, within: expire) {
            do {
                return .success(try await interceptor(shown))
            } catch {
                return .failure(error)
            }
        }
        guard let result = result?.value else {
            flight.cancelAll()
            log.warning("request_interceptor_late", [.endpoint(request.url.description)])
            throw Task.isCancelled ? .cancelled : .timedOut(.sendRequest, requestSent: false)
        }
        guard let added = try? result.get() else {
            log.warning("request_refused_by_interceptor", [.endpoint(request.url.description)])
            throw .connectFailed
        }
        var request = request
        try add(added, to: &request)
        let left = limit - start.duration(to: time.monotonic)
        guard left > .zero else { throw .timedOut(.sendRequest, requestSent: false) }
        if !added.isEmpty || left < limit { request.timeLimit = left }
        return try await base.send(request)
    }

    private func add(_ fields: [String: String], to request: inout ClientRequest) throws(TransportError) {
        var names: Set<WireText> = []
        for (name, value) in fields {
            guard RequestHeaders.fault(WireText(name), WireText(value)) == nil,
                names.insert(WireText(name).lowercased).inserted, names.count <= RequestHeaders.most
            else {
                log.error("interceptor_field_refused", [.endpoint(request.url.description)])
                throw .invalidRequest
            }
            request.fields.set(name, value)
        }
    }
}

extension ProviderRequest {
    /// Nil for an address that is no URL for the program.
    /// - Parameter secret: the names of the fields that are left out, in lower case.
    fileprivate init?(_ request: ClientRequest, without secret: Set<WireText>) {
        let address = WireText(request.url.description).split(at: "?", limit: 2)[0]
        guard let url = URL(string: address.text) else { return nil }
        var fields: [String: String] = [:]
        for field in request.fields.all where !secret.contains(field.name.lowercased) {
            fields[field.name.text] = field.value.text
        }
        self.init(method: request.method.name, url: url, headerFields: fields, bodyLength: request.body.count)
    }
}
