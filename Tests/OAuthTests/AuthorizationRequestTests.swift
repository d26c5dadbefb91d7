import ExternalText
import GroundTesting
import HTTPCodec
import OAuth
import Testing

@Suite struct `Authorization request` {
    static let plain = AuthorizationRequest(
        redirectURI: "https://broker.example/login/callback", state: "st-1", codeChallenge: "ch_1")

    static func full(_ parameters: [WireText: WireText]) -> AuthorizationRequest {
        AuthorizationRequest(
            redirectURI: "https://broker.example/login/callback?x=1&y=2", state: "a+b/c=d", codeChallenge: "ch_1",
            language: "de", email: "jo+x@example.com", customParameters: parameters)
    }

    private func pairs(_ uri: String) throws -> [FormEncoding.Pair] {
        let parts = uri.split(separator: "?", maxSplits: 1)
        return try FormEncoding.decode(String(try #require(parts.last)))
    }

    // T01 T60 K01
    @Test func `has the design's parameters in the design's order`() {
        let uri = Self.plain.uri(for: Sample.client(), at: Sample.tidal)
        #expect(
            uri == "https://login.example/authorize?response_type=code"
                + "&redirect_uri=https%3A%2F%2Fbroker.example%2Flogin%2Fcallback&client_id=client-1&scope=a%20b"
                + "&code_challenge_method=S256&code_challenge=ch_1&state=st-1")
    }

    // T02 T04 T05
    @Test func `with tidal the login configuration follows by TIDAL's names`() {
        let uri = Self.full(["restrict_signup": "true", "appMode": "web & more"])
            .uri(for: Sample.client(uniqueKey: "key 1"), at: Sample.tidal)
        #expect(
            uri == "https://login.example/authorize?response_type=code"
                + "&redirect_uri=https%3A%2F%2Fbroker.example%2Flogin%2Fcallback%3Fx%3D1%26y%3D2"
                + "&client_id=client-1&scope=a%20b&code_challenge_method=S256&code_challenge=ch_1"
                + "&state=a%2Bb%2Fc%3Dd&client_unique_key=key%201&lang=de&email=jo%2Bx%40example.com"
                + "&appMode=web%20%26%20more&restrict_signup=true")
    }

