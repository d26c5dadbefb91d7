import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

@Suite struct `Encryption for a receiver` {
    private static func bytes(_ text: String) throws -> [UInt8] { try #require(Base64URL.decode(text)) }

    /// The keys of RFC 7518, appendix C.
    private static func alice() throws -> AgreementPrivateKey {
        try AgreementPrivateKey(
            p256: SecretBytes(try bytes("0_NxaRPUMQoAJt50Gz8YiTr8gRTwyEaCumd-MToTmIo")),
            x: try bytes("gI0GAILBdu7T53akrFmMyGcsF3n5dO7MmwNBHKW5SV0"),
            y: try bytes("SLW_xSffzlPWrHEVI30DHM_4egVwt3NQqeUD7nMFpps"))
    }

    private static func bob() throws -> AgreementPrivateKey {
        try AgreementPrivateKey(
            p256: SecretBytes(try bytes("VEmDZpDXXK8p8N0Cndsxs924q6nS1RXFASRl6BfUqdw")),
            x: try bytes("weNJy2HscCSM6AEDTDg04biOvhFhyyWvOHQfeF_PxMQ"),
            y: try bytes("e8lnCO-AlStT-NJVX-crhB7QRYhiix03illJOVAOyck"))
    }

    @Test func `the example of RFC 7518, appendix C, is derived by both sides`() throws {
        let (alice, bob) = (try Self.alice(), try Self.bob())
        for secret in [try alice.secret(with: bob.publicKey), try bob.secret(with: alice.publicKey)] {
            let key = ConcatKDF.key(
                from: secret, algorithm: "A128GCM", partyU: Array("Alice".utf8), partyV: Array("Bob".utf8), bits: 128)
            #expect(Base64URL.encode(key.revealedBytes) == "VqqN6vgjbSBcIijNcacQGg")
        }
    }

    @Test func `keys of X25519 agree on one secret, and not on that of every other key`() throws {
        let keys = try (1...3).map {
            try AgreementPrivateKey(x25519: SecretBytes([UInt8](repeating: UInt8($0), count: 32)))
        }
        #expect(try keys[0].secret(with: keys[1].publicKey) == keys[1].secret(with: keys[0].publicKey))
        #expect(try keys[0].secret(with: keys[1].publicKey) != keys[0].secret(with: keys[2].publicKey))
        // A point of small order: everyone would know the secret (RFC 7748, section 6.1).
        let zero = try AgreementPublicKey(.x25519([UInt8](repeating: 0, count: 32)))
        #expect(throws: KeyError.inconsistent) { try keys[0].secret(with: zero) }
    }

    @Test func `keys of two kinds agree on nothing`() throws {
        let other = try AgreementPrivateKey(x25519: SecretBytes([UInt8](repeating: 1, count: 32)))
        #expect(throws: KeyError.unsupported) { try Self.bob().secret(with: other.publicKey) }
        #expect(throws: KeyError.unsupported) { try other.secret(with: Self.bob().publicKey) }
    }

    @Test(arguments: ["", "x", #"{"storage_key": "ü"}"#])
    func `what is sealed has a key and a nonce of its own, and is opened by the receiver`(content: String) throws {
        let bob = try Self.bob()
        guard case .p256(let x, let y) = bob.publicKey.material else { throw KeyError.unsupported }
        let jwk = """
            {"kty": "EC", "crv": "P-256", "x": "\(Base64URL.encode(x))", "y": "\(Base64URL.encode(y))", "kid": "bob"}
            """
        let key = try EncryptionKey(try JSONValue(parsing: Array(jwk.utf8)))
        let jwes = try (0..<2).map { _ in String(decoding: try key.seal(Array(content.utf8)), as: UTF8.self) }
        #expect(jwes[0] != jwes[1])
        for jwe in jwes {
            let parts = jwe.split(separator: ".", omittingEmptySubsequences: false).map(String.init)
            #expect(parts.count == 5)
            let header = try JSONValue(parsing: try Self.bytes(parts[0]))
            #expect(header["kid"]?.string == "bob")
            let epk = try #require(header["epk"])
            let ephemeral = try AgreementPublicKey(
                .p256(x: try Self.bytes(epk["x"]?.text ?? ""), y: try Self.bytes(epk["y"]?.text ?? "")))
            let opened = try AES256GCM.open(
                try Self.bytes(parts[3]) + Self.bytes(parts[4]),
                key: ConcatKDF.key(from: try bob.secret(with: ephemeral), algorithm: "A256GCM", bits: 256),
                nonce: try Self.bytes(parts[2]), associatedData: Array(parts[0].utf8))
            #expect(opened.revealedBytes == Array(content.utf8))
        }
    }
}
