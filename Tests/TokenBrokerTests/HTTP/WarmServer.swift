import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Reactor
import Synchronization
import TLS
import Testing
import TokenBroker

/// Counts what takes the usual way.
private final class CountingHandler: RequestHandler {
    private let service: Service
    private let handled = Mutex(0)

    init(_ service: Service) { self.service = service }

    var count: Int { handled.withLock { $0 } }

    func respond(to request: Request) async -> Response {
        handled.withLock { $0 += 1 }
        return await service.respond(to: request)
    }

    func response(toFault status: Status, detail: String) -> Response {
        service.response(toFault: status, detail: detail)
    }

    func response(toFault status: Status, detail: String, path: String) -> Response {
        service.response(toFault: status, detail: detail, path: path)
    }

    func mayChange(_ method: Method, _ path: String) -> Bool { service.mayChange(method, path) }

    func identities(of certificate: PeerCertificate) -> [SIMD4<UInt64>] { service.identities(of: certificate) }

    func answerNow(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int? {
        service.answerNow(head, bytes, from: peer, into: answer)
    }

    func answeredNow(_ count: Int, kind: Int) { service.answeredNow(count, kind: kind) }

    func turnEnded(answers count: Int, took: Duration) { service.turnEnded(answers: count, took: took) }
}

/// A broker with a logged-in user behind a server of one loop, and a client of it.
struct WarmServer {
    let harness: BrokerHarness
    let key: String
    let client: HTTPRawClient
    let address: SocketAddress
    let usual: @Sendable () -> Int

    /// A head with that target, and fields without their line ends.
    func head(_ target: String = "/credentials", key: String? = nil, _ fields: String...) -> String {
        "GET \(target) HTTP/1.1\r\nHost: broker.example\r\nAuthorization: Bearer \(key ?? self.key)\r\n"
            + fields.map { $0 + "\r\n" }.joined() + "\r\n"
    }

    func get(_ target: String = "/credentials", _ fields: String...) async throws -> BrokerHarness.Answer {
        let extra = fields.map { $0 + "\r\n" }.joined()
        try await client.send(
            "GET \(target) HTTP/1.1\r\nHost: broker.example\r\nAuthorization: Bearer \(key)\r\n\(extra)\r\n")
        return try await answer()
    }

    /// Credentials whose token tells the storage key.
    func store(_ name: String) async throws {
        let put = await harness.call(
            .put, "/credentials", key: key,
            body: """
                {"storage_key": "\(name)", "credentials":
                    {"client_id": "c1", "user_id": "9", "token": "token-of-\(name)", "expires_in": 3600}}
                """)
        #expect(put.status == 200)
    }

    func answer() async throws -> BrokerHarness.Answer {
        let response = try await client.response()
        return BrokerHarness.Answer(
            Response(response.status, fields: response.fields, body: response.body))
    }
}

/// - Parameter tls: with which the server accepts connections; nil for plain HTTP, which `WarmServer.client` speaks.
func withWarmServer(
    tenant: String = #"{"client_id": "c1", "scopes": ["r_usr"]}"#, tls: TLSServerContext? = nil,
    adjust: (inout Broker.Settings) -> Void = { _ in }, _ body: (WarmServer) async throws -> Void
) async throws {
    let harness = try await BrokerHarness(adjust)
    await harness.makeTenant("t1", tenant)
    let key = await harness.makeKey()
    await harness.logIn()
    let handler = CountingHandler(harness.service)
    let loopback = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
    var configuration = ServerConfiguration(address: loopback, loopCount: 1)
    configuration.tls = tls
    let server = try Server(configuration: configuration, handler: handler)
    do {
        // The first read fills the caches.
        _ = await harness.call(.get, "/credentials", key: key)
        try await body(
            WarmServer(
                harness: harness, key: key, client: try HTTPRawClient(server.address), address: server.address,
                usual: { handler.count }))
        await server.close()
    } catch {
        await server.close()
        throw error
    }
}
