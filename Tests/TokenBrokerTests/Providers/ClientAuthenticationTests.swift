import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import Synchronization
import Testing
import TokenBroker

/// How a client shows a provider who it is, of whom only the metadata is known.
@Suite struct `The authentication of a client` {
    /// A secret that HTTP Basic encodes.
    private static let secret = "a+b/c=="

    private static func tenant(_ members: String = "", secret: String? = secret) -> String {
        let secret = secret.map { #""client_secret": "\#($0)", "# } ?? ""
        return #"{"provider": "oidc", "client_id": "c 1", \#(secret)"issuer": "https://op.example"\#(members)}"#
    }

    private static func metadata(_ methods: String?, _ members: String = "") -> ScriptedTransport.Step {
        let methods = methods.map { #", "token_endpoint_auth_methods_supported": \#($0)"# } ?? ""
        return .json(
            200,
            #"""
            {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
             "token_endpoint": "https://op.example/t", "revocation_endpoint": "https://op.example/r",
             "device_authorization_endpoint": "https://op.example/d"\#(methods)\#(members)}
            """#)
    }

    private static let metadataAddress = "https://op.example/.well-known/oauth-authorization-server"

    /// How a request shows the client.
    private static func method(of seen: ScriptedTransport.Seen) -> String {
        if seen.fields["Authorization"] != nil { return "basic" }
        return seen.form["client_secret"] == nil ? "none" : "post"
    }

    private static let refusal = ScriptedTransport.Step.json(401, #"{"error": "invalid_client"}"#)

    /// A provider that does not decode what HTTP Basic encodes: it accepts the client by the form only.
    private static func formOnly(_ granted: ScriptedTransport.Step) -> ScriptedTransport.Step {
        .decide { method(of: $0) == "post" ? granted : refusal }
    }

    @Test(arguments: [
        (#"["client_secret_post", "client_secret_basic"]"#, true, "post"),
        (#"["none", "client_secret_basic", "client_secret_post"]"#, true, "basic"),
        (#"["none", "client_secret_post"]"#, true, "post"), (#"["none"]"#, true, "basic"),
        (#"["private_key_jwt", "client_secret_post"]"#, true, "post"), ("[]", true, "basic"),
        (#"["client_secret_basic", "none"]"#, false, "none"), (#"["client_secret_post"]"#, false, "none"),
    ])
    func `is the first that the metadata names and that fits what the client has`(
        methods: String, hasSecret: Bool, expected: String
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(secret: hasSecret ? "s1" : nil))
        broker.transport.enqueue(Self.metadata(methods))
        await broker.logIn()
        let request = try #require(broker.transport.seen.last)
        #expect(Self.method(of: request) == expected)
        #expect(request.form["client_id"] == "c 1")
    }

    @Test(
        arguments: [
            ("", nil, true), (#", "client_id_in_body": true"#, true, true),
            (#", "client_id_in_body": false"#, false, false),
        ] as [(String, Bool?, Bool)])
    func `by the header has the identifier in the form, too, unless the tenant forbids it`(
        members: String, shown: Bool?, isRepeated: Bool
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(members))
        broker.transport.enqueue(Self.metadata(nil))
        await broker.logIn()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        broker.transport.enqueue(.json(200, ""))
        _ = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        let seen = broker.transport.seen.dropFirst()
        #expect(seen.count == 3)
        for request in seen {
            // RFC 6749 §2.3.1; a blank is %20, which all decoders of forms take.
            let header = "Basic " + Base64.encode(Array("c%201:a%2Bb%2Fc%3D%3D".utf8))
            #expect(request.fields["Authorization"]?.text == header)
            #expect(request.form["client_id"] == (isRepeated ? "c 1" : nil))
            #expect(request.form["client_secret"] == nil)
        }
        let stored = await broker.call(.get, "/tenants/t1")
        #expect(stored.json["client_id_in_body"] == shown.map { .bool($0) })
    }

    private static let both = #"["client_secret_basic", "client_secret_post"]"#

    @Test func `goes over to the header where the form is refused, for a client that is registered for that`()
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata(#"["client_secret_post", "client_secret_basic"]"#))
        let login = await broker.beginLogin()
        let granted = ScriptedTransport.Step.json(200, BrokerHarness.token("a1", refresh: "r1"))
        broker.transport.always(.decide { Self.method(of: $0) == "basic" ? granted : Self.refusal })
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(await broker.get("policy=local_force_refresh").token == "a1")
        #expect(broker.transport.seen.dropFirst().map { Self.method(of: $0) } == ["post", "basic", "basic"])
    }

    @Test func `goes over to the form where the header is refused, and remembers that`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata(Self.both))
        let login = await broker.beginLogin()
        broker.transport.always(Self.formOnly(.json(200, BrokerHarness.token("a1", refresh: "r1"))))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(await broker.get("policy=local_force_refresh").token == "a1")
        #expect(await broker.call(.delete, "/credentials?revoke=true", tenant: "t1").status == 204)
        let seen = broker.transport.seen.dropFirst()
        #expect(seen.map { Self.method(of: $0) } == ["basic", "post", "post", "post"])
        #expect(seen.map { $0.form["code"] } == ["c-1", "c-1", nil, nil])
        #expect(seen.filter { Self.method(of: $0) == "post" }.allSatisfy { $0.form["client_secret"] == Self.secret })
        #expect(broker.log.contains { $0.contains("client_accepted_by_other_method") })
        #expect(!broker.log.joined().contains(Self.secret))
    }

    /// How the revocation endpoint wants it, and how the client shows itself there at two revocations. The token endpoint takes the
    /// header only.
    @Test(arguments: [("basic", ["basic", "basic"]), ("post", ["basic", "post", "post"])])
    func `is remembered for each endpoint`(wanted: String, methods: [String]) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata(#"["client_secret_post", "client_secret_basic"]"#))
        let login = await broker.beginLogin()
        let granted = ScriptedTransport.Step.json(200, BrokerHarness.token("a1", refresh: "r1"))
        broker.transport.always(
            .decide {
                let isRevocation = $0.form["token"] != nil
                return Self.method(of: $0) == (isRevocation ? wanted : "basic") ? granted : Self.refusal
            })
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        for _ in 0..<2 {
            await broker.set("a1", refresh: "r1", clientID: "c 1")
            let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
            #expect(answer.fields["Token-Revocation"] == "revoked")
            await broker.set("a1", refresh: "r1", clientID: "c 1")
            #expect(await broker.get("policy=local_force_refresh").token == "a1")
        }
        let seen = broker.transport.seen.dropFirst()
        #expect(seen.filter { $0.form["token"] != nil }.map { Self.method(of: $0) } == methods)
        #expect(
            seen.filter { $0.form["token"] == nil }.map { Self.method(of: $0) } == ["post", "basic", "basic", "basic"])
    }

    @Test func `goes back to the header when the form is not accepted any more`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata(Self.both))
        let login = await broker.beginLogin()
        let granted = ScriptedTransport.Step.json(200, BrokerHarness.token("a1", refresh: "r1"))
        broker.transport.always(Self.formOnly(granted))
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 200)
        broker.transport.always(.decide { Self.method(of: $0) == "basic" ? granted : Self.refusal })
        for _ in 0..<2 { #expect(await broker.get("policy=local_force_refresh").token == "a1") }
        #expect(
            broker.transport.seen.dropFirst().map { Self.method(of: $0) } == [
                "basic", "post", "post", "basic", "basic",
            ])
    }

    @Test(arguments: [(401, "invalid_client"), (403, "unauthorized_client"), (401, "unauthorized_client")])
    func `goes over to the form at the revocation endpoint, too`(status: Int, error: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        await broker.set("a1", refresh: "r1", clientID: "c 1")
        broker.transport.enqueue(Self.metadata(Self.both))
        let refusal = ScriptedTransport.Step.json(status, #"{"error": "\#(error)"}"#)
        broker.transport.always(.decide { Self.method(of: $0) == "post" ? .json(200, "") : refusal })
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(answer.fields["Token-Revocation"] == "revoked")
        #expect(broker.transport.seen.dropFirst().map { Self.method(of: $0) } == ["basic", "post"])
    }

    /// What stands against a second try, and how often the provider is asked.
    private static let once: [(methods: String?, members: String, refusal: ScriptedTransport.Step)] = [
        (nil, "", refusal), (#"["client_secret_basic"]"#, "", refusal),
        (both, #", "token_endpoint_auth_method": "client_secret_basic""#, refusal),
        (both, "", .json(400, #"{"error": "invalid_grant"}"#)),
        (both, "", .json(401, #"{"error": "unauthorized_client"}"#)), (both, "", .json(401, "")),
        (#"["client_secret_post", "none"]"#, "", refusal), (#"["none", "client_secret_basic"]"#, "", refusal),
    ]

    @Test(arguments: once.indices)
    func `is tried once where no other method is announced, or the refusal is another one`(index: Int) async throws {
        let (methods, members, refusal) = Self.once[index]
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(members))
        broker.transport.standing(at: Self.metadataAddress, Self.metadata(methods))
        let login = await broker.beginLogin()
        broker.transport.enqueue(refusal)
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 502)
        #expect(broker.transport.seen.count == 1)
        #expect(broker.transport.unforeseen == 0)
    }

    @Test func `that neither method proves is refused as the first one was`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        await broker.set("a1", refresh: "r1", lifetime: .seconds(1), clientID: "c 1")
        broker.time.advance(by: .seconds(2))
        broker.transport.standing(at: Self.metadataAddress, Self.metadata(Self.both))
        broker.transport.always(Self.refusal)
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
        #expect(await broker.status().isLoggedIn == true)
        let methods = broker.transport.seen.map { Self.method(of: $0) }
        #expect(Set(methods) == ["basic", "post"])
        let count = methods.count
        // The pause after a refusal holds for both.
        #expect(await broker.get().code == "illegal_configuration")
        #expect(broker.transport.seen.count == count)
    }

    @Test func `does not hide an answer that did not come to the second try`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata(Self.both))
        let login = await broker.beginLogin()
        broker.transport.enqueue(Self.refusal, .failure(.connectionLost(requestSent: true)))
        // The code may be spent, so that it is not sent again.
        #expect(await broker.callback("code=c-1&state=\(login.state)").status == 503)
        #expect(broker.transport.seen.count == 3)
    }

    @Test func `of a code goes on a connection of its own, and that of a refresh on any`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant())
        broker.transport.enqueue(Self.metadata(Self.both))
        await broker.logIn()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        #expect(broker.transport.seen.map(\.needsNewConnection) == [false, true, false])
    }
}
