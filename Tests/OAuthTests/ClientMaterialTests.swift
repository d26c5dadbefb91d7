import Cryptography
import ExternalText
import GroundTesting
import HTTPCodec
import JOSE
import JSON
import OAuth
import Testing

/// What a client shows beside one secret.
@Suite struct `What a client shows` {
    private static func key(_ json: String) throws -> ClientPrivateKey {
        try ClientPrivateKey(JSONValue(parsing: Array(json.utf8)))
    }

    private static func client(
        secret: String? = nil, secrets: [String] = [], secretFile: WireText? = nil, assertionFile: WireText? = nil,
        key: ClientPrivateKey? = nil, certificate: String? = nil
    ) -> ClientConfiguration {
        ClientConfiguration(
            clientID: "client-1", clientSecret: (secret ?? secrets.first).map(SecretBytes.init(utf8:)),
            clientUniqueKey: nil, scopes: .empty,
            material: ClientMaterial(
                secrets: secrets.map(SecretBytes.init(utf8:)), secretFile: secretFile, assertionFile: assertionFile,
                privateKey: key, certificate: certificate.map(SecretBytes.init(utf8:))))
    }

    private static func claims(_ assertion: WireText) throws -> (header: JSONValue, claims: JSONValue) {
        let parts = assertion.text.split(separator: ".").map(String.init)
        try #require(parts.count == 3)
        return (
            try JSONValue(parsing: try #require(Base64URL.decode(parts[0]))),
            try JSONValue(parsing: try #require(Base64URL.decode(parts[1])))
        )
    }

    // MARK: Keys

    /// The members of a JWK, and the algorithm by which it signs.
    @Test(arguments: [
        ([ClientKeys.p256], "ES256"), ([ClientKeys.p256, #""alg":"ES256""#], "ES256"), ([ClientKeys.rsa], "RS256"),
        ([ClientKeys.rsa, #""alg":"PS256""#], "PS256"), ([ClientKeys.rsa, #""use":"sig""#], "RS256"),
    ])
    func `signs by the algorithm of the key`(members: [String], algorithm: String) throws {
        let key = try Self.key("{" + (members + [#""kid":"k1""#]).joined(separator: ",") + "}")
        let assertion = try ClientAssertion.sign(
            by: .privateKey, for: Self.client(key: key), at: Sample.oidc, now: Sample.now)
        let (header, _) = try Self.claims(assertion)
        #expect(header["alg"]?.text == algorithm)
        #expect(header["kid"]?.text == "k1")
        // The key's own public part verifies it.
        let jwk = try PrivateJSONWebKey(JSONValue(parsing: Array(("{" + members.joined(separator: ",") + "}").utf8)))
        let jws = try CompactJWS(
            parsing: assertion, policy: JWSPolicy(algorithms: Set(SignatureAlgorithm.allCases)))
        _ = try jws.verified(with: jwk.publicJWK)
    }

    @Test(arguments: [(PrivateKey.Kind.elliptic(.p256), "ES256"), (.elliptic(.p384), "ES384"), (.ed25519, "EdDSA")])
    func `signs by a key in the form of PEM, without its name`(kind: PrivateKey.Kind, algorithm: String) throws {
        let pem = try PrivateKey.generate(kind).pem().revealedText
        let key = try ClientPrivateKey(.string(WireText(pem)))
        let assertion = try ClientAssertion.sign(
            by: .privateKey, for: Self.client(key: key), at: Sample.oidc, now: Sample.now)
        let (header, _) = try Self.claims(assertion)
        #expect(header["alg"]?.text == algorithm)
        #expect(header["kid"] == nil)
        #expect(key.json == .string(WireText(pem)))
    }

    @Test(arguments: [
        "1", "[]", #""""#, #""no key""#, "{}", ClientKeys.jwk(ClientKeys.publicP256),
        ClientKeys.jwk(ClientKeys.weakRSA),
        ClientKeys.jwk(ClientKeys.p256, #""use":"enc""#), ClientKeys.jwk(ClientKeys.p256, #""alg":"RS256""#),
        ClientKeys.jwk(ClientKeys.p256, #""alg":"HS256""#), ClientKeys.jwk(ClientKeys.p256, #""key_ops":["verify"]"#),
        #"{"kty":"oct","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#,
        ClientKeys.jwk(ClientKeys.p256, #""x5c":["\#(String(repeating: "A", count: 16_384))"]"#),
    ])
    func `is no public, weak, long or other key`(json: String) {
        #expect(throws: (any Error).self) { try Self.key(json) }
    }

    @Test func `is written as it was read`() throws {
        let json = try JSONValue(parsing: Array(ClientKeys.jwk(ClientKeys.p256, keyID: "k1").utf8))
        #expect(try ClientPrivateKey(json).json == json)
    }

    // MARK: JWTs

    @Test(
        arguments: [
            (nil, nil, nil, "https://auth.example/v1/oauth2/token"),
            (nil, "https://op.example", "https://op.example/r", "https://op.example"),
            (AssertionAudience.issuer, "https://op.example", nil, "https://op.example"),
            (.tokenEndpoint, "https://op.example", "https://op.example/r", "https://auth.example/v1/oauth2/token"),
            (.endpoint, "https://op.example", "https://op.example/r", "https://op.example/r"),
            (.endpoint, "https://op.example", nil, "https://auth.example/v1/oauth2/token"),
        ] as [(AssertionAudience?, String?, String?, String)])
    func `names the client, its provider and a minute`(
        audience: AssertionAudience?, issuer: String?, endpoint: String?, expected: String
    ) throws {
        var server = Sample.oidc
        server.issuer = issuer
        server.requestedEndpoint = endpoint
        var own = RequestShape.Own()
        own.assertionAudience = audience
        server.shape = server.shape.replaced(by: own)
        let client = Self.client(key: try Self.key(ClientKeys.jwk(ClientKeys.p256)))
        let assertions = try (0..<2).map { _ in
            try ClientAssertion.sign(by: .privateKey, for: client, at: server, now: Sample.now)
        }
        let claims = try assertions.map { try Self.claims($0).claims }
        for claims in claims {
            #expect(claims["iss"]?.text == "client-1")
            #expect(claims["sub"]?.text == "client-1")
            #expect(claims["aud"]?.text == expected)
            #expect(claims["iat"] == .integer(Sample.now.seconds))
            #expect(claims["exp"] == .integer(Sample.now.seconds + 60))
        }
        #expect(claims[0]["jti"] != claims[1]["jti"])
    }

    @Test(arguments: [
        (nil, ClientAssertion.Fault.missing), ("s", .shortSecret), (String(repeating: "s", count: 31), .shortSecret),
    ])
    func `needs a key, or a secret that is long enough`(secret: String?, fault: ClientAssertion.Fault) {
        let client = Self.client(secret: secret)
        #expect(throws: fault) {
            try ClientAssertion.sign(by: .secret, for: client, at: Sample.oidc, now: Sample.now)
        }
        #expect(throws: ClientAssertion.Fault.missing) {
            try ClientAssertion.sign(by: .privateKey, for: client, at: Sample.oidc, now: Sample.now)
        }
    }

    @Test func `signs by a secret, too`() throws {
        let client = Self.client(secret: String(repeating: "s", count: 32))
        let assertion = try ClientAssertion.sign(by: .secret, for: client, at: Sample.oidc, now: Sample.now)
        #expect(try Self.claims(assertion).header["alg"]?.text == "HS256")
    }

    // MARK: Requests

    private static let type = "client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer"

    @Test(arguments: [ProviderPreset.ClientAuthentication.privateKeyJWT, .clientSecretJWT, .clientAssertionFile])
    func `has the JWT in the form`(method: ProviderPreset.ClientAuthentication) {
        for repeatsClientID in [true, false] {
            var server = Sample.server(.oidc, authentication: method)
            server.repeatsClientID = repeatsClientID
            let client = Self.client(secret: "s").showing(assertion: "a.b.c")
            let (pairs, authorization) = TokenRequest.clientCredentials.form(for: client, at: server)
            let name = repeatsClientID ? "&client_id=client-1" : ""
            #expect(
                FormEncoding.encode(pairs)
                    == "grant_type=client_credentials\(name)&\(Self.type)&client_assertion=a.b.c")
            #expect(authorization == nil)
        }
    }

    @Test(arguments: [ProviderPreset.ClientAuthentication.tlsClientAuth, .none])
    func `names a client that shows a certificate, or nothing`(method: ProviderPreset.ClientAuthentication) {
        let server = Sample.server(.oidc, authentication: method)
        let (pairs, authorization) = TokenRequest.clientCredentials.form(for: Self.client(secret: "s"), at: server)
        #expect(FormEncoding.encode(pairs) == "grant_type=client_credentials&client_id=client-1")
        #expect(authorization == nil)
    }

    @Test func `is a secret where it is a JWT, and none where it says what it is`() {
        let form =
            "grant_type=refresh_token&\(Self.type)&client_assertion=header1234567.payload1234567.signature1234567"
        let sent = SentSecrets(form: Array(form.utf8), authorization: nil)
        #expect(sent.areRepeated(in: "no payload1234567 here"))
        #expect(sent.areRepeated(in: "signature1234567"))
        #expect(!sent.areRepeated(in: "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"))
    }

    // MARK: Which method

    @Test func `decides on the method where nothing names one`() throws {
        let key = try Self.key(ClientKeys.jwk(ClientKeys.p256))
        let cases: [(ClientConfiguration, ProviderPreset.ClientAuthentication)] = [
            (Self.client(), .clientSecretPost), (Self.client(secret: "s"), .clientSecretPost),
            (Self.client(secretFile: "/s"), .clientSecretPost), (Self.client(secrets: ["a", "b"]), .clientSecretPost),
            (Self.client(key: key), .privateKeyJWT), (Self.client(assertionFile: "/a"), .clientAssertionFile),
            (Self.client(certificate: "c"), .tlsClientAuth),
            (Self.client(secret: "s", certificate: "c"), .clientSecretPost),
            (Self.client(secret: "s", key: key), .clientSecretPost),
        ]
        for (client, method) in cases { #expect(client.method(preferring: .clientSecretPost) == method) }
        #expect(Self.client(secretFile: "/s").method(preferring: .none) == .clientSecretBasic)
    }

    @Test func `tells clients apart by what they show, and files by their path`() throws {
        let key = try Self.key(ClientKeys.jwk(ClientKeys.p256))
        let other = try Self.key(ClientKeys.jwk(ClientKeys.rsa))
        let clients = [
            Self.client(), Self.client(secret: "s"), Self.client(secret: "t"), Self.client(secretFile: "/s"),
            Self.client(secretFile: "/t"), Self.client(assertionFile: "/s"), Self.client(key: key),
            Self.client(key: other), Self.client(certificate: "c"), Self.client(secret: "s", certificate: "c"),
            Self.client(secret: "s", key: key),
        ]
        #expect(Set(clients.map(\.fingerprint.clientSecretDigest)).count == clients.count)
        // A change of secrets begins as the same client.
        let both = Self.client(secrets: ["s", "t"])
        #expect(both.fingerprint == Self.client(secret: "s").fingerprint)
        // What a request shows is no part of it.
        #expect(both.showing(secret: SecretBytes(utf8: "t")).fingerprint == both.fingerprint)
        #expect(both.showing(assertion: "a.b.c").fingerprint == both.fingerprint)
    }
}
