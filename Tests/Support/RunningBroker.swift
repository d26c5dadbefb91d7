package import BrokerCore
import CredentialStore
import Cryptography
import ExternalText
package import HTTPCodec
package import HTTPSClient
import HTTPServer
import JSON
import Reactor
import Synchronization
package import TokenBroker

/// A whole broker on a loopback port that the kernel chose, its records in files, with a client that is its callers and
/// its users' browser.
package final class RunningBroker: Sendable {
    package typealias Answer = BrokerHarness.Answer

    /// `http://127.0.0.1:` and the port.
    package let baseURL: String
    package let broker: Broker
    private let vault: Vault
    private let transport: HTTPSClient
    private let client: HTTPSClient
    private let loop: EventLoop
    private let server: Server
    private let isClosed = Mutex(false)

    /// Answers once the broker is there, which must know its port first.
    private final class Front: RequestHandler {
        private let service = Mutex<Service?>(nil)

        func open(_ service: Service) { self.service.withLock { $0 = service } }

        func admit(_ request: Request) async -> Admission {
            guard let service = service.withLock({ $0 }) else { return .refused(Response(.serviceUnavailable)) }
            return await service.admit(request)
        }

        func respond(to request: Request) async -> Response {
            guard let service = service.withLock({ $0 }) else { return Response(.serviceUnavailable) }
            return await service.respond(to: request)
        }

        func response(toFault status: Status, detail: String) -> Response {
            service.withLock { $0 }?.response(toFault: status, detail: detail) ?? Response(status)
        }

        func response(toFault status: Status, detail: String, path: String) -> Response {
            service.withLock { $0 }?.response(toFault: status, detail: detail, path: path) ?? Response(status)
        }

        func mayChange(_ method: Method, _ path: String) -> Bool {
            service.withLock { $0 }?.mayChange(method, path) ?? true
        }
    }

    /// - Parameters:
    ///   - directory: of the file store; made where it is missing.
    ///   - time: the broker's own; sockets keep the system's.
    package init(
        directory: String, time: any Time = ManualTime(), _ adjust: (inout HTTPSClientConfiguration) -> Void = { _ in }
    ) async throws {
        let store = try await FileRecordStore(directory: directory)
        vault = Vault(store: store, keyring: try Keyring(parsing: BrokerHarness.masterKeys))
        try await vault.unlock()
        loop = try EventLoop(name: "test-outbound")
        let resolver = try NameResolver()
        var configuration = HTTPSClientConfiguration()
        configuration.targets = .everything
        adjust(&configuration)
        transport = try HTTPSClient(configuration: configuration, loop: loop, resolver: resolver)
        var callers = HTTPSClientConfiguration()
        callers.targets = .everything
        callers.trustedCAFile = configuration.trustedCAFile
        callers.maximumConnectionsPerOrigin = 200
        // Generous, so that a busy machine does not trip what no test is about.
        callers.connectTimeout = .seconds(30)
        callers.firstByteTimeout = .seconds(60)
        callers.exchangeTimeout = .seconds(90)
        client = try HTTPSClient(configuration: callers, loop: loop, resolver: resolver)
        let front = Front()
        let address = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
        server = try Server(configuration: ServerConfiguration(address: address, loopCount: 2), handler: front)
        baseURL = "http://\(server.address)"
        var settings = Broker.Settings()
        settings.core.publicBaseURL = baseURL
        settings.adminKeys = try AdminKeys(parsing: SecretBytes(utf8: BrokerHarness.adminKey))
        settings.core.providerTargets = .everything
        // Where sleeps take no time, no caller's patience would last.
        if (time as? ManualTime)?.skipsSleeps == true { settings.core.renewalPatience = nil }
        broker = Broker(
            settings: settings, vault: vault, transport: transport, time: time,
            log: Log(threshold: .error, time: time) { _ in })
        front.open(Service(broker))
    }

    /// Ends as the program does: what is under way comes to its end, then everything is closed. A second call does
    /// nothing.
    package func close() async {
        let wasClosed = isClosed.withLock { isClosed in
            defer { isClosed = true }
            return isClosed
        }
        if wasClosed { return }
        broker.beginDraining()
        await server.drain(within: .seconds(5))
        await broker.core.finish()
        await transport.close()
        await vault.close()
        await server.close()
        await client.close()
        loop.shutDown()
    }

    // MARK: Requests

    /// Sends one request to anywhere and follows nothing.
    package func send(
        _ method: Method, _ url: String, fields: Fields = [:], body: String = ""
    ) async throws -> Answer {
        guard let target = URLTarget(url) else { throw TransportError.invalidURL }
        let response = try await client.send(
            ClientRequest(method: method, url: target, fields: fields, body: Array(body.utf8)))
        return Answer(Response(response.status, fields: response.fields, body: response.body))
    }

    /// A call with the admin key for the tenant `t1`.
    package func call(
        _ method: Method, _ target: String, body: String? = nil, fields: Fields = [:]
    ) async throws -> Answer {
        var fields = fields
        fields.append("Authorization", "Bearer \(BrokerHarness.adminKey)")
        fields.append("X-Tenant", "t1")
        if body != nil { fields.append("Content-Type", "application/json") }
        return try await send(method, baseURL + target, fields: fields, body: body ?? "")
    }

    // MARK: Logging in

    package enum Failure: Error {
        /// The answer is not the one that the next step needs.
        case unexpected(Int, String)
    }

    package struct Begun: Sendable {
        package let id: String
        package let uri: String
        package let startURI: String
    }

    package func begin(_ body: String = "{}") async throws -> Begun {
        let answer = try await call(.post, "/login/initialize", body: body)
        guard answer.status == 201, let id = answer.json["login_id"]?.text,
            let uri = answer.json["login_uri"]?.text, let startURI = answer.json["start_uri"]?.text
        else { throw Failure.unexpected(answer.status, answer.text) }
        return Begun(id: id, uri: uri, startURI: startURI)
    }

    /// Opens the provider's page at `uri`, submits its form and returns where the provider sends the browser.
    package func decide(_ uri: String, _ decision: String = "approve", user: String = "alice") async throws -> String {
        let page = try await send(.get, uri)
        guard page.status == 200, let form = ProviderForm(html: page.text), let target = URLTarget(uri) else {
            throw Failure.unexpected(page.status, page.text)
        }
        let answer = try await send(
            .post, "\(target.scheme.rawValue)://\(target.origin.authority)\(form.action)",
            fields: ["Content-Type": "application/x-www-form-urlencoded"],
            body: form.submission([.init("user", user), .init("decision", decision)]))
        guard answer.status == 302, let location = answer.fields["Location"]?.text else {
            throw Failure.unexpected(answer.status, answer.text)
        }
        return location
    }

    /// A whole login in a browser; returns what the callback answered.
    package func logIn(_ body: String = "{}", user: String = "alice") async throws -> Answer {
        try await send(.get, decide(begin(body).uri, user: user))
    }
}
