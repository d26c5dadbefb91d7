import BrokerTesting
import HTTPCodec
import HTTPSClient
import Reactor
import Testing

/// Requests that name a proxy of their own.
@Suite(.timeLimit(.minutes(2))) struct `A request's own proxy` {
    private static func proxy(_ process: TinyProxy, _ user: String = "broker:pass") throws -> OutboundProxy {
        try OutboundProxy(parsing: "http://\(user)@127.0.0.1:\(process.port)")
    }

    private static func withProxies(
        allowing ports: [UInt16], _ body: (TinyProxy, TinyProxy) async throws -> Void
    ) async throws {
        let first = try await TinyProxy(user: "broker", password: "pass", allowing: ports)
        do {
            let second = try await TinyProxy(user: "broker", password: "pass", allowing: ports)
            do {
                try await body(first, second)
            } catch {
                await second.stop()
                throw error
            }
            await second.stop()
        } catch {
            await first.stop()
            throw error
        }
        await first.stop()
    }

    private static func request(_ url: String, by proxy: OutboundProxy?) -> ClientRequest {
        var request = ClientRequest(method: .post, url: URLTarget(url)!)
        request.proxy = proxy
        return request
    }

    @Test func `has connections of its own, which no other request uses`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await Self.withProxies(allowing: [server.port]) { first, second in
            try await withClient([set(\.targets, .everything)]) { client in
                let ways: [OutboundProxy?] = [nil, try Self.proxy(first), try Self.proxy(second)]
                for round in 0..<2 {
                    for way in ways {
                        let response = try await client.send(Self.request(server.url(), by: way))
                        #expect(response.status == .ok)
                    }
                    // The second round uses the connections of the first one.
                    #expect(await client.counters.connectionsOpened == 3, "round \(round)")
                }
                await #expect(throws: TransportError.proxyRefused(Status(401))) {
                    try await client.send(Self.request(server.url(), by: try Self.proxy(first, "broker:wrong")))
                }
            }
        }
    }

    @Test func `must be where the broker may call, and serves no name that the broker may not call`() async throws {
        let port = try TinyProxy.freePort()
        let own = try OutboundProxy(parsing: "http://127.0.0.1:\(port)")
        let far = try OutboundProxy(parsing: "http://192.0.2.1:\(port)")
        try await withClient([set(\.targets, TargetPolicy())]) { client in
            await #expect(throws: TransportError.forbiddenAddress) {
                try await client.send(Self.request("https://op.example/token", by: own))
            }
            for host in ["localhost", "127.0.0.1", "10.0.0.1"] {
                await #expect(throws: TransportError.forbiddenAddress) {
                    try await client.send(Self.request("https://\(host)/token", by: far))
                }
            }
        }
    }

    @Test(arguments: [
        ("http://proxy.example", "http://proxy.example:80"),
        ("http://u:p%40@Proxy.Example:3128/", "http://proxy.example:3128"), ("http://[::1]:3128", "http://[::1]:3128"),
    ])
    func `is shown without user and password`(text: String, shown: String) throws {
        let proxy = try OutboundProxy(parsing: text)
        #expect(proxy.shownAddress == shown)
        #expect(try OutboundProxy(parsing: shown).shownAddress == shown)
    }

    @Test func `is another one with another password`() throws {
        let texts = ["http://a@p.example:1024", "http://b@p.example:1024", "http://p.example:1024", "http://p.example"]
        let proxies = try texts.map { try OutboundProxy(parsing: $0) }
        #expect(Set(proxies).count == texts.count)
        #expect(Set(proxies + proxies).count == texts.count)
    }
}
