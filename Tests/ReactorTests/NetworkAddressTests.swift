import Reactor
import Testing

@Suite struct `Network addresses` {
    private func address(_ text: String) -> NetworkAddress? { NetworkAddress(parsing: Array(text.utf8)[...]) }

    @Test(arguments: [
        ("192.0.2.1", "192.0.2.1"), ("0.0.0.0", "0.0.0.0"), ("255.255.255.255", "255.255.255.255"),
        ("::ffff:192.0.2.1", "192.0.2.1"), ("::", "::"), ("::1", "::1"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("1111:2222:3333:4444:5555:6666:123.123.123.123", "1111:2222:3333:4444:5555:6666:7b7b:7b7b"),
    ])
    func `are read and written`(text: String, canonical: String) {
        #expect(address(text)?.description == canonical)
    }

    @Test(arguments: [
        "", "1", "192.0.2", "192.0.2.1.", "192.0.2.256", "0300.0.2.1", " 192.0.2.1", "[::1]", "::1%lo", "::1/128",
        ":::",
        "1:2:3:4:5:6:7:8:9", "localhost", "192.0.2.1\0", "1111:2222:3333:4444:5555:6666:123.123.123.1234",
        String(repeating: "0", count: 1_000_000),
    ])
    func `are not read from other texts`(text: String) {
        #expect(address(text) == nil)
    }

    @Test(arguments: [
        ("192.0.2.1", "192.0.2.1", true), ("192.0.2.1", "192.0.2.2", false), ("::ffff:192.0.2.1", "192.0.2.1", true),
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true), ("2001:db8::1", "2001:db8:0:1::1", false),
        ("::1", "0.0.0.1", false),
    ])
    func `have the same source when the IPv4 address or the /64 prefix is the same`(
        one: String, other: String, isSame: Bool
    ) throws {
        let one = NetworkSource(try #require(address(one)))
        let other = NetworkSource(try #require(address(other)))
        #expect((one == other) == isSame)
        #expect(Set([one, other]).count == (isSame ? 1 : 2))
    }

    @Test func `have a source with a description`() throws {
        #expect(NetworkSource(try #require(address("192.0.2.1"))).description == "192.0.2.1")
        #expect(NetworkSource(try #require(address("2001:db8::1"))).description == "2001:db8::/64")
    }

    @Test func `of this host have known sources`() throws {
        let loopback = NetworkSource(try #require(address("::1")))
        #expect(loopback != .unknown && loopback.description == "::/64")
        #expect(NetworkSource(.unspecified) == .unknown)
    }

    @Test(arguments: [
        ("10.0.0.0/8", "10.255.255.255", true), ("10.0.0.0/8", "11.0.0.0", false),
        ("10.0.0.0/8", "9.255.255.255", false),
        ("192.0.2.1", "192.0.2.1", true), ("192.0.2.1", "192.0.2.0", false), ("192.0.2.1/32", "192.0.2.2", false),
        ("192.0.2.0/31", "192.0.2.1", true), ("0.0.0.0/0", "192.0.2.1", true), ("0.0.0.0/0", "2001:db8::1", false),
        ("::/0", "2001:db8::1", true), ("::/0", "192.0.2.1", false), ("2001:db8::/32", "2001:db8:ffff::1", true),
        ("2001:db8::/32", "2001:db9::", false), ("10.0.0.0/8", "::ffff:10.1.2.3", true),
    ])
    func `are in ranges of their own family only`(range: String, other: String, isInside: Bool) throws {
        let range = try #require(NetworkRange(parsing: range))
        #expect(range.contains(try #require(address(other))) == isInside)
    }

    @Test(arguments: [
        "", "/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/8/8", "10.0.0.1/8", "::/129",
        "::1/127",
        "10.0.0.0/0008", "proxy",
    ])
    func `have no range from a malformed text`(text: String) {
        #expect(NetworkRange(parsing: text) == nil)
    }
}
