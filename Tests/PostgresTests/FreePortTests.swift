import BrokerTesting
import FoundationEssentials
import Testing

@Suite struct `A port for a server of the tests` {
    @Test func `is none that the kernel gives to clients, and another one each time`() throws {
        let range = try String(contentsOfFile: "/proc/sys/net/ipv4/ip_local_port_range", encoding: .utf8)
        let clients = range.split(whereSeparator: \.isWhitespace).compactMap { UInt16($0) }
        try #require(clients.count == 2)
        var ports: Set<UInt16> = []
        for _ in 0..<200 {
            let port = try PostgresServer.freePort()
            #expect(!(clients[0]...clients[1]).contains(port))
            #expect(ports.insert(port).inserted)
        }
    }
}
