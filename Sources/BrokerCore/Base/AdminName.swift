import OAuth

/// What an admin key may be used for. `AdminRoutes` has the operations of each role.
package enum AdminRole: String, Sendable, CaseIterable {
    /// Everything.
    case admin
    /// What running the service needs, without its configuration and its callers' keys.
    case `operator`
    /// To look, without tokens and secrets.
    case auditor
}

/// The name of one of the operator's keys: `[a-z0-9][a-z0-9-]{0,62}`. It stands in the log, and the key does not.
package struct AdminName: Sendable, Hashable, CustomStringConvertible {
    /// The name of a key that is given without one.
    package static let unnamed = AdminName("admin".utf8)!

    package let description: String

    /// Nil for a text that is no name.
    package init?(_ text: some Sequence<UInt8>) {
        let bytes = Array(text)
        guard (1...63).contains(bytes.count), bytes[0] != UInt8(ascii: "-"),
            bytes.allSatisfy({ $0.isLowercaseLetter || $0.isDigit || $0 == UInt8(ascii: "-") })
        else { return nil }
        description = String(decoding: bytes, as: UTF8.self)
    }
}
