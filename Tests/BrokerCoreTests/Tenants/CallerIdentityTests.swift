import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import Testing

@Suite struct `An identity of a caller` {
    private static func label(_ count: Int) -> String { String(repeating: "a", count: count) }

    /// A name of so many bytes, of labels of 49 bytes and one that is shorter.
    private static func name(_ count: Int) -> String {
        let labels = Array(repeating: label(49), count: count / 50) + [label(count % 50)]
        return labels.joined(separator: ".")
    }

    private static func spiffeID(_ count: Int) -> String {
        let start = "spiffe://example.org/"
        return start + label(count - start.utf8.count)
    }

    private static let texts: [(text: String, isRead: Bool)] = [
        ("dns:service.example", true), ("dns:a", true), ("dns:a-b.c1", true), ("dns:xn--bcher-kva.example", true),
        ("dns:1.example", true), ("dns:\(label(63))", true), ("dns:\(label(64))", false),
        ("dns:\(name(252))", true), ("dns:\(name(253))", true), ("dns:\(name(254))", false),
        ("dns:", false), ("dns:.", false), ("dns:a.", false), ("dns:.a", false), ("dns:a..b", false),
        ("dns:-a", false), ("dns:a-", false), ("dns:a_b", false), ("dns:*.example", false),
        ("dns:Service.example", false),
        ("dns:a b", false), ("dns:a\0", false), ("dns:\u{e9}.example", false), ("dns:127.0.0.1", false),
        ("dns:1", false),
        ("DNS:service.example", false), ("service.example", false), ("", false),
        ("spiffe://example.org/a", true), ("spiffe://example.org/ns/shop/sa/cart", true),
        ("spiffe://a-b_c.1/A.b-c_d", true),
        ("spiffe://example.org/...", true), ("spiffe://\(label(255))/a", true),
        ("spiffe://\(label(256))/a", false),
        (spiffeID(2047), true), (spiffeID(2048), true), (spiffeID(2049), false),
        ("spiffe://example.org", false), ("spiffe://example.org/", false), ("spiffe:///a", false),
        ("spiffe://example.org/a/", false), ("spiffe://example.org//a", false), ("spiffe://example.org/.", false),
        ("spiffe://example.org/../a", false), ("spiffe://Example.org/a", false), ("spiffe://example.org:1/a", false),
        ("spiffe://u@example.org/a", false), ("spiffe://example.org/a?b", false), ("spiffe://example.org/a#b", false),
        ("spiffe://example.org/%61", false), ("spiffe://example.org/\u{e9}", false),
        ("spiffe://example.org/a\0", false),
        ("jwt:https://op.example#a", true), ("jwt:https://op.example/a/b#system:serviceaccount:a:b", true),
        ("jwt:https://op.example#a#b", true), ("jwt:https://op.example# ~", true), ("jwt:http://op.example#a", true),
        ("jwt:https://op.example#\(label(512))", true), ("jwt:https://op.example#\(label(513))", false),
        ("jwt:https://op.example/\(label(1005))#a", true), ("jwt:https://op.example/\(label(1006))#a", false),
        ("jwt:https://op.example", false), ("jwt:https://op.example#", false), ("jwt:#a", false),
        ("jwt:op.example#a", false),
        ("jwt:https://op.example?a#a", false), ("jwt:https://op.example#\u{e9}", false),
        ("jwt:https://op.example#a\n", false),
        ("jwt:https://op.example #a", false), ("JWT:https://op.example#a", false), ("jwt:spiffe://op.example#a", false),
        ("SPIFFE://example.org/a", false), ("spiffe:/example.org/a", false), ("https://example.org/a", false),
    ]

