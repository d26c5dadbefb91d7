import BrokerTesting
import HTTPCodec
import HTTPServer
import Reactor
import Testing

@Suite(.timeLimit(.minutes(1))) struct `The source of a request` {
    private static let proxies = TrustedProxies(
        ["127.0.0.1", "10.0.0.0/8", "2001:db8:ffff::/48"].compactMap { NetworkRange(parsing: $0) })

    @Sendable private static func answerSource(_ request: Request) async -> Response {
        Response(.ok, body: Array(request.source.description.utf8))
    }

    @Test(
        arguments: [
            // Without a field, the peer.
            ([], "127.0.0.1"),
            (["X-Forwarded-For: 192.0.2.1"], "192.0.2.1"),
            // What stands to the left of the nearest address is the client's own claim.
            (["X-Forwarded-For: 198.51.100.1, 192.0.2.1"], "192.0.2.1"),
            (["X-Forwarded-For: no address, 192.0.2.1"], "192.0.2.1"),
            (["X-Forwarded-For: \"\", 192.0.2.1"], "192.0.2.1"),
            (["X-Forwarded-For: 198.51.100.1, 192.0.2.1, 10.1.1.1,10.2.2.2"], "192.0.2.1"),
            (["X-Forwarded-For: 198.51.100.1", "X-Forwarded-For: 192.0.2.1"], "192.0.2.1"),
            (["X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 10.1.1.1"], "192.0.2.1"),
            (["X-Forwarded-For: 192.0.2.1, ,"], "192.0.2.1"),
            (["X-Forwarded-For: 10.1.1.1, 10.2.2.2"], "10.1.1.1"),
            (["X-Forwarded-For: 192.0.2.1:4711"], "192.0.2.1"),
            (["X-Forwarded-For: 2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
            (["X-Forwarded-For: [2001:db8:1:2:3::4]:4711"], "2001:db8:1:2::/64"),
            (["X-Forwarded-For: ::ffff:192.0.2.1"], "192.0.2.1"),
            (["Forwarded: for=192.0.2.1"], "192.0.2.1"),
            (["forwarded: FOR=192.0.2.1;proto=https;by=10.0.0.1"], "192.0.2.1"),
            (["Forwarded: proto=https; for=\"192.0.2.1:4711\" "], "192.0.2.1"),
            (["Forwarded: for=\"[2001:db8:1:2:3::4]:4711\";host=\"a, b;c\""], "2001:db8:1:2::/64"),
            (["Forwarded: for=198.51.100.1, for=192.0.2.1, for=10.1.1.1"], "192.0.2.1"),
            (["Forwarded: for=\"_x, for=192.0.2.1"], "192.0.2.1"),
            (["Forwarded: for=\"[2001:db8:ffff::1]\";x=\", for=\"192.0.2.1\""], "192.0.2.1"),
            (["Forwarded: for=\"192.0.2.1:_port\""], "192.0.2.1"),
            (["Forwarded: for=192.0.2.1", "X-Forwarded-For: 192.0.2.1"], "192.0.2.1"),
            // Malformed, or no address.
            (["X-Forwarded-For: unknown"], "127.0.0.1"),
            (["X-Forwarded-For: 192.0.2.1, unknown"], "127.0.0.1"),
            (["X-Forwarded-For: [192.0.2.1]"], "127.0.0.1"),
            (["X-Forwarded-For: 192.0.2.1:"], "127.0.0.1"),
            (["X-Forwarded-For: 192.0.2.1:999999"], "127.0.0.1"),
            (["X-Forwarded-For: [2001:db8::1"], "127.0.0.1"),
            (["X-Forwarded-For: \u{fffd}"], "127.0.0.1"),
            (["Forwarded: for=unknown"], "127.0.0.1"),
            (["Forwarded: for=_hidden"], "127.0.0.1"),
            (["Forwarded: by=10.0.0.1"], "127.0.0.1"),
            (["Forwarded: for=192.0.2.1;for=192.0.2.2"], "127.0.0.1"),
            (["Forwarded: for=192.0.2.1;"], "127.0.0.1"),
            (["Forwarded: for=192.0.2.1 proto=http"], "127.0.0.1"),
            (["Forwarded: for=\"192.0.2.1"], "127.0.0.1"),
            (["Forwarded: for=2001:db8::1"], "127.0.0.1"),
            // One of both passed the proxy as it was sent.
            (["Forwarded: for=192.0.2.1", "X-Forwarded-For: 192.0.2.2"], "127.0.0.1"),
            (["Forwarded: for=_hidden", "X-Forwarded-For: 192.0.2.2"], "127.0.0.1"),
        ] as [([String], String)])
    func `behind a trusted proxy is the nearest address that is not trusted`(lines: [String], source: String)
        async throws
    {
        let configuration = configured { $0.trustedProxies = Self.proxies }
        try await withServer(configuration, handler: Self.answerSource) {
            server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/", lines.map { $0 + "\r\n" }.joined()))
            #expect(try await client.response().text == source)
        }
    }

    @Test func `is the peer where the peer is no trusted proxy`() async throws {
        let configuration = configured { $0.trustedProxies = TrustedProxies([NetworkRange(parsing: "127.0.0.2")!]) }
        try await withServer(configuration, handler: Self.answerSource) {
            server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/", "X-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\n"))
            #expect(try await client.response().text == "127.0.0.1")
        }
    }

    @Test(arguments: [(32, "192.0.2.1"), (33, "127.0.0.1")])
    func `is not looked for behind more than 32 addresses`(count: Int, source: String) {
        let chain = "192.0.2.1" + String(repeating: ", 10.0.0.1", count: count - 1)
        let peer = NetworkAddress(parsing: Array("127.0.0.1".utf8)[...])!
        #expect(Self.proxies.client(["X-Forwarded-For": chain], peer: peer).description == source)
    }
}
