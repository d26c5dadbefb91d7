import BrokerCore
import BrokerTesting
import Cryptography
import ExternalText
import HTTPCodec
import JOSE
import JSON
import OAuth
import Testing
import TokenBroker

/// What a grant was asked for, on its way from one broker to another.
@Suite struct `Moving what a grant was asked for` {
    private static let receiver = Result { try AgreementPrivateKey(x25519: SecretBytes((1...32).map { UInt8($0) })) }

    private static func broker(_ members: String) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{\#(BrokerHarness.oidc) "client_id": "c1", "scopes": ["a", "b"]\#(members)}"#)
        return broker
    }

    /// The content of the first line of an export.
    private static func export(_ broker: BrokerHarness) async throws -> JSONValue {
        let receiver = try Self.receiver.get()
        guard case .x25519(let point) = receiver.publicKey.material else { throw KeyError.unsupported }
        let jwk = #"{"jwk": {"kty": "OKP", "crv": "X25519", "x": "\#(Base64URL.encode(point))"}}"#
        let lines = await broker.lines("/credentials/export", pieces: [Array(jwk.utf8)], type: "application/json").lines
        let parts = try #require(lines.first).split(separator: ".", omittingEmptySubsequences: false).map(String.init)
        func bytes(_ index: Int) throws -> [UInt8] { try #require(Base64URL.decode(parts[index])) }
        let header = try JSONValue(parsing: try bytes(0))
        let ephemeral = try #require((header["epk"]?["x"]?.text).flatMap(Base64URL.decode))
        let secret = try receiver.secret(with: AgreementPublicKey(.x25519(ephemeral)))
        let content = try AES256GCM.open(
            try bytes(3) + bytes(4), key: ConcatKDF.key(from: secret, algorithm: "A256GCM", bits: 256),
            nonce: try bytes(2), associatedData: Array(parts[0].utf8))
        return try JSONValue(parsing: content.revealedBytes)
    }

    private static func text(_ value: JSONValue) -> String {
        var writer = JSONWriter()
        writer.value(value)
        return String(decoding: writer.bytes, as: UTF8.self)
    }

    /// The values of a parameter of the last request.
    private static func sent(_ name: String, _ broker: BrokerHarness) -> [String] {
        (broker.transport.seen.last?.parameters ?? []).filter { $0.name == name }.map(\.value)
    }

    /// Refreshes the set.
    private static func refresh(_ broker: BrokerHarness) async {
        broker.transport.enqueue(.json(200, BrokerHarness.token("a9", refresh: "r9")))
        #expect(await broker.get("policy=local_force_refresh").token == "a9")
    }

    private static let other = #", "resource": ["https://other.example/api"], "audience": "other""#

    @Test(arguments: ["", other])
    func `its refreshes ask for the same where it arrives`(members: String) async throws {
        let broker = try await Self.broker("")
        let login = await broker.beginLogin(
            body: #"{"scopes": ["a"], "resource": ["https://api.example/1", "https://api.example/2"], "audience": "x"}"#
        )
        broker.transport.enqueue(.json(200, BrokerHarness.token("a1", refresh: "r1", scope: "a")))
        #expect(await broker.callback("code=c&state=\(login.state)").status == 200)
        let line = try await Self.export(broker)
        #expect(line["asked"]?["scopes"] == .array([.string("a")]))
        #expect(line["asked"]?["audience"]?.text == "x" && line["asked"]?["resource"]?.array?.count == 2)

        let target = try await Self.broker(members)
        #expect(await target.importing(Self.text(line)).outcomes == ["1 default imported"])
        await Self.refresh(target)
        #expect(Self.sent("resource", target) == ["https://api.example/1", "https://api.example/2"])
        #expect(Self.sent("audience", target) == ["x"])
        await Self.refresh(broker)
        for name in ["resource", "audience", "scope"] { #expect(Self.sent(name, target) == Self.sent(name, broker)) }
        // The next export has it, too.
        #expect(try await Self.export(target)["asked"] == line["asked"])
    }

    @Test func `nothing stays nothing, and what a line does not say is the tenant's`() async throws {
        let broker = try await Self.broker("")
        await broker.set("a1", refresh: "r1")
        let line = try await Self.export(broker)
        #expect(line["asked"] == .object([:]))
        let target = try await Self.broker(Self.other)
        #expect(await target.importing(Self.text(line)).outcomes == ["1 default imported"])
        await Self.refresh(target)
        #expect(Self.sent("resource", target).isEmpty && Self.sent("audience", target).isEmpty)

        let second = try await Self.broker(Self.other)
        let bare = #"{"storage_key": "default", "refresh_token": "r1"}"#
        #expect(await second.importing(bare).outcomes == ["1 default imported"])
        await Self.refresh(second)
        #expect(Self.sent("resource", second) == ["https://other.example/api"])
        #expect(Self.sent("audience", second) == ["other"])
    }

    @Test(arguments: [
        (#"{"scopes": ["c"]}"#, "/asked/scopes/0"), (#"{"scopes": ["a b"]}"#, "/asked/scopes/0"),
        (#"{"resource": ["api"]}"#, "/asked/resource/0"), (#"{"audience": 1}"#, "/asked/audience"),
        (#"{"other": 1}"#, "/asked/other"), ("[]", "/asked"),
    ])
    func `what cannot be asked for is told`(asked: String, pointer: String) async throws {
        let broker = try await Self.broker("")
        let answer = await broker.importing(#"{"storage_key": "k", "refresh_token": "r1", "asked": \#(asked)}"#)
        #expect(answer.values.first?["errors"]?.array?.first?["pointer"]?.text == pointer, "\(answer.lines)")
    }
}

/// Revocations that bear an access token which is bound to a key.
@Suite struct `A revocation in place of a bearer token` {
    private static func tenant(_ revocation: String) -> String {
        #"""
        {"provider": "oauth2", "client_id": "c1", "revocation": \#(revocation), "endpoints": {
         "authorization": "https://op.example/a", "token": "https://op.example/t", "revocation": "https://op.example/r"}}
        """#
    }

    private static func quoted(_ pem: String) -> String { pem.replacing("\n", with: #"\n"#) }

    /// The thumbprint of the proof's key, and the digest of the token in the proof, and its nonce.
    private static func read(_ proof: WireText?) throws -> (thumbprint: String, digest: String?, nonce: String?) {
        let jws = try CompactJWS(
            parsing: try #require(proof),
            policy: JWSPolicy(algorithms: [.es256], types: ["dpop+jwt"], allowsEmbeddedKey: true))
        let key = try #require(jws.header.embeddedKey)
        let claims = try JSONValue(parsing: try jws.verified(with: key).payload)
        return (Base64URL.encode(key.thumbprint), claims["ath"]?.text, claims["nonce"]?.text)
    }

    @Test(arguments: [
        (#"{"token_in": "bearer", "format": "none"}"#, true),
        (#"{"token_in": "bearer", "format": "none", "token": "refresh"}"#, false),
    ])
    func `proves the key of the token, and with the nonce that is asked for`(revocation: String, isAccess: Bool)
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(revocation))
        let (key, earlier) = (try DPoPKey.generate(), try DPoPKey.generate())
        let line = #"""
            {"storage_key": "default", "refresh_token": "r1", "dpop_key": "\#(Self.quoted(key.pem.revealedText))",
             "dpop_refresh_key": "\#(Self.quoted(earlier.pem.revealedText))",
             "credentials": {"token_type": "DPoP", "token": "a1", "expires": "2999-01-01T00:00:00Z"}}
            """#
        #expect(await broker.importing(line.replacing("\n", with: "")).outcomes == ["1 default imported"])
        broker.transport.enqueue(
            .json(isAccess ? 401 : 400, isAccess ? "" : #"{"error": "use_dpop_nonce"}"#, fields: ["DPoP-Nonce": "n1"]),
            .json(200, ""))
        let ended = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(ended.fields["Token-Revocation"] == "revoked")
        let sent = broker.transport.seen
        #expect(sent.count == 2)
        let digest = isAccess ? Base64URL.encode(SHA256.digest(Array("a1".utf8))) : nil
        let thumbprint = try isAccess ? key.thumbprint() : earlier.thumbprint()
        for (request, nonce) in zip(sent, [nil, "n1"]) {
            #expect(request.fields["Authorization"]?.text == (isAccess ? "DPoP a1" : "Bearer r1"))
            let proof = try Self.read(request.fields["DPoP"])
            #expect(proof.thumbprint == thumbprint)
            #expect(proof.digest == digest && proof.nonce == nonce)
        }
    }

    @Test func `is a bearer token where it is bound to no key`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant(#"{"token_in": "bearer", "format": "none"}"#))
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(200, ""))
        _ = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(broker.transport.seen.last?.fields["Authorization"] == "Bearer a1")
        #expect(broker.transport.seen.last?.fields["DPoP"] == nil)
    }
}
