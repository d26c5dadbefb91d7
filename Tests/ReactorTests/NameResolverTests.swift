import Reactor
import Testing

@Suite struct `Name resolver` {
    @Test func `finds localhost on the loopback`() async throws {
        let addresses = try await NameResolver().addresses(of: "localhost", port: 8080)
        #expect(!addresses.isEmpty)
        #expect(addresses.allSatisfy { !$0.isGloballyRoutable && $0.port == 8080 })
        #expect(addresses.contains { $0.host == "127.0.0.1" || $0.host == "::1" })
        #expect(Set(addresses).count == addresses.count)
    }

    @Test(arguments: ["127.0.0.1", "::1", "192.0.2.7", "2001:db8::7"])
    func `takes a numeric host as it is`(host: String) async throws {
        let addresses = try await NameResolver().addresses(of: host, port: 443)
        #expect(addresses == [SocketAddress(numericHost: host, port: 443)])
    }

    @Test(arguments: ["", "a b", "a..b", String(repeating: "a", count: 64) + ".example"])
    func `knows that what cannot be a name does not exist`(host: String) async throws {
        let resolver = try NameResolver()
        await #expect(throws: ResolutionError.notFound) { _ = try await resolver.addresses(of: host, port: 443) }
    }

    @Test func `finds nothing under a name that never exists`() async throws {
        // RFC 6761 §6.4. Without a name server to ask, the failure is a temporary one.
        let resolver = try NameResolver()
        await #expect(throws: ResolutionError.self) {
            _ = try await resolver.addresses(of: "token-broker.invalid", port: 443)
        }
    }
}
