import Cryptography
import ExternalText
import Glibc
import GroundTesting
import JOSE
import JSON
import Testing

/// Tokens and keys are exchanged with jwcrypto, a public implementation (`interop.py`).
@Suite struct `Together with another implementation` {
    struct Missing: Error, CustomStringConvertible {
        let description: String
    }

    /// The script, for one test. Its calls block.
    private struct Other {
        private let process: DialogueProcess

        init() throws {
            let parts = #filePath.split(separator: "/", omittingEmptySubsequences: false)
            let python = parts.dropLast(3).joined(separator: "/") + "/.build-tools/python/bin/python"
            guard unsafe access(python, X_OK) == 0 else {
                throw Missing(description: "\(python) is missing: run Deploy/test once, which installs it")
            }
            process = try DialogueProcess([python, parts.dropLast().joined(separator: "/") + "/interop.py"])
        }

        func ask(_ command: String, _ members: [WireText: JSONValue]) throws -> JSONValue {
            var members = members
            members["do"] = .string(command)
            var writer = JSONWriter()
            writer.value(.object(members))
            try process.write(String(decoding: writer.bytes, as: UTF8.self))
            guard let line = try process.readLine() else {
                throw Missing(description: "interop.py ended without an answer; see standard error")
            }
            return try JSONValue(parsing: Array(line.utf8))
        }

        /// A new private key of theirs, as JWK and as PEM.
        func makeKey(for algorithm: SignatureAlgorithm) throws -> (jwk: JSONValue, pem: SecretBytes) {
            let answer = try ask("make", ["alg": .string(algorithm.rawValue), "kid": "theirs"])
            return (try #require(answer["jwk"]), SecretBytes(utf8: try #require(answer["pem"]?.text)))
        }
    }

    @Test(arguments: SignatureAlgorithm.allCases)
    func `what they sign is verified`(algorithm: SignatureAlgorithm) async throws {
        try await DialogueProcess.blocking {
            let other = try Other()
            let key = try other.makeKey(for: algorithm)
            let jwk = try JSONWebKey(VectorFile.publicPart(of: key.jwk))
            let theirs = try other.ask("thumbprint", ["jwk": key.jwk])["thumbprint"]?.text
            #expect(Base64URL.encode(jwk.thumbprint) == theirs)
            for payload in ["", "x", #"{"sub":"\u00fc"}"#, String(repeating: "long ", count: 2000)] {
                let header: [WireText: JSONValue] = [
                    "alg": .string(algorithm.rawValue), "kid": "theirs", "typ": "JWT",
                ]
                let token = try #require(
                    other.ask("sign", ["jwk": key.jwk, "header": .object(header), "payload": .string(payload)])["jws"]?
                        .string)
                let verified = try CompactJWS(parsing: token, policy: JWSPolicy(algorithms: [algorithm]))
                    .verified(with: JSONWebKeySet([jwk]))
                #expect(verified.payload == Array(payload.utf8))
                #expect(verified.header.type == "JWT")
            }
        }
    }

    @Test(arguments: SignatureAlgorithm.allCases)
    func `they verify what is signed, with keys of both`(algorithm: SignatureAlgorithm) async throws {
        try await DialogueProcess.blocking {
            let other = try Other()
            let theirs = try other.makeKey(for: algorithm)
            let fromJWK = try PrivateJSONWebKey(theirs.jwk)
            let fromPEM = try PrivateJSONWebKey(PrivateKey(pem: theirs.pem), keyID: "theirs")
            #expect(fromJWK.publicJWK.thumbprint == fromPEM.publicJWK.thumbprint)
            for key in [fromJWK, fromPEM, SampleKeys.key(for: algorithm)] {
                let token = try TokenSigner(key, algorithm: algorithm).sign(Array("payload".utf8), embedsKey: true)
                let jwk = try JSONValue(parsing: key.publicJWK.json)
                let answer = try other.ask(
                    "verify", ["jwk": jwk, "alg": .string(algorithm.rawValue), "jws": .string(token)])
                #expect(answer["valid"] == .bool(true))
                #expect(answer["payload"] == "payload")
                let wrong = WireText(token.text.dropLast(2) + (token.ends(with: "AA") ? "BA" : "AA"))
                let refused = try other.ask(
                    "verify", ["jwk": jwk, "alg": .string(algorithm.rawValue), "jws": .string(wrong)])
                #expect(refused["valid"] == .bool(false))
            }
        }
    }

    @Test(arguments: ["P-256", "X25519"])
    func `they open what is encrypted for their key`(curve: String) async throws {
        try await DialogueProcess.blocking {
            let other = try Other()
            let jwk = try #require(try other.ask("receive", ["crv": .string(WireText(curve))])["jwk"])
            let key = try EncryptionKey(VectorFile.publicPart(of: jwk))
            #expect(throws: JSONWebKeyError.secretDisclosed) { try EncryptionKey(jwk) }
            // jwcrypto takes an empty content for none.
            for content in ["x", "xy", String(repeating: "long ", count: 20_000)] {
                let sealed = String(decoding: try key.seal(Array(content.utf8)), as: UTF8.self)
                let answer = try other.ask("open", ["jwk": jwk, "jwe": .string(WireText(sealed))])
                #expect(answer["content"]?.string == WireText(content))
                #expect(answer["header"]?["kid"] == "theirs")
            }
        }
    }

    @Test func `each malformed token of theirs is refused for what is wrong with it`() async throws {
        try await DialogueProcess.blocking {
            let other = try Other()
            let key = try other.makeKey(for: .es256)
            let jwk = try JSONWebKey(VectorFile.publicPart(of: key.jwk))
            let answer = try other.ask("malformed", ["jwk": key.jwk])
            func refusal(of token: WireText) -> JWSError? {
                do throws(JWSError) {
                    _ = try CompactJWS(parsing: token, policy: everyAlgorithm).verified(with: JSONWebKeySet([jwk]))
                    return nil
                } catch {
                    // Which part is the first with such a character depends on the key that they have made.
                    if case .notBase64URL = error { return .notBase64URL(.header) }
                    return error
                }
            }
            #expect(refusal(of: try #require(answer["good"]?.string)) == nil)
            let expected: [WireText: JWSError] = [
                "json": .malformed, "detached": .signature, "encrypted": .malformed, "unsecured": .unsecured,
                "unsecured, with the signature": .unsecured, "hmac with the PEM": .algorithmNotAllowed,
                "hmac with the JWK": .algorithmNotAllowed, "hmac with the coordinate": .algorithmNotAllowed,
                "crit": .criticalExtension, "unencoded payload": .criticalExtension, "jwk": .keySource(.jwk),
                "jku": .keySource(.jku), "x5u": .keySource(.x5u), "x5c": .keySource(.x5c),
                "another algorithm": .unsuitableKey(.type), "padded": .notBase64URL(.header),
                "standard base64": .notBase64URL(.header), "lines": .notBase64URL(.header),
                "bearer": .notBase64URL(.header), "another payload": .signature,
            ]
            let tokens = try #require(answer["tokens"]?.array)
            #expect(tokens.count == expected.count)
            for pair in tokens {
                let name = try #require(pair.array?.first?.string)
                let token = try #require(pair.array?.last?.string)
                #expect(refusal(of: token) == expected[name], "\(name)")
            }
        }
    }
}
