import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import OAuth
import Testing

@Suite struct `App to app requests` {
    private static let redirect = "https%3A%2F%2Fb.example%2Fredirect"

    // L05
    @Test(arguments: [
        ("client_id=b&redirect_uri=\(redirect)&code_challenge=c", true),
        ("client_id=b&redirect_uri=\(redirect)&code_challenge=c&state=s", true),
        ("client_id=b&redirect_uri=\(redirect)&code_challenge=c&code_challenge_method=plain&other=1&other=2", true),
        ("redirect_uri=\(redirect)&code_challenge=c", false),
        ("client_id=&redirect_uri=\(redirect)&code_challenge=c", false),
        ("client_id=b&code_challenge=c", false),
        ("client_id=b&redirect_uri=\(redirect)", false),
        ("client_id=b&redirect_uri=\(redirect)&code_challenge=", false),
        ("client_id=b&client_id=b&redirect_uri=\(redirect)&code_challenge=c", false),
        ("client_id=b&redirect_uri=\(redirect)&code_challenge=c&state=1&state=2", false),
        ("client_id=b&redirect_uri=%2Fredirect&code_challenge=c", false),
        ("client_id=b&redirect_uri=\(redirect)%23part&code_challenge=c", false),
        ("client_id=b&redirect_uri=javascript%3Aalert(1)&code_challenge=c", false),
        ("client_id=b&redirect_uri=com.example.b%3A%2F%2Fcallback&code_challenge=c", true),
        ("client_id=%zz&redirect_uri=\(redirect)&code_challenge=c", false),
        ("", false),
    ])
    func `a link is a request with a client, a redirect URI and a challenge, once each`(query: String, isRequest: Bool)
    {
        for link in ["https://a.example/authorize?\(query)", "https://a.example/authorize?\(query)#top"] {
            #expect((AppToAppRequest(link: WireText(link)) != nil) == isRequest)
        }
        #expect(AppToAppRequest(link: WireText("/authorize?\(query)")) == nil)
    }

    @Test func `a link is read to its longest length`() {
        let start = "https://a.example/?client_id=b&redirect_uri=\(Self.redirect)&code_challenge=c&state="
        func link(_ length: Int) -> WireText {
            WireText(start + String(repeating: "s", count: length - start.utf8.count))
        }
        #expect(AppToAppRequest(link: link(AppToAppRequest.longest)) != nil)
        #expect(AppToAppRequest(link: link(AppToAppRequest.longest + 1)) == nil)
    }