    @Test func `with oidc the login configuration follows by OpenID's names and without the unique key`() {
        let uri = Self.full(["audience": "https://api.example/"])
            .uri(for: Sample.client(uniqueKey: "key 1", scopes: ["openid"]), at: Sample.oidc)
        #expect(
            uri == "https://login.example/authorize?response_type=code"
                + "&redirect_uri=https%3A%2F%2Fbroker.example%2Flogin%2Fcallback%3Fx%3D1%26y%3D2"
                + "&client_id=client-1&scope=openid&code_challenge_method=S256&code_challenge=ch_1"
                + "&state=a%2Bb%2Fc%3Dd&ui_locales=de&login_hint=jo%2Bx%40example.com"
                + "&audience=https%3A%2F%2Fapi.example%2F")
    }

    @Test func `authgear has OpenID's names too`() {
        let request = Self.full(["x_suppress_idp_session_cookie": "true"])
        let client = Sample.client(uniqueKey: "key 1", scopes: ["openid", "offline_access"])
        #expect(
            request.uri(for: client, at: Sample.server(.authgear)) == request.uri(for: client, at: Sample.oidc))
    }

    @Test func `spotify has no parameters for language and address`() {
        let uri = Self.full(["show_dialog": "true"])
            .uri(for: Sample.client(uniqueKey: "key 1"), at: Sample.server(.spotify))
        #expect(
            uri == "https://login.example/authorize?response_type=code"
                + "&redirect_uri=https%3A%2F%2Fbroker.example%2Flogin%2Fcallback%3Fx%3D1%26y%3D2"
                + "&client_id=client-1&scope=a%20b&code_challenge_method=S256&code_challenge=ch_1"
                + "&state=a%2Bb%2Fc%3Dd&show_dialog=true")
    }

    @Test func `the client secret is not part of it`() {
        for server in ProviderPreset.seeds.map({ Sample.server($0) }) {
            #expect(!Self.full([:]).uri(for: Sample.client(), at: server).contains("secret-1"))
        }
    }

    // T03
    @Test func `reserved characters in values are encoded`() throws {
        let odd = "https://app.example/cb/ä?a=b&c=d#e+f%41;g,h:i@[j]!$'()*\u{1f511}\n"
        var request = Self.full(["custom&=": WireText(odd)])
        request.redirectURI = odd
        request.state = odd
        request.email = odd
        request.language = odd
        let client = Sample.client(id: odd, uniqueKey: odd)
        let uri = request.uri(for: client, at: Sample.tidal)
        let pairs = try pairs(uri)
        for name: WireText in ["redirect_uri", "state", "client_id", "client_unique_key", "lang", "email", "custom&="] {
            #expect(pairs.filter { $0.name == name } == [.init(name, WireText(odd))])
        }
        let written = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%&="
        #expect(uri.dropFirst("https://login.example/authorize?".count).allSatisfy { written.contains($0) })
    }

    // Q42
    @Test(arguments: [
        ("https://login.example/authorize", "https://login.example/authorize?response_type=code&"),
        ("https://login.example/authorize?tenant=t", "https://login.example/authorize?tenant=t&response_type=code&"),
        (
            "https://login.example/authorize?a=%20&b=2",
            "https://login.example/authorize?a=%20&b=2&response_type=code&"
        ),
        ("https://login.example:8443/", "https://login.example:8443/?response_type=code&"),
    ])
    func `the endpoint's own query is kept`(endpoint: String, prefix: String) {
        let server = Sample.server(.oidc, authorizationEndpoint: endpoint)
        #expect(Self.plain.uri(for: Sample.client(), at: server).hasPrefix(prefix))
    }

    @Test func `custom parameters are in the order of their names`() throws {
        let names: [WireText] = ["b", "a", "Z", "_", "10", "9", "aa"]
        let uri = Self.full(Dictionary(uniqueKeysWithValues: names.map { ($0, "1") }))
            .uri(for: Sample.client(), at: Sample.tidal)
        #expect(try pairs(uri).suffix(7).map(\.name) == ["10", "9", "Z", "_", "a", "aa", "b"])
    }

    @Test func `a client without scopes sends no empty scope`() {
        let uri = Self.plain.uri(for: Sample.client(scopes: []), at: Sample.tidal)
        #expect(uri.contains("&client_id=client-1&code_challenge_method=S256"))
    }

    // T62
    @Test(arguments: [nil, "", "key"] as [String?])
    func `an empty unique key counts as none`(key: String?) {
        let uri = Self.plain.uri(for: Sample.client(uniqueKey: key), at: Sample.tidal)
        #expect(uri.contains("client_unique_key") == (key == "key"))
    }

    @Test func `a custom parameter cannot have a name that the request uses`() throws {
        for server in ProviderPreset.seeds.map({ Sample.server($0) }) {
            let uri = Self.full([:]).uri(for: Sample.client(uniqueKey: "k"), at: server)
            let names = try pairs(uri).map(\.name)
            #expect(Set(names).count == names.count)
            #expect(RequestShape.reservedForCallers.isSuperset(of: names))
        }
    }

    // H045
    @Test(arguments: [
        "client_id", "client_secret", "state", "scope", "nonce", "redirect_uri", "response_type", "response_mode",
        "code_challenge", "code_challenge_method", "code_verifier", "request", "request_uri", "resource",
        "authorization_details", "claims", "registration", "dpop_jkt",
    ])
    func `a parameter that could change the request is reserved`(name: String) {
        #expect(RequestShape.reservedForCallers.contains(WireText(name)))
    }

    @Test(arguments: ["appMode", "restrict_signup", "audience", "access_type", "prompt", "show_dialog"])
    func `parameters that providers define for their login pages are allowed`(name: String) {
        #expect(!RequestShape.reservedForCallers.contains(WireText(name)))
    }
}
