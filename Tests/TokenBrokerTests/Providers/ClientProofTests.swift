import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JOSE
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// A client that shows its provider what a file has, what a key signs, or a certificate.
@Suite struct `What a client shows its provider` {
    static let endpoints = #"""
        "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                      "revocation": "https://op.example/r", "device_authorization": "https://op.example/d"}
        """#

    static func tenant(_ members: String, client: String = "c1") -> String {
        #"{"provider": "oidc", "client_id": "\#(client)", \#(endpoints), \#(members)}"#
    }

    private static func write(_ file: StoreFixtureDirectory, _ text: String) throws {
        try SmallFile.replace(file.path, Array(text.utf8))
    }

    private static func assertion(_ number: Int) -> String { "header.payload.\(number)" }

    private static let granted = ScriptedTransport.Step.json(200, BrokerHarness.token("a2", refresh: "r2"))

    /// Brings the stored token to its end, so that the next caller needs another.
    private static func needToken(_ broker: BrokerHarness) async {
        await broker.set("a1", refresh: "r1", lifetime: .seconds(1))
        broker.time.advance(by: .seconds(2))
    }

    // MARK: Files

    @Test func `is what its file has at each use`() async throws {
        let file = StoreFixtureDirectory()
        let broker = try await BrokerHarness()
        try Self.write(file, Self.assertion(1) + "\n")
        await broker.makeTenant(
            "t1",
            Self.tenant(
                #""token_endpoint_auth_method": "client_assertion_file", "client_assertion_file": "\#(file.path)""#))
        await broker.logIn()
        try Self.write(file, Self.assertion(2))
        broker.transport.enqueue(Self.granted)
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        try Self.write(file, Self.assertion(3) + "\r\n")
        broker.transport.enqueue(.json(200, ""))
        let logout = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(logout.fields["Token-Revocation"] == "revoked")
        try Self.write(file, Self.assertion(4))
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        let seen = broker.transport.seen
        #expect(seen.map { $0.form["client_assertion"] } == (1...4).map { Self.assertion($0) })
        for request in seen {
            #expect(
                request.form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
            #expect(request.form["client_id"] == "c1")
            #expect(request.fields["Authorization"] == nil)
        }
        #expect(!broker.log.joined().contains("header.payload"))
        // A check reads it, too.
        try Self.write(file, Self.assertion(5))
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.call(.post, "/tenants/t1/check").status == 200)
        let checked = broker.transport.seen.dropFirst(4).compactMap { $0.form["client_assertion"] }
        #expect(!checked.isEmpty && checked.allSatisfy { $0 == Self.assertion(5) })
    }

    @Test func `is what its file has when a device logs in`() async throws {
        let file = StoreFixtureDirectory()
        try Self.write(file, Self.assertion(1))
        // Else the wait for the login's end could be over before the poll.
        let time = ManualTime(skipsSleeps: false)
        let broker = try await BrokerHarness(time: time)
        await broker.makeTenant(
            "t1",
            Self.tenant(
                #""token_endpoint_auth_method": "client_assertion_file", "client_assertion_file": "\#(file.path)""#))
        broker.transport.always(
            .decide { $0.form["device_code"] == nil ? .json(200, DeviceScript.codes()) : DeviceScript.granted() })
        let handle = await broker.beginDevice()
        await time.sleepers(of: .seconds(5))
        time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle).contains("complete"))
        let seen = broker.transport.seen
        #expect(seen.count >= 2)
        #expect(seen.allSatisfy { $0.form["client_assertion"] == Self.assertion(1) })
    }

    /// The content of a file, nil for no file, and a part of what the error says of it.
    private static let unusable: [(member: String, content: String?, words: String)] = [
        ("client_assertion_file", nil, "does not exist"), ("client_assertion_file", "", "is empty"),
        ("client_assertion_file", "\n", "is empty"), ("client_assertion_file", "a.b", "other content than a JWT"),
        ("client_assertion_file", "a.b.c.d", "other content than a JWT"),
        ("client_assertion_file", "a..c", "other content than a JWT"),
        ("client_assertion_file", "a.b.c\nd", "other content than a JWT"),
        ("client_assertion_file", "a.b." + String(repeating: "c", count: 65_533), "is longer than 65536 bytes"),
        ("client_secret_file", nil, "does not exist"), ("client_secret_file", "", "is empty"),
        ("client_secret_file", "\r\n\n", "is empty"), ("client_secret_file", "a\nb", "other content than one line"),
        ("client_secret_file", String(repeating: "s", count: 65_537), "is longer than 65536 bytes"),
    ]

    @Test(arguments: unusable.indices)
    func `ends no session where its file cannot be used`(index: Int) async throws {
        let (member, content, words) = Self.unusable[index]
        let file = StoreFixtureDirectory()
        if let content { try Self.write(file, content) }
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""\#(member)": "\#(file.path)""#))
        await Self.needToken(broker)
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(answer.text.contains(words))
        #expect(!answer.text.contains(file.path))
        #expect(await broker.status().isLoggedIn == true)
        #expect(broker.transport.seen.isEmpty)
        let login = await broker.beginLogin()
        #expect(await broker.callback("code=c-1&state=\(login.state)").status >= 400)
        #expect(broker.transport.seen.isEmpty)
        let check = await broker.call(.post, "/tenants/t1/check")
        #expect(check.text.contains(words))
        // The file is mended, and the session goes on.
        broker.time.advance(by: .seconds(5))
        try Self.write(file, Self.assertion(1))
        broker.transport.always(Self.granted)
        #expect(await broker.get().token == "a2")
    }

    @Test func `is a file of 65,536 bytes at most`() async throws {
        let file = StoreFixtureDirectory()
        let longest = "a.b." + String(repeating: "c", count: 65_532)
        try Self.write(file, longest)
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""client_assertion_file": "\#(file.path)""#))
        await Self.needToken(broker)
        broker.transport.enqueue(Self.granted)
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["client_assertion"] == longest)
    }

    @Test func `is no directory, and no pipe whose other end never comes`() async throws {
        let broker = try await BrokerHarness()
        for path in ["/dev/null", "/"] {
            await broker.makeTenant("t1", Self.tenant(#""client_secret_file": "\#(path)""#))
            await Self.needToken(broker)
            let answer = await broker.get()
            #expect(answer.code == "illegal_configuration")
            #expect(answer.text.contains("is not a regular file"))
        }
    }

    @Test func `is the secret in a file as if the configuration had it`() async throws {
        let file = StoreFixtureDirectory()
        try Self.write(file, "s 1\n")
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""client_secret_file": "\#(file.path)""#))
        await broker.logIn()
        let header = "Basic " + Base64.encode(Array("c1:s%201".utf8))
        #expect(broker.transport.seen.last?.fields["Authorization"]?.text == header)
        try Self.write(file, "s2")
        broker.transport.enqueue(Self.granted)
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        let next = "Basic " + Base64.encode(Array("c1:s2".utf8))
        #expect(broker.transport.seen.last?.fields["Authorization"]?.text == next)
        // A refresh token of the earlier secret is the same client's.
        #expect(await broker.status().isLoggedIn == true)
    }

    // MARK: Keys

    private static func claims(_ assertion: String?) throws -> JSONValue {
        let key = try PrivateJSONWebKey(JSONValue(parsing: Array(ClientKeys.jwk(ClientKeys.p256).utf8)))
        let jws = try CompactJWS(
            parsing: WireText(try #require(assertion)), policy: JWSPolicy(algorithms: [.es256], types: ["JWT"]))
        return try JSONValue(parsing: try jws.verified(with: key.publicJWK).payload)
    }

    // Q45
    @Test func `is a JWT of its own for each call, also for one that is repeated`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            Self.tenant(
                #""issuer": "https://op.example", "private_key": \#(ClientKeys.jwk(ClientKeys.p256, keyID: "k1"))"#))
        await Self.needToken(broker)
        broker.transport.enqueue(.json(503, ""), .json(503, ""), Self.granted)
        #expect(await broker.get().token == "a2")
        let claims = try broker.transport.seen.map { try Self.claims($0.form["client_assertion"]) }
        #expect(claims.count == 3)
        #expect(Set(claims.map { $0["jti"]?.text }).count == 3)
        for claims in claims {
            #expect(claims["iss"]?.text == "c1")
            #expect(claims["aud"]?.text == "https://op.example")
            #expect((claims["exp"]?.integer ?? 0) - (claims["iat"]?.integer ?? 0) == 60)
        }
    }

    @Test(arguments: [
        ("issuer", Array(repeating: "https://op.example", count: 4)),
        ("token_endpoint", Array(repeating: "https://op.example/t", count: 4)),
        (
            "endpoint",
            ["https://op.example/par", "https://op.example/t", "https://op.example/t", "https://op.example/r"]
        ),
    ])
    func `is a JWT for what the tenant says`(audience: String, expected: [String]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example",
             "endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t",
                           "revocation": "https://op.example/r",
                           "pushed_authorization_request": "https://op.example/par"},
             "private_key": \#(ClientKeys.jwk(ClientKeys.p256)), "client_assertion_audience": "\#(audience)"}
            """#)
        broker.transport.enqueue(.json(201, #"{"request_uri": "u", "expires_in": 60}"#))
        #expect(await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}").status == 201)
        let state = try #require(broker.transport.seen.last?.form["state"])
        broker.transport.enqueue(Self.granted)
        let done = await broker.callback("code=c-1&state=\(state)&iss=https://op.example")
        #expect(done.status == 200, "\(done.text)")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        broker.transport.enqueue(.json(200, ""))
        let logout = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(logout.fields["Token-Revocation"] == "revoked")
        let claims = try broker.transport.seen.map { try Self.claims($0.form["client_assertion"]) }
        #expect(claims.map { $0["aud"]?.text } == expected)
    }

    @Test func `is a JWT that the secret signs`() async throws {
        let broker = try await BrokerHarness()
        let secret = String(repeating: "s", count: 32)
        await broker.makeTenant(
            "t1",
            Self.tenant(#""client_secret": "\#(secret)", "token_endpoint_auth_method": "client_secret_jwt""#))
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        let form = try #require(broker.transport.seen.last?.form)
        #expect(form["client_secret"] == nil)
        let parts = (form["client_assertion"] ?? "").split(separator: ".").map(String.init)
        try #require(parts.count == 3)
        let code = HMAC.sha256(key: SecretBytes(utf8: secret), Array("\(parts[0]).\(parts[1])".utf8))
        #expect(Base64URL.encode(code) == parts[2])
    }

    @Test func `is shown in no error that repeats it`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""private_key": \#(ClientKeys.jwk(ClientKeys.p256))"#))
        await Self.needToken(broker)
        broker.transport.always(
            .decide {
                let text = ($0.form["client_assertion"] ?? "").suffix(60)
                return .json(400, #"{"error": "\#(text)", "error_description": "\#(text)"}"#)
            })
        let answer = await broker.get()
        let assertion = try #require(broker.transport.seen.first?.form["client_assertion"])
        for text in [answer.text, broker.log.joined()] { #expect(!text.contains(assertion.suffix(60))) }
    }

    // MARK: Two secrets

    private static func secret(of seen: ScriptedTransport.Seen) -> String { seen.form["client_secret"] ?? "" }

    private static func accepting(_ secrets: String..., refusal: String = "invalid_client") -> ScriptedTransport.Step {
        .decide {
            secrets.contains(secret(of: $0)) ? granted : .json(401, #"{"error": "\#(refusal)"}"#)
        }
    }

    private static let both =
        #""client_secrets": ["new", "old"], "token_endpoint_auth_method": "client_secret_post""#

    @Test func `is the next secret where the first is refused, and that is remembered`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.both))
        await broker.set("a1", refresh: "r1")
        broker.transport.always(Self.accepting("old"))
        for _ in 0..<3 { #expect(await broker.get("policy=local_force_refresh").token == "a2") }
        #expect(broker.transport.seen.map { Self.secret(of: $0) } == ["new", "old", "old", "old"])
        // The provider knows the new one now, and forgets the old one.
        broker.transport.always(Self.accepting("new"))
        for _ in 0..<2 { #expect(await broker.get("policy=local_force_refresh").token == "a2") }
        #expect(broker.transport.seen.dropFirst(4).map { Self.secret(of: $0) } == ["old", "new", "new"])
    }

    @Test func `is one secret where the first is accepted, or the refusal is another one`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.both))
        await broker.set("a1", refresh: "r1")
        broker.transport.always(Self.accepting("new"))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        #expect(broker.transport.seen.map { Self.secret(of: $0) } == ["new"])
        broker.transport.always(Self.accepting(refusal: "invalid_scope"))
        _ = await broker.get("policy=local_force_refresh")
        #expect(broker.transport.seen.dropFirst().first.map { Self.secret(of: $0) } == "new")
        #expect(!broker.transport.seen.contains { Self.secret(of: $0) == "old" })
    }

    @Test func `ends no session where both secrets are refused`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.both))
        await Self.needToken(broker)
        broker.transport.always(Self.accepting())
        #expect(await broker.get().code == "illegal_configuration")
        #expect(await broker.status().isLoggedIn == true)
        #expect(broker.transport.seen.prefix(2).map { Self.secret(of: $0) } == ["new", "old"])
    }

    // MARK: Certificates

    private static func pem(_ name: ClientCertificates.Name) throws -> String {
        let certificates = ClientCertificates.shared
        let bytes =
            try SmallFile.read(certificates.chain(name), limit: 65_536)
            + SmallFile.read(certificates.key(name), limit: 65_536)
        return String(decoding: bytes, as: UTF8.self)
    }

    private static func quoted(_ text: String) -> String {
        "\"" + text.replacing("\n", with: #"\n"#) + "\""
    }

    // Q44
    @Test func `is a certificate, at the addresses for that`() async throws {
        let broker = try await BrokerHarness()
        let pem = try Self.pem(.dns)
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example",
             "token_endpoint_auth_method": "tls_client_auth", "client_certificate": \#(Self.quoted(pem))}
            """#)
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
                 "token_endpoint": "https://op.example/t", "revocation_endpoint": "https://op.example/r",
                 "token_endpoint_auth_methods_supported": ["tls_client_auth"],
                 "mtls_endpoint_aliases": {"token_endpoint": "https://mtls.op.example/t"}}
                """#))
        await broker.logIn()
        broker.transport.enqueue(.json(200, ""))
        _ = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        let seen = broker.transport.seen
        #expect(seen.dropFirst().map(\.url) == ["https://mtls.op.example/t", "https://op.example/r"])
        let certificate = ClientCertificate(pem: SecretBytes(utf8: pem))
        #expect(seen.map(\.certificate) == [nil, certificate, certificate])
        #expect(seen[1].form["client_id"] == "c1")
    }

    // Q44
    @Test func `is a certificate beside a secret, where a tenant has both`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", Self.tenant(#""client_secret": "s", "client_certificate": \#(Self.quoted(try Self.pem(.dns)))"#))
        await broker.makeTenant("t2", Self.tenant(#""client_secret": "s""#))
        await broker.logIn()
        await broker.logIn(tenant: "t2")
        #expect(broker.transport.seen.map { $0.certificate != nil } == [true, false])
        #expect(broker.transport.seen.allSatisfy { $0.fields["Authorization"] != nil })
    }
}
