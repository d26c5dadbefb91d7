import Cryptography
import GroundTesting
import HTTPCodec
import OAuth
import Testing

@Suite struct `Device authorization request` {
    private func form(
        _ client: ClientConfiguration, at server: AuthorizationServer
    ) -> (form: String, authorization: String?) {
        let (pairs, authorization) = DeviceAuthorizationRequest.form(for: client, at: server)
        return (FormEncoding.encode(pairs), authorization)
    }

    @Test(
        arguments: [
            ("s", ["b", "a"], "scope=a%20b&client_id=client-1&client_secret=s"),
            (nil, ["b", "a"], "scope=a%20b&client_id=client-1"), (nil, [], "client_id=client-1"),
        ] as [(String?, [String], String)])
    func `tidal has the scopes and the client in the form, never the unique key`(
        secret: String?, scopes: [String], expected: String
    ) {
        let (form, authorization) = form(
            Sample.client(secret: secret, uniqueKey: "k", scopes: scopes), at: Sample.tidal)
        #expect(form == expected)
        #expect(authorization == nil)
    }

    @Test func `the client authenticates as it does at the token endpoint`() {
        for method in ProviderPreset.ClientAuthentication.allCases {
            let server = Sample.server(.oidc, authentication: method)
            let (form, authorization) = form(Sample.client(uniqueKey: "k"), at: server)
            switch method {
            case .clientSecretBasic:
                #expect(form == "scope=a%20b&client_id=client-1" && authorization?.hasPrefix("Basic ") == true)
            case .clientSecretBearer:
                #expect(form == "scope=a%20b&client_id=client-1" && authorization == "Bearer secret-1")
            case .clientSecretPost: #expect(form == "scope=a%20b&client_id=client-1&client_secret=secret-1")
            // A JWT is added when the request is sent, and a certificate is shown by the connection.
            case .none, .privateKeyJWT, .clientSecretJWT, .clientAssertionFile, .tlsClientAuth:
                #expect(form == "scope=a%20b&client_id=client-1" && authorization == nil)
            }
        }
    }

    @Test func `a client without scopes sends none`() {
        #expect(form(Sample.client(secret: nil, scopes: []), at: Sample.oidc).form == "client_id=client-1")
    }
}

@Suite struct `Device authorization response` {
    private func parse(_ body: String) -> DeviceAuthorizationResponse? {
        DeviceAuthorizationResponse(body: Array(body.utf8))
    }

