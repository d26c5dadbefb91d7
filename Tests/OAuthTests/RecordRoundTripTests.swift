import Cryptography
import ExternalText
import OAuth
import Testing

@Suite struct `Random records` {
    /// The same numbers in each run, so that a failure can be repeated (SplitMix64).
    private struct Numbers: RandomNumberGenerator {
        var state: UInt64

        mutating func next() -> UInt64 {
            state &+= 0x9e37_79b9_7f4a_7c15
            var mixed = state
            mixed = (mixed ^ (mixed >> 30)) &* 0xbf58_476d_1ce4_e5b9
            mixed = (mixed ^ (mixed >> 27)) &* 0x94d0_49bb_1331_11eb
            return mixed ^ (mixed >> 31)
        }

        mutating func bytes(_ count: Int) -> [UInt8] {
            (0..<count).map { _ in UInt8.random(in: 0...255, using: &self) }
        }

        /// A text of random scalars, half of them from those that JSON treats specially.
        mutating func text() -> String {
            let awkward: [Unicode.Scalar] = ["\"", "\\", "\u{0}", "\u{1f}", "\u{7f}", "/", "\u{2028}", "\u{1f511}"]
            var text = String.UnicodeScalarView()
            for _ in 0..<Int.random(in: 1...40, using: &self) {
                let any = Unicode.Scalar(UInt32.random(in: 0...0x10_ffff, using: &self))
                text.append(Bool.random(using: &self) ? any ?? "x" : awkward.randomElement(using: &self) ?? "y")
            }
            return String(text)
        }

        /// Random scopes of the characters that RFC 6749 §3.3 allows.
        mutating func scopes() -> ScopeSet {
            let letters = (0x21...0x7e).filter { $0 != 0x22 && $0 != 0x5c }.map { Unicode.Scalar(UInt8($0)) }
            let values = (0..<Int.random(in: 0...5, using: &self)).map { _ in
                var value = String.UnicodeScalarView()
                for _ in 0..<Int.random(in: 1...12, using: &self) {
                    value.append(letters.randomElement(using: &self) ?? "a")
                }
                return String(value)
            }
            return ScopeSet(values) ?? .empty
        }

        mutating func maybe<T>(_ value: (inout Self) -> T) -> T? { Bool.random(using: &self) ? value(&self) : nil }

        mutating func credentials() -> HeldCredentials {
            let isUser = Bool.random(using: &self)
            return HeldCredentials(
                level: isUser ? .user : .client, accessToken: SecretBytes(utf8: text()),
                refreshToken: maybe { SecretBytes(utf8: $0.text()) },
                expires: Timestamp(
                    milliseconds: Int64.random(in: -1_000...Timestamp.latest.milliseconds, using: &self)),
                grantedScopes: scopes(), userID: maybe { WireText($0.text()) },
                obtainedWith: ClientFingerprint(
                    clientID: WireText(text()), scopes: scopes(), clientUniqueKey: maybe { WireText($0.text()) },
                    clientSecretDigest: maybe { $0.bytes(32) }),
                grantedBy: GrantingProvider(
                    issuer: maybe { WireText($0.text()) }, tokenEndpoint: maybe { WireText($0.text()) }),
                refreshableFrom: maybe {
                    Timestamp(milliseconds: Int64.random(in: -1_000...Timestamp.latest.milliseconds, using: &$0))
                })
        }
    }

    // S15
    @Test(arguments: 1...100)
    func `are read as they were written`(seed: UInt64) {
        var numbers = Numbers(state: seed)
        let record = CredentialRecord(held: numbers.maybe { $0.credentials() }, ended: numbers.maybe { $0.bytes(32) })
        #expect(CredentialRecord(decoding: record.encoded) == record)
        let quarantined = QuarantinedCredentials(
            credentials: numbers.credentials(),
            until: Timestamp(seconds: Int64.random(in: 0...4_000_000_000, using: &numbers)))
        #expect(QuarantinedCredentials(decoding: quarantined.encoded) == quarantined)
    }

    // S15
    @Test func `differ from each other`() {
        let records = (1...100).map { (seed: UInt64) -> HeldCredentials in
            var numbers = Numbers(state: seed)
            return numbers.credentials()
        }
        #expect(Set(records.map(\.accessToken.revealedText)).count == 100)
        #expect(Set(records.map(\.level)).count == 2)
        #expect(records.contains { $0.refreshToken == nil } && records.contains { $0.refreshToken != nil })
    }
}
