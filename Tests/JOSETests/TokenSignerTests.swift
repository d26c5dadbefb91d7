import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

@Suite struct `Signing a token` {
    @Test func `writes the header that was asked for`() throws {
        func header(_ token: WireText) -> String {
            String(decoding: Base64URL.decode(token.split(at: ".")[0].text) ?? [], as: UTF8.self)
        }
        let signer = try TokenSigner(SampleKeys.p256, algorithm: .es256)
        #expect(header(try signer.sign([])) == #"{"alg":"ES256","kid":"p256"}"#)
        #expect(header(try signer.sign([], type: "JWT")) == #"{"alg":"ES256","kid":"p256","typ":"JWT"}"#)
        let jwk = String(decoding: SampleKeys.p256.publicJWK.json, as: UTF8.self)
        #expect(
            header(try signer.sign([], type: "dpop+jwt", embedsKey: true))
                == #"{"alg":"ES256","kid":"p256","typ":"dpop+jwt","jwk":\#(jwk)}"#)
        let nameless = PrivateJSONWebKey(SampleKeys.p256.privateKey)
        #expect(header(try TokenSigner(nameless, algorithm: .es256).sign([])) == #"{"alg":"ES256"}"#)
    }

    @Test(arguments: SignatureAlgorithm.allCases, SignatureAlgorithm.allCases)
    func `takes no key of another kind`(ofKey: SignatureAlgorithm, algorithm: SignatureAlgorithm) {
        let key = SampleKeys.key(for: ofKey)
        if algorithm.scheme.isFor(key.privateKey.publicKey) {
            #expect(throws: Never.self) { try TokenSigner(key, algorithm: algorithm) }
        } else {
            #expect(throws: JWSError.Misfit.type) { try TokenSigner(key, algorithm: algorithm) }
        }
    }

    @Test func `takes no key that is for another algorithm`() {
        let key = PrivateJSONWebKey(SampleKeys.rsa.privateKey, algorithm: .ps256)
        #expect(throws: JWSError.Misfit.algorithm) { try TokenSigner(key, algorithm: .rs256) }
        #expect(throws: Never.self) { try TokenSigner(key, algorithm: .ps256) }
    }

    /// r and s are below 2²⁴⁸ in one of 128 signatures, so that this many have some with leading zero octets.
    @Test func `writes r and s in their full length`() throws {
        let signer = try TokenSigner(SampleKeys.p256, algorithm: .es256)
        var shortNumbers = 0
        for number in 0..<1500 {
            let token = try signer.sign(Array("\(number)".utf8))
            let signature = try #require(Base64URL.decode(token.split(at: ".")[2].text))
            #expect(signature.count == 64)
            if signature[0] == 0 || signature[32] == 0 {
                shortNumbers += 1
                _ = try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: SampleKeys.p256.publicJWK)
            }
        }
        #expect(shortNumbers > 0)
    }
}

@Suite struct `A private JWK` {
    private func rfc(_ path: String...) throws -> JSONValue {
        try #require(path.reduce(try VectorFile.read("rfc.json")) { $0?[$1] })
    }

    private func error(of value: JSONValue) -> JSONWebKeyError? {
        do throws(JSONWebKeyError) {
            _ = try PrivateJSONWebKey(value)
            return nil
        } catch {
            return error
        }
    }

    private func changing(_ value: JSONValue, _ member: WireText, to text: String?) -> JSONValue {
        var members = value.object ?? [:]
        members[member] = text.map { .string(WireText($0)) }
        return .object(members)
    }

    @Test(arguments: [["rfc7515", "A2", "jwk"], ["rfc7515", "A3", "jwk"], ["rfc8037", "jwk"]])
    func `has the public part that it says, and shows nothing of the other`(path: [String]) throws {
        let value = try #require(path.reduce(try VectorFile.read("rfc.json")) { $0?[$1] })
        let key = try PrivateJSONWebKey(value)
        #expect(key.publicJWK.thumbprint == (try JSONWebKey(VectorFile.publicPart(of: value))).thumbprint)
        #expect("\(key.privateKey)" == "<private key>")
        #expect(String(reflecting: key.privateKey) == "<private key>")
        #expect(Mirror(reflecting: key.privateKey).children.isEmpty)
        let published = try #require(try JSONValue(parsing: key.publicJWK.json).object)
        #expect(["d", "p", "q", "dp", "dq", "qi"].allSatisfy { published[$0] == nil })
    }

    @Test(arguments: ["d", "p", "q", "dp", "dq", "qi"] as [WireText])
    func `of RSA needs each of its numbers, and refuses one of another key`(member: WireText) throws {
        let value = try rfc("rfc7515", "A2", "jwk")
        let name = try #require(JSONWebKeyError.Member(rawValue: member.text))
        #expect(error(of: changing(value, member, to: nil)) == .missing(name))
        #expect(error(of: changing(value, member, to: "a=")) == .notBase64URL(name))
        #expect(error(of: changing(value, member, to: "")) == .malformed(name))
        #expect(
            error(of: changing(value, member, to: Base64URL.encode([UInt8](repeating: 1, count: 257))))
                == .key(.malformed))
    }

    @Test func `of RSA whose exponent belongs to another key is refused`() throws {
        let value = try rfc("rfc7515", "A2", "jwk")
        let other = try rfc("rfc7520", "privateRSA")
        #expect(error(of: other) == nil)
        var changed = value
        for member in ["d", "p", "q", "dp", "dq", "qi"] as [WireText] {
            changed = changing(changed, member, to: other[member]?.text)
        }
        #expect(error(of: changed) == .key(.inconsistent))
    }

    @Test func `on a curve has the point of its number`() throws {
        let value = try rfc("rfc7515", "A3", "jwk")
        let other = Base64URL.encode([UInt8](repeating: 7, count: 32))
        #expect(error(of: changing(value, "d", to: other)) == .key(.inconsistent))
        #expect(error(of: changing(value, "d", to: nil)) == .missing(.d))
        #expect(error(of: changing(value, "d", to: "AQ")) == .malformed(.d))
        #expect(error(of: changing(value, "d", to: Base64URL.encode([UInt8](repeating: 0, count: 32)))) != nil)
        #expect(error(of: changing(value, "x", to: value["y"]?.text)) == .key(.notOnCurve))
        let ed25519 = try rfc("rfc8037", "jwk")
        #expect(error(of: changing(ed25519, "d", to: other)) == .key(.inconsistent))
    }

    @Test func `that is not for signing is refused`() throws {
        let value = try rfc("rfc7515", "A3", "jwk")
        #expect(error(of: changing(value, "use", to: "sig")) == nil)
        #expect(error(of: changing(value, "use", to: "enc")) == .malformed(.use))
        var members = try #require(value.object)
        members["key_ops"] = .array([.string("verify")])
        #expect(error(of: .object(members)) == .malformed(.use))
        members["key_ops"] = .array([.string("sign")])
        #expect(error(of: .object(members)) == nil)
    }

    @Test func `with more than two primes is refused`() throws {
        var members = try #require(try rfc("rfc7515", "A2", "jwk").object)
        members["oth"] = .array([])
        #expect(error(of: .object(members)) == .unsupported(.oth))
    }
}
