import Cryptography
import ExternalText
import JSON
import OAuth
import Testing

@Suite struct `What a resource says of its authorization` {
    @Test(arguments: [
        (["Bearer resource_metadata=\"https://a.example/m\""], "https://a.example/m", nil),
        (["bearer realm=\"x\", resource_metadata=\"https://a.example/m\", scope=\"a b\""], "https://a.example/m", "a b"),
        (["Bearer scope=a,resource_metadata=plain"], "plain", "a"),
        (["Basic realm=\"a, Bearer b\", Bearer scope=\"s\""], nil, "s"),
        (["Negotiate YWJj==, Bearer scope=s"], nil, "s"),
        (["Basic realm=x", "Bearer scope=s"], nil, "s"),
        (["Bearer scope=\"a \\\"b\\\" \\\\c\""], nil, "a \"b\" \\c"),
        (["Bearer scope=first, scope=second"], nil, "first"),
        (["Bearer scope = \"s\""], nil, "s"),
        (["Bearer scope=\"without an end"], nil, "without an end"),
        (["Bearer"], nil, nil),
    ] as [([String], String?, String?)])
    func `is read from its challenge`(fields: [String], metadata: String?, scope: String?) throws {
        let challenge = try #require(BearerChallenge(fields.map { WireText($0) }))
        #expect(challenge.resourceMetadata?.text == metadata)
        #expect(challenge.scope?.text == scope)
    }

    @Test(arguments: [[], [""], ["Basic realm=\"Bearer x\""], ["DPoP algs=\"ES256\""], ["=,,="]])
    func `is nothing where no challenge is for a bearer`(fields: [String]) {
        #expect(BearerChallenge(fields.map { WireText($0) }) == nil)
    }

    @Test(arguments: [
        (#"{"resource": "https://a.example/mcp", "authorization_servers": ["https://as.example"]}"#, true),
        (#"{"resource": "https://a.example/mcp", "authorization_servers": []}"#, false),
        (#"{"resource": "https://a.example/mcp"}"#, false),
        (#"{"authorization_servers": ["https://as.example"]}"#, false),
        (#"{"resource": 1, "authorization_servers": ["https://as.example"]}"#, false),
        (#"[]"#, false),
    ])
    func `needs a resource and a server`(text: String, isUsable: Bool) throws {
        let json = try JSONValue(parsing: Array(text.utf8))
        #expect((ProtectedResource(json) != nil) == isUsable)
    }

    @Test(arguments: [
        ("/mcp", "/mcp", true), ("/mcp", "/mcp/", true), ("/mcp/", "/mcp", true), ("/mcp", "/", true), ("/mcp/a", "/mcp", true),
        ("/mcp", "/mcp/a", false), ("/mcpx", "/mcp", false), ("/mcp", "/other", false), ("/", "/mcp", false), ("/", "/", true),
    ])
    func `holds for the addresses at and below its identifier`(address: String, identifier: String, holds: Bool) throws {
        let json = try JSONValue(
            parsing: Array(#"{"resource": "r", "authorization_servers": ["https://as.example"]}"#.utf8))
        let document = try #require(ProtectedResource(json))
        let origin: WireText = "https://a.example"
        #expect(document.isOf((origin, WireText(address)), identifier: (origin, WireText(identifier))) == holds)
        #expect(!document.isOf((origin, WireText(address)), identifier: ("https://b.example", WireText(identifier))))
    }
}

@Suite struct `The answer to a registration` {
    private static let asked = ClientMetadata(
        name: "n", redirectURIs: ["https://b.example/cb"], method: .clientSecretPost, scopes: .empty)

    private static func client(_ text: String) throws -> RegisteredClient? {
        RegisteredClient(try JSONValue(parsing: Array(text.utf8)), asked: asked)
    }

    @Test(arguments: [
        (#"{"client_id": "c"}"#, "none", false),
        (#"{"client_id": "c", "client_secret": ""}"#, "none", false),
        (#"{"client_id": "c", "client_secret": "s"}"#, "client_secret_post", true),
        (#"{"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": "client_secret_basic"}"#,
         "client_secret_basic", true),
        (#"{"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": "none"}"#, "none", false),
    ])
    func `says how the client authenticates`(text: String, method: String, hasSecret: Bool) throws {
        let client = try #require(try Self.client(text))
        #expect(client.method.rawValue == method)
        #expect((client.secret != nil) == hasSecret)
        #expect(client.redirectURIs == ["https://b.example/cb"])
        #expect(client.secretExpires == nil && client.management == nil)
    }

    @Test(arguments: [
        #"{}"#, #"{"client_id": ""}"#, #"{"client_id": 1}"#,
        #"{"client_id": "c", "token_endpoint_auth_method": "client_secret_post"}"#,
        #"{"client_id": "c", "token_endpoint_auth_method": "odd", "client_secret": "s"}"#,
    ])
    func `is not used where it has no client that can authenticate`(text: String) throws {
        #expect(try Self.client(text) == nil)
    }

    @Test(arguments: [
        (0, false), (1, true), (253_402_300_799, true), (253_402_300_800, false), (-1, false),
    ] as [(Int64, Bool)])
    func `tells when a secret ends`(seconds: Int64, ends: Bool) throws {
        let client = try #require(
            try Self.client(#"{"client_id": "c", "client_secret": "s", "client_secret_expires_at": \#(seconds)}"#))
        #expect((client.secretExpires != nil) == ends)
    }

    @Test(arguments: [
        (#"{"client_id": "c"}"#, "s", 1_900_000_000, "t"),
        (#"{"client_id": "c", "client_secret": "new"}"#, "new", nil, "t"),
        (#"{"client_id": "c", "client_secret": "new", "client_secret_expires_at": 2000000000}"#, "new", 2_000_000_000, "t"),
        (#"{"client_id": "c", "client_secret": "********"}"#, "s", 1_900_000_000, "t"),
        (#"{"client_id": "c", "registration_access_token": "t2"}"#, "s", 1_900_000_000, "t2"),
        (#"{"client_id": "c", "registration_client_uri": "https://evil.example"}"#, "s", 1_900_000_000, "t"),
    ] as [(String, String, Int64?, String)])
    func `is completed by what is told later`(text: String, secret: String, end: Int64?, token: String) throws {
        let client = try #require(
            try Self.client(
                #"""
                {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 1900000000,
                 "registration_client_uri": "https://as.example/c", "registration_access_token": "t"}
                """#))
        let updated = try #require(client.updated(by: try JSONValue(parsing: Array(text.utf8))))
        #expect(updated.secret?.revealedText == secret)
        #expect(updated.secretExpires == end.map { Timestamp(seconds: $0) })
        #expect(updated.management?.token.revealedText == token)
        #expect(updated.management?.uri == "https://as.example/c")
        #expect(client.updated(by: try JSONValue(parsing: Array(#"{"client_id": "other"}"#.utf8))) == nil)
    }

    @Test func `is kept as it was`() throws {
        let text = #"""
            {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 1900000000,
             "token_endpoint_auth_method": "client_secret_basic", "redirect_uris": ["https://b.example/other"],
             "registration_client_uri": "https://as.example/c", "registration_access_token": "t"}
            """#
        let client = try #require(try Self.client(text))
        let kept = try JSONValue(parsing: JSONWriter.object { client.encode(to: &$0) })
        #expect(RegisteredClient(kept, asked: nil) == client)
        #expect(client.management?.uri == "https://as.example/c")
        // As they were asked for, however the server spells them.
        #expect(client.redirectURIs == ["https://b.example/cb"])
    }
}
