import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

@Suite struct `Verifying a JWS` {
    private let key = SampleKeys.p256.publicJWK

    /// What a token is refused for; nil when it is accepted.
    private func refusal(
        of token: WireText, policy: JWSPolicy = everyAlgorithm, with key: JSONWebKey? = nil
    ) -> JWSError? {
        do throws(JWSError) {
            _ = try CompactJWS(parsing: token, policy: policy).verified(with: key ?? self.key)
            return nil
        } catch {
            return error
        }
    }

    @Test(arguments: SignatureAlgorithm.allCases)
    func `accepts what the key has signed, and gives header and payload`(algorithm: SignatureAlgorithm) throws {
        let key = SampleKeys.key(for: algorithm)
        let token = try TokenSigner(key, algorithm: algorithm).sign(Array(#"{"sub":"u"}"#.utf8), type: "JWT")
        let verified = try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: key.publicJWK)
        #expect(verified.header.algorithm == algorithm)
        #expect(verified.header.keyID == key.keyID)
        #expect(verified.header.type == "JWT")
        #expect(verified.header.embeddedKey == nil)
        #expect(verified.key.thumbprint == key.publicJWK.thumbprint)
        #expect(try verified.claims().subject == "u")
    }

    @Test(arguments: SignatureAlgorithm.allCases, SignatureAlgorithm.allCases)
    func `refuses each algorithm that the caller does not name, and each key of another kind`(
        signed: SignatureAlgorithm, permitted: SignatureAlgorithm
    ) throws {
        let token = try TokenSigner(SampleKeys.key(for: signed), algorithm: signed).sign([])
        let policy = JWSPolicy(algorithms: [permitted])
        let key = SampleKeys.key(for: permitted).publicJWK
        #expect(refusal(of: token, policy: policy, with: key) == (signed == permitted ? nil : .algorithmNotAllowed))
        let isSameKind = signed.scheme.isFor(key.publicKey)
        #expect(refusal(of: token, with: key) == (isSameKind ? nil : .unsuitableKey(.type)))
    }

    /// Headers that are signed as they stand, so that nothing but the rule refuses them.
    private static let headers: [(header: String, error: JWSError?)] = [
        (#"{"alg":"ES256"}"#, nil),
        ("\t\r\n {\n\"alg\" : \"ES256\" } \n", nil),
        (#"{"alg":"ES256","x5t":"abc","cty":"JWT","zip":1}"#, nil),
        (#"{"\u0061lg":"ES256"}"#, nil),
        ("", .malformedHeader), ("{}", .noAlgorithm), ("[]", .malformedHeader), ("null", .malformedHeader),
        (#"{"alg":"ES256""#, .malformedHeader), (#"{"alg":"ES256"}x"#, .malformedHeader),
        (#"{"alg":"ES256"}{}"#, .malformedHeader),
        ("\u{feff}{\"alg\":\"ES256\"}", .malformedHeader),
        (#"{"alg":"ES256","alg":"ES256"}"#, .malformedHeader),
        (#"{"alg":"none","\u0061lg":"ES256"}"#, .malformedHeader),
        (#"{"alg":"ES256","x":{"a":1,"a":2}}"#, .malformedHeader),
        (#"{"alg":1}"#, .malformedParameter), (#"{"alg":null}"#, .malformedParameter),
        (#"{"alg":["ES256"]}"#, .malformedParameter),
        (#"{"alg":"none"}"#, .unsecured), (#"{"alg":"None"}"#, .unsecured), (#"{"alg":"nOnE"}"#, .unsecured),
        (#"{"alg":""}"#, .algorithmNotAllowed), (#"{"alg":"none "}"#, .algorithmNotAllowed),
        (#"{"alg":"es256"}"#, .algorithmNotAllowed), (#"{"alg":"ES256 "}"#, .algorithmNotAllowed),
        (#"{"alg":"ES256\u0000"}"#, .algorithmNotAllowed),
        (#"{"alg":"HS256"}"#, .algorithmNotAllowed), (#"{"alg":"HS384"}"#, .algorithmNotAllowed),
        (#"{"alg":"HS512"}"#, .algorithmNotAllowed), (#"{"alg":"ES512"}"#, .algorithmNotAllowed),
        (#"{"alg":"ES256K"}"#, .algorithmNotAllowed), (#"{"alg":"RS1"}"#, .algorithmNotAllowed),
        (#"{"alg":"RS512"}"#, .algorithmNotAllowed), (#"{"alg":"Ed448"}"#, .algorithmNotAllowed),
        (#"{"alg":"RSA-OAEP","enc":"A256GCM"}"#, .algorithmNotAllowed),
        (#"{"alg":"dir","enc":"A256GCM"}"#, .algorithmNotAllowed),
        (#"{"alg":"ES256","crit":["exp"],"exp":1}"#, .criticalExtension),
        (#"{"alg":"ES256","crit":["b64"],"b64":false}"#, .criticalExtension),
        (#"{"alg":"ES256","crit":[]}"#, .criticalExtension), (#"{"alg":"ES256","crit":null}"#, .criticalExtension),
        (#"{"alg":"ES256","jwk":{}}"#, .keySource(.jwk)), (#"{"alg":"ES256","jwk":null}"#, .keySource(.jwk)),
        (#"{"alg":"ES256","jku":"https://a.example/keys"}"#, .keySource(.jku)),
        (#"{"alg":"ES256","x5u":"https://a.example/chain"}"#, .keySource(.x5u)),
        (#"{"alg":"ES256","x5c":["MII"]}"#, .keySource(.x5c)),
        (#"{"alg":"ES256","kid":7}"#, .malformedParameter), (#"{"alg":"ES256","kid":null}"#, .malformedParameter),
        (#"{"alg":"ES256","typ":7}"#, .malformedParameter),
    ]

    // H043
    @Test(arguments: headers.indices)
    func `refuses each header that could deceive`(index: Int) {
        let (header, error) = Self.headers[index]
        #expect(refusal(of: SampleKeys.token(header: header)) == error, "\(header)")
    }

    // H043
    @Test func `refuses HMAC with the bytes of a public key, whatever the caller permits`() throws {
        // No list of algorithms can name HMAC, so neither PEM, DER nor JWK of the key can become its secret.
        for name in ["HS256", "HS384", "HS512", "none"] { #expect(SignatureAlgorithm(rawValue: name) == nil) }
        let unsigned = SampleKeys.token(header: #"{"alg":"HS256","kid":"p256"}"#).split(at: ".")
        let input = Array("\(unsigned[0]).\(unsigned[1])".utf8)
        let code = SHA256.digest(key.json + input)
        let token = WireText("\(unsigned[0]).\(unsigned[1]).\(Base64URL.encode(code))")
        #expect(refusal(of: token) == .algorithmNotAllowed)
    }

    /// What becomes of the parts of a good token.
    private static let shapes: [(name: String, make: @Sendable ([WireText]) -> String, error: JWSError?)] = [
        ("as it is", { "\($0[0]).\($0[1]).\($0[2])" }, nil),
        ("empty", { _ in "" }, .malformed), ("dots", { _ in ".." }, .malformedHeader),
        ("one dot", { _ in "." }, .malformed), ("three dots", { _ in "..." }, .malformed),
        ("two parts", { "\($0[0]).\($0[1])" }, .malformed),
        ("four parts", { "\($0[0]).\($0[1]).\($0[2])." }, .malformed),
        ("five parts", { "\($0[0]).\($0[1]).\($0[2])..\($0[2])" }, .malformed),
        ("no header", { ".\($0[1]).\($0[2])" }, .malformedHeader),
        ("no payload", { "\($0[0])..\($0[2])" }, .signature),
        ("no signature", { "\($0[0]).\($0[1])." }, .signatureLength),
        ("a space before", { " \($0[0]).\($0[1]).\($0[2])" }, .notBase64URL(.header)),
        ("a line's end behind", { "\($0[0]).\($0[1]).\($0[2])\n" }, .notBase64URL(.signature)),
        ("a line's end within", { "\($0[0]).\n\($0[1]).\($0[2])" }, .notBase64URL(.payload)),
        ("a padded header", { "\($0[0])=.\($0[1]).\($0[2])" }, .notBase64URL(.header)),
        ("a padded payload", { "\($0[0]).\($0[1])=.\($0[2])" }, .notBase64URL(.payload)),
        ("a padded signature", { "\($0[0]).\($0[1]).\($0[2])==" }, .notBase64URL(.signature)),
        ("a zero octet", { "\($0[0]).\($0[1]).\($0[2])\u{0}" }, .notBase64URL(.signature)),
        ("a letter beyond ASCII", { "\($0[0]).\($0[1]).\($0[2])é" }, .notBase64URL(.signature)),
        ("plus in place of minus", { "\($0[0]).\($0[1]).+\($0[2].dropping(1))" }, .notBase64URL(.signature)),
        ("a signature that is one octet shorter", { "\($0[0]).\($0[1]).\(shortened($0[2], by: 1))" }, .signatureLength),
        ("a signature that is one octet longer", { "\($0[0]).\($0[1]).\(lengthened($0[2]))" }, .signatureLength),
        ("the signature twice", { "\($0[0]).\($0[1]).\(twice($0[2]))" }, .signatureLength),
        ("a DER signature", { "\($0[0]).\($0[1]).\(encoded($0[2]))" }, .signatureLength),
        ("leftover bits", { "\($0[0]).\($0[1]).\(withLeftoverBits($0[2]))" }, .notBase64URL(.signature)),
        ("r of zero", { "\($0[0]).\($0[1]).\(zeroed($0[2], 0..<32))" }, .signature),
        ("s of zero", { "\($0[0]).\($0[1]).\(zeroed($0[2], 32..<64))" }, .signature),
        ("another payload", { "\($0[0]).e30g.\($0[2])" }, .signature),
    ]

    private static func shortened(_ part: WireText, by count: Int) -> String {
        Base64URL.encode(Array((Base64URL.decode(part.text) ?? []).dropLast(count)))
    }

    private static func lengthened(_ part: WireText) -> String {
        Base64URL.encode((Base64URL.decode(part.text) ?? []) + [0])
    }

    private static func twice(_ part: WireText) -> String {
        let bytes = Base64URL.decode(part.text) ?? []
        return Base64URL.encode(bytes + bytes)
    }

    private static func zeroed(_ part: WireText, _ range: Range<Int>) -> String {
        var bytes = Base64URL.decode(part.text) ?? []
        for index in range { bytes[index] = 0 }
        return Base64URL.encode(bytes)
    }

    /// 64 octets leave four bits of the last character unused.
    private static func withLeftoverBits(_ part: WireText) -> String {
        let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)
        var characters = Array(part.utf8)
        guard let index = characters.last.flatMap({ alphabet.firstIndex(of: $0) }) else { return "" }
        characters[characters.count - 1] = alphabet[index | 1]
        return String(decoding: characters, as: UTF8.self)
    }

    /// The signature as other protocols write it.
    private static func encoded(_ part: WireText) -> String {
        let bytes = Base64URL.decode(part.text) ?? []
        func integer(_ digits: ArraySlice<UInt8>) -> [UInt8] { [2, 33, 0] + digits }
        let body = integer(bytes.prefix(32)) + integer(bytes.suffix(32))
        return Base64URL.encode([0x30, UInt8(body.count)] + body)
    }

    @Test(arguments: shapes.map(\.name))
    func `refuses each form but that which was signed`(name: String) throws {
        let shape = try #require(Self.shapes.first { $0.name == name })
        let parts = SampleKeys.token(header: #"{"alg":"ES256"}"#).split(at: ".")
        #expect(refusal(of: WireText(shape.make(parts))) == shape.error)
    }

    @Test func `refuses leftover bits in a payload, although its octets are the same`() throws {
        // "e30" is {}; "e31" decodes to the same octets with leftover bits.
        let token = SampleKeys.token(header: #"{"alg":"ES256"}"#).split(at: ".")
        #expect(token[1] == "e30")
        #expect(refusal(of: WireText("\(token[0]).e31.\(token[2])")) == .notBase64URL(.payload))
    }

    @Test(arguments: [(-1, nil), (0, nil), (1, JWSError.tooLarge)])
    func `reads 64 KiB`(beyond: Int, error: JWSError?) throws {
        // Base64 has no length of the form 4n + 1, so spaces in the header make up for what a payload cannot.
        let count = CompactJWS.longest + beyond
        let bytes = 49_000
        let tokens = (0..<4).lazy.flatMap { spaces in
            (0..<200).lazy.map { more in
                (spaces: spaces, bytes: bytes + more, count: Self.count(15 + spaces) + Self.count(bytes + more) + 88)
            }
        }
        let fitting = try #require(tokens.first { $0.count == count })
        let token = SampleKeys.token(
            header: #"{"alg":"ES256"}"# + String(repeating: " ", count: fitting.spaces),
            payload: [UInt8](repeating: 97, count: fitting.bytes))
        #expect(token.count == count)
        #expect(refusal(of: token) == error)
    }

    /// Characters of so many octets in base64url.
    private static func count(_ octets: Int) -> Int { (octets * 4 + 2) / 3 }

    @Test(arguments: [(1023, nil), (1024, nil), (1025, JWSError.malformedParameter)])
    func `reads a kid of 1024 bytes`(count: Int, error: JWSError?) {
        let name = String(repeating: "k", count: count)
        #expect(refusal(of: SampleKeys.token(header: #"{"alg":"ES256","kid":"\#(name)"}"#)) == error)
    }

    @Test(arguments: [
        ("at+jwt", nil), ("AT+JWT", nil), ("application/at+jwt", nil), ("Application/At+Jwt", nil),
        ("JWT", JWSError.type), ("at+jwt ", .type), ("xapplication/at+jwt", .type), ("application/", .type),
        ("", .type),
    ])
    func `compares the type as media types are compared`(type: String, error: JWSError?) {
        let policy = JWSPolicy(algorithms: [.es256], types: ["logout+jwt", "at+jwt"])
        #expect(refusal(of: SampleKeys.token(header: #"{"alg":"ES256","typ":"\#(type)"}"#), policy: policy) == error)
        #expect(refusal(of: SampleKeys.token(header: #"{"alg":"ES256","typ":"\#(type)"}"#)) == nil)
    }

    @Test func `refuses a token without a type where one is demanded`() {
        let policy = JWSPolicy(algorithms: [.es256], types: ["at+jwt"])
        #expect(refusal(of: SampleKeys.token(header: #"{"alg":"ES256"}"#), policy: policy) == .type)
    }
}

@Suite struct `A key in the header of a JWS` {
    private let policy = JWSPolicy(algorithms: Set(SignatureAlgorithm.allCases), allowsEmbeddedKey: true)

    @Test(arguments: SignatureAlgorithm.allCases)
    func `verifies its own token where the caller allows it`(algorithm: SignatureAlgorithm) throws {
        let key = SampleKeys.key(for: algorithm)
        let token = try TokenSigner(key, algorithm: algorithm).sign([], type: "dpop+jwt", embedsKey: true)
        let parsed = try CompactJWS(parsing: token, policy: policy)
        let embedded = try #require(parsed.header.embeddedKey)
        #expect(embedded.keyID == key.keyID)
        #expect(try parsed.verified(with: embedded).key.thumbprint == key.publicJWK.thumbprint)
        #expect(throws: JWSError.keySource(.jwk)) { try CompactJWS(parsing: token, policy: everyAlgorithm) }
    }

    @Test func `does not verify a token that is signed by another`() throws {
        let other = SampleKeys.make(.elliptic(.p256), "p256")
        let jwk = String(decoding: other.publicJWK.json, as: UTF8.self)
        let token = SampleKeys.token(header: #"{"alg":"ES256","jwk":\#(jwk)}"#)
        let parsed = try CompactJWS(parsing: token, policy: policy)
        let embedded = try #require(parsed.header.embeddedKey)
        #expect(throws: JWSError.signature) { try parsed.verified(with: embedded) }
    }

    @Test func `brings no address of a key and no certificate even then`() {
        for (member, source) in [("jku", JWSError.KeySource.jku), ("x5u", .x5u), ("x5c", .x5c)] {
            let token = SampleKeys.token(header: #"{"alg":"ES256","\#(member)":"https://a.example"}"#)
            #expect(throws: JWSError.keySource(source)) { try CompactJWS(parsing: token, policy: policy) }
        }
    }

    @Test func `is refused when it is a private one, a symmetric one or none`() throws {
        let d = Base64URL.encode([UInt8](repeating: 1, count: 32))
        let jwk = String(decoding: SampleKeys.p256.publicJWK.json, as: UTF8.self).dropLast()
        for (key, error) in [
            (jwk + #","d":"\#(d)"}"#, JSONWebKeyError.secretDisclosed),
            (#"{"kty":"oct","k":"AQ"}"#, .unsupported(.kty)),
            ("[]", .notAnObject), ("{}", .missing(.kty)),
        ] {
            let token = SampleKeys.token(header: #"{"alg":"ES256","jwk":\#(key)}"#)
            #expect(throws: JWSError.embeddedKey(error)) { try CompactJWS(parsing: token, policy: policy) }
        }
    }
}
