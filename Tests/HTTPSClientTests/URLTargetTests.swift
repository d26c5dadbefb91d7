import HTTPSClient
import Testing

@Suite struct `URL target` {
    @Test(
        arguments: [
            ("https://auth.example.com/v1/oauth2/token", "https", "auth.example.com", 443, "/v1/oauth2/token"),
            ("https://auth.example.com", "https", "auth.example.com", 443, "/"),
            ("https://auth.example.com?a=b", "https", "auth.example.com", 443, "/?a=b"),
            ("https://auth.example.com/?a=b/c?d", "https", "auth.example.com", 443, "/?a=b/c?d"),
            ("HTTPS://Auth.Example.COM:443/A", "https", "auth.example.com", 443, "/A"),
            ("http://localhost:8080/", "http", "localhost", 8080, "/"),
            ("http://localhost", "http", "localhost", 80, "/"),
            ("https://a_b.example.com:65535/", "https", "a_b.example.com", 65535, "/"),
            ("https://xn--bcher-kva.example/%C3%BC", "https", "xn--bcher-kva.example", 443, "/%C3%BC"),
            ("https://192.0.2.1:1024/", "https", "192.0.2.1", 1024, "/"),
            ("https://[2001:DB8:0:0::1]:8443/x", "https", "2001:db8::1", 8443, "/x"),
            ("https://[::ffff:127.0.0.1]/", "https", "::ffff:127.0.0.1", 443, "/"),
            ("https://1.example.com/@b;c=d:e", "https", "1.example.com", 443, "/@b;c=d:e"),
        ] as [(String, String, String, UInt16, String)])
    func `is an absolute URL in parts`(text: String, scheme: String, host: String, port: UInt16, target: String) throws
    {
        let url = try #require(URLTarget(text))
        #expect(url.scheme.rawValue == scheme)
        #expect(url.host == host)
        #expect(url.port == port)
        #expect(url.pathAndQuery == target)
    }

    // H070
    @Test(arguments: [
        "", "https", "https:", "https:/", "https://", "https:///", "https:auth.example.com", "//auth.example.com/",
        "auth.example.com", "file:///etc/passwd", "ftp://a.example/", "gopher://a.example/", "httpss://a.example/",
        "javascript:alert(1)", " https://a.example/", "https ://a.example/",
    ])
    func `has the scheme http or https and a host`(text: String) {
        #expect(URLTarget(text) == nil)
    }

    // H070
    @Test(arguments: [
        "https://a@b.example/", "https://a:b@b.example/", "https://@b.example/", "https://b.example#f",
        "https://b.example/#f", "https://b.example/#",
    ])
    func `has neither user information nor a fragment`(text: String) {
        #expect(URLTarget(text) == nil)
    }

    @Test(arguments: [
        "https://a.example/a b", "https://a.example/\t", "https://a.example/\r\nX: y", "https://a.example/\0",
        "https://a.example/\u{7f}", "https://a.example\\@b.example/", "https://a.example/\\", "https://a.example/ü",
        "https://ü.example/", "https://a.example/<", "https://a.example/\"", "https://a.example/`",
        "https://a.example/{x}", "https://a.example/a|b", "https://a.example/^", "https://a.example/%",
        "https://a.example/%4", "https://a.example/%zz", "https://a.example/[", "https://a%2eexample/",
    ])
    func `has only the characters of a URI`(text: String) {
        #expect(URLTarget(text) == nil)
    }

    @Test(arguments: [
        "https://a..example/", "https://.a.example/", "https://a.example./", "https://-a.example/",
        "https://a-.example/", "https://a.example!/", "https://a,b.example/", "https://*.example/",
        "https://\(String(repeating: "a", count: 64)).example/",
        "https://\(Array(repeating: String(repeating: "a", count: 49), count: 5).joined(separator: ".")).aaaa/",
        "https://[::1/", "https://::1/", "https://[]/", "https://[127.0.0.1]/", "https://[fe80::1%25lo]/",
        "https://[::1]x/", "https://[::1]:/",
    ])
    func `has a host in its plain form`(text: String) {
        #expect(URLTarget(text) == nil)
    }

    @Test func `has a host of at most 253 characters in labels of at most 63`() {
        let labels = Array(repeating: String(repeating: "a", count: 49), count: 5).joined(separator: ".")
        #expect(URLTarget("https://\(labels).aaa/") != nil)
        #expect(URLTarget("https://\(String(repeating: "a", count: 63)).example/") != nil)
    }

    @Test(arguments: [
        "127.1", "127.0.1", "2130706433", "0", "0x7f.1", "0x7f000001", "0x7F.0.0.1", "0177.0.0.1", "127.0.0.01",
        "127.0.0.1.1", "256.0.0.1", "1.2.3", "a.1", "example.0x1", "example.0x", "00000000000000000177.1",
    ])
    func `has no shortened or octal address as its host`(host: String) {
        #expect(URLTarget("https://\(host)/") == nil)
    }

    // H070
    @Test(arguments: [
        ("0", false), ("1", false), ("22", false), ("25", false), ("79", false), ("80", true), ("81", false),
        ("442", false), ("443", true), ("444", false), ("1023", false), ("1024", true), ("65535", true),
        ("65536", false), ("", false), ("+443", false), ("0443", false), ("443x", false), ("-1", false),
        ("99999999999999999999", false),
    ])
    func `has no port of another well-known protocol`(port: String, isAllowed: Bool) {
        #expect((URLTarget("https://a.example:\(port)/") != nil) == isAllowed)
    }

    @Test func `has at most 8000 characters`() {
        let prefix = "https://a.example/"
        #expect(URLTarget(prefix + String(repeating: "a", count: 8000 - prefix.count)) != nil)
        #expect(URLTarget(prefix + String(repeating: "a", count: 8001 - prefix.count)) == nil)
    }

    @Test(arguments: [
        ("https://a.example:443/", "a.example"), ("https://a.example:8443/", "a.example:8443"),
        ("http://a.example:443/", "a.example:443"), ("http://a.example:80/", "a.example"),
        ("https://[::1]/", "[::1]"), ("https://[::1]:8443/", "[::1]:8443"),
    ])
    func `names the port in Host unless it is the scheme's own`(text: String, authority: String) {
        #expect(URLTarget(text)?.origin.authority == authority)
    }

    @Test func `is described as it is requested`() {
        #expect(URLTarget("HTTPS://A.example:443?b")?.description == "https://a.example/?b")
    }
}

extension `URL target` {
    @Test(
        arguments: [
            ("http://127.0.0.1:1/x", 1), ("https://a.example:22", 22), ("https://a.example:1023/", 1023),
            ("https://a.example:1024/", nil), ("https://a.example:80/", nil), ("https://a.example:0/", nil),
            ("https://a.example:65536/", nil), ("https://u@a.example:22/", nil), ("ftp://a.example:21/", nil),
        ] as [(String, UInt16?)])
    func `a refused port is distinguished from other faults`(text: String, port: UInt16?) {
        #expect(URLTarget.refusedPort(of: text) == port)
    }
}
