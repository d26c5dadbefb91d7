import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

/// Project Wycheproof's cases: what libraries have got wrong.
@Suite struct `The cases of Wycheproof` {
    /// Whether a token is accepted. Its key stands in a set, as a provider publishes it.
    private func isAccepted(_ token: WireText, keys: JSONValue) throws -> Bool {
        var writer = JSONWriter()
        writer.value(keys)
        let set = try JSONWebKeySet(parsing: writer.bytes)
        do throws(JWSError) {
            _ = try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: set)
            return true
        } catch {
            return false
        }
    }

    /// What the cases hold for valid and this service refuses, since it does not support it.
    private static let unsupported: Set<WireText> = [
        "RS384", "RS512", "PS384", "PS512", "ES512", "HS256", "HS384", "HS512",
    ]

    private func algorithm(of token: WireText) -> WireText? {
        let header = token.split(at: ".", limit: 2).first.flatMap { Base64URL.decode($0.text) }
        return header.flatMap { try? JSONValue(parsing: $0) }?["alg"]?.string
    }

    @Test func `for JWS`() throws {
        let cases = try WycheproofCase.all(in: "wycheproof-jws.json")
        #expect(cases.count == 332)
        for test in cases {
            let token = test.text("jws")
            let keys = JSONValue.object(["keys": .array([test.group["jwk"] ?? .null])])
            let isSupported = algorithm(of: token).map { !Self.unsupported.contains($0) } ?? true
            #expect(try isAccepted(token, keys: keys) == (test.isValid && isSupported), "\(test.testDescription)")
        }
    }

    @Test func `for JWK sets`() throws {
        let cases = try WycheproofCase.all(in: "wycheproof-jwk.json")
        #expect(cases.count == 26)
        for test in cases {
            let token = test.text("jws")
            let isSupported = algorithm(of: token).map { !Self.unsupported.contains($0) } ?? true
            let isAccepted = try isAccepted(token, keys: test.group["jwks"] ?? .null)
            #expect(isAccepted == (test.isValid && isSupported), "\(test.testDescription)")
        }
    }

    @Test func `for ECDSA with r and s of fixed length`() throws {
        let cases = try WycheproofCase.all(in: "wycheproof-ecdsa.json")
        #expect(cases.count == 542)
        for test in cases {
            let curve: EllipticCurve = test.group["curve"]?.text == "P-256" ? .p256 : .p384
            let x = try #require(Hex.decode(test.group["x"]?.text ?? ""))
            let y = try #require(Hex.decode(test.group["y"]?.text ?? ""))
            let key = try PublicKey(.elliptic(curve, x: x, y: y))
            let isVerified = key.verifies(
                test.bytes("sig"), of: test.bytes("msg"), by: curve == .p256 ? .ecdsaP256 : .ecdsaP384)
            #expect(isVerified == test.isValid, "\(test.testDescription)")
        }
    }

    @Test func `for Ed25519`() throws {
        let cases = try WycheproofCase.all(in: "wycheproof-ed25519.json")
        #expect(cases.count == 151)
        for test in cases {
            let key = try PublicKey(.ed25519(try #require(Hex.decode(test.group["key"]?.text ?? ""))))
            let isVerified = key.verifies(test.bytes("sig"), of: test.bytes("msg"), by: .ed25519)
            #expect(isVerified == test.isValid, "\(test.testDescription)")
        }
    }
}
