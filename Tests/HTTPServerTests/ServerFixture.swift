import BrokerTesting
import Dispatch
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Testing

/// Runs `body` against a server on loopback, and closes the server also when `body` throws.
/// - Parameter clock: the server's clock; nil for the machine's.
func withServer(
    _ configuration: ServerConfiguration = configured { _ in }, clock: ManualLoopClock? = nil,
    handler: @escaping @Sendable (Request) async -> Response = echo,
    _ body: (Server) async throws -> Void
) async throws {
    try await withServer(configuration, clock: clock, answering: HTTPClosureHandler(handler), body)
}

/// The same for a handler that is more than a closure.
func withServer(
    _ configuration: ServerConfiguration = configured { _ in }, clock: ManualLoopClock? = nil,
    answering handler: any RequestHandler, _ body: (Server) async throws -> Void
) async throws {
    let server = try Server(configuration: configuration, handler: handler, clock: clock)
    clock?.drive(server.loops)
    do {
        try await body(server)
        await server.close()
    } catch {
        await server.close()
        throw error
    }
}

/// A server on loopback with one loop, adjusted.
func configured(_ adjust: (inout ServerConfiguration) -> Void) -> ServerConfiguration {
    let loopback = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
    var configuration = ServerConfiguration(address: loopback, loopCount: 1)
    adjust(&configuration)
    return configuration
}

/// Answers with what it was asked.
@Sendable func echo(_ request: Request) async -> Response {
    let query = request.query.map { "?" + $0 } ?? ""
    let head = "\(request.method) \(request.path)\(query)"
    return Response(
        .ok, fields: ["Content-Type": "text/plain"], body: Array(head.utf8) + Array("\n".utf8) + request.body)
}

/// A request without content.
func get(_ target: String, _ fields: String = "") -> String {
    "GET \(target) HTTP/1.1\r\nHost: a\r\n\(fields)\r\n"
}

extension NowAnswer {
    /// Writes a whole answer with this body.
    func write(_ body: [UInt8]) {
        begin(.ok, contentLength: body.count)
        output.append("\r\n")
        output.append(body.span)
    }
}

/// Whether the answer refuses its request in an overload; it has to be 200 otherwise.
func isRefused(_ response: ParsedResponse, sourceLocation: SourceLocation = #_sourceLocation) -> Bool {
    if response.status == .ok { return false }
    #expect(response.status == .serviceUnavailable, sourceLocation: sourceLocation)
    #expect(response.fields["Retry-After"] == "1", sourceLocation: sourceLocation)
    return true
}

extension ParsedResponse {
    var text: String { String(decoding: body, as: UTF8.self) }
}

/// Looks at `condition` until it holds, or fails after ten seconds. For what can only be observed, not awaited.
func eventually(
    _ condition: () -> Bool, _ comment: Comment? = nil, sourceLocation: SourceLocation = #_sourceLocation
) async {
    let deadline = MonotonicInstant.after(.seconds(10))
    while !condition() {
        guard MonotonicInstant.now < deadline else {
            Issue.record(comment ?? "did not happen in time", sourceLocation: sourceLocation)
            return
        }
        await Task.yield()
    }
}

/// Blocks a loop's thread until a test lets it go on, as a handler does that computes for too long.
final class LoopGate: Sendable {
    private let held = HTTPLatch()
    private let mayGo = DispatchSemaphore(value: 0)

    /// Blocks the calling loop's thread until `letGo`, or for half a minute, so that a test that fails before `letGo`
    /// does not hang. To be called once.
    func hold() {
        held.open()
        _ = mayGo.wait(timeout: .now() + 30)
    }

    /// Waits until `hold` was called; fails after ten seconds.
    func isHeld(sourceLocation: SourceLocation = #_sourceLocation) async {
        await eventually({ held.isOpen }, "the loop is not held", sourceLocation: sourceLocation)
    }

    func letGo() { mayGo.signal() }
}
