import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Reactor
import Testing

/// What a tenant's configuration says of its client's secrets, keys and files, and what is told of it.
@Suite struct `The client of a tenant` {
    private static let key = ClientKeys.jwk(ClientKeys.p256, keyID: "k1")

    private static func body(_ members: String, client: String = "c1") -> String {
        #"{"provider": "oidc", "client_id": "\#(client)", "issuer": "https://op.example"\#(members.isEmpty ? "" : ", ")\#(members)}"#
    }

    /// The members of an answer that tell what the client shows.
    private static func shown(_ json: JSONValue) -> [String] {
        [
            "client_secret_set", "client_secrets_set", "client_secret_file", "client_assertion_file", "private_key_set",
            "client_certificate_set",
        ].filter { json[$0] != nil && json[$0] != .bool(false) }
    }

    @Test(
        arguments: [
            (#""client_secret": "secret-1""#, "client_secret_set"),
            (#""client_secrets": ["secret-1"]"#, "client_secrets_set"),
            (#""client_secrets": ["secret-1", "secret-2"]"#, "client_secrets_set"),
            (#""client_secret_file": "/run/s""#, "client_secret_file"),
            (#""client_assertion_file": "/run/s""#, "client_assertion_file"),
            (#""private_key": \#(key)"#, "private_key_set"), ("", nil),
        ] as [(String, String?)])
    func `is told without what is secret`(members: String, name: String?) async throws {
        let broker = try await BrokerHarness()
        let put = await broker.call(.put, "/tenants/t1", body: Self.body(members))
        #expect(put.status == 201)
        for answer in [put, await broker.call(.get, "/tenants/t1"), await broker.call(.get, "/tenants")] {
            #expect(!answer.text.contains("secret-1"))
            #expect(!answer.text.contains("jpsQnnGQmL"))
        }
        #expect(Self.shown(put.json) == [name].compactMap(\.self))
        #expect(!broker.log.joined().contains("jpsQnnGQmL"))
        // A member that is left out stays; the path of a file does not.
        let again = await broker.call(.put, "/tenants/t1", body: Self.body(""))
        let isPath = name?.hasSuffix("_file") == true
        #expect(Self.shown(again.json) == (isPath ? [] : Self.shown(put.json)))
        #expect(again.json["client_secrets_set"] == put.json["client_secrets_set"])
        // Not for another client.
        let other = await broker.call(.put, "/tenants/t1", body: Self.body("", client: "c2"))
        #expect(Self.shown(other.json).isEmpty)
    }

    @Test(arguments: ["client_secret", "client_secrets", "private_key"])
    func `loses what is null`(name: String) async throws {
        let broker = try await BrokerHarness()
        let secrets = #""client_secrets": ["secret-1", "secret-2"]"#
        await broker.makeTenant(
            "t1",
            Self.body(
                (name == "client_secret" ? #""client_secret": "s""# : secrets) + #", "private_key": \#(Self.key)"#))
        let answer = await broker.call(.put, "/tenants/t1", body: Self.body(#""\#(name)": null"#))
        #expect(answer.json["dropped"] == .array([.string(name)]))
        #expect(Self.shown(answer.json).count == 1)
    }

    /// What is stored, what a patch says, and what is told then.
    @Test(arguments: [
        (#""client_secret": "s""#, #"{"client_secrets": ["a", "b"]}"#, ["client_secrets_set"]),
        (#""client_secrets": ["a", "b"]"#, #"{"client_secret": "b"}"#, ["client_secret_set"]),
        (#""client_secret": "s""#, #"{"client_secret_file": "/run/s"}"#, ["client_secret_file"]),
        (#""client_secret": "s""#, #"{"private_key": \#(key)}"#, ["client_secret_set", "private_key_set"]),
        (#""private_key": \#(key)"#, #"{"private_key": \#(ClientKeys.jwk(ClientKeys.rsa))}"#, ["private_key_set"]),
        (#""private_key": \#(key)"#, #"{"private_key": null}"#, []),
        (#""client_secrets": ["a", "b"]"#, #"{"display_name": "A"}"#, ["client_secrets_set"]),
    ])
    func `is changed by a patch`(members: String, patch: String, told: [String]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.body(members))
        let answer = await broker.call(
            .patch, "/tenants/t1", body: patch, fields: ["Content-Type": "application/merge-patch+json"])
        #expect(answer.status == 200, "\(answer.text)")
        #expect(Self.shown(answer.json) == told)
    }

    @Test(arguments: [
        (#""client_secret": "a", "client_secrets": ["b"]"#, "/client_secrets"),
        (#""client_secret": "a", "client_secret_file": "/s""#, "/client_secret_file"),
        (#""client_secrets": ["a"], "client_secret_file": "/s""#, "/client_secret_file"),
        (#""client_secrets": []"#, "/client_secrets"), (#""client_secrets": ["a", "b", "c"]"#, "/client_secrets"),
        (#""client_secrets": ["a", "a"]"#, "/client_secrets"), (#""client_secrets": ["a", ""]"#, "/client_secrets/1"),
        (#""client_secrets": ["\#(String(repeating: "a", count: 4097))"]"#, "/client_secrets/0"),
        (#""client_secrets": "a""#, "/client_secrets"), (#""client_secret_file": "s""#, "/client_secret_file"),
        (#""client_secret_file": """#, "/client_secret_file"),
        (#""client_assertion_file": "a/b""#, "/client_assertion_file"),
        (#""client_assertion_file": "/\#(String(repeating: "a", count: 4096))""#, "/client_assertion_file"),
        (#""private_key": "no key""#, "/private_key"), (#""private_key": 1"#, "/private_key"),
        (#""private_key": \#(ClientKeys.jwk(ClientKeys.publicP256))"#, "/private_key"),
        (#""private_key": \#(ClientKeys.jwk(ClientKeys.weakRSA))"#, "/private_key"),
        (#""client_certificate": "no certificate""#, "/client_certificate"),
        (#""client_certificate": {}"#, "/client_certificate"),
        (#""client_assertion_audience": "provider""#, "/client_assertion_audience"),
        (#""token_endpoint_auth_method": "private_key_jwt""#, "/private_key"),
        (#""token_endpoint_auth_method": "private_key_jwt", "client_secret": "s""#, "/private_key"),
        (#""token_endpoint_auth_method": "client_assertion_file""#, "/client_assertion_file"),
        (#""token_endpoint_auth_method": "tls_client_auth""#, "/client_certificate"),
        (#""token_endpoint_auth_method": "client_secret_jwt""#, "/client_secret"),
        (
            #""token_endpoint_auth_method": "client_secret_jwt", "client_secret": "\#(String(repeating: "s", count: 31))""#,
            "/client_secret"
        ),
        (
            #""token_endpoint_auth_method": "client_secret_jwt", "client_secrets": ["s"]"#, "/client_secrets"
        ),
    ])
    func `is refused where it cannot be used`(members: String, pointer: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: Self.body(members))
        #expect((answer.status, answer.code) == (400, "invalid_request"))
        #expect(answer.json["errors"]?.array?.map { $0["pointer"]?.text } == [pointer])
    }

    @Test func `has what its method needs when a stored key stays`() async throws {
        let broker = try await BrokerHarness()
        let method = #""token_endpoint_auth_method": "private_key_jwt""#
        await broker.makeTenant("t1", Self.body(method + #", "private_key": \#(Self.key)"#))
        #expect(await broker.call(.put, "/tenants/t1", body: Self.body(method)).status == 200)
        let removed = await broker.call(.put, "/tenants/t1", body: Self.body(method + #", "private_key": null"#))
        #expect(removed.json["errors"]?.array?.first?["pointer"]?.text == "/private_key")
    }

    @Test func `is read again from the store by another replica`() async throws {
        let first = try await BrokerHarness()
        let members =
            #""client_secrets": ["a", "b"], "private_key": \#(Self.key), "client_assertion_file": "/run/a", "#
            + #""client_assertion_audience": "endpoint", "token_endpoint_auth_method": "private_key_jwt""#
        let put = await first.call(.put, "/tenants/t1", body: Self.body(members))
        let second = try await BrokerHarness(store: first.store, time: first.time)
        #expect(await second.call(.get, "/tenants/t1").text == put.text)
    }
}
