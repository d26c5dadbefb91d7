import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

@Suite struct `Reading a JWK` {
    private static let coordinates: (x: String, y: String) = {
        guard case .elliptic(_, let x, let y) = SampleKeys.p256.publicJWK.publicKey.material else { return ("", "") }
        return (Base64URL.encode(x), Base64URL.encode(y))
    }()

    private func error(of json: String) -> JSONWebKeyError? {
        do throws(JSONWebKeyError) {
            _ = try JSONWebKey(parsing: Array(json.utf8))
            return nil
        } catch {
            return error
        }
    }

    /// <x> and <y> stand for the coordinates of a good key.
    private static let keys: [(json: String, error: JSONWebKeyError?)] = [
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>"}"#, nil),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","x5c":["MII"],"x5t":"a","ext":true,"own":{"a":[1]}}"#, nil),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","use":"sig","key_ops":["verify"],"alg":"ES256"}"#, nil),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","use":"enc"}"#, nil),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","key_ops":[]}"#, nil),
        ("", .notJSON(.malformed)), (#"{"kty":"EC","kty":"EC"}"#, .notJSON(.repeatedMember(pointer: "/kty"))),
        ("[]", .notAnObject), ("null", .notAnObject), (#""EC""#, .notAnObject),
        ("{}", .missing(.kty)), (#"{"kty":1}"#, .malformed(.kty)), (#"{"kty":null}"#, .malformed(.kty)),
        (#"{"kty":"ec","crv":"P-256","x":"<x>","y":"<y>"}"#, .unsupported(.kty)),
        (#"{"kty":"oct","k":"AQ"}"#, .unsupported(.kty)), (#"{"kty":"AKP"}"#, .unsupported(.kty)),
        (#"{"kty":"EC","x":"<x>","y":"<y>"}"#, .missing(.crv)),
        (#"{"kty":"EC","crv":1,"x":"<x>","y":"<y>"}"#, .malformed(.crv)),
        (#"{"kty":"EC","crv":"P-521","x":"<x>","y":"<y>"}"#, .unsupported(.crv)),
        (#"{"kty":"EC","crv":"secp256k1","x":"<x>","y":"<y>"}"#, .unsupported(.crv)),
        (#"{"kty":"EC","crv":"Ed25519","x":"<x>","y":"<y>"}"#, .unsupported(.crv)),
        (#"{"kty":"EC","crv":"P-384","x":"<x>","y":"<y>"}"#, .malformed(.x)),
        (#"{"kty":"EC","crv":"P-256","y":"<y>"}"#, .missing(.x)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>"}"#, .missing(.y)),
        (#"{"kty":"EC","crv":"P-256","x":1,"y":"<y>"}"#, .malformed(.x)),
        (#"{"kty":"EC","crv":"P-256","x":"","y":"<y>"}"#, .malformed(.x)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>=","y":"<y>"}"#, nil),
        (#"{"kty":"EC","crv":"P-256","x":"<x>===","y":"<y>"}"#, .notBase64URL(.x)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":" <y>"}"#, .notBase64URL(.y)),
        (#"{"kty":"EC","crv":"P-256","x":"AA<x>","y":"<y>"}"#, .notBase64URL(.x)),
        (#"{"kty":"EC","crv":"P-256","x":"<y>","y":"<x>"}"#, .key(.notOnCurve)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<x>"}"#, .key(.notOnCurve)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","d":"<x>"}"#, .secretDisclosed),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","d":null}"#, .secretDisclosed),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","kid":1}"#, .malformed(.kid)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","alg":1}"#, .malformed(.alg)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","use":["sig"]}"#, .malformed(.use)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","key_ops":"verify"}"#, .malformed(.keyOperations)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","key_ops":[1]}"#, .malformed(.keyOperations)),
        (#"{"kty":"EC","crv":"P-256","x":"<x>","y":"<y>","key_ops":["verify","verify"]}"#, .malformed(.keyOperations)),
        (#"{"kty":"OKP","crv":"Ed25519","x":"<x>"}"#, nil), (#"{"kty":"OKP","x":"<x>"}"#, .missing(.crv)),
        (#"{"kty":"OKP","crv":"X25519","x":"<x>"}"#, .unsupported(.crv)),
        (#"{"kty":"OKP","crv":"Ed448","x":"<x>"}"#, .unsupported(.crv)),
        (#"{"kty":"OKP","crv":"Ed25519","x":"AQ"}"#, .malformed(.x)),
        (#"{"kty":"RSA","e":"AQAB"}"#, .missing(.n)), (#"{"kty":"RSA","n":"","e":"AQAB"}"#, .malformed(.n)),
        (#"{"kty":"RSA","n":"AA","e":"AQAB"}"#, .malformed(.n)),
        (#"{"kty":"RSA","n":"AQ","e":"AQAB"}"#, .key(.rsaSize(bits: 1))),
    ]

    @Test(arguments: keys.indices)
    func `refuses each that is none, and says why`(index: Int) {
        let (json, expected) = Self.keys[index]
        let (x, y) = Self.coordinates
        let text = json.replacing("<x>", with: x).replacing("<y>", with: y)
        #expect(error(of: text) == expected, "\(json)")
    }

    @Test(arguments: [EllipticCurve.p256, .p384])
    func `takes a coordinate without its leading zero octets, as some libraries write it`(curve: EllipticCurve) throws {
        let name = curve == .p256 ? "P-256" : "P-384"
        func key(x: [UInt8], y: [UInt8]) -> String {
            #"{"kty":"EC","crv":"\#(name)","x":"\#(Base64URL.encode(x))","y":"\#(Base64URL.encode(y))"}"#
        }
        // One key in 128 has such a coordinate.
        var found: (x: [UInt8], y: [UInt8])?
        while found == nil {
            let made = try PrivateKey.generate(.elliptic(curve)).publicKey.material
            if case .elliptic(_, let x, let y) = made, x[0] == 0 || y[0] == 0 { found = (x, y) }
        }
        let (x, y) = try #require(found)
        let whole = try JSONWebKey(parsing: Array(key(x: x, y: y).utf8))
        let short = try JSONWebKey(
            parsing: Array(key(x: Array(x.drop { $0 == 0 }), y: Array(y.drop { $0 == 0 })).utf8))
        #expect(short.publicKey.material == whole.publicKey.material)
    }

    /// What lacks other octets than zeros is another point.
    @Test(
        arguments: [
            (-1, .malformed(.x)), (0, nil), (1, .key(.notOnCurve)), (4, .key(.notOnCurve)), (5, .malformed(.x)),
        ] as [(Int, JSONWebKeyError?)])
    func `takes up to four octets for zeros that were left out`(missing: Int, expected: JSONWebKeyError?) throws {
        let (text, y) = Self.coordinates
        let x = try #require(Base64URL.decode(text))
        let given = missing < 0 ? [0] + x : Array(x.dropLast(missing))
        let json = #"{"kty":"EC","crv":"P-256","x":"\#(Base64URL.encode(given))","y":"\#(y)"}"#
        #expect(error(of: json) == expected)
    }

    /// An odd number of so many bits that nothing else is wrong with, as far as a reader can tell.
    private func modulus(bits: Int) -> [UInt8] {
        var bytes = [UInt8](repeating: 0x5b, count: (bits + 7) / 8)
        let top = (bits - 1) % 8
        bytes[0] = 1 << UInt8(top) | (bytes[0] & (1 << UInt8(top) - 1))
        return bytes
    }

    private func rsa(_ modulus: [UInt8], _ exponent: [UInt8] = [1, 0, 1]) -> String {
        #"{"kty":"RSA","n":"\#(Base64URL.encode(modulus))","e":"\#(Base64URL.encode(exponent))"}"#
    }

    @Test(arguments: [(2047, false), (2048, true), (2049, true), (4095, true), (4096, true), (4097, false)])
    func `takes RSA keys of 2048 to 4096 bits`(bits: Int, isTaken: Bool) {
        #expect(error(of: rsa(modulus(bits: bits))) == (isTaken ? nil : .key(.rsaSize(bits: bits))))
    }

    @Test(
        arguments: [
            ([1], false), ([2], false), ([3], true), ([4], false), ([1, 0, 0], false), ([1, 0, 1], true),
            ([255, 255, 255, 255], true), ([1, 0, 0, 0, 1], false),
        ] as [([UInt8], Bool)])
    func `takes odd RSA exponents from 3 up to 32 bits`(exponent: [UInt8], isTaken: Bool) {
        #expect(error(of: rsa(modulus(bits: 2048), exponent)) == (isTaken ? nil : .key(.rsaExponent)))
    }

    @Test func `refuses an even modulus`() {
        var even = modulus(bits: 2048)
        even[255] = 0x5a
        #expect(error(of: rsa(even)) == .key(.weakModulus))
    }

    @Test func `refuses the moduli of chips that made weak keys, and takes their neighbours`() throws {
        let group = try #require(
            VectorFile.read("wycheproof-jwk.json").array?.first { $0["comment"]?.text == "jws_rsa_roca_key" })
        let key = try #require(group["jwks"]?["keys"]?.array?.first?.object)
        #expect(throws: JSONWebKeyError.key(.weakModulus)) { try JSONWebKey(.object(key)) }
        var modulus = try #require(Base64URL.decode(key["n"]?.text ?? ""))
        for change in [2, 4] as [UInt8] {
            modulus[modulus.count - 1] ^= change
            #expect(error(of: rsa(modulus)) == nil)
        }
    }

    @Test func `takes one leading zero octet of an RSA number, as some libraries write it, and no second`() throws {
        let plain = try JSONWebKey(parsing: Array(rsa(modulus(bits: 2048)).utf8))
        let longer = try JSONWebKey(parsing: Array(rsa([0] + modulus(bits: 2048), [0, 1, 0, 1]).utf8))
        #expect(longer.thumbprint == plain.thumbprint)
        #expect(longer.json == plain.json)
        #expect(error(of: rsa([0, 0] + modulus(bits: 2048))) == .malformed(.n))
        #expect(error(of: rsa(modulus(bits: 2048), [0, 0, 1, 0, 1])) == .malformed(.e))
        #expect(error(of: rsa(modulus(bits: 2048), [0])) == .malformed(.e))
    }

    @Test(arguments: SignatureAlgorithm.allCases)
    func `gives back what was written`(algorithm: SignatureAlgorithm) throws {
        let key = JSONWebKey(
            SampleKeys.key(for: algorithm).publicJWK.publicKey, keyID: "k\u{0}\"", algorithm: algorithm)
        let read = try JSONWebKey(parsing: key.json)
        #expect(read.publicKey == key.publicKey)
        #expect(read.keyID == key.keyID)
        #expect(read.algorithm == WireText(algorithm.rawValue))
        #expect(read.isForSignatures)
        #expect(read.thumbprint == key.thumbprint)
        #expect(read.json == key.json)
    }

    @Test func `has the same thumbprint whatever else is said of the key`() throws {
        let (x, y) = Self.coordinates
        let others = [
            #"{"y":"\#(y)","x":"\#(x)","crv":"P-256","kty":"EC"}"#,
            #"{"kty":"EC","crv":"P-256","x":"\#(x)","y":"\#(y)","kid":"other","use":"enc","alg":"ES384"}"#,
            #"{"kty":"\u0045C","crv":"P\u002d256","x":"\#(x)","y":"\#(y)"}"#,
        ]
        for json in others {
            #expect(try JSONWebKey(parsing: Array(json.utf8)).thumbprint == SampleKeys.p256.publicJWK.thumbprint)
        }
        #expect(SampleKeys.make(.elliptic(.p256), "x").publicJWK.thumbprint != SampleKeys.p256.publicJWK.thumbprint)
    }

    /// Members of a good P-256 key, and why ES256 must not be verified with it.
    @Test(arguments: [
        ("", nil), (#","use":"sig""#, nil), (#","use":"enc""#, JWSError.Misfit.use), (#","use":"SIG""#, .use),
        (#","use":"""#, .use), (#","key_ops":["verify"]"#, nil), (#","key_ops":["sign","verify"]"#, nil),
        (#","key_ops":["sign"]"#, .use), (#","key_ops":[]"#, .use), (#","use":"sig","key_ops":["encrypt"]"#, .use),
        (#","use":"enc","key_ops":["verify"]"#, .use), (#","alg":"ES256""#, nil), (#","alg":"ES384""#, .algorithm),
        (#","alg":"ECDH-ES""#, .algorithm), (#","alg":"es256""#, .algorithm),
    ])
    func `keeps a key from what it is not for`(members: String, misfit: JWSError.Misfit?) throws {
        let (x, y) = Self.coordinates
        let key = try JSONWebKey(
            parsing: Array(#"{"kty":"EC","crv":"P-256","x":"\#(x)","y":"\#(y)"\#(members)}"#.utf8))
        #expect(key.misfit(for: .es256) == misfit)
        #expect(key.misfit(for: .es384) == .type)
        let token = try CompactJWS(
            parsing: SampleKeys.token(header: #"{"alg":"ES256"}"#), policy: everyAlgorithm)
        if let misfit {
            #expect(throws: JWSError.unsuitableKey(misfit)) { try token.verified(with: key) }
        } else {
            _ = try token.verified(with: key)
        }
    }
}

@Suite struct `A JWK set` {
    private func set(_ keys: [String]) throws -> JSONWebKeySet {
        try JSONWebKeySet(parsing: Array("{\"keys\":[\(keys.joined(separator: ","))]}".utf8))
    }

    private func text(_ key: PrivateJSONWebKey, _ members: String = "") -> String {
        String(decoding: key.publicJWK.json, as: UTF8.self).dropLast() + members + "}"
    }

    private func token(_ algorithm: SignatureAlgorithm, kid: String?) throws -> CompactJWS {
        let name = kid.map { #","kid":"\#($0)""# } ?? ""
        let header = #"{"alg":"\#(algorithm.rawValue)"\#(name)}"#
        return try CompactJWS(parsing: SampleKeys.token(header: header, algorithm), policy: everyAlgorithm)
    }

    @Test func `leaves out what is no key, and keeps the others in their order`() throws {
        let set = try set([
            #"{"kty":"oct","k":"AQ","kid":"p256"}"#, text(SampleKeys.p384), "1", #"{"kty":"EC"}"#, "null",
            text(SampleKeys.p256), #"{"kty":"AKP","alg":"ML-DSA-44","pub":"AQ"}"#,
            text(SampleKeys.ed25519, #","d":"AQ""#),
        ])
        #expect(set.keys.map(\.keyID) == ["p384", "p256"])
        #expect(set.skipped == 6)
        #expect(try JSONWebKeySet(parsing: set.json).keys.map(\.thumbprint) == set.keys.map(\.thumbprint))
    }

    @Test(arguments: [
        ("", JSONWebKeySet.Fault.notJSON(.malformed)), ("[]", .malformed), ("{}", .malformed),
        (#"{"keys":{}}"#, .malformed), (#"{"keys":null}"#, .malformed),
        (#"{"keys":[],"keys":[]}"#, .notJSON(.repeatedMember(pointer: "/keys"))),
    ])
    func `refuses what is no set`(json: String, fault: JSONWebKeySet.Fault) {
        #expect(throws: fault) { try JSONWebKeySet(parsing: Array(json.utf8)) }
    }

    @Test(arguments: [(99, nil), (100, nil), (101, JSONWebKeySet.Fault.tooManyKeys(101))])
    func `has at most 100 keys`(count: Int, fault: JSONWebKeySet.Fault?) throws {
        let keys = [String](repeating: "{}", count: count)
        if let fault {
            #expect(throws: fault) { try set(keys) }
        } else {
            #expect(try set(keys).skipped == count)
        }
    }

    @Test(arguments: [(-1, nil), (0, nil), (1, JSONWebKeySet.Fault.tooLarge)])
    func `has at most 512 KiB`(beyond: Int, fault: JSONWebKeySet.Fault?) throws {
        let json = Array(#"{"keys":[]}"#.utf8)
        let bytes = json + [UInt8](repeating: 0x20, count: JSONWebKeySet.longest + beyond - json.count)
        if let fault {
            #expect(throws: fault) { try JSONWebKeySet(parsing: bytes) }
        } else {
            #expect(try JSONWebKeySet(parsing: bytes).keys.isEmpty)
        }
    }

    @Test func `gives the key that the token names`() throws {
        let set = try set([text(SampleKeys.p384), text(SampleKeys.p256), text(SampleKeys.rsa)])
        #expect(try token(.es256, kid: "p256").verified(with: set).key.keyID == "p256")
        #expect(try token(.ps256, kid: "rsa").verified(with: set).key.keyID == "rsa")
        #expect(throws: JWSError.unknownKey) { try token(.es256, kid: "gone").verified(with: set) }
        #expect(throws: JWSError.unknownKey) { try token(.es256, kid: "P256").verified(with: set) }
        #expect(throws: JWSError.unknownKey) { try token(.es256, kid: "").verified(with: set) }
        #expect(throws: JWSError.unsuitableKey(.type)) { try token(.es256, kid: "rsa").verified(with: set) }
        #expect(throws: JWSError.unknownKey) { try token(.es256, kid: "p256").verified(with: JSONWebKeySet([])) }
    }

    // RFC 9864 §2.2.
    @Test(arguments: ["EdDSA", "Ed25519"], [nil, "EdDSA", "Ed25519"])
    func `verifies by Ed25519 under either name, and by no other curve's`(header: String, key: WireText?) throws {
        var jwk = text(SampleKeys.ed25519)
        if let key { jwk = String(jwk.dropLast()) + #","alg":"\#(key.text)"}"# }
        let set = try set([jwk])
        let policy = JWSPolicy(algorithms: Set(SignatureAlgorithm.allCases))
        func token(_ name: String) -> WireText {
            SampleKeys.token(header: #"{"alg":"\#(name)","kid":"ed25519"}"#, .edDSA)
        }
        #expect(try CompactJWS(parsing: token(header), policy: policy).verified(with: set).header.algorithm == .edDSA)
        #expect(throws: JWSError.algorithmNotAllowed) { try CompactJWS(parsing: token("Ed448"), policy: policy) }
    }

    @Test func `gives a token without a kid the only key that fits`() throws {
        let mixed = try set([text(SampleKeys.p384), text(SampleKeys.p256), text(SampleKeys.rsa)])
        #expect(try token(.es256, kid: nil).verified(with: mixed).key.keyID == "p256")
        #expect(throws: JWSError.unknownKey) { try token(.edDSA, kid: nil).verified(with: mixed) }
        let second = SampleKeys.make(.elliptic(.p256), "second")
        #expect(throws: JWSError.ambiguousKey) {
            try token(.es256, kid: nil).verified(with: try set([text(SampleKeys.p256), text(second)]))
        }
        let forEncryption = JSONWebKeySet([
            try JSONWebKey(parsing: Array(text(second).replacing("\"use\":\"sig\"", with: "\"use\":\"enc\"").utf8)),
            SampleKeys.p256.publicJWK,
        ])
        #expect(try token(.es256, kid: nil).verified(with: forEncryption).key.keyID == "p256")
    }

    @Test func `tries all keys of one name that fit`() throws {
        let (second, third) = (SampleKeys.make(.elliptic(.p256), "p256"), SampleKeys.make(.elliptic(.p256), "p256"))
        for keys in [[SampleKeys.p256, second], [second, SampleKeys.p256], [second, third, SampleKeys.p256]] {
            let found = try token(.es256, kid: "p256").verified(with: try set(keys.map { text($0) })).key
            #expect(found.thumbprint == SampleKeys.p256.publicJWK.thumbprint)
        }
        #expect(throws: JWSError.signature) {
            try token(.es256, kid: "p256").verified(with: try set([text(second), text(third)]))
        }
        let other = PrivateJSONWebKey(SampleKeys.p384.privateKey, keyID: "p256")
        let keys = try set([text(other), text(SampleKeys.p256)])
        #expect(
            try token(.es256, kid: "p256").verified(with: keys).key.thumbprint == SampleKeys.p256.publicJWK.thumbprint)
    }
}
