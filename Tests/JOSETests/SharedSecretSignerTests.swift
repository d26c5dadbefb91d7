import Cryptography
import ExternalText
import JOSE
import JSON
import Testing

@Suite struct `A token that a secret signs` {
    @Test func `has the code of its header and payload`() throws {
        let secret = SecretBytes(utf8: String(repeating: "s", count: 32))
        let token = try #require(SharedSecretSigner(secret)).sign(Array(#"{"sub":"a"}"#.utf8), type: "JWT").text
        let parts = token.split(separator: ".").map(String.init)
        try #require(parts.count == 3)
        #expect(Base64URL.decode(parts[0]) == Array(#"{"alg":"HS256","typ":"JWT"}"#.utf8))
        #expect(Base64URL.decode(parts[1]) == Array(#"{"sub":"a"}"#.utf8))
        let code = HMAC.sha256(key: secret, Array("\(parts[0]).\(parts[1])".utf8))
        #expect(Base64URL.decode(parts[2]) == code)
    }

    @Test(arguments: [(0, false), (31, false), (32, true), (33, true)])
    func `needs a secret of 32 octets`(count: Int, isUsable: Bool) {
        let secret = SecretBytes([UInt8](repeating: 1, count: count))
        #expect((SharedSecretSigner(secret) != nil) == isUsable)
    }

    @Test func `is verified by no key`() throws {
        let secret = SecretBytes([UInt8](repeating: 1, count: 32))
        let token = try #require(SharedSecretSigner(secret)).sign(Array("{}".utf8), type: "JWT")
        #expect(throws: JWSError.self) {
            try CompactJWS(parsing: token, policy: JWSPolicy(algorithms: Set(SignatureAlgorithm.allCases)))
        }
    }
}
