import BrokerCore
import BrokerTesting
import CredentialStore
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

/// Pushed requests and bound tokens of clients that show something new in each request.
@Suite(.timeLimit(.minutes(1))) struct `Clients with keys of their own` {
    private static let endpoint = "https://op.example/par"
    private static let key = #""private_key": \#(ClientKeys.jwk(ClientKeys.p256, keyID: "k1"))"#

    private static func tenant(_ members: String) -> String {
        #"""
        {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://op.example/a",
         "token": "https://op.example/t", "pushed_authorization_request": "\#(endpoint)"}, \#(members)}
        """#
    }

    private static let pushed = ScriptedTransport.Step.json(201, #"{"request_uri": "u", "expires_in": 60}"#)

    private static func asksForNonce(_ nonce: String) -> ScriptedTransport.Step {
        .json(400, #"{"error": "use_dpop_nonce"}"#, fields: ["DPoP-Nonce": nonce])
    }

    private static let granted = ScriptedTransport.Step.json(
        200, #"{"access_token": "a1", "token_type": "DPoP", "expires_in": 3600, "refresh_token": "r1"}"#)

    /// The `jti` of a JWT, which is not verified.
    private static func identifier(_ jwt: String?) throws -> String {
        let parts = try #require(jwt).split(separator: ".")
        let bytes = try #require(parts.count == 3 ? Base64URL.decode(String(parts[1])) : nil)
        return try #require(try JSONValue(parsing: bytes)["jti"]?.text)
    }

    private static func begin(_ broker: BrokerHarness, _ body: String = "{}") async -> BrokerHarness.Answer {
        await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
    }

    @Test func `make JWT and proof anew where the server asks for a nonce`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#""dpop": true, "# + Self.key))
        broker.transport.enqueue(Self.asksForNonce("n-1"), Self.pushed)
        #expect(await Self.begin(broker).status == 201)
        let state = try #require(broker.transport.seen.last?.form["state"])
        broker.transport.enqueue(Self.asksForNonce("n-2"), Self.granted)
        #expect(await broker.callback("code=c-1&state=\(state)").status == 200)
        broker.transport.enqueue(Self.asksForNonce("n-3"), Self.granted)
        #expect(await broker.get("policy=local_force_refresh").token == "a1")
        let seen = broker.transport.seen
        #expect(seen.map(\.url) == [Self.endpoint, Self.endpoint] + Array(repeating: "https://op.example/t", count: 4))
        #expect(Set(try seen.map { try Self.identifier($0.form["client_assertion"]) }).count == 6)
        #expect(Set(try seen.map { try Self.identifier($0.fields["DPoP"]?.text) }).count == 6)
        #expect(broker.transport.remaining == 0)
    }

    @Test func `push what the login asks for, with their JWT, by the tenant's proxy`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            Self.tenant(
                #""scopes": ["a", "b"], "outbound_proxy": "http://proxy.example:3128", "# + Self.key))
        broker.transport.enqueue(Self.pushed)
        let answer = await Self.begin(
            broker,
            #"{"scopes": ["b"], "resource": ["https://one.example/", "https://two.example/"], "audience": "api"}"#)
        #expect(answer.status == 201, "\(answer.text)")
        #expect(
            BrokerHarness.parameters(of: answer.json["login_uri"]?.text ?? "") == [
                "client_id": "c1", "request_uri": "u",
            ])
        let seen = try #require(broker.transport.seen.last)
        #expect(seen.url == Self.endpoint)
        #expect(seen.proxy == "http://proxy.example:3128")
        #expect(seen.form["scope"] == "b")
        #expect(seen.form["audience"] == "api")
        #expect(
            seen.parameters.filter { $0.name == "resource" }.map(\.value) == [
                "https://one.example/", "https://two.example/",
            ])
        #expect(seen.form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
        #expect(try !Self.identifier(seen.form["client_assertion"]).isEmpty)
        #expect(seen.parameters.filter { $0.name == "client_id" }.map(\.value) == ["c1"])
    }

    @Test func `push by the next secret where the first is refused`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1",
            Self.tenant(
                #""client_secrets": ["new", "old"], "token_endpoint_auth_method": "client_secret_post""#))
        broker.transport.enqueue(.json(401, #"{"error": "invalid_client"}"#), Self.pushed)
        #expect(await Self.begin(broker).status == 201)
        #expect(broker.transport.seen.map { $0.form["client_secret"] } == ["new", "old"])
    }

    private static func pem() throws -> String {
        let certificates = ClientCertificates.shared
        let bytes =
            try SmallFile.read(certificates.chain(.dns), limit: 65_536)
            + SmallFile.read(certificates.key(.dns), limit: 65_536)
        return String(decoding: bytes, as: UTF8.self)
    }

    @Test(arguments: [true, false])
    func `push at the address for clients with a certificate`(hasAlias: Bool) async throws {
        let broker = try await BrokerHarness()
        let pem = try Self.pem()
        await broker.makeTenant(
            "t1",
            #"""
            {"provider": "oidc", "client_id": "c1", "issuer": "https://op.example",
             "token_endpoint_auth_method": "tls_client_auth",
             "client_certificate": "\#(pem.replacing("\n", with: #"\n"#))"}
            """#)
        let alias = "https://mtls.op.example/par"
        let aliases = hasAlias ? #""pushed_authorization_request_endpoint": "\#(alias)""# : ""
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
                 "token_endpoint": "https://op.example/t", "pushed_authorization_request_endpoint": "\#(Self.endpoint)",
                 "require_pushed_authorization_requests": true,
                 "token_endpoint_auth_methods_supported": ["tls_client_auth"], "mtls_endpoint_aliases": {\#(aliases)}}
                """#), Self.pushed)
        let answer = await Self.begin(broker)
        #expect(answer.status == 201, "\(answer.text)")
        let seen = try #require(broker.transport.seen.last)
        #expect(seen.url == (hasAlias ? alias : Self.endpoint))
        #expect(seen.certificate == ClientCertificate(pem: SecretBytes(utf8: pem)))
        #expect(seen.parameters.filter { $0.name == "client_id" }.map(\.value) == ["c1"])
    }
}