    /// A body with the three required members and the given members.
    private func parse(with members: String) -> DeviceAuthorizationResponse? {
        parse(#"{"device_code":"dc","user_code":"UC","verification_uri":"https://id.example","# + members + "}")
    }

    @Test func `the RFC's example is read`() throws {
        let response = try #require(
            parse(
                #"""
                {"device_code":"GmRhmhcxhwAzkoEqiMEg_DnyEysNkuNhszIySk9eS","user_code":"WDJB-MJHT",
                "verification_uri":"https://example.com/device",
                "verification_uri_complete":"https://example.com/device?user_code=WDJB-MJHT",
                "expires_in":1800,"interval":7}
                """#))
        #expect(response.deviceCode.revealedText == "GmRhmhcxhwAzkoEqiMEg_DnyEysNkuNhszIySk9eS")
        #expect(response.userCode == "WDJB-MJHT")
        #expect(response.verificationURI == "https://example.com/device")
        #expect(response.verificationURIComplete == "https://example.com/device?user_code=WDJB-MJHT")
        #expect(response.expiresIn == .seconds(1800))
        #expect(response.interval == .seconds(7))
    }

    @Test func `TIDAL's answer is read, and its addresses get a scheme`() throws {
        let response = try #require(
            parse(
                #"""
                {"deviceCode":"dc-1","userCode":"WQTUF","verificationUri":"link.tidal.com",
                "verificationUriComplete":"link.tidal.com/WQTUF","expiresIn":300,"interval":2}
                """#))
        #expect(response.deviceCode.revealedText == "dc-1")
        #expect(response.userCode == "WQTUF")
        #expect(response.verificationURI == "https://link.tidal.com")
        #expect(response.verificationURIComplete == "https://link.tidal.com/WQTUF")
        #expect(response.expiresIn == .seconds(300))
        #expect(response.interval == .seconds(2))
    }

    // Q50
    @Test func `Google's answer is read`() throws {
        let response = try #require(
            parse(
                #"""
                {"device_code":"4/4-GM","user_code":"GQVQ-JKEC","verification_url":"https://www.google.com/device",
                "expires_in":1800,"interval":5}
                """#))
        #expect(response.verificationURI == "https://www.google.com/device")
        #expect(response.verificationURIComplete == nil)
    }

    @Test func `the RFC's names take precedence, and null counts as absent`() throws {
        let response = try #require(
            parse(
                #"""
                {"device_code":"rfc","deviceCode":"tidal","user_code":null,"userCode":"UC","verification_uri":null,
                "verificationUri":"b.example","verification_url":"c.example","expires_in":null,"expiresIn":20}
                """#))
        #expect(response.deviceCode.revealedText == "rfc")
        #expect(response.userCode == "UC")
        #expect(response.verificationURI == "https://b.example")
        #expect(response.expiresIn == .seconds(20))
    }

    @Test(arguments: [
        "", "null", "[]", "{", "<html></html>", "{}", #"{"error":"invalid_client"}"#,
        #"{"user_code":"UC","verification_uri":"https://id.example"}"#,
        #"{"device_code":"dc","verification_uri":"https://id.example"}"#, #"{"device_code":"dc","user_code":"UC"}"#,
        #"{"device_code":1,"user_code":"UC","verification_uri":"https://id.example"}"#,
        #"{"device_code":"dc","user_code":1234,"verification_uri":"https://id.example"}"#,
        #"{"device_code":"dc","user_code":"UC","verification_uri":["https://id.example"]}"#,
        #"{"device_code":"dc","device_code":"d2","user_code":"UC","verification_uri":"https://id.example"}"#,
    ])
    func `a response without the three required members is refused`(body: String) {
        #expect(parse(body) == nil)
    }

    @Test(arguments: [(0, false), (1, true), (2, true), (4095, true), (4096, true), (4097, false)])
    func `a device code has 1 to 4096 characters`(length: Int, isUsable: Bool) {
        let code = String(repeating: "d", count: length)
        let response = parse(#"{"device_code":"\#(code)","user_code":"UC","verification_uri":"https://id.example"}"#)
        #expect((response != nil) == isUsable)
    }

    @Test(arguments: [
        ("a b", false), (#"a\n"#, false), (#"\u007f"#, false), ("ä", false), ("!", true), ("~", true), ("/+=&", true),
    ])
    func `a device code is visible ASCII`(code: String, isUsable: Bool) {
        let response = parse(#"{"device_code":"\#(code)","user_code":"UC","verification_uri":"https://id.example"}"#)
        #expect((response != nil) == isUsable)
    }

    @Test(arguments: [(0, false), (1, true), (2, true), (255, true), (256, true), (257, false)])
    func `a user code has 1 to 256 characters`(length: Int, isUsable: Bool) {
        let code = String(repeating: "U", count: length)
        let response = parse(#"{"device_code":"dc","user_code":"\#(code)","verification_uri":"https://id.example"}"#)
        #expect((response != nil) == isUsable)
    }

    @Test(arguments: [
        ("WDJB-MJHT", true), ("123 456", true), ("ÄÖÜ", true), (" ", false), (#"\u00a0"#, false), (#"A\nB"#, false),
        (#"A\u0000"#, false), (#"A\u007f"#, false), (#"A\u0085"#, false), (#"A\u200b"#, false), (#"A\u202e"#, false),
        (#"A\u2028"#, false), (#"A\ue000"#, false),
    ])
    func `a user code can be read and typed`(code: String, isUsable: Bool) {
        let response = parse(#"{"device_code":"dc","user_code":"\#(code)","verification_uri":"https://id.example"}"#)
        #expect((response != nil) == isUsable)
    }

    static let addresses: [(String, String?)] = [
        ("https://id.example/device", "https://id.example/device"), ("HTTPS://ID.example", "HTTPS://ID.example"),
        ("http://id.example:8080/device", "http://id.example:8080/device"),
        ("link.tidal.com", "https://link.tidal.com"),
        ("link.tidal.com/WQTUF", "https://link.tidal.com/WQTUF"),
        ("link.tidal.com?code=W:1", "https://link.tidal.com?code=W:1"), ("id.example:8443", "https://id.example:8443"),
        ("id.example:8443/device", "https://id.example:8443/device"), ("localhost:80?x", "https://localhost:80?x"),
        ("[::1]/device", nil), ("https://[::1]:8443/device", "https://[::1]:8443/device"),
        ("id.example/a:b", "https://id.example/a:b"), ("id.example/x@y", "https://id.example/x@y"),
        ("javascript:alert(1)", nil), ("javascript://id.example/%0aalert(1)", nil), ("data:text/html,x", nil),
        ("mailto:jo@id.example", nil), ("ftp://id.example", nil), ("httpsx://id.example", nil), ("tel:", nil),
        ("https:id.example", nil), ("https:/id.example", nil), ("https://", nil), ("https:///device", nil),
        ("https://?x", nil), ("https://:443/", nil), ("", nil), ("/device", nil), ("//id.example/device", nil),
        ("https://user@id.example", nil), ("user:pw@id.example", nil), ("user@id.example/device", nil),
        ("https://id.example/a b", nil), (" https://id.example", nil), ("https://id.example ", nil),
        (#"https://id.example/\n"#, nil), (#"https://id.example/\t"#, nil), (#"https://id.example/\u0000"#, nil),
        (#"https://id.example/\u007f"#, nil), (#"https://id.example/\u00a0"#, nil), ("https://idé.example", nil),
        (#"https://id.example\\@other.example"#, nil), ("https://id.example/<b>", nil), ("id example", nil),
    ]

    @Test(arguments: addresses)
    func `an address is http or https, otherwise the response is refused`(text: String, uri: String?) {
        for name in ["verification_uri", "verificationUri", "verification_url"] {
            let response = parse(#"{"device_code":"dc","user_code":"UC","\#(name)":"\#(text)"}"#)
            #expect(response?.verificationURI == uri)
        }
    }

    @Test(arguments: addresses)
    func `an unusable address with the code is ignored`(text: String, uri: String?) throws {
        for name in ["verification_uri_complete", "verificationUriComplete"] {
            let response = try #require(parse(with: #""\#(name)":"\#(text)""#))
            #expect(response.verificationURIComplete == uri)
        }
        #expect(parse(with: #""verification_uri_complete":1"#)?.verificationURIComplete == nil)
    }

    @Test(arguments: [2047, 2048, 2049])
    func `an address has up to 2048 characters`(length: Int) {
        let text = "https://id.example/" + String(repeating: "a", count: length - 19)
        let response = parse(#"{"device_code":"dc","user_code":"UC","verification_uri":"\#(text)"}"#)
        #expect(response?.verificationURI == (length <= 2048 ? text : nil))
    }

    @Test(
        arguments: [
            ("-1", 1), ("0", 1), ("1", 1), ("2", 2), ("5", 5), ("599", 599), ("600", 600), ("601", 600),
            ("9223372036854775807", 600), ("1e300", 600), ("-1e300", 1), ("1.5", 2), ("2.0", 2), ("600.5", 600),
            (#""7""#, 7), (#""0""#, 1), (#""601""#, 600), (#""""#, 5), (#""soon""#, 5), (#"" 7""#, 5), (#""7.5""#, 8),
            (#""7.0""#, 7), (#""7.5 ""#, 5),
            ("null", 5), ("true", 5), ("[7]", 5), ("{}", 5),
        ] as [(String, Int64)])
    func `an interval is 1 to 600 seconds, and 5 when it cannot be read`(value: String, seconds: Int64) {
        #expect(parse(with: #""interval":"# + value)?.interval == .seconds(seconds))
    }

    @Test(
        arguments: [
            ("-1", 1), ("0", 1), ("1", 1), ("2", 2), ("300", 300), ("86399", 86_399), ("86400", 86_400),
            ("86401", 86_400), ("9223372036854775807", 86_400), ("1.9", 1), (#""1800""#, 1800), (#""0""#, 1),
            (#""86401""#, 86_400), (#""""#, 300), (#""soon""#, 300), ("null", 300), ("false", 300), ("[60]", 300),
        ] as [(String, Int64)])
    func `a lifetime is 1 second to a day, and 300 seconds when it cannot be read`(value: String, seconds: Int64) {
        #expect(parse(with: #""expires_in":"# + value)?.expiresIn == .seconds(seconds))
        #expect(parse(with: #""expiresIn":"# + value)?.expiresIn == .seconds(seconds))
    }

    @Test func `missing members have defaults`() throws {
        let response = try #require(parse(with: #""added":1"#))
        #expect(response.interval == .seconds(5))
        #expect(response.expiresIn == .seconds(300))
        #expect(response.verificationURIComplete == nil)
    }
}
