import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `The provider of a tenant` {
    private static let pin = "sha256/AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

    // MARK: Addresses

    // K29 H067
    @Test(arguments: [
        ("login_service_base_uri", "http://login.example"), ("auth_service_base_uri", "http://127.0.0.1:8081/v1"),
        ("issuer", "http://issuer.example"),
    ])
    func `http is refused unless the configuration allows it`(name: String, uri: String) async throws {
        let body = #"{"endpoints": \#(Self.named), "client_id": "c1", "\#(name)": "\#(uri)"}"#
        let strict = try await BrokerHarness()
        let refused = await strict.call(.put, "/tenants/t1", body: body)
        #expect(refused.status == 400)
        #expect(refused.pointers == ["/\(name)"])
        let lenient = try await BrokerHarness { $0.core.providerTargets = .everything }
        let taken = await lenient.call(.put, "/tenants/t1", body: body)
        #expect(taken.status == 201)
        #expect(taken.json[name] == .string(uri))
    }

    // H067 H070
    @Test func `http endpoints are refused each by its pointer`() async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: """
                {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "http://a.example",
                 "token": "http://a.example", "revocation": "http://a.example", "jwks": "http://a.example",
                 "device_authorization": "http://a.example"}, "issuer": "https://a.example"}
                """)
        #expect(
            answer.pointers == [
                "/endpoints/authorization", "/endpoints/device_authorization", "/endpoints/jwks",
                "/endpoints/revocation", "/endpoints/token",
            ])
    }

    @Test func `a base address may end in a slash`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "client_secret": "s1", "auth_service_base_uri": "https://auth.example/v1/"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().level == "client")
        #expect(broker.transport.seen.map(\.url) == ["https://auth.example/v1/oauth2/token"])
    }

    // MARK: Providers and pins

    @Test(arguments: [
        (#""provider": "tidal""#, 201, true), (#""x": 1"#, 400, true),
        (#""certificate_pinning": true"#, 201, true), (#""certificate_pinning": false"#, 201, false),
        (#""certificate_pinning": false, "pinned_certificates": ["\#(pin)"]"#, 201, false),
        (#""pinned_certificates": ["\#(pin)"]"#, 201, true),
    ])
    func `pinning is on with tidal unless it is turned off`(members: String, status: Int, isPinned: Bool) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1", "client_secret": "s1", \#(members)}"#)
        #expect(answer.status == status)
        guard status == 201 else { return }
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        _ = await broker.get()
        #expect(broker.transport.seen.map(\.isPinned) == [isPinned])
        #expect(broker.log.joined().contains("certificate_pinning_disabled") == !isPinned)
    }

    @Test(arguments: [
        (#""issuer": "https://op.example""#, []),
        (#""endpoints": {"authorization": "https://op.example/a", "token": "https://op.example/t"}"#, []),
        (#""endpoints": {"token": "https://op.example/t"}"#, ["/issuer"]),
        (#""endpoints": {"authorization": "https://op.example/a"}"#, ["/issuer"]),
        (#""scopes": ["openid"]"#, ["/issuer"]),
        (#""issuer": "https://op.example", "certificate_pinning": true"#, ["/certificate_pinning"]),
        (#""issuer": "https://op.example", "certificate_pinning": true, "pinned_certificates": ["\#(pin)"]"#, []),
        (
            #""issuer": "https://op.example", "login_service_base_uri": "https://l.example""#,
            ["/login_service_base_uri"]
        ),
        (#""issuer": "https://op.example", "auth_service_base_uri": "https://l.example""#, ["/auth_service_base_uri"]),
    ])
    func `an oidc provider is named by its issuer or by its endpoints`(
        members: String, pointers: [String]
    ) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"provider": "oidc", "client_id": "c1", \#(members)}"#)
        #expect(answer.status == (pointers.isEmpty ? 201 : 400))
        #expect(answer.pointers == pointers)
    }

    @Test(arguments: [
        ("http://127.0.0.1:8181", true), ("http://localhost:8181", true), ("http://[::1]:8181", true),
        ("http://op.example", false), ("http://127.evil.example", false),
    ])
    func `an http provider of this machine is refused with the variable that permits it`(
        issuer: String, isNamed: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1", body: #"{"provider": "oidc", "client_id": "c1", "issuer": "\#(issuer)"}"#)
        #expect(answer.status == 400)
        #expect(answer.pointers == ["/issuer"])
        #expect(answer.text.contains("TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true") == isNamed, "\(answer.text)")
    }

    private static let named = #"{"authorization": "https://op.example/a", "token": "https://op.example/t"}"#

    @Test(arguments: [
        ("", false), (#""provider": null, "#, false), (#""provider": "tidal", "#, false),
        (#""provider": "spotify", "#, false), (#""provider": "oidc", "#, true), (#""provider": "authgear", "#, true),
        // The issuer is for the comparison of iss alone then: both legs of a login are where the tenant says.
        (#""endpoints": \#(named), "#, true), (#""provider": "spotify", "endpoints": \#(named), "#, true),
        (#""endpoints": {"token": "https://op.example/t"}, "#, false),
        (#""endpoints": {"authorization": "https://op.example/a"}, "#, false),
        (#""auth_service_base_uri": "https://op.example", "#, false),
        (#""login_service_base_uri": "https://a.example", "auth_service_base_uri": "https://b.example", "#, true),
    ])
    func `an issuer is taken only where nothing goes to another provider`(members: String, isTaken: Bool) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(
            .put, "/tenants/t1",
            body: #"{\#(members)"client_id": "c1", "client_secret": "s", "issuer": "https://op.example"}"#)
        #expect(answer.status == (isTaken ? 201 : 400))
        #expect(answer.pointers == (isTaken ? [] : ["/issuer"]))
        if !isTaken { #expect(answer.json["detail"]?.text?.contains(#""provider": "oidc""#) == true) }
    }

    @Test func `an issuer that an earlier version has stored is kept`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let id = RecordID(.tenant, TenantName("t1")!)
        let record = try #require(try await broker.vault.read(id))
        let text = record.content.revealedText.dropLast() + #","issuer":"https://issuer.example"}"#
        try await broker.vault.commit([
            .replace(
                OpenRecord(id: id, version: record.version + 1, content: SecretBytes(utf8: String(text))),
                version: record.version)
        ])
        let restarted = try await BrokerHarness(store: broker.store)
        let answer = await restarted.call(.get, "/tenants/t1")
        #expect(answer.status == 200)
        #expect(answer.json["issuer"]?.string == "https://issuer.example")
    }

    @Test(arguments: ["client_secret_basic", "client_secret_post", "none"])
    func `the client authenticates as configured`(method: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"client_id": "c1", "client_secret": "s1", "token_endpoint_auth_method": "\#(method)"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().level == "client")
        let request = try #require(broker.transport.seen.first)
        #expect((request.fields["Authorization"] != nil) == (method == "client_secret_basic"))
        #expect((request.form["client_secret"] != nil) == (method == "client_secret_post"))
        #expect(request.form["client_id"] == "c1")
    }
}

@Suite struct `Configured endpoints` {
    private func server(_ members: String) throws -> AuthorizationServer? {
        let json = try JSONValue(parsing: Array(#"{"client_id": "c1", \#(members)}"#.utf8))
        return try TenantConfiguration(json, rules: TargetPolicy()).configuredServer
    }

    @Test(arguments: [
        (#""provider": "tidal""#, "https://auth.tidal.com/v1/oauth2/device_authorization"),
        (#""auth_service_base_uri": "https://auth.example/v2""#, "https://auth.example/v2/oauth2/device_authorization"),
        (
            #""auth_service_base_uri": "https://auth.example/v2/""#,
            "https://auth.example/v2/oauth2/device_authorization"
        ),
        (#""endpoints": {"device_authorization": "https://id.example/d"}"#, "https://id.example/d"),
    ])
    func `tidal's device login is under its auth service unless it is named`(members: String, endpoint: String) throws {
        #expect(try server(members)?.deviceAuthorizationEndpoint == endpoint)
    }

    @Test func `spotify needs none, and those that are named go before its own`() throws {
        let fixed = try #require(try server(#""provider": "spotify""#))
        #expect(fixed.authorizationEndpoint == "https://accounts.spotify.com/authorize")
        #expect(fixed.tokenEndpoint == "https://accounts.spotify.com/api/token")
        #expect(fixed.deviceAuthorizationEndpoint == nil)
        #expect(fixed.clientAuthentication == .clientSecretBasic)
        let named = try #require(
            try server(
                #""provider": "spotify", "endpoints": {"authorization": "https://s.example/a", "token": "https://s.example/t"}"#
            ))
        #expect(named.authorizationEndpoint == "https://s.example/a")
        #expect(named.tokenEndpoint == "https://s.example/t")
    }

    @Test func `authgear is asked for them by its issuer, without which it is refused`() throws {
        #expect(try server(#""provider": "authgear", "issuer": "https://app.authgear.example""#) == nil)
        #expect(throws: BrokerError.self) { try server(#""provider": "authgear""#) }
    }
}
