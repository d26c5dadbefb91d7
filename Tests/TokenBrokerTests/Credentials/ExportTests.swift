import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JOSE
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

@Suite struct `Exporting credentials` {
    /// The receiver's key.
    private struct Receiver {
        let key: AgreementPrivateKey
        let jwk: String

        init() throws {
            key = try AgreementPrivateKey(x25519: SecretBytes((1...32).map { UInt8($0) }))
            guard case .x25519(let bytes) = key.publicKey.material else { throw KeyError.unsupported }
            jwk = #"{"kty": "OKP", "crv": "X25519", "x": "\#(Base64URL.encode(bytes))", "kid": "move"}"#
        }

        /// The content of a JWE of this receiver.
        func open(_ jwe: String) throws -> JSONValue {
            let parts = jwe.split(separator: ".", omittingEmptySubsequences: false).map(String.init)
            #expect(parts.count == 5)
            #expect(parts[1].isEmpty)
            func bytes(_ index: Int) throws -> [UInt8] { try #require(Base64URL.decode(parts[index])) }
            let header = try JSONValue(parsing: try bytes(0))
            #expect(header["alg"]?.text == "ECDH-ES")
            #expect(header["enc"]?.text == "A256GCM")
            #expect(header["kid"]?.text == "move")
            let ephemeral = try #require((header["epk"]?["x"]?.text).flatMap(Base64URL.decode))
            let secret = try key.secret(with: AgreementPublicKey(.x25519(ephemeral)))
            let content = try AES256GCM.open(
                try bytes(3) + bytes(4), key: ConcatKDF.key(from: secret, algorithm: "A256GCM", bits: 256),
                nonce: try bytes(2), associatedData: Array(parts[0].utf8))
            return try JSONValue(parsing: content.revealedBytes)
        }
    }

    private static func broker(
        store: (any RecordStore)? = nil, _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, adjust)
        await broker.makeTenant()
        return broker
    }

