import Reactor
import Testing

@Suite struct `Socket address` {
    // H071
    @Test(arguments: [
        // Each range of the registry and the addresses next to it.
        ("0.0.0.0", false), ("0.255.255.255", false), ("1.0.0.0", true),
        ("9.255.255.255", true), ("10.0.0.0", false), ("10.255.255.255", false), ("11.0.0.0", true),
        ("100.63.255.255", true), ("100.64.0.0", false), ("100.127.255.255", false), ("100.128.0.0", true),
        ("126.255.255.255", true), ("127.0.0.0", false), ("127.255.255.255", false), ("128.0.0.0", true),
        ("169.253.255.255", true), ("169.254.0.0", false), ("169.254.169.254", false), ("169.254.255.255", false),
        ("169.255.0.0", true),
        ("168.63.129.15", true), ("168.63.129.16", false), ("168.63.129.17", true),
        ("172.15.255.255", true), ("172.16.0.0", false), ("172.31.255.255", false), ("172.32.0.0", true),
        ("191.255.255.255", true), ("192.0.0.0", false), ("192.0.0.255", false), ("192.0.1.0", true),
        ("192.0.1.255", true), ("192.0.2.0", false), ("192.0.2.255", false), ("192.0.3.0", true),
        ("192.88.98.255", true), ("192.88.99.0", false), ("192.88.99.255", false), ("192.88.100.0", true),
        ("192.167.255.255", true), ("192.168.0.0", false), ("192.168.255.255", false), ("192.169.0.0", true),
        ("198.17.255.255", true), ("198.18.0.0", false), ("198.19.255.255", false), ("198.20.0.0", true),
        ("198.51.99.255", true), ("198.51.100.0", false), ("198.51.100.255", false), ("198.51.101.0", true),
        ("203.0.112.255", true), ("203.0.113.0", false), ("203.0.113.255", false), ("203.0.114.0", true),
        ("223.255.255.255", true), ("224.0.0.0", false), ("239.255.255.255", false), ("240.0.0.0", false),
        ("255.255.255.255", false), ("8.8.8.8", true),
    ])
    func `distinguishes public IPv4 addresses from others`(host: String, isGlobal: Bool) throws {
        #expect(try #require(SocketAddress(numericHost: host, port: 443)).isGloballyRoutable == isGlobal)
        // The same address as an IPv4-mapped IPv6 address.
        #expect(try #require(SocketAddress(numericHost: "::ffff:" + host, port: 443)).isGloballyRoutable == isGlobal)
        #expect(try #require(SocketAddress(numericHost: "64:ff9b::" + host, port: 443)).isGloballyRoutable == isGlobal)
        #expect(try !#require(SocketAddress(numericHost: "::" + host, port: 443)).isGloballyRoutable)
        #expect(try !#require(SocketAddress(numericHost: "::ffff:0:" + host, port: 443)).isGloballyRoutable)
        #expect(try !#require(SocketAddress(numericHost: "64:ff9b:1::" + host, port: 443)).isGloballyRoutable)
    }

    // H071
    @Test(arguments: [
        ("::", false), ("::1", false), ("::2", false), ("100::1", false),
        ("1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", false), ("2000::", true),
        ("2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true),
        ("2001::", false), ("2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", false), ("2001:200::", true),
        ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", true), ("2001:db8::", false),
        ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", false), ("2001:db9::", true),
        ("2002:7f00:1::", false), ("2002:a9fe:a9fe::", false), ("2002:808:808::", true),
        // Addresses of such ranges inside IPv6 addresses: NAT64 (RFC 6052, RFC 8215), 6to4, Teredo, ORCHID.
        ("64:ff9b::a83f:8110", false), ("64:ff9b::a83f:8111", true), ("64:ff9b::a9fe:a9fe", false),
        ("64:ff9b:0:0:1::808:808", false), ("64:ff9b:1::808:808", false), ("64:ff9b:1:ffff:808:8:800::", false),
        ("::ffff:a83f:8110", false), ("2002:a83f:8110::", false), ("2002:c0a8:101::1", false),
        ("2001:0:808:808::", false), ("2001:20::1", false), ("100:0:0:1::1", false), ("fd00:ec2::254", false),
        ("2003::", true), ("2606:4700:4700::1111", true),
        ("3ffe:ffff::", true), ("3fff::", false), ("3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", false),
        ("3fff:1000::", true), ("4000::", false), ("5f00::1", false),
        ("fbff::", false), ("fc00::", false), ("fdff::", false), ("fe80::1", false), ("febf::", false),
        ("fec0::", false), ("ff02::1", false), ("ff0e::1", false),
    ])
    func `distinguishes public IPv6 addresses from others`(host: String, isGlobal: Bool) throws {
        #expect(try #require(SocketAddress(numericHost: host, port: 443)).isGloballyRoutable == isGlobal)
    }

    @Test(arguments: [
        "", " ", "localhost", "127.1", "127.0.0.01", "0177.0.0.1", "0x7f.0.0.1", "2130706433", "256.0.0.1", "1.2.3",
        "1.2.3.4.5", "127.0.0.1 ", "[::1]", "::1%lo", ":::", "1::2::3", "12345::",
    ])
    func `does not read shortened or octal spellings`(host: String) {
        #expect(SocketAddress(numericHost: host, port: 0) == nil)
    }

    @Test(arguments: [
        ("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("2001:0DB8:0:0:0:0:0:1", "[2001:db8::1]:80"),
    ])
    func `is described in its canonical form`(host: String, description: String) throws {
        #expect(try #require(SocketAddress(numericHost: host, port: 80)).description == description)
    }
}
