import Reactor
import Testing

@Suite struct `Network range and special addresses` {
    @Test(
        arguments: [
            ("10.0.0.0/8", "9.255.255.255", false), ("10.0.0.0/8", "10.0.0.0", true),
            ("10.0.0.0/8", "10.255.255.255", true), ("10.0.0.0/8", "11.0.0.0", false),
            ("10.20.30.64/27", "10.20.30.63", false), ("10.20.30.64/27", "10.20.30.64", true),
            ("10.20.30.64/27", "10.20.30.95", true), ("10.20.30.64/27", "10.20.30.96", false),
            ("192.168.1.7", "192.168.1.6", false), ("192.168.1.7", "192.168.1.7", true),
            ("192.168.1.7", "192.168.1.8", false), ("0.0.0.0/0", "255.255.255.255", true),
            ("fd12:3456::/33", "fd12:3456:7fff:ffff::", true), ("fd12:3456::/33", "fd12:3456:8000::", false),
            ("fe80::1", "fe80::1", true), ("fe80::1", "fe80::2", false), ("::/0", "fd00::1", true),
            // One family is not in the other, and a mapped address is one of IPv4.
            ("::/0", "10.0.0.1", false), ("0.0.0.0/0", "fd00::1", false), ("::/0", "::ffff:10.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true), ("10.0.0.0/8", "::10.0.0.1", false),
        ])
    func `holds what begins with its prefix`(network: String, address: String, isInside: Bool) throws {
        let ip = try #require(SocketAddress(numericHost: address, port: 0)).ip
        #expect(try #require(NetworkRange(parsing: network)).contains(ip) == isInside)
    }

    @Test(arguments: [
        "", "/", "/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/08", "10.0.0.0/8/8", "10/8",
        "10.0.0.1/8", "10.0.0.0/ 8", " 10.0.0.0/8", "fd00::/129", "fd00::1/64", "fe80::1%eth0/64", "[fd00::]/8",
        "localhost", "::ffff:10.0.0.0/104", "10.0.0.0/4294967304",
    ])
    func `reads nothing else`(text: String) {
        #expect(NetworkRange(parsing: text) == nil)
    }

    @Test(arguments: [
        ("127.0.0.1", true), ("127.255.255.254", true), ("126.255.255.255", false), ("128.0.0.0", false), ("::1", true),
        ("::", false), ("::2", false), ("::ffff:127.0.0.1", true), ("::ffff:10.0.0.1", false), ("fe80::1", false),
    ])
    func `knows loopback`(address: String, isLoopback: Bool) throws {
        #expect(try #require(SocketAddress(numericHost: address, port: 0)).ip.isLoopback == isLoopback)
    }

    @Test(arguments: [
        ("169.254.169.254", true), ("169.254.169.253", false), ("168.63.129.16", true), ("100.100.100.200", true),
        ("192.0.0.192", true), ("fd00:ec2::254", true), ("fd00:ec2::253", false), ("::ffff:169.254.169.254", true),
        ("64:ff9b::a9fe:a9fe", true), ("64:ff9b:1::a9fe:a9fe", true), ("2002:a9fe:a9fe::1", true),
        ("64:ff9b::a9fe:a9fd", false),
    ])
    func `knows where clouds give out credentials`(address: String, isMetadataService: Bool) throws {
        #expect(try #require(SocketAddress(numericHost: address, port: 0)).ip.isMetadataService == isMetadataService)
    }
}