    private static func export(
        _ broker: BrokerHarness, _ receiver: Receiver, while fits: @escaping @Sendable (Int) -> Bool = { _ in true }
    ) async -> LinesAnswer {
        await broker.lines(
            "/credentials/export", pieces: [Array(#"{"jwk": \#(receiver.jwk)}"#.utf8)], type: "application/json",
            while: fits)
    }

    @Test func `what leaves is sealed for the receiver, and another broker takes it over`() async throws {
        let (broker, receiver) = (try await Self.broker(), try Receiver())
        await broker.set("access-of-a", refresh: "refresh-of-a", storageKey: "a", members: #""user_id": "7", "#)
        await broker.set("access-of-b", storageKey: "b")
        #expect(await broker.importing(#"{"storage_key": "c", "refresh_token": "refresh-of-c"}"#).lines.count == 1)
        let answer = await Self.export(broker, receiver)
        #expect(answer.head.status == 200)
        #expect(answer.head.fields["Content-Type"] == "application/x-ndjson")
        #expect(!answer.isReset)
        #expect(!answer.lines.joined().contains("refresh-of"))
        let documents = try answer.lines.map { try receiver.open($0) }
        #expect(documents.map { $0["storage_key"]?.text } == ["a", "b", "c"])
        #expect(documents.map { $0["refresh_token"]?.text } == ["refresh-of-a", nil, "refresh-of-c"])
        #expect(documents.map { $0["credentials"]?["token"]?.text } == ["access-of-a", "access-of-b", nil])
        #expect(documents[0]["credentials"]?["user_id"]?.text == "7")

        let other = try await Self.broker()
        let texts = documents.map { document in
            var writer = JSONWriter()
            writer.value(document)
            return String(decoding: writer.bytes, as: UTF8.self)
        }
        let taken = await other.importing(texts[0], texts[1], texts[2])
        #expect(taken.outcomes == ["1 a imported", "2 b imported", "3 c imported"])
        #expect(await other.get("storage_key=a").token == "access-of-a")
        #expect(await other.get("storage_key=b").token == "access-of-b")
        // The broker that they come from knows them, too.
        let back = await broker.importing(texts[0], texts[1], texts[2])
        #expect(back.outcomes == ["1 a unchanged", "2 b unchanged", "3 c unchanged"])
    }

    @Test(arguments: [0, 1, 49, 50, 51, 120])
    func `every storage key leaves once, whatever the pages`(count: Int) async throws {
        let (broker, receiver) = (try await Self.broker(), try Receiver())
        for number in 0..<count {
            await broker.set("a\(number)", refresh: "r\(number)", storageKey: "u\(1000 + number)")
        }
        let keys = try await Self.export(broker, receiver).lines.map { try receiver.open($0)["storage_key"]?.text }
        #expect(keys == (0..<count).map { "u\(1000 + $0)" })
    }

    @Test func `a set that cannot be sealed is not left out, but ends the export`() async throws {
        let broker = try await Self.broker()
        await broker.set("a1", refresh: "r1", storageKey: "a")
        await broker.set("a2", refresh: "r2", storageKey: "b")
        let core = broker.broker.core
        let name = try #require(TenantName("t1"))
        let tenant = try #require(try await core.tenants.tenant(name))
        let order = CredentialsExporter.Order(tenant) { document in
            String(decoding: document, as: UTF8.self).contains(#""b""#) ? nil : document
        }
        do throws(BrokerError) {
            let page = try await core.exporter.page(of: order, after: nil)
            Issue.record("\(page.sealed.count) sets look like all")
        } catch {
            #expect(error.code == .internalError)
        }
        #expect(broker.log.contains { $0.contains("credentials_not_sealed") })
    }

    @Test func `an end that the audit log does not take is logged`() async throws {
        let (store, receiver) = (BrokerFaultyStore(), try Receiver())
        let broker = try await Self.broker(store: store) { $0.core.audit.changes = true }
        await broker.set("a1", refresh: "r1", storageKey: "a")
        let entries = Mutex(0)
        // The first entry is that of the beginning, without which nothing leaves.
        store.disturb([.refuse]) { change in
            guard case .audit = change else { return false }
            return entries.withLock { entries in
                entries += 1
                return entries == 2
            }
        }
        let answer = await Self.export(broker, receiver)
        #expect((answer.lines.count, answer.isReset) == (1, false))
        #expect(store.remainingFaults == 0)
        let line = try #require(broker.log.first { $0.contains("export_end_not_audited") })
        #expect(line.contains(#""outcome":"done""#) && line.contains(#""count":1"#))
    }

    @Test func `ended sessions and what was logged out do not leave`() async throws {
        let (broker, receiver) = (try await Self.broker(), try Receiver())
        await broker.set("a1", refresh: "r1", storageKey: "out")
        #expect(await broker.call(.delete, "/credentials?storage_key=out", tenant: "t1").status == 204)
        await broker.set("a2", refresh: "r2", lifetime: .seconds(1), storageKey: "ended")
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("storage_key=ended").level == "basic")
        #expect(await Self.export(broker, receiver).lines == [])
    }

    @Test func `a receiver that goes away ends it, and that is told`() async throws {
        let (broker, receiver) = (try await Self.broker(), try Receiver())
        for number in 0..<5 { await broker.set("a", refresh: "r", storageKey: "u\(number)") }
        let answer = await Self.export(broker, receiver, while: { $0 < 2 })
        #expect(answer.lines.count == 2)
        #expect(answer.isReset)
        let line = try #require(broker.log.first { $0.contains("credentials_exported") })
        #expect(line.contains("cut_short"))
        #expect(!broker.log.contains { $0.contains("credentials_exported") && $0.contains(#""r""#) })
    }

    @Test(arguments: [
        ("{}", "/jwk"), (#"{"jwk": 1}"#, "/jwk"), (#"{"jwk": {"kty": "oct", "k": "AAAA"}}"#, "/jwk"),
        (#"{"jwk": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}}"#, "/jwk"),
        (#"{"jwk": {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}}"#, "/jwk"),
        (#"{"jwk": {"kty": "OKP", "crv": "X25519", "x": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}"#, "/jwk"),
        (#"{"jwk": {"kty": "OKP", "crv": "X25519", "x": "AAAA"}}"#, "/jwk"),
        (
            #"{"jwk": {"kty": "OKP", "crv": "X25519", "x": "hSDwCYkwp1R0i33ctD73Wg2_Og0mOBr066SpjqqbTmo", "d": "AAAA"}}"#,
            "/jwk"
        ),
        (
            #"{"jwk": {"kty": "OKP", "crv": "X25519", "x": "hSDwCYkwp1R0i33ctD73Wg2_Og0mOBr066SpjqqbTmo", "use": "sig"}}"#,
            "/jwk"
        ), (#"{"key": {}}"#, "/key"),
    ])
    func `another key than a public one for ECDH-ES is refused`(body: String, pointer: String) async throws {
        let broker = try await Self.broker()
        let answer = await broker.call(.post, "/credentials/export", tenant: "t1", body: body)
        #expect((answer.status, answer.code) == (400, "invalid_request"), "\(answer.text)")
        #expect(answer.json["errors"]?.array?.first?["pointer"]?.text == pointer)
    }
}
