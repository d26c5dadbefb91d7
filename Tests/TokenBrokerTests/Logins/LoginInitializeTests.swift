import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Beginning a login` {
    /// Where a login of these tests is stopped: by nothing stored.
    private static func nothingIsStored(_ broker: BrokerHarness) async throws -> Bool {
        try await broker.count(.login) == 0
    }

    // T01 T02 T04 T05 T60 H028 H033
    @Test func `the address has the parameters of the design and a state`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"{"client_id": "c 1", "client_secret": "s", "scopes": ["w_usr", "r_usr"], "client_unique_key": "k/1"}"#)
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"""
                {"storage_key": "user:1", "login_config": {"language": "en", "email": "a+b@c.example",
                 "custom_parameters": {"restrict_signup": "true", "appMode": "a b&c"}}}
                """#)
        #expect(answer.status == 201)
        #expect(answer.fields["Content-Type"] == "application/json")
        #expect(answer.fields["Cache-Control"] == "no-store")
        #expect(answer.json.object?.keys.sorted() == ["expires_in", "login_id", "login_uri", "start_uri"])
        #expect(answer.json["expires_in"]?.integer == 600)
        let uri = try #require(answer.json["login_uri"]?.text)
        let parameters = BrokerHarness.parameters(of: uri)
        let challenge = try #require(parameters["code_challenge"])
        let state = try #require(parameters["state"])
        #expect(
            uri == "https://login.tidal.com/authorize?response_type=code"
                + "&redirect_uri=https%3A%2F%2Fbroker.example%2Flogin%2Fcallback&client_id=c%201"
                + "&scope=r_usr%20w_usr&code_challenge_method=S256&code_challenge=\(challenge)&state=\(state)"
                + "&client_unique_key=k%2F1&lang=en&email=a%2Bb%40c.example&appMode=a%20b%26c&restrict_signup=true")
        #expect(Base64URL.decode(challenge)?.count == 32)
        #expect(Base64URL.decode(state)?.count == 32)
        let id = try #require(answer.json["login_id"]?.text)
        #expect(answer.json["start_uri"]?.string == "https://broker.example/login/start/t1/\(id)")
        #expect(broker.transport.seen.isEmpty)
        #expect(!broker.log.joined().contains(state))
    }

    @Test func `a body is optional`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1")
        #expect(answer.status == 201)
        let uri = try #require(answer.json["login_uri"]?.text)
        let names = BrokerHarness.parameters(of: uri).keys.sorted()
        #expect(
            names == [
                "client_id", "code_challenge", "code_challenge_method", "redirect_uri", "response_type", "state",
            ])
    }

    // T01
    @Test(arguments: ["https://login.example/base", "https://login.example/base/"])
    func `the tenant's login service takes the place of the preset's`(base: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "login_service_base_uri": "\#(base)"}"#)
        #expect(await broker.beginLogin().uri.hasPrefix("https://login.example/base/authorize?response_type=code&"))
    }

    @Test func `an OpenID provider is spoken to in its own names and its endpoint's query is kept`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "scopes": ["openid"], "client_unique_key": "k1",
             "endpoints": {"authorization": "https://op.example/auth?tenant=7", "token": "https://op.example/token"}}
            """#)
        let login = await broker.beginLogin(body: #"{"login_config": {"language": "de", "email": "a@b"}}"#)
        #expect(login.uri.hasPrefix("https://op.example/auth?tenant=7&response_type=code&"))
        let parameters = BrokerHarness.parameters(of: login.uri)
        #expect(parameters["ui_locales"] == "de")
        #expect(parameters["login_hint"] == "a@b")
        #expect(parameters["scope"] == "openid")
        for name in ["client_unique_key", "lang", "email"] { #expect(parameters[name] == nil) }
        #expect(broker.transport.seen.isEmpty)
    }

    // H028
    @Test func `states, challenges and identifiers never repeat`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        var states: Set<String> = []
        var challenges: Set<String> = []
        var ids: Set<String> = []
        for _ in 0..<300 {
            let login = await broker.beginLogin()
            states.insert(login.state)
            challenges.insert(BrokerHarness.parameters(of: login.uri)["code_challenge"] ?? "")
            ids.insert(login.id)
        }
        #expect(states.count == 300)
        #expect(challenges.count == 300)
        #expect(ids.count == 300)
    }

    // MARK: Allow-lists

    private static let listed = #"""
        {"client_id": "c1", "allowed_redirect_uris": ["https://app.example/Kb", "com.example.app:/cb"],
         "allowed_return_uris": ["https://app.example/Kb", "https://app.example:8443/done"]}
        """#

    // T03
    @Test(arguments: ["https://app.example/Kb", "com.example.app:/cb", "https://broker.example/login/callback"])
    func `a listed redirect_uri goes out as it is`(uri: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.listed)
        let login = await broker.beginLogin(body: #"{"redirect_uri": "\#(uri)"}"#)
        #expect(BrokerHarness.parameters(of: login.uri)["redirect_uri"] == uri)
    }

    // H038
    @Test(arguments: [
        "https://app.example/Kb/x", "https://app.example/K", "https://app.example/Kb?a=1", "https://app.example/Kb#f",
        "https://evil@app.example/Kb", "https://app.example@evil.example/Kb", "https://app.example.evil.example/Kb",
        "https://app.example:444/Kb", "https://app.example:443/Kb", "https:\\\\app.example\\Kb",
        "https://app.example%2FKb", "https://app.example/%4Bb", "https://app.example/Kb/", "https://app.example/kb",
        "HTTPS://app.example/Kb", "http://app.example/Kb", "//app.example/Kb", "/Kb", "javascript:alert(1)",
        "data:text/html,x", "https://app.example/x/../Kb", "https://broker.example/login/callback?a=1",
        "https://broker.example/login/callback/", "com.example.app:/cb2", " https://app.example/Kb",
        // Equal to the listed one for Unicode, which takes the Kelvin sign for a K.
        "https://app.example/\u{212A}b",
    ])
    func `a redirect_uri that is not listed is refused`(uri: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.listed)
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"redirect_uri": "\#(uri.replacing("\\", with: "\\\\"))"}"#)
        #expect(answer.status == 422)
        #expect(answer.code == "illegal_argument")
        #expect(try await Self.nothingIsStored(broker))
    }

    @Test(arguments: [
        "https://app.example/Kb", "https://app.example/Kb?a=1&b=%20", "https://app.example:443/Kb",
        "https://APP.example/Kb", "https://app.example:8443/done?",
    ])
    func `a return_to with a listed origin and path is taken whatever its query`(uri: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.listed)
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1", body: #"{"return_to": "\#(uri)"}"#)
        #expect(answer.status == 201)
    }

    // H038
    @Test(arguments: [
        "https://app.example/Kb/x", "https://app.example/K", "https://app.example/Kb/", "https://app.example/kb",
        "https://app.example/Kb#f", "https://app.example/Kb?a#f", "https://evil@app.example/Kb",
        "https://app.example@evil.example/Kb", "https://app.example.evil.example/Kb", "https://evil.example/Kb",
        "https://app.example:444/Kb", "https://app.example:8443/Kb", "https:\\\\app.example\\Kb",
        "https://app.example\\@evil.example/Kb", "https://app.example%2FKb", "https://app.example/%4Bb",
        "https://app.example/x/../Kb", "http://app.example/Kb", "//app.example/Kb", "/Kb", "javascript:alert(1)",
        "https://app.example/\u{212A}b", "https://app.example/Kb;x", "https://app.example./Kb", "https:app.example/Kb",
        "https://broker.example/login/callback",
    ])
    func `any other return_to is refused`(uri: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.listed)
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"return_to": "\#(uri.replacing("\\", with: "\\\\"))"}"#)
        #expect(answer.status == 422)
        #expect(answer.code == "illegal_argument")
        #expect(try await Self.nothingIsStored(broker))
    }

    // H038
    @Test(arguments: ["redirect_uri", "return_to"])
    func `an address with a line break is no address`(name: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.listed)
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"\#(name)": "https://app.example/Kb?\r\nSet-Cookie: a=b"}"#)
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        #expect(answer.json["errors"]?.array?.compactMap { $0["pointer"]?.text } == ["/\(name)"])
    }

    @Test func `without lists only the broker's own callback is left`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let refused = await broker.call(
            .post, "/login/initialize", tenant: "t1", body: #"{"redirect_uri": "https://app.example/cb"}"#)
        #expect(refused.status == 422)
        let other = await broker.call(
            .post, "/login/initialize", tenant: "t1", body: #"{"return_to": "https://app.example/cb"}"#)
        #expect(other.status == 422)
    }

    // MARK: Parameters

    // X10 H045
    @Test(arguments: RequestShape.reservedForCallers.sorted() + ["State", "CLIENT_ID", "code_challenge_METHOD"])
    func `a custom parameter may not bear a protocol parameter's name`(name: WireText) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"login_config": {"custom_parameters": {"appMode": "web", "\#(name)": "x"}}}"#)
        #expect(answer.status == 422)
        #expect(answer.code == "illegal_argument")
        #expect(try await Self.nothingIsStored(broker))
    }

    @Test(arguments: [
        ("a", true), ("A-z_09", true), (String(repeating: "a", count: 64), true),
        (String(repeating: "a", count: 65), false), ("", false), ("a b", false), ("a.b", false), ("a[]", false),
        ("a/b", false), ("a=b", false), ("a&b", false), ("ä", false), ("a%5B", false), ("\u{212A}", false),
        ("a\u{301}", false),
    ])
    func `a custom parameter has a name of letters, digits, underscores and hyphens`(
        name: String, isName: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"login_config": {"custom_parameters": {"ok": "1", "\#(name)": "x"}}}"#)
        #expect(answer.status == (isName ? 201 : 400))
        guard !isName else { return }
        #expect(answer.code == "invalid_request")
        let token = name.replacing("~", with: "~0").replacing("/", with: "~1")
            .unicodeScalars.prefix(64).reduce(into: "") { $0.unicodeScalars.append($1) }
        #expect(
            answer.json["errors"]?.array?.compactMap { $0["pointer"]?.text }
                == ["/login_config/custom_parameters/\(token)"])
        #expect(try await Self.nothingIsStored(broker))
    }

    @Test(arguments: [(4096, 201), (4097, 400)])
    func `all custom parameters together have at most 4 KiB of names and values`(bytes: Int, status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let value = String(repeating: "é", count: (bytes - 2) / 2) + (bytes % 2 == 0 ? "" : "x")
        let answer = await broker.call(
            .post, "/login/initialize", tenant: "t1",
            body: #"{"login_config": {"custom_parameters": {"a": "", "b": "\#(value)"}}}"#)
        #expect(answer.status == status)
        if status == 400 {
            #expect(
                answer.json["errors"]?.array?.compactMap { $0["pointer"]?.text }
                    == ["/login_config/custom_parameters"])
        }
    }

    // H045
    @Test(arguments: [
        (#"{"redirect_url": "https://a.example"}"#, ["/redirect_url"]),
        (#"{"scope": "admin", "prompt": "none"}"#, ["/prompt", "/scope"]),
        (#"{"resource": "x"}"#, ["/resource"]),
        (#"{"login_config": {"lang": "en"}}"#, ["/login_config/lang"]),
        (#"{"login_config": []}"#, ["/login_config"]),
        (#"{"login_config": {"custom_parameters": {"a/b": 1}}}"#, ["/login_config/custom_parameters/a~1b"]),
        (#"{"storage_key": "a b"}"#, ["/storage_key"]),
        (#"{"storage_key": ""}"#, ["/storage_key"]),
        (#"{"redirect_uri": 1}"#, ["/redirect_uri"]),
        (#"{"login_config": {"email": "a\r\nb"}}"#, ["/login_config/email"]),
        ("[]", [""]),
    ])
    func `what is unknown or of the wrong kind is named`(body: String, pointers: [String]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
        #expect(answer.status == 400)
        #expect(answer.code == "invalid_request")
        #expect(answer.fields["Content-Type"] == "application/problem+json")
        #expect(answer.json["errors"]?.array?.compactMap { $0["pointer"]?.text } == pointers)
    }

    @Test func `the rest of the request is checked too`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await broker.call(.post, "/login/initialize?a=1", tenant: "t1").status == 400)
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1", body: "{").status == 400)
        let text = await broker.call(
            .post, "/login/initialize", tenant: "t1", body: "{}", fields: ["Content-Type": "text/plain"])
        #expect(text.status == 415)
        let get = await broker.call(.put, "/login/initialize", tenant: "t1")
        #expect(get.status == 405)
        #expect(get.fields["Allow"] == "POST")
    }

    // MARK: Callers

    @Test func `only a key with the permission login begins one, and for its own tenant`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1")
        await broker.makeTenant("t2")
        let path = "/login/initialize"
        let stranger = await broker.call(.post, path, key: nil)
        #expect(stranger.status == 401)
        #expect(stranger.fields["WWW-Authenticate"] == "Bearer")
        #expect(await broker.call(.post, path, key: "unknown").status == 401)
        #expect(await broker.call(.post, path).status == 400)
        #expect(await broker.call(.post, path, tenant: "t3").status == 404)
        let reader = await broker.makeKey("t1", #"{"name": "r", "permissions": ["credentials:read"]}"#)
        #expect(await broker.call(.post, path, key: reader).status == 403)
        let key = await broker.makeKey("t1", #"{"name": "l", "permissions": ["login"]}"#)
        #expect(await broker.call(.post, path, key: key).status == 201)
        #expect(await broker.call(.post, path, key: key, tenant: "t1").status == 201)
        #expect(await broker.call(.post, path, key: key, tenant: "t2").status == 403)
    }

    @Test func `a narrowed key begins logins for its own storage keys only`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "n", "permissions": ["login"], "storage_keys": ["a", "b"]}"#)
        func begin(_ body: String) async -> Int {
            await broker.call(.post, "/login/initialize", key: key, body: body).status
        }
        #expect(await begin(#"{"storage_key": "a"}"#) == 201)
        #expect(await begin(#"{"storage_key": "b"}"#) == 201)
        #expect(await begin(#"{"storage_key": "c"}"#) == 403)
        #expect(await begin("{}") == 403)
    }

    @Test func `a tenant that goes meanwhile gets no login`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.writes(.login) }
        async let begun = broker.call(.post, "/login/initialize", tenant: "t1")
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        #expect(await begun.status == 404)
        #expect(try await Self.nothingIsStored(broker))
    }

    @Test func `a store that is away is told as such`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        store.disturb([.refuse]) { $0.writes(.login) }
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1")
        #expect(answer.status == 503)
        #expect(answer.code == "storage_unavailable")
        #expect(answer.fields["Retry-After"] != nil)
    }
}
