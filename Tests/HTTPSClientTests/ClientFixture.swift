import BrokerTesting
import HTTPCodec
import HTTPSClient
import Reactor
import Testing

/// Runs `body` with a client on a loop of its own. The client trusts the test root and resolves every name to
/// 127.0.0.1.
func withClient<R>(
    _ changes: [(inout HTTPSClientConfiguration) -> Void] = [],
    lookUp: @escaping NameResolver.LookUp = { _ in [.v4([127, 0, 0, 1])] },
    _ body: (HTTPSClient) async throws -> R
) async throws -> R {
    var configuration = HTTPSClientConfiguration()
    configuration.trustedCAFile = TLSTestCertificates.shared.root
    configuration.targets = .everything
    // Long limits, so that a busy machine does not exceed limits that a test is not about.
    configuration.connectTimeout = .seconds(20)
    configuration.tlsHandshakeTimeout = .seconds(20)
    configuration.firstByteTimeout = .seconds(20)
    configuration.exchangeTimeout = .seconds(30)
    for change in changes { change(&configuration) }
    let loop = try EventLoop(name: "test-client")
    let client = try HTTPSClient(
        configuration: configuration, loop: loop, resolver: NameResolver(lookUp: lookUp))
    let result: Result<R, any Error>
    do {
        result = .success(try await body(client))
    } catch {
        result = .failure(error)
    }
    await client.close()
    loop.shutDown()
    return try result.get()
}

/// Changes one setting, for `withClient`.
func set<Value>(
    _ setting: WritableKeyPath<HTTPSClientConfiguration, Value>, _ value: Value
) -> (inout HTTPSClientConfiguration) -> Void {
    { $0[keyPath: setting] = value }
}

extension HTTPSClient {
    /// A token request like those of the broker.
    func post(
        _ url: String, _ body: String = "grant_type=refresh_token", pins: PinSet? = nil
    ) async throws(TransportError) -> ClientResponse {
        guard let url = URLTarget(url) else { throw .invalidURL }
        return try await send(
            ClientRequest(
                method: .post, url: url, fields: ["Content-Type": "application/x-www-form-urlencoded"],
                body: Array(body.utf8), pins: pins))
    }

    /// The error of a request that must fail.
    func failure(_ url: String, pins: PinSet? = nil) async -> TransportError? {
        do {
            _ = try await post(url, pins: pins)
            return nil
        } catch {
            return error
        }
    }
}

/// A response with a Content-Length.
func answer(_ body: String, status: String = "200 OK", fields: String = "") -> String {
    "HTTP/1.1 \(status)\r\nContent-Type: application/json\r\n\(fields)Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
}

extension ClientResponse {
    var text: String { String(decoding: body, as: UTF8.self) }
}
