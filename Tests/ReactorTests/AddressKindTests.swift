import Reactor
import Testing

@Suite struct `Kinds of addresses` {
    @Test(arguments: [
        ("127.0.0.1", true), ("127.255.255.254", true), ("126.255.255.255", false), ("128.0.0.0", false), ("::1", true),
        ("::", false), ("::2", false), ("::ffff:127.0.0.1", true), ("::ffff:10.0.0.1", false), ("fe80::1", false),
    ])
    func `recognises loopback addresses`(address: String, isLoopback: Bool) throws {
        #expect(try #require(SocketAddress(numericHost: address, port: 0)).ip.isLoopback == isLoopback)
    }

    @Test(arguments: [
        ("169.254.169.254", true), ("169.254.169.253", false), ("168.63.129.16", true), ("100.100.100.200", true),
        ("192.0.0.192", true), ("fd00:ec2::254", true), ("fd00:ec2::253", false), ("::ffff:169.254.169.254", true),
        ("64:ff9b::a9fe:a9fe", true), ("64:ff9b:1::a9fe:a9fe", true),
        ("64:ff9b:1:a9fe:a9:fe00::", true), ("64:ff9b:1:a9fe:a9:fd00::", false), ("64:ff9b:1:a9:fe:a9fe::", true),
        ("64:ff9b:1:0:a9:fea9:fe00:0", true), ("2002:a9fe:a9fe::1", true),
        ("64:ff9b::a9fe:a9fd", false),
    ])
    func `recognises the metadata services of clouds`(address: String, isMetadataService: Bool) throws {
        #expect(try #require(SocketAddress(numericHost: address, port: 0)).ip.isMetadataService == isMetadataService)
    }

    @Test(arguments: [
        ("10.0.0.0/8", "10.255.255.255", true), ("10.0.0.0/8", "11.0.0.0", false),
        ("10.0.0.0/8", "::ffff:10.0.0.1", true),
        ("10.0.0.0/8", "::10.0.0.1", false), ("::/0", "10.0.0.1", false), ("fd00::/8", "fd12::1", true),
        ("fd00::/8", "fe00::1", false), ("192.168.1.7", "192.168.1.7", true), ("192.168.1.7", "192.168.1.8", false),
    ])
    func `a socket's address is in the ranges of its family`(range: String, address: String, isInside: Bool) throws {
        let ip = try #require(SocketAddress(numericHost: address, port: 0)).ip
        #expect(try #require(NetworkRange(parsing: range)).contains(NetworkAddress(ip)) == isInside)
    }

    @Test(arguments: [
        ("10.0.0.1", true), ("10.0.0.1/32", true), ("10.0.0.0/31", false), ("0.0.0.0/0", false), ("fd00::1", true),
        ("fd00::1/128", true), ("fd00::/127", false), ("fd00::/32", false),
    ])
    func `recognises a range of one address`(range: String, isSingle: Bool) throws {
        #expect(try #require(NetworkRange(parsing: range)).isSingleAddress == isSingle)
    }
}
