import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

/// Tokens, keys and claims that are nearly good, made of good ones by a seed: the same ones in each run.
@Suite struct `Mutated input` {
    /// SplitMix64.
    private struct Numbers: RandomNumberGenerator {
        var state: UInt64

        mutating func next() -> UInt64 {
            state &+= 0x9e37_79b9_7f4a_7c15
            var mixed = state
            mixed = (mixed ^ (mixed >> 30)) &* 0xbf58_476d_1ce4_e5b9
            mixed = (mixed ^ (mixed >> 27)) &* 0x94d0_49bb_1331_11eb
            return mixed ^ (mixed >> 31)
        }

        private static let pieces: [[UInt8]] = [
            "{", "}", "[", "]", "\"", ":", ",", ".", "=", "-", "_", "+", " ", "\\u0000", "\\ud800", "null", "1e999",
            "\"crit\":[\"exp\"],", "\"alg\":\"none\",", "\"jwk\":{},", "\"kid\":\"p384\",", "\"d\":\"AQ\",", "-1",
        ].map { Array($0.utf8) }

        /// One to four changes: bytes that are flipped, left out, doubled, moved or put in.
        mutating func mutation(of bytes: [UInt8]) -> [UInt8] {
            var bytes = bytes
            for _ in 0..<Int.random(in: 1...4, using: &self) {
                let index = Int.random(in: 0...bytes.count, using: &self)
                let end = min(bytes.count, index + Int.random(in: 0...8, using: &self))
                switch Int.random(in: 0..<6, using: &self) {
                case 0 where index < bytes.count: bytes[index] ^= 1 << UInt8.random(in: 0..<8, using: &self)
                case 1: bytes.removeSubrange(index..<end)
                case 2: bytes.insert(contentsOf: Array(bytes[index..<end]), at: index)
                case 3: bytes.insert(contentsOf: Self.pieces.randomElement(using: &self) ?? [], at: index)
                case 4 where index < bytes.count: bytes[index] = UInt8.random(in: .min ... .max, using: &self)
                default: bytes = Array(bytes[index...] + bytes[..<index])
                }
            }
            return bytes
        }
    }

    /// What nothing of this size may take, even where a compiler has not optimised: some hundred times what it takes.
    private let longest: Int64 = 20_000_000

    /// Runs `body`, and measures it again where it took long: the machine may have been busy.
    private func isQuick(_ body: () -> Void) -> Bool {
        let start = ReadingCost.threadTime
        body()
        return ReadingCost.threadTime - start < longest || ReadingCost.least(body) < longest
    }

    @Test(arguments: SignatureAlgorithm.allCases)
    func `is never a token that the key has not signed`(algorithm: SignatureAlgorithm) throws {
        var numbers = Numbers(state: 7)
        let key = SampleKeys.key(for: algorithm)
        let set = JSONWebKeySet(
            [SampleKeys.p256, SampleKeys.p384, SampleKeys.rsa, SampleKeys.ed25519].map(\.publicJWK))
        let token = try TokenSigner(key, algorithm: algorithm).sign(
            Array(#"{"iss":"https://a.example","sub":"u","exp":1700000000}"#.utf8), type: "JWT")
        let parts = token.split(at: ".").map { Base64URL.decode($0.text) ?? [] }
        var refusals: [JWSError] = []
        for round in 0..<3000 {
            // Half of them are changed as they are sent, the others within one of their parts.
            var mutated = token
            if round.isMultiple(of: 2) {
                mutated = WireText(numbers.mutation(of: Array(token.utf8)))
            } else {
                var changed = parts
                let part = Int.random(in: 0..<3, using: &numbers)
                changed[part] = numbers.mutation(of: parts[part])
                mutated = WireText(changed.map { Base64URL.encode($0) }.joined(separator: "."))
            }
            if mutated == token { continue }
            var refusal: JWSError?
            #expect(
                isQuick {
                    do throws(JWSError) {
                        _ = try CompactJWS(parsing: mutated, policy: everyAlgorithm).verified(with: set)
                        refusal = nil
                    } catch {
                        refusal = error
                    }
                })
            refusals.append(try #require(refusal, "seed 7, round \(round): \(mutated) is accepted"))
        }
        // The changes reach every stage of reading.
        for stage in [JWSError.malformed, .notBase64URL(.header), .malformedHeader, .unknownKey, .signature] {
            #expect(refusals.contains(stage))
        }
    }

    @Test func `as a JWK is refused, or a key that is written and read as the same`() throws {
        var numbers = Numbers(state: 11)
        var taken = 0
        for round in 0..<6000 {
            let algorithm = SignatureAlgorithm.allCases[round % SignatureAlgorithm.allCases.count]
            let json = numbers.mutation(of: SampleKeys.key(for: algorithm).publicJWK.json)
            var key: JSONWebKey?
            #expect(isQuick { key = try? JSONWebKey(parsing: json) }, "seed 11, round \(round)")
            guard let key else { continue }
            taken += 1
            let again = try JSONWebKey(parsing: key.json)
            #expect(again.thumbprint == key.thumbprint)
            #expect(again.publicKey == key.publicKey)
            #expect(again.keyID == key.keyID)
        }
        #expect(taken > 0)
    }

    @Test func `as a claims set is refused, or read the same when it is written again`() throws {
        var numbers = Numbers(state: 13)
        let good = Array(
            #"{"iss":"https://a.example","sub":"u","aud":["a","b"],"exp":1700000000.5,"nbf":1.7e9,"iat":0,"x":{"y":[1]}}"#
                .utf8)
        var taken = 0
        for round in 0..<6000 {
            let json = numbers.mutation(of: good)
            var claims: ClaimsSet?
            #expect(isQuick { claims = try? ClaimsSet(parsing: json) }, "seed 13, round \(round)")
            guard let claims else { continue }
            taken += 1
            var writer = JSONWriter()
            writer.value(.object(claims.members))
            #expect(try ClaimsSet(parsing: writer.bytes) == claims)
        }
        #expect(taken > 0)
    }

    @Test func `as a PEM text is refused, or a key whose parts belong together`() throws {
        var numbers = Numbers(state: 17)
        for round in 0..<600 {
            let key = SampleKeys.key(for: SignatureAlgorithm.allCases[round % SignatureAlgorithm.allCases.count])
            let pem = numbers.mutation(of: try key.privateKey.pem().revealedBytes)
            guard let read = try? PrivateKey(pem: SecretBytes(pem)) else { continue }
            let scheme = try #require(SignatureScheme.allCases.first { $0.isFor(read.publicKey) })
            let signature = try read.signature(of: [1], by: scheme)
            #expect(read.publicKey.verifies(signature, of: [1], by: scheme), "seed 17, round \(round)")
        }
    }
}
