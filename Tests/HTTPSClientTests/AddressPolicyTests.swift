import BrokerTesting
import HTTPCodec
import HTTPSClient
import Reactor
import Synchronization
import Testing

/// Answers each look-up with the next entry of a list, and every further look-up with the last entry.
final class ScriptedLookUp: Sendable {
    private let answers: [Result<[String], ResolutionError>]
    private let asked = Mutex<[String]>([])

    init(_ answers: Result<[String], ResolutionError>...) {
        self.answers = answers
    }

    /// The hosts that were looked up.
    var hosts: [String] { asked.withLock { $0 } }

    func addresses(of host: String) throws(ResolutionError) -> [SocketAddress.IP] {
        let index = asked.withLock { asked in
            asked.append(host)
            return asked.count - 1
        }
        return try answers[min(index, answers.count - 1)].get().compactMap {
            SocketAddress(numericHost: $0, port: 0)?.ip
        }
    }
}

@Suite(.serialized) struct `Allowed addresses` {
    // H071
    @Test(arguments: [
        "127.0.0.1", "127.0.0.2", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]",
        "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "[fd00::1]", "[ff02::1]",
    ])
    func `a literal outside the public internet is refused`(host: String) async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await withClient([set(\.targets, TargetPolicy())]) { client in
            #expect(await client.failure(server.url(host: host)) == .forbiddenAddress)
        }
        // This connection is the first one that the server accepts: the refused request opened none.
        try await withClient { client in _ = try await client.post(server.url()) }
        #expect(try await server.report(afterEnds: 1).connections == 1)
    }

    // H071
    @Test(arguments: [
        "127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "169.254.169.254", "fd00::1", "fe80::1",
    ])
    func `a name with an address outside the public internet is refused`(address: String) async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        let lookUp = ScriptedLookUp(.success([address]))
        try await withClient([set(\.targets, TargetPolicy())], lookUp: lookUp.addresses) { client in
            #expect(await client.failure(server.url(host: "auth.example.test")) == .forbiddenAddress)
        }
        #expect(lookUp.hosts == ["auth.example.test"])
        try await withClient { client in _ = try await client.post(server.url()) }
        #expect(try await server.report(afterEnds: 1).connections == 1)
    }

    @Test func `a listed network is not for requests that avoid those`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        let network = try #require(NetworkRange(parsing: "127.0.0.1"))
        try await withClient([set(\.targets, TargetPolicy(networks: [network]))]) { client in
            var request = ClientRequest(method: .get, url: try #require(URLTarget(server.url())))
            request.avoidsListedNetworks = true
            #expect(await Self.failure(of: request, client) == .forbiddenAddress)
            request.avoidsListedNetworks = false
            #expect(try await client.send(request).status == .ok)
            // The idle connection of the one is not for the other.
            request.avoidsListedNetworks = true
            #expect(await Self.failure(of: request, client) == .forbiddenAddress)
        }
        #expect(try await server.report(afterEnds: 1).connections == 1)
    }

    private static func failure(of request: ClientRequest, _ client: HTTPSClient) async -> TransportError? {
        do throws(TransportError) {
            _ = try await client.send(request)
            return nil
        } catch {
            return error
        }
    }

    // H071
    @Test(arguments: ["127.1", "0", "2130706433", "0x7f.1", "0177.0.0.1"])
    func `a shortened or octal spelling that the system's resolver accepts is refused`(host: String) async throws {
        // URLTarget refuses these texts already; the policy must not depend on that.
        let addresses = (try? SystemResolver.addresses(of: host)) ?? []
        #expect(addresses.allSatisfy { !SocketAddress(ip: $0, port: 443).isGloballyRoutable })
        #expect(URLTarget("https://\(host)/") == nil)
    }

    @Test func `the system's resolver finds localhost and the policy refuses it`() async throws {
        let loop = try EventLoop(name: "test-client")
        defer { loop.shutDown() }
        let client = try HTTPSClient(configuration: HTTPSClientConfiguration(), loop: loop, resolver: NameResolver())
        #expect(await client.failure("https://localhost:9999/") == .forbiddenAddress)
        await client.close()
    }

    // H072
    @Test func `the client connects to the address that it checked, without another look-up`() async throws {
        // A second look-up between check and connection would return the other address, on which no server listens.
        let server = try await TLSTestServer([.serve(answer("{}"))])
        let lookUp = ScriptedLookUp(.success(["127.0.0.1"]), .success(["127.0.0.99"]))
        try await withClient(lookUp: lookUp.addresses) { client in
            _ = try await client.post(server.url(host: "good.example.test"))
            #expect(lookUp.hosts == ["good.example.test"])
        }
    }

    @Test func `when an address refuses, the next address is tried`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        let lookUp = ScriptedLookUp(.success(["127.0.0.99", "::1", "127.0.0.1"]))
        try await withClient(lookUp: lookUp.addresses) { client in
            let response = try await client.post(server.url(host: "good.example.test"))
            #expect(response.text == "{}")
        }
    }

    @Test func `an exchange fails when no address accepts a connection`() async throws {
        let lookUp = ScriptedLookUp(.success(["127.0.0.98", "127.0.0.99"]))
        try await withClient(lookUp: lookUp.addresses) { client in
            #expect(await client.failure("https://good.example.test:9999/") == .connectFailed)
        }
    }

    @Test(
        arguments: [
            (.failure(.notFound), .nameNotFound), (.failure(.temporary), .nameResolutionFailed),
            (.success([]), .nameNotFound),
        ] as [(Result<[String], ResolutionError>, TransportError)])
    func `a name without addresses and a failing resolver give different errors`(
        result: Result<[String], ResolutionError>, expected: TransportError
    ) async throws {
        let lookUp = ScriptedLookUp(result)
        try await withClient(lookUp: lookUp.addresses) { client in
            #expect(await client.failure("https://good.example.test/") == expected)
        }
    }

    // H067
    @Test(
        arguments: [
            (["127.0.0.0/8"], "127.0.0.1", true), (["127.0.0.1"], "127.0.0.1", true),
            (["127.0.0.2"], "127.0.0.1", false), (["10.0.0.0/8", "127.0.0.0/31"], "127.0.0.1", true),
            (["10.0.0.0/8"], "127.0.0.1", false), (["::/0"], "127.0.0.1", false), ([], "127.0.0.1", false),
        ])
    func `an allowed network is allowed over https only`(networks: [String], address: String, isAllowed: Bool)
        async throws
    {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        let policy = TargetPolicy(networks: networks.compactMap(NetworkRange.init(parsing:)))
        try await withClient([set(\.targets, policy)]) { client in
            #expect(await client.failure(server.url(host: address)) == (isAllowed ? nil : .forbiddenAddress))
            #expect(await client.failure(server.url()) == (isAllowed ? nil : .forbiddenAddress))
            #expect(await client.failure("http://localhost:\(server.port)/") == .insecureTarget)
        }
    }

    // H071
    @Test(arguments: [
        (["169.254.0.0/16"], "169.254.169.254", false), (["169.254.169.254"], "169.254.169.254", true),
        (["169.254.169.254/32"], "169.254.169.254", true), (["169.254.0.0/16"], "169.254.169.253", true),
        (["100.64.0.0/10"], "100.100.100.200", false), (["100.64.0.0/10"], "100.100.100.201", true),
        (["168.63.129.16"], "168.63.129.16", true), (["168.0.0.0/8"], "168.63.129.16", false),
        (["fd00::/8"], "fd00:ec2::254", false), (["fd00::/8"], "fd00:ec2::253", true),
        (["64:ff9b::/96"], "64:ff9b::a9fe:a9fe", false), (["64:ff9b::/96"], "64:ff9b::a00:1", true),
        (["169.254.0.0/16"], "::ffff:169.254.169.254", false), (["10.0.0.0/8"], "::ffff:10.0.0.1", true),
        ([], "8.8.8.8", true), ([], "10.0.0.1", false),
    ])
    func `a metadata service is allowed only as a single address`(
        networks: [String], address: String, isAllowed: Bool
    ) throws {
        let policy = TargetPolicy(networks: networks.compactMap(NetworkRange.init(parsing:)))
        #expect(policy.allows(try #require(SocketAddress(numericHost: address, port: 443))) == isAllowed)
        #expect(TargetPolicy.everything.allows(try #require(SocketAddress(numericHost: address, port: 443))))
    }

    @Test(arguments: [
        ("127.0.0.1", true), ("::1", true), ("10.0.0.1", true), ("192.168.1.1", true), ("fd00::1", true),
        ("8.8.8.8", true), ("0.0.0.0", true),
        ("169.253.255.255", true), ("169.254.0.0", false), ("169.254.1.1", false), ("169.254.255.255", false),
        ("169.255.0.0", true), ("fe7f:ffff::1", true), ("fe80::", false), ("fe80::1", false),
        ("febf:ffff::1", false), ("fec0::1", true),
        ("::ffff:169.254.1.1", false), ("::ffff:169.253.255.255", true), ("::169.254.1.1", false),
        ("64:ff9b::a9fe:101", false), ("64:ff9b::a9fd:101", true), ("64:ff9b:1::a9fe:101", false),
        ("2002:a9fe:101::", false), ("2002:a9ff:101::", true),
        ("169.254.169.254", false), ("169.254.170.2", false), ("100.100.100.200", false), ("100.100.100.201", true),
        ("168.63.129.16", false), ("192.0.0.192", false), ("192.0.0.191", true), ("fd00:ec2::254", false),
        ("fd00:ec2::253", true), ("::ffff:169.254.169.254", false), ("64:ff9b::a9fe:a9fe", false),
    ])
    func `development allows neither link-local addresses nor metadata services`(
        address: String, isAllowed: Bool
    ) throws {
        let address = try #require(SocketAddress(numericHost: address, port: 443))
        #expect(TargetPolicy.development.allows(address) == isAllowed)
        #expect(TargetPolicy.everything.allows(address))
    }

    @Test(arguments: [
        (["169.254.7.0/24"], "169.254.7.1", true), (["169.254.7.0/24"], "169.254.8.0", false),
        (["169.254.169.254"], "169.254.169.254", true), (["169.254.169.0/24"], "169.254.169.254", false),
        (["fe80::/10"], "fe80::1", true), (["fe80::1"], "fe80::2", false), (["fe80::1"], "10.0.0.1", true),
    ])
    func `development allows such an address when it is listed`(
        networks: [String], address: String, isAllowed: Bool
    ) throws {
        var policy = TargetPolicy.development
        policy.networks = networks.compactMap(NetworkRange.init(parsing:))
        #expect(policy.allows(try #require(SocketAddress(numericHost: address, port: 443))) == isAllowed)
    }

    @Test func `allowing plain HTTP does not allow private addresses`() async throws {
        let server = try await TLSTestServer(tls: nil, [.serve(answer("{}"))])
        try await withClient([set(\.targets, TargetPolicy(allowsHTTP: true))]) { client in
            #expect(await client.failure("http://localhost:\(server.port)/") == .forbiddenAddress)
        }
        let network = try #require(NetworkRange(parsing: "127.0.0.0/8"))
        try await withClient([set(\.targets, TargetPolicy(allowsHTTP: true, networks: [network]))]) { client in
            let response = try await client.post("http://localhost:\(server.port)/")
            #expect(response.text == "{}")
        }
    }

    // H067
    @Test func `plain HTTP is refused before anything is connected`() async throws {
        let server = try await TLSTestServer(tls: nil, [.serve(answer("{}"))])
        let url = "http://localhost:\(server.port)/"
        try await withClient([set(\.targets, TargetPolicy())]) { client in
            #expect(await client.failure(url) == .insecureTarget)
        }
        try await withClient { client in
            let response = try await client.post(url)
            #expect(response.text == "{}")
        }
        #expect(try await server.report(afterEnds: 1).connections == 1)
    }
}
