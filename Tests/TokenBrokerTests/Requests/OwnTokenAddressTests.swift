import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Which addresses of its profile a tenant uses that names addresses of its own.
@Suite(.timeLimit(.minutes(1))) struct `A tenant with a token address of its own` {
    private static let own = "https://stand-in.example/token"

    /// The addresses of a tenant, as far as no metadata is needed.
    private static func server(_ members: String) throws -> AuthorizationServer? {
        try TenantConfiguration(JSONValue(parsing: Array("{\(members)}".utf8)), rules: TargetPolicy())
            .configuredServer
    }

    @Test(arguments: ["google", "zoom", "gitlab", "figma", "twitch", "box"])
    func `gets none of the profile's addresses to which tokens or its secret would go`(name: String) throws {
        let client = #""provider": "\#(name)", "client_id": "c1", "client_secret": "s1""#
        let server = try #require(try Self.server(#"\#(client), "endpoints": {"token": "\#(Self.own)"}"#))
        #expect(server.tokenEndpoint == Self.own)
        #expect(server.revocationEndpoint == nil)
        #expect(server.deviceAuthorizationEndpoint == nil)
        #expect(server.refreshEndpoint == nil)
        let named =
            #"{"token": "\#(Self.own)", "revocation": "\#(Self.own)/r", "device_authorization": "\#(Self.own)/d"}"#
        let all = try #require(try Self.server(#"\#(client), "endpoints": \#(named)"#))
        #expect(all.revocationEndpoint == Self.own + "/r")
        #expect(all.deviceAuthorizationEndpoint == Self.own + "/d")
    }

    @Test func `keeps them where it names the profile's own token address`() throws {
        let client = #""provider": "google", "client_id": "c1", "client_secret": "s1""#
        let plain = try #require(try Self.server(client))
        #expect(plain.revocationEndpoint != nil && plain.deviceAuthorizationEndpoint != nil)
        let same = try #require(try Self.server(#"\#(client), "endpoints": {"token": "\#(plain.tokenEndpoint)"}"#))
        #expect(same.revocationEndpoint == plain.revocationEndpoint)
        #expect(same.deviceAuthorizationEndpoint == plain.deviceAuthorizationEndpoint)
    }

    @Test func `keeps them where its base moves them all`() throws {
        let tidal = try #require(
            try Self.server(
                #""provider": "tidal", "client_id": "c1", "auth_service_base_uri": "https://stand-in.example/v1""#))
        #expect(tidal.tokenEndpoint.hasPrefix("https://stand-in.example/v1/"))
        #expect(tidal.deviceAuthorizationEndpoint?.hasPrefix("https://stand-in.example/v1/") == true)
        let duckduckgo = try #require(
            try Self.server(
                #""provider": "duckduckgo", "client_id": "c1", "auth_service_base_uri": "https://stand-in.example""#))
        #expect(duckduckgo.logoutEndpoint?.hasPrefix("https://stand-in.example/") == true)
    }

    @Test func `sends no access token to the profile's logout address`() throws {
        let server = try #require(
            try Self.server(
                #""provider": "duckduckgo", "client_id": "c1", "endpoints": {"token": "\#(Self.own)"}"#))
        #expect(server.logoutEndpoint == nil && !server.canRevoke)
        #expect(server.accountCreationEndpoint == nil && server.activationEndpoint == nil)
    }

    // MARK: PKCE

    // Q37
    @Test(
        arguments: [
            ("required", nil, true), ("required", #"["plain"]"#, true), ("required", "[]", true),
            ("allowed", nil, true), ("allowed", #"["S256"]"#, true), ("allowed", #"["plain", "S256"]"#, true),
            ("allowed", #"["plain"]"#, false), ("allowed", "[]", false), ("allowed", #""S256""#, true),
            ("forbidden", nil, false), ("forbidden", #"["S256"]"#, false),
        ] as [(String, String?, Bool)])
    func `has PKCE as its profile and the metadata say`(use: String, methods: String?, isSent: Bool) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant(
            "t1", #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example", "pkce": "\#(use)"}"#)
        let announced = methods.map { #", "code_challenge_methods_supported": \#($0)"# } ?? ""
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/auth",
                 "token_endpoint": "https://op.example/token"\#(announced)}
                """#))
        let login = await broker.beginLogin()
        let parameters = BrokerHarness.parameters(of: login.uri)
        #expect(parameters["code_challenge_method"] == (isSent ? "S256" : nil))
        #expect((parameters["code_challenge"] != nil) == isSent)
        // Another replica redeems the code as the login began, whatever its metadata says.
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-1")))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        let request = try #require(broker.transport.seen.last)
        #expect((request.form["code_verifier"] != nil) == isSent)
    }
}
