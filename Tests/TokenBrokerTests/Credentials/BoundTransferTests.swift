import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JOSE
import JSON
import OAuth
import Testing
import TokenBroker

/// Sets that are bound to keys (RFC 9449), on their way from one broker to another.
@Suite struct `Moving tokens that are bound to keys` {
    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["r_usr"]}"#)
        return broker
    }

    private static func line(_ members: String, pem: String?, credentials: String = #""token_type": "DPoP""#) -> String
    {
        let key = pem.map { #", "dpop_key": "\#(quoted($0))""# } ?? ""
        return #"{"storage_key": "a", "refresh_token": "r1", "credentials": {\#(credentials)}\#(key)\#(members)}"#
    }

    private static func quoted(_ pem: String) -> String { pem.replacing("\n", with: #"\n"#) }

    private static func token(_ access: String, _ refresh: String) -> ScriptedTransport.Step {
        .json(
            200,
            #"{"access_token": "\#(access)", "refresh_token": "\#(refresh)", "token_type": "DPoP", "expires_in": 60}"#)
    }

    /// The thumbprint of the key that has proven the last request.
    private static func proven(_ broker: BrokerHarness) throws -> String {
        try thumbprint(broker.transport.seen.last?.fields["DPoP"])
    }

    private static func thumbprint(_ proof: WireText?) throws -> String {
        let jws = try CompactJWS(
            parsing: try #require(proof),
            policy: JWSPolicy(algorithms: [.es256], types: ["dpop+jwt"], allowsEmbeddedKey: true))
        let key = try #require(jws.header.embeddedKey)
        _ = try jws.verified(with: key)
        return Base64URL.encode(key.thumbprint)
    }

    @Test(arguments: ["", "verify=true"])
    func `a key comes with its refresh token, and proves the refresh`(query: String) async throws {
        let broker = try await Self.broker()
        let key = try DPoPKey.generate()
        broker.transport.enqueue(Self.token("a2", "r2"))
        let answer = await broker.importing(Self.line("", pem: key.pem.revealedText), query: query)
        #expect(answer.outcomes == ["1 a imported"], "\(answer.lines)")
        let read = await broker.get("storage_key=a", fields: ["DPoP-Htm": "GET", "DPoP-Htu": "https://api.example/"])
        #expect((read.token, read.json["token_type"]?.text) == ("a2", "DPoP"))
        #expect(try Self.proven(broker) == key.thumbprint())
        #expect(try Self.thumbprint(read.json["dpop"]?.string) == key.thumbprint())
    }

    @Test func `a refresh token of an earlier login has its own key`() async throws {
        let broker = try await Self.broker()
        let (key, earlier) = (try DPoPKey.generate(), try DPoPKey.generate())
        let lasting = #""token_type": "DPoP", "token": "a1", "expires": "2999-01-01T00:00:00Z""#
        let line = Self.line(
            #", "dpop_refresh_key": "\#(Self.quoted(earlier.pem.revealedText))""#, pem: key.pem.revealedText,
            credentials: lasting)
        #expect(await broker.importing(line).outcomes == ["1 a imported"])
        let read = await broker.get("storage_key=a", fields: ["DPoP-Htm": "GET", "DPoP-Htu": "https://api.example/"])
        #expect((read.token, read.json["token_type"]?.text) == ("a1", "DPoP"))
        #expect(try Self.thumbprint(read.json["dpop"]?.string) == key.thumbprint())
        broker.transport.enqueue(Self.token("a2", "r2"))
        #expect(await broker.get("storage_key=a&policy=local_force_refresh").token == "a2")
        #expect(try Self.proven(broker) == earlier.thumbprint())
    }

    @Test func `what leaves can be refreshed where it arrives`() async throws {
        let (broker, other) = (try await Self.broker(), try await Self.broker())
        let key = try DPoPKey.generate()
        let lasting = #""token_type": "DPoP", "token": "a1", "expires": "2999-01-01T00:00:00Z""#
        #expect(
            await broker.importing(Self.line("", pem: key.pem.revealedText, credentials: lasting)).outcomes == [
                "1 a imported"
            ])
        let receiver = try AgreementPrivateKey(x25519: SecretBytes((1...32).map { UInt8($0) }))
        guard case .x25519(let bytes) = receiver.publicKey.material else { throw KeyError.unsupported }
        let exported = await broker.lines(
            "/credentials/export",
            pieces: [
                Array(#"{"jwk": {"kty": "OKP", "crv": "X25519", "x": "\#(Base64URL.encode(bytes))"}}"#.utf8)
            ], type: "application/json")
        let line = try Self.open(try #require(exported.lines.first), receiver)
        #expect(!exported.lines.joined().contains("PRIVATE KEY"))
        #expect(await other.importing(line).outcomes == ["1 a imported"])
        #expect(await other.get("storage_key=a").json["token_type"]?.text == "DPoP")
        other.transport.enqueue(Self.token("a2", "r2"))
        #expect(await other.get("storage_key=a&policy=local_force_refresh").token == "a2")
        #expect(try Self.proven(other) == key.thumbprint())
    }

    /// The content of a JWE of the receiver.
    private static func open(_ jwe: String, _ receiver: AgreementPrivateKey) throws -> String {
        let parts = jwe.split(separator: ".", omittingEmptySubsequences: false).map(String.init)
        func bytes(_ index: Int) throws -> [UInt8] { try #require(Base64URL.decode(parts[index])) }
        let header = try JSONValue(parsing: try bytes(0))
        let ephemeral = try #require((header["epk"]?["x"]?.text).flatMap(Base64URL.decode))
        let secret = try receiver.secret(with: AgreementPublicKey(.x25519(ephemeral)))
        return try AES256GCM.open(
            try bytes(3) + bytes(4), key: ConcatKDF.key(from: secret, algorithm: "A256GCM", bits: 256),
            nonce: try bytes(2), associatedData: Array(parts[0].utf8)
        ).revealedText
    }

    @Test func `a key that is missing or cannot be used is told`() async throws {
        let broker = try await Self.broker()
        let key = Self.quoted(try DPoPKey.generate().pem.revealedText)
        let other = Self.quoted(try PrivateKey.generate(.elliptic(.p384)).pem().revealedText)
        let answer = await broker.importing(
            Self.line("", pem: nil), Self.line("", pem: "x"), Self.line(#", "dpop_key": "\#(other)""#, pem: nil),
            Self.line(#", "dpop_refresh_key": "\#(key)""#, pem: nil, credentials: ""),
            Self.line(#", "dpop_key": "\#(key)", "dpop_refresh_key": "y""#, pem: nil),
            Self.line("", pem: nil, credentials: #""token_type": "MAC""#))
        let pointers = answer.values.map { $0["errors"]?.array?.first?["pointer"]?.text }
        #expect(
            pointers == [
                "/dpop_key", "/dpop_key", "/dpop_key", "/dpop_key", "/dpop_refresh_key", "/credentials/token_type",
            ], "\(answer.lines)")
        #expect(!answer.lines.joined().contains("PRIVATE KEY"))
        // No caller brings a bound token: its key would be missing.
        let put = await broker.call(
            .put, "/credentials", tenant: "t1",
            body: #"{"credentials": {"client_id": "c1", "token_type": "DPoP", "token": "a1"}}"#)
        #expect(put.status == 400)
    }
}
