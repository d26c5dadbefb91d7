package import ExternalText

/// A set of scope tokens (RFC 6749 §3.3), in sorted order, so that two sets with the same members are equal and have
/// the same text.
package struct ScopeSet: Hashable, Sendable, CustomStringConvertible {
    package let values: [String]

    package static let empty = ScopeSet(unchecked: [])

    /// The most scopes of a client, and of a provider's list that are read.
    package static let most = 1000

    /// Nil when a token is empty or has a character outside `%x21 / %x23-5B / %x5D-7E`.
    package init?(_ tokens: [String]) {
        guard tokens.allSatisfy(Self.isToken) else { return nil }
        self.init(unchecked: tokens)
    }

    package init?(_ tokens: [WireText]) {
        self.init(tokens.map(\.text))
    }

    /// Reads a provider's list, separated by spaces, or by commas as some providers send it. Tokens that the grammar
    /// does not allow are ignored, and so are those after the first 1000, because refusing the list would lose the
    /// grant.
    package init(granted text: WireText) {
        let tokens = text.utf8.split(maxSplits: Self.most) {
            $0 == UInt8(ascii: " ") || $0 == UInt8(ascii: ",")
        }
        self.init(unchecked: tokens.prefix(Self.most).map { String(Substring($0)) }.filter(Self.isToken))
    }

    private init(unchecked tokens: [String]) {
        values = tokens.count < 2 ? tokens : Set(tokens).sorted { $0.utf8.lexicographicallyPrecedes($1.utf8) }
    }

    package var isEmpty: Bool { values.isEmpty }

    /// Without the scopes that OpenID Connect Core §5.4 and §11 define: they ask for a user's login and claims, so a client that
    /// acts for itself cannot be granted them.
    package var withoutOpenID: ScopeSet {
        ScopeSet(unchecked: values.filter { !Self.ofOpenID.contains(WireText($0)) })
    }

    private static let ofOpenID: Set<WireText> = ["openid", "profile", "email", "address", "phone", "offline_access"]

    package func isSubset(of other: ScopeSet) -> Bool { Set(values).isSubset(of: other.values) }

    /// The text in requests: the tokens separated by single spaces.
    package var description: String { values.joined(separator: " ") }

    private static func isToken(_ text: String) -> Bool {
        !text.isEmpty
            && text.utf8.allSatisfy {
                $0 >= 0x21 && $0 <= 0x7e && $0 != UInt8(ascii: "\"") && $0 != UInt8(ascii: "\\")
            }
    }
}
