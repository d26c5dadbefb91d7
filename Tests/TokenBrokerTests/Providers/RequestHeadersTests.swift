import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing

/// The header fields that a tenant has the broker send to its provider.
@Suite struct `Header fields for a provider` {
    private static let provider = SigningProvider()
    private static let issuer = SigningProvider.issuer
    private static let userInfo = "https://op.example/userinfo"
    private static let headers = #""request_headers": {"X-Partner": "acme 7", "User-Agent": "acme/2"}"#

    private static func tenant(_ members: String) -> String {
        #"""
        {"client_id": "c1", "client_secret": "s1", "scopes": ["openid"], "provider": "oidc", "issuer": "\#(issuer)",
         "endpoints": {"userinfo": "\#(userInfo)"}, \#(members)}
        """#
    }

    private static let metadata = #"""
        {"issuer": "\#(issuer)", "authorization_endpoint": "https://op.example/authorize",
         "token_endpoint": "https://op.example/token", "revocation_endpoint": "https://op.example/revoke",
         "jwks_uri": "\#(SigningProvider.keysAddress)"}
        """#

    /// Logs a user in, and out at the provider.
    /// - Returns: all requests to the provider.
    private static func requests(_ members: String) async throws -> [ScriptedTransport.Seen] {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant(members))
        broker.transport.enqueue(.json(200, metadata))
        let login = await broker.beginLogin()
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        broker.transport.standing(at: userInfo, .json(200, #"{"sub": "ada"}"#))
        let idToken = provider.idToken(
            of: "ada", at: broker.time.now, nonce: BrokerHarness.parameters(of: login.uri)["nonce"])
        broker.transport.enqueue(
            .json(
                200,
                #"{"access_token": "a1", "expires_in": 3600, "refresh_token": "r1", "id_token": "\#(idToken)"}"#),
            .json(200, ""))
        let answer = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        #expect(answer.status == 200)
        #expect(await broker.call(.delete, "/credentials?revoke=true", tenant: "t1").status == 204)
        let requests = broker.transport.seen + broker.transport.standingSeen
        let addresses = Set(requests.map(\.url))
        for address in ["token", "revoke", "userinfo"] { #expect(addresses.contains("https://op.example/\(address)")) }
        #expect(addresses.contains(SigningProvider.keysAddress))
        #expect(addresses.contains { $0.contains("/.well-known/") })
        return requests
    }

    // Q48
    @Test func `go with every request, and User-Agent replaces the broker's`() async throws {
        for request in try await Self.requests(Self.headers) {
            #expect(request.fields.values("X-Partner") == ["acme 7"], "\(request.url)")
            #expect(request.fields.values("User-Agent") == ["acme/2"], "\(request.url)")
            #expect(request.fields.values("Accept").count == 1)
        }
    }

    @Test func `are not there without the tenant's wish`() async throws {
        for request in try await Self.requests(#""request_headers": {}"#) {
            #expect(!request.fields.contains("X-Partner"))
            #expect(request.fields["User-Agent"] != "acme/2")
        }
    }

    @Test func `are shown with the tenant, and outlive a restart`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(Self.headers))
        let other = try await BrokerHarness(store: broker.store)
        let shown = await other.call(.get, "/tenants/t1").json["request_headers"]
        #expect(shown == .object(["X-Partner": .string("acme 7"), "User-Agent": .string("acme/2")]))
        await broker.makeTenant("t1", Self.tenant(#""request_headers": null"#))
        #expect(await broker.call(.get, "/tenants/t1").json["request_headers"] == nil)
    }

    private static let long = String(repeating: "x", count: 1024)

    private static let values: [(value: String, wrong: [String])] = [
        (#"{"X-A": "1", "x_b-2": "\#(long)"}"#, []), (#"{"X-A": "\#(long)x"}"#, ["/X-A"]), (#"{"X-A": ""}"#, ["/X-A"]),
        (#"{"\#(long.prefix(64))": "1"}"#, []), (#"{"\#(long.prefix(65))": "1"}"#, ["/\(long.prefix(65))"]),
        (#"{"": "1"}"#, ["/"]), (#"{"X A": "1"}"#, ["/X A"]), (#"{"X:": "1"}"#, ["/X:"]), (#"{"Ä": "1"}"#, ["/Ä"]),
        (#"{"X-A": "a\r\nX-B: b"}"#, ["/X-A"]), (#"{"X-A": " a"}"#, ["/X-A"]), (#"{"X-A": "a\t"}"#, ["/X-A"]),
        (#"{"X-A": "ä"}"#, ["/X-A"]), (#"{"X-A": 1}"#, ["/X-A"]), (#"{"X-A": "1", "x-a": "2"}"#, ["/x-a"]),
        (#"{"authorization": "Basic x"}"#, ["/authorization"]),
        (#"{"Proxy-Authorization": "x"}"#, ["/Proxy-Authorization"]),
        (#"{"COOKIE": "a=b"}"#, ["/COOKIE"]), (#"{"Set-Cookie": "a=b"}"#, ["/Set-Cookie"]),
        (#"{"Host": "a"}"#, ["/Host"]),
        (#"{"Content-Length": "1"}"#, ["/Content-Length"]), (#"{"Transfer-Encoding": "x"}"#, ["/Transfer-Encoding"]),
        (#"{"Accept-Encoding": "br"}"#, ["/Accept-Encoding"]), (#"{"traceparent": "00"}"#, ["/traceparent"]),
        ("[]", [""]), (#""X-A: 1""#, [""]),
        ("{" + (0..<20).map { #""X-\#($0)": "1""# }.joined(separator: ",") + "}", []),
        ("{" + (0..<21).map { #""X-\#($0)": "1""# }.joined(separator: ",") + "}", [""]),
    ]

    @Test(arguments: values)
    func `are refused by name where they must not be sent`(value: String, wrong: [String]) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: Self.tenant(#""request_headers": \#(value)"#))
        #expect(answer.status == (wrong.isEmpty ? 201 : 400))
        #expect(
            answer.pointers
                == wrong.map {
                    "/request_headers"
                        + ($0.isEmpty ? "" : "/" + JSONValue.pointerToken(WireText(String($0.dropFirst()))))
                })
    }
}
