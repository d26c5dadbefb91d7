import BrokerTesting
import Cryptography
import Glibc
import HTTPCodec
import HTTPSClient
import Reactor
import Testing

/// Requests through an HTTP proxy.
@Suite(.timeLimit(.minutes(2))) struct `A proxy` {
    private static func origin(_ url: String) -> URLTarget.Origin { URLTarget(url)!.origin }

    @Test(arguments: [
        ("http://proxy.example:3128", "proxy.example", 3128), ("proxy.example:3128", "proxy.example", 3128),
        ("http://Proxy.Example:3128/", "proxy.example", 3128), ("http://proxy.example", "proxy.example", 80),
        ("http://user:p%40ss@proxy.example:3128", "proxy.example", 3128), ("http://[::1]:3128", "::1", 3128),
        ("http://10.0.0.1:8080", "10.0.0.1", 8080),
    ])
    func `is named by a URL with http`(text: String, host: String, port: Int) throws {
        let proxy = try OutboundProxy(parsing: text)
        #expect((proxy.host, Int(proxy.port)) == (host, port))
    }

    @Test(arguments: [
        "", "http://", "https://proxy.example:3128", "socks5://proxy.example:1080", "http://proxy.example:3128/path",
        "http://proxy.example:3128/?a", "http://proxy.example:0", "http://proxy.example:65536",
        "http://user%4@proxy.example",
        "http://pro xy:3128", "http://proxy.example:3128#a",
    ])
    func `is named by nothing else`(text: String) {
        #expect(throws: OutboundProxy.Fault.address) { try OutboundProxy(parsing: text) }
    }

    @Test(arguments: [
        ("", "https://op.example/", true), ("*", "https://op.example/", false),
        ("op.example", "https://op.example/", false), ("op.example", "https://a.op.example/", false),
        ("op.example", "https://oop.example/", true), ("OP.example", "https://op.example/", false),
        (".op.example", "https://op.example/", true), (".op.example", "https://a.op.example/", false),
        ("a.example, op.example", "https://op.example/", false), (" op.example ,,", "https://op.example/", false),
        ("op.example:8443", "https://op.example/", true), ("op.example:8443", "https://op.example:8443/", false),
        ("op.example:443", "https://op.example/", false), ("op.example:443", "https://op.example:8443/", true),
        ("10.0.0.0/8", "https://10.1.2.3/", false), ("10.0.0.0/8", "https://11.1.2.3/", true),
        ("10.0.0.0/8", "https://op.example/", true), ("10.1.2.3", "https://10.1.2.3/", false),
        ("10.1.2.3:8443", "https://10.1.2.3/", true), ("10.1.2.3:8443", "https://10.1.2.3:8443/", false),
        ("::1", "https://[::1]/", false), ("[::1]:8443", "https://[::1]:8443/", false),
        ("", "http://op.example/", false), ("", "https://localhost/", false), ("", "https://LOCALHOST:8443/", false),
        ("", "https://a.localhost/", false), ("", "https://alocalhost/", true),
        ("", "https://localhost.example/", true),
        ("", "https://127.0.0.1/", false), ("", "https://127.1.2.3/", false), ("", "https://128.0.0.1/", true),
        ("", "https://[::1]/", false), ("", "https://[::2]/", true), ("", "https://0.0.0.0/", false),
        ("", "https://[::ffff:127.0.0.1]/", false),
    ])
    func `serves all hosts over https but the exceptions`(exceptions: String, url: String, isServed: Bool) throws {
        let proxy = try OutboundProxy(parsing: "http://proxy.example:3128", exceptions: exceptions)
        #expect(proxy.serves(Self.origin(url)) == isServed)
    }

    @Test func `is not asked for the machine's own name`() throws {
        var name = [CChar](repeating: 0, count: 256)
        let status = unsafe gethostname(&name, 255)
        #expect(status == 0)
        let proxy = try OutboundProxy(parsing: "http://proxy.example:3128")
        let host = String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
        if let url = URLTarget("https://\(host)/") { #expect(!proxy.serves(url.origin)) }
        #expect(LocalNames.include(host) && LocalNames.include(host.uppercased() + "."))
    }

    @Test func `is not asked for what the address rules refuse as this machine's`() async throws {
        // Where the proxy were asked, the connection to it would fail.
        let proxy = try OutboundProxy(parsing: "http://127.0.0.1:\(try TinyProxy.freePort())")
        try await withClient([set(\.proxy, proxy), set(\.targets, TargetPolicy())]) { client in
            #expect(await client.failure("https://localhost/token") == .forbiddenAddress)
            #expect(await client.failure("https://127.0.0.1/token") == .forbiddenAddress)
        }
    }

    @Test(arguments: [("a.example,/b", 1), ("10.0.0.1/8", 0), (".10.0.0.1", 0), ("a b", 0), ("..", 0), ("http://a", 0)])
    func `has no exceptions that are not understood`(exceptions: String, index: Int) {
        #expect(throws: OutboundProxy.Fault.exception(index: index)) {
            try OutboundProxy(parsing: "http://proxy.example:3128", exceptions: exceptions)
        }
    }

    // MARK: Tunnels

    /// A client whose proxy is tinyproxy, for this many requests.
    private static func withProxy(
        user: String? = nil, allowing ports: [UInt16], exceptions: String = "", targets: TargetPolicy = .everything,
        _ body: (HTTPSClient, TinyProxy) async throws -> Void
    ) async throws {
        let process = try await TinyProxy(user: "broker", password: "pass", allowing: ports)
        let address = (user.map { $0 + "@" } ?? "") + "127.0.0.1:\(process.port)"
        var proxy = try OutboundProxy(parsing: "http://" + address, exceptions: exceptions)
        proxy.servesLocalNames = true
        do {
            try await withClient([set(\.proxy, proxy), set(\.targets, targets)]) { client in
                try await body(client, process)
            }
        } catch {
            await process.stop()
            throw error
        }
        await process.stop()
    }

    @Test func `opens tunnels in which the server proves who it is`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        let other = try await TLSTestServer(tls: .init(.wrongHost), [.serve(answer("{}"))])
        try await Self.withProxy(user: "broker:p%61ss", allowing: [server.port, other.port]) { client, proxy in
            for _ in 0..<2 {
                let response = try await client.post(server.url())
                #expect(response.status == .ok)
            }
            #expect(await client.failure(other.url()) == .untrusted(.hostName))
            #expect(await client.counters.connectionsOpened == 1)
            #expect(proxy.tunnels >= 1)
        }
    }

    @Test(arguments: [nil, "broker:wrong"]) func `that wants a password is told from a provider`(user: String?)
        async throws
    {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await Self.withProxy(user: user, allowing: [server.port]) { client, _ in
            #expect(await client.failure(server.url()) == .proxyRefused(Status(user == nil ? 407 : 401)))
        }
        try await withClient { client in _ = try await client.post(server.url()) }
    }

    @Test func `that allows no tunnel to a port is told from a provider`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await Self.withProxy(user: "broker:p%61ss", allowing: [1]) { client, _ in
            #expect(await client.failure(server.url()) == .proxyRefused(.forbidden))
        }
        try await withClient { client in _ = try await client.post(server.url()) }
    }

    @Test func `is not asked for exceptions, and for addresses that may not be called`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await Self.withProxy(allowing: [server.port], exceptions: "localhost") { client, proxy in
            let response = try await client.post(server.url())
            #expect(response.status == .ok)
            #expect(proxy.tunnels == 0)
        }
        try await Self.withProxy(allowing: [server.port], targets: TargetPolicy()) { client, proxy in
            #expect(await client.failure(server.url(host: "127.0.0.1")) == .forbiddenAddress)
            #expect(proxy.tunnels == 0)
        }
    }

    @Test func `that does not listen is a failed connection`() async throws {
        let proxy = try OutboundProxy(parsing: "http://127.0.0.1:\(try TinyProxy.freePort())")
        try await withClient([set(\.proxy, proxy)]) { client in
            #expect(await client.failure("https://op.example/token") == .connectFailed)
        }
    }

    /// What a proxy may answer to CONNECT, and what the client makes of it.
    private static let answers: [(String, TransportError)] = [
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\nnever", .proxyRefused(.badGateway)),
        ("HTTP/1.1 200 OK\r\n\r\nsurplus", .connectFailed), ("nonsense\r\n\r\n", .connectFailed), ("", .connectFailed),
        ("HTTP/1.1 200 O", .connectFailed),
    ]

    @Test(arguments: answers.indices) func `that answers otherwise opens no tunnel`(index: Int) async throws {
        let (text, error) = Self.answers[index]
        let server = try await TLSTestServer(tls: nil, text.isEmpty ? [.read, .close] : [.read, .send(text), .close])
        let proxy = try OutboundProxy(parsing: "http://127.0.0.1:\(server.port)")
        try await withClient([set(\.proxy, proxy)]) { client in
            #expect(await client.failure("https://op.example/token") == error)
        }
    }
}