    // L06
    @Test func `an answer replaces the query of the redirect URI and repeats the state`() {
        let request = AppToAppRequest(
            clientID: "b", redirectURI: "https://b.example/r?old=1", codeChallenge: "c", state: "s t")
        #expect(request.answer(code: "a&b") == "https://b.example/r?code=a%26b&state=s%20t")
        #expect(
            request.answer(error: "access_denied", description: "not now")
                == "https://b.example/r?error=access_denied&error_description=not%20now&state=s%20t")
        let stateless = AppToAppRequest(clientID: "b", redirectURI: "app:/r", codeChallenge: "c", state: nil)
        #expect(stateless.answer(error: "x", description: nil) == "app:/r?error=x")
    }

    // L04
    @Test func `the link that begins a login is read as the same request`() {
        let request = AppToAppRequest(
            clientID: "b&c", redirectURI: "https://b.example/r", codeChallenge: "c", state: "s")
        for endpoint in ["https://a.example/authorize", "https://a.example/authorize?x=1"] {
            let link = request.link(to: endpoint)
            #expect(link.hasPrefix(endpoint) && link.contains("code_challenge_method=S256"))
            #expect(AppToAppRequest(link: WireText(link)) == request)
        }
    }

    // L02
    @Test func `a proof is signed by the key in its header and lives for a minute`() throws {
        let rules = try #require(ProviderPreset.authgear.appToApp)
        let key = try DeviceKey.generate(isBound: true)
        let now = Timestamp(seconds: 1_800_000_000)
        let headers = try ["one", "two"].map { challenge in
            let token = try key.proof(of: WireText(challenge), by: rules, at: now)
            let parts = try #require(JSONWebToken.parts(of: SecretBytes(utf8: token.text)))
            #expect(parts.claims["challenge"]?.string == WireText(challenge))
            #expect(parts.claims["iat"]?.integer == 1_800_000_000 && parts.claims["exp"]?.integer == 1_800_000_060)
            #expect(parts.claims["action"]?.string == "setup")
            #expect(parts.header["typ"]?.string == "vnd.authgear.app2app-request")
            #expect(parts.header["alg"]?.string == "ES256")
            let member = try #require(parts.header["jwk"])
            let jwk = try JSONWebKey(member)
            #expect(jwk.keyID == parts.header["kid"]?.string && jwk.keyID?.count == 43)
            #expect(jwk.keyID == WireText(Base64URL.encode(jwk.thumbprint)))
            let pieces = token.split(at: ".")
            let signature = try #require(Base64URL.decode(pieces[2].text))
            #expect(
                jwk.publicKey.verifies(
                    signature, of: Array("\(pieces[0].text).\(pieces[1].text)".utf8),
                    by: SignatureAlgorithm.es256.scheme))
            return parts.header
        }
        // The provider compares the text of the key.
        #expect(headers[0] == headers[1])
        #expect(try DeviceKey.generate(isBound: true) != key)
        #expect(!"\(key)".contains("PRIVATE"))
    }

    // L01
    @Test(arguments: [true, false])
    func `a device key is stored with the credentials, and a refresh keeps it`(isBound: Bool) throws {
        let key = try DeviceKey.generate(isBound: isBound)
        let client = ClientConfiguration(clientID: "c1", clientSecret: nil, clientUniqueKey: nil, scopes: .empty)
        var held = HeldCredentials(
            level: .user, accessToken: SecretBytes(utf8: "a"), refreshToken: SecretBytes(utf8: "r"),
            expires: Timestamp(seconds: 1), grantedScopes: .empty, userID: nil, obtainedWith: client.fingerprint,
            grantedBy: nil)
        #expect(CredentialRecord(decoding: CredentialRecord(held: held).encoded)?.held?.deviceKey == nil)
        held.deviceKey = key
        #expect(CredentialRecord(decoding: CredentialRecord(held: held).encoded)?.held == held)
        let quarantined = QuarantinedCredentials(credentials: held, until: Timestamp(seconds: 2))
        #expect(QuarantinedCredentials(decoding: quarantined.encoded)?.credentials == held)
        let server = AuthorizationServer(
            preset: .authgear, authorizationEndpoint: "https://op.example/a", tokenEndpoint: "https://op.example/t",
            revocationEndpoint: nil, issuer: nil, announcesIssuerInResponses: false, clientAuthentication: .none,
            pinnedCertificates: [])
        let response = try #require(
            TokenResponse(body: Array(#"{"access_token":"b"}"#.utf8), askedAt: Timestamp(seconds: 1), from: .oidc))
        func granted(_ level: CredentialsLevel) -> HeldCredentials {
            HeldCredentials(
                granted: response, level: level, to: client, by: server, replacing: held, now: Timestamp(seconds: 1))
        }
        #expect(granted(.user).deviceKey == key)
        #expect(granted(.client).deviceKey == nil)
    }
}

@Suite struct `App links` {
    private static let fingerprint = Array(repeating: "aB", count: 32).joined(separator: ":")

    private static func json(_ text: String) throws -> JSONValue { try JSONValue(parsing: Array(text.utf8)) }

    private static func statement(
        relation: String = "delegate_permission/common.handle_all_urls", namespace: String = "android_app",
        package: String = "com.example.b", fingerprint: String = fingerprint
    ) -> String {
        """
        {"relation": ["other", "\(relation)"], "target": {"namespace": "\(namespace)", "package_name": "\(package)", \
        "sha256_cert_fingerprints": ["00", "\(fingerprint)"]}}
        """
    }

    // L15
    @Test(arguments: [
        (statement(), true), (statement(relation: "delegate_permission/common.get_login_creds"), false),
        (statement(namespace: "web"), false), (statement(package: "com.example.c"), false),
        (statement(fingerprint: Array(repeating: "AA", count: 32).joined(separator: ":")), false),
        (statement(fingerprint: fingerprint.lowercased()), true), (#"{"relation": 1}"#, false),
    ])
    func `an Android app is named by relation, package and certificate`(statement: String, isNamed: Bool) throws {
        let links = try #require(AndroidAppLinks(try Self.json("[1, \(statement)]")))
        let certificate = try #require(AndroidAppLinks.fingerprint(WireText(Self.fingerprint.uppercased())))
        #expect(certificate == [UInt8](repeating: 0xab, count: 32))
        #expect(links.include(package: "com.example.b", certificate: certificate) == isNamed)
    }

    @Test(arguments: ["", fingerprint + ":", String(fingerprint.dropLast(3)), fingerprint.replacing(":", with: "-")])
    func `a fingerprint has 32 pairs with colons between them`(text: String) {
        #expect(AndroidAppLinks.fingerprint(WireText(text)) == nil)
    }

    @Test func `a document of another form is none`() throws {
        #expect(AndroidAppLinks(try Self.json("{}")) == nil)
        #expect(AppleAppLinks(try Self.json("[]")) == nil)
        #expect(AppleAppLinks(try Self.json(#"{"applinks": {}}"#)) == nil)
        func document(_ count: Int) -> String {
            let paths = Array(repeating: #""*""#, count: count).joined(separator: ",")
            return #"{"applinks": {"details": [{"appID": "T.b", "paths": [\#(paths)]}]}}"#
        }
        #expect(AppleAppLinks(try Self.json(document(AppleAppLinks.mostRules))) != nil)
        #expect(AppleAppLinks(try Self.json(document(AppleAppLinks.mostRules + 1))) == nil)
    }

    /// The members of an entry beside its app, the path and query of a link, and whether the app may open it.
    // L16
    @Test(arguments: [
        (#""paths": ["*"]"#, "/redirect", true), (#""paths": []"#, "/redirect", false),
        (#""paths": ["/redirect"]"#, "/redirect", true), (#""paths": ["/redirect"]"#, "/redirect/", false),
        (#""paths": ["/redirect"]"#, "/Redirect", false), (#""paths": ["/r*t"]"#, "/redirect", true),
        (#""paths": ["/redirec?"]"#, "/redirect", true), (#""paths": ["/redirect?"]"#, "/redirect", false),
        (#""paths": ["NOT /redirect", "*"]"#, "/redirect", false),
        (#""paths": ["NOT /other", "*"]"#, "/redirect", true),
        (#""paths": ["*", "NOT /redirect"]"#, "/redirect", true),
        (#""components": [{"/": "/redirect"}]"#, "/redirect", true),
        (#""components": [{"/": "/redirect", "exclude": true}, {"/": "*"}]"#, "/redirect", false),
        (#""components": [{"/": "/REDIRECT"}]"#, "/redirect", false),
        (#""components": [{"/": "/REDIRECT", "caseSensitive": false}]"#, "/redirect", true),
        (#""defaults": {"caseSensitive": false}, "components": [{"/": "/REDIRECT"}]"#, "/redirect", true),
        (#""components": [{"?": {"code": "c*"}}]"#, "/redirect?code=code&state=s", true),
        (#""components": [{"?": {"code": "d*"}}]"#, "/redirect?code=code&state=s", false),
        (#""components": [{"?": {"error": "*"}}]"#, "/redirect?code=code", false),
        (#""components": [{"?": "code=*"}]"#, "/redirect?code=code", true),
        (##""components": [{"#": "top"}]"##, "/redirect", false),
        (##""components": [{"#": "*"}]"##, "/redirect", true),
        (#""components": [{"/": "/$(lang)"}]"#, "/en", false),
        (#""components": [{"/": "/$(lang)", "exclude": true}, {"/": "*"}]"#, "/en", false),
        (#""components": [{"/": "/en", "percentEncoded": false}]"#, "/en", false),
        (#""components": [{"/": "/en", "new": 1}]"#, "/en", false),
        (#""components": []"#, "/redirect", false),
    ])
    func `the first rule of an app of Apple that takes a link decides`(
        members: String, link: String, isAllowed: Bool
    ) throws {
        let parts = WireText(link).split(at: "?", limit: 2)
        for apps in [#""appID": "T.b""#, #""appIDs": ["T.a", "T.b"]"#] {
            let links = try #require(
                AppleAppLinks(try Self.json(#"{"applinks": {"details": [{\#(apps), \#(members)}]}}"#)))
            #expect(
                links.allow(app: "T.b", path: parts[0], query: parts.count == 2 ? parts[1] : nil) == isAllowed)
            #expect(!links.allow(app: "T.c", path: parts[0], query: nil))
        }
    }

    /// 64 units are one word of the matcher; the stars stand at both sides of its edge.
    // L17
    @Test(arguments: [62, 63, 64, 65, 127, 128, 129])
    func `patterns are matched across words`(count: Int) throws {
        let text = String(repeating: "a", count: count)
        func isMatch(_ pattern: String, _ text: String) throws -> Bool {
            let details = #"{"applinks": {"details": [{"appID": "T.b", "paths": ["\#(pattern)"]}]}}"#
            return try #require(AppleAppLinks(try Self.json(details))).allow(
                app: "T.b", path: WireText(text), query: nil)
        }
        #expect(try isMatch(text, text) && !isMatch(text, text + "a") && !isMatch(text + "a", text))
        #expect(try isMatch(text + "*", text) && isMatch("*" + text, text) && isMatch(text + "*b", text + "ccb"))
        #expect(try isMatch(text + "?", text + "b") && !isMatch(text + "?", text))
        #expect(try !isMatch(text + "*b", text + "bc") && isMatch("*" + text + "*", "b" + text + "c"))
    }

    // L17
    @Test func `a hostile pattern takes no longer than its length allows`() throws {
        let pattern = String(repeating: "*a", count: 2000) + "*b"
        let paths = Array(repeating: "\"\(pattern)\"", count: 200).joined(separator: ",")
        let links = try #require(
            AppleAppLinks(try Self.json(#"{"applinks": {"details": [{"appID": "T.b", "paths": [\#(paths)]}]}}"#)))
        let text = WireText(String(repeating: "a", count: 2048))
        let start = ContinuousClock.now
        #expect(!links.allow(app: "T.b", path: text, query: nil))
        // 200 patterns of 2001 units; tries of every way through them would take longer than the universe.
        #expect(start.duration(to: .now) < .seconds(60))
        // A pattern that is too long excludes what it may exclude, and lets nothing in.
        let long = String(repeating: "*", count: 4097)
        for (rule, isAllowed) in [(#""\#(long)""#, false), (#""NOT \#(long)", "*""#, false)] {
            let links = try #require(
                AppleAppLinks(try Self.json(#"{"applinks": {"details": [{"appID": "T.b", "paths": [\#(rule)]}]}}"#)))
            #expect(links.allow(app: "T.b", path: "/", query: nil) == isAllowed)
        }
    }
}
