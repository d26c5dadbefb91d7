import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

@Suite struct `The examples of the RFCs` {
    let vectors: JSONValue

    init() throws { vectors = try VectorFile.read("rfc.json") }

    @Test(arguments: [("A2", SignatureAlgorithm.rs256), ("A3", .es256)])
    func `of RFC 7515 are verified`(name: String, algorithm: SignatureAlgorithm) throws {
        let example = vectors["rfc7515"]?[name]
        let key = try JSONWebKey(VectorFile.publicPart(of: example?["jwk"]))
        let token = try CompactJWS(parsing: try #require(example?["jws"]?.string), policy: everyAlgorithm)
        let verified = try token.verified(with: key)
        #expect(verified.header.algorithm == algorithm)
        let claims = try verified.claims()
        #expect(claims.issuer == "joe")
        #expect(claims.expiry == NumericDate(seconds: 1_300_819_380))
        #expect(claims.members["http://example.com/is_root"] == .bool(true))
    }

    @Test(arguments: [("A1", JWSError.algorithmNotAllowed), ("A4", .algorithmNotAllowed), ("A5", .unsecured)])
    func `of RFC 7515 by HMAC, on P-521 and without a signature are refused`(name: String, error: JWSError) throws {
        let token = try #require(vectors["rfc7515"]?[name]?["jws"]?.string)
        #expect(throws: error) { try CompactJWS(parsing: token, policy: everyAlgorithm) }
    }

    @Test func `of RFC 7517 are a set of one RSA key, beside one for encryption`() throws {
        var writer = JSONWriter()
        writer.value(try #require(vectors["rfc7517"]?["public"]))
        let set = try JSONWebKeySet(parsing: writer.bytes)
        #expect(set.keys.map(\.keyID) == ["1", "2011-04-29"])
        #expect(set.keys.map(\.isForSignatures) == [false, true])
        #expect(set.keys[1].misfit(for: .rs256) == nil)
        #expect(set.keys[1].misfit(for: .ps256) == .algorithm)
    }

    @Test func `of RFC 7517 §A.2 sign with the RSA key only`() throws {
        let keys = try #require(vectors["rfc7517"]?["private"]?["keys"]?.array)
        #expect(throws: JSONWebKeyError.malformed(.use)) { try PrivateJSONWebKey(keys[0]) }
        let key = try PrivateJSONWebKey(keys[1])
        #expect(key.keyID == "2011-04-29")
        let token = try TokenSigner(key, algorithm: .rs256).sign([1, 2, 3])
        #expect(
            try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: key.publicJWK).payload == [1, 2, 3])
    }

    @Test func `of RFC 7520 §4.1 is verified, and made again byte by byte`() throws {
        let example = try #require(vectors["rfc7520"])
        let token = try #require(example["4.1"]?.string)
        let key = try JSONWebKey(try #require(example["publicRSA"]))
        let verified = try CompactJWS(parsing: token, policy: everyAlgorithm)
            .verified(with: JSONWebKeySet([key]))
        #expect(WireText(verified.payload).starts(with: "It\u{2019}s a dangerous business, Frodo"))
        let signer = try TokenSigner(PrivateJSONWebKey(try #require(example["privateRSA"])), algorithm: .rs256)
        #expect(try signer.sign(verified.payload) == token)
    }

    @Test func `of RFC 7520 §4.2 and §4.3 are by algorithms that are not supported`() throws {
        for name in ["4.2", "4.3"] {
            let token = try #require(vectors["rfc7520"]?[name]?.string)
            #expect(throws: JWSError.algorithmNotAllowed) { try CompactJWS(parsing: token, policy: everyAlgorithm) }
        }
        #expect(throws: JSONWebKeyError.unsupported(.crv)) {
            try JSONWebKey(try #require(vectors["rfc7520"]?["publicEC"]))
        }
    }

    @Test func `of RFC 7638 and RFC 8037 have these thumbprints`() throws {
        for name in ["rfc7638", "rfc8037"] {
            let example = try #require(vectors[name])
            let key = try JSONWebKey(VectorFile.publicPart(of: example["jwk"]))
            #expect(Base64URL.encode(key.thumbprint) == example["thumbprint"]?.text)
        }
    }

    @Test func `of RFC 8037 §A.4 is verified, and made again byte by byte`() throws {
        let example = try #require(vectors["rfc8037"])
        let token = try #require(example["jws"]?.string)
        let key = try PrivateJSONWebKey(try #require(example["jwk"]))
        let verified = try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: key.publicJWK)
        #expect(WireText(verified.payload) == "Example of Ed25519 signing")
        #expect(try TokenSigner(key, algorithm: .edDSA).sign(verified.payload) == token)
    }
}
