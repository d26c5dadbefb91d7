import Cryptography
import ExternalText
import OAuth
import Testing

/// The storage keys that are made of users' identifiers.
@Suite struct `Storage keys of users of apps` {
    private static let issuer: WireText = "https://op.example"

    /// The vector of APPS.md: printf 'https://op.example\\nada' | openssl dgst -sha256 -binary | base64 | tr '+/' '-_' | tr -d '='
    @Test func `have the form that back ends compute`() {
        #expect(
            StorageKey(user: "ada", of: Self.issuer).description == "u-W6XFt0kEJQvV0VUDycuT3A9F435-G27qO4SAodneUvs")
    }

    @Test func `are never the identifier itself, nor one of another issuer or of an earlier build`() {
        let looksMade = StorageKey(user: "ada", of: Self.issuer).description
        let keys = [
            StorageKey(user: "billing", of: Self.issuer), StorageKey(user: "billing", of: "https://other.example"),
            StorageKey(user: WireText(looksMade), of: Self.issuer), StorageKey(user: "~", of: Self.issuer),
            StorageKey(user: "ann maria", of: Self.issuer), StorageKey(user: "e\nbilling", of: "https://op.exampl"),
        ]
        #expect(Set(keys).count == keys.count)
        #expect(keys.allSatisfy { $0.isOfUser })
        let earlier = "u-" + Base64URL.encode(SHA256.digest(Array("ann maria".utf8)))
        #expect(!keys.contains { $0.description == earlier || $0.description == "billing" })
    }

    @Test(
        arguments: [
            ("u-" + String(repeating: "a", count: 42), false), ("u-" + String(repeating: "a", count: 43), true),
            ("u-" + String(repeating: "a", count: 44), false), ("u-" + String(repeating: "-", count: 43), true),
            ("u-" + String(repeating: "_", count: 43), true), ("u-" + String(repeating: ".", count: 43), false),
            ("U-" + String(repeating: "a", count: 43), false), ("u-ada", false), ("default", false),
        ])
    func `are known by their form`(_ text: String, _ isOfUser: Bool) throws {
        #expect(try #require(StorageKey(text)).isOfUser == isOfUser)
    }
}
