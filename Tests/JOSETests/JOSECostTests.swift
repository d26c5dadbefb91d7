import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON
import Testing

/// The time for reading tokens and keys is proportional to their size, whatever they contain.
@Suite struct `Cost of JOSE` {
    private static let texts: [(name: String, make: @Sendable (Int) -> String)] = [
        ("letters", { HostileText.repeated("a", $0) }), ("full stops", { HostileText.repeated(".", $0) }),
        ("equals signs", { HostileText.repeated("=", $0) }), ("marks", { HostileText.marks($0) }),
        ("letters and full stops", { HostileText.repeated("e30.", $0) }),
        ("a long header", { size in HostileText.repeated("a", size) + ".e30.AA" }),
        ("a long payload", { size in "eyJhbGciOiJFUzI1NiJ9." + HostileText.repeated("abcd", size) + ".AA" }),
        ("a long signature", { size in "eyJhbGciOiJFUzI1NiJ9.e30." + HostileText.repeated("abcd", size) }),
        (
            "marks in a header",
            { size in Base64Text.encode(#"{"alg":"ES256","x":"\#(HostileText.marks(size))"}"#) + ".e30.AA" }
        ),
        (
            "many parameters",
            { size in
                let members = (0..<size / 12).map { #","m\#($0)":1"# }.joined()
                return Base64Text.encode(#"{"alg":"ES256"\#(members)}"#) + ".e30.AA"
            }
        ),
        (
            "deep nesting",
            { size in
                let deep = String(repeating: "[", count: 30) + String(repeating: "]", count: 30)
                return Base64Text.encode(#"{"alg":"ES256","x":[\#(deep)\#(HostileText.repeated("," + deep, size))]}"#)
                    + ".e30.AA"
            }
        ),
    ]

    @Test(arguments: texts.map(\.name))
    func `reading a token is linear`(name: String) throws {
        let make = try #require(Self.texts.first { $0.name == name }).make
        // Base64 makes a third more of it, and more than 64 KiB is refused without a look.
        let growth = ReadingCost.growth(from: 11_000) {
            WireText(make($0))
        } _: {
            for _ in 0..<20 { _ = try? CompactJWS(parsing: $0, policy: everyAlgorithm) }
        }
        #expect(growth < ReadingCost.limit)
    }

    private static let sets: [(name: String, make: @Sendable (Int) -> String)] = [
        ("keys that are none", { size in #"{"keys":[{}\#(HostileText.repeated("        ", size))]}"# }),
        ("a long kid", { size in #"{"keys":[{"kty":"EC","kid":"\#(HostileText.marks(size))"}]}"# }),
        (
            "a long number",
            { size in #"{"keys":[{"kty":"RSA","n":"\#(HostileText.repeated("abcd", size))","e":"AQAB"}]}"# }
        ),
        (
            "a long exponent",
            { size in #"{"keys":[{"kty":"RSA","n":"AQ","e":"\#(HostileText.repeated("abcd", size))"}]}"# }
        ),
        (
            "many operations",
            { size in
                let names = (0..<size / 8).map { #""o\#($0)""# }.joined(separator: ",")
                return #"{"keys":[{"kty":"EC","key_ops":[\#(names)]}]}"#
            }
        ),
    ]

    @Test(arguments: sets.map(\.name))
    func `reading a set is linear`(name: String) throws {
        let make = try #require(Self.sets.first { $0.name == name }).make
        let growth = ReadingCost.growth(from: 32_768) {
            Array(make($0).utf8)
        } _: {
            _ = try? JSONWebKeySet(parsing: $0)
        }
        #expect(growth < ReadingCost.limit)
    }

    @Test func `a claims set with many audiences is linear`() {
        let growth = ReadingCost.growth(from: 32_768) { size in
            Array(#"{"aud":[""#.utf8) + Array(HostileText.repeated(#"a",""#, size).utf8) + Array(#""]}"#.utf8)
        } _: {
            _ = try? ClaimsSet(parsing: $0)
        }
        #expect(growth < ReadingCost.limit)
    }
}