    @Test(arguments: texts)
    func `is read where it is well-formed, and shown as it was given`(text: String, isRead: Bool) {
        let identity = CallerIdentity(WireText(text))
        #expect((identity != nil) == isRead)
        if let identity { #expect(identity.description.utf8.elementsEqual(text.utf8)) }
    }

    @Test(arguments: ["dns:service.example", "spiffe://example.org/a"])
    func `has the digest of a text that begins with a NUL, which no bearer token can be`(text: String) throws {
        let identity = try #require(CallerIdentity(WireText(text)))
        let (plain, canonical) = (Array(text.utf8), [0] + Array(text.utf8))
        #expect(identity.digest == SHA256.words(canonical.span))
        #expect(identity.digest != SHA256.words(plain.span))
        #expect(BearerToken.find(plain.span, 0..<plain.count) == nil)
        // As the only octets of a bearer token that could have this digest.
        let field = Array("Bearer ".utf8) + canonical
        #expect(BearerToken.find(field.span, 0..<field.count) == nil)
    }

    @Test func `of a token has the issuer's length in its digest, so that no two pairs have the same`() throws {
        let identity = try #require(CallerIdentity("jwt:https://op.example#a"))
        let canonical = [0] + Array("jwt:18:https://op.examplea".utf8)
        #expect(identity.digest == SHA256.words(canonical.span))
        let pairs: [(WireText, WireText)] = [
            ("https://op.example", "a"), ("https://op.examplea", "a"), ("https://op.example", "aa"),
            ("https://op.example/1", "8:a"), ("https://op.example/18", ":a"), ("https://op.example", "#a"),
            ("https://op.example", "a#"),
        ]
        let digests = pairs.compactMap { CallerIdentity(issuer: $0, subject: $1)?.digest }
        #expect(digests.count == pairs.count && Set(digests).count == pairs.count)
        #expect(CallerIdentity(issuer: "https://op.example", subject: "a")?.digest == identity.digest)
    }

    private static func names(_ count: Int, _ prefix: String = "") -> [String] { (1...count).map { "\(prefix)n\($0)" } }

    private static let spiffeAndNames = ["spiffe://example.org/a"] + names(15, "dns:")

    private static let certificates: [(uris: [String], names: [String], found: [String])] = [
        ([], ["service.example"], ["dns:service.example"]), ([], ["A.Example"], ["dns:a.example"]),
        ([], ["b.example", "a.example", "B.example"], ["dns:b.example", "dns:a.example"]),
        ([], ["*.example", "127.0.0.1", "a.example\0", "", "a.example."], []),
        (["spiffe://example.org/a"], [], ["spiffe://example.org/a"]),
        (["spiffe://example.org/a"], ["b.example"], ["spiffe://example.org/a", "dns:b.example"]),
        (["spiffe://example.org/a", "spiffe://example.org/a"], ["b.example"], []),
        (["https://example.org/", "spiffe://example.org/a"], ["b.example"], []),
        (["Spiffe://example.org/a"], ["b.example"], []), (["spiffe:a"], ["b.example"], []),
        (["spiffe://example.org/a\0"], ["b.example"], []), (["spiffe://example.org"], ["b.example"], []),
        (["https://example.org/", "urn:a"], ["b.example"], ["dns:b.example"]),
        ([], names(15), names(15, "dns:")),
        ([], names(16), names(16, "dns:")),
        ([], names(17), names(16, "dns:")),
        (
            ["spiffe://example.org/a"], names(16),
            spiffeAndNames
        ),
    ]

    @Test(arguments: certificates)
    func `is read from the names of a certificate`(uris: [String], names: [String], found: [String]) {
        let identities = CallerIdentity.all(uris: uris.map { Array($0.utf8) }, dnsNames: names.map { Array($0.utf8) })
        #expect(identities.map(\.description) == found)
    }

    @Test func `is not read from octets that are no text`() {
        #expect(CallerIdentity.all(uris: [], dnsNames: [[0x61, 0xe9], [0xff], [0x61, 0x80, 0x2e, 0x62]]).isEmpty)
        #expect(CallerIdentity.all(uris: [Array("spiffe://e/".utf8) + [0xe9]], dnsNames: [Array("a".utf8)]).isEmpty)
    }
}
