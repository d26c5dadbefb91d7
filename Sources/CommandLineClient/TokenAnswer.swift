import ExternalText
package import JSON
import OAuth

/// An answer of `GET /credentials`, as the formats of tools need it.
package struct TokenAnswer: Sendable {
    package let level: String
    /// Nil for the level `basic`.
    package let token: String?
    /// Whether requests need a proof beside the token (RFC 9449).
    package let isBound: Bool
    /// RFC 3339; nil for a token that does not expire.
    package let expires: String?
    /// What the provider tells beside the token.
    package let extra: JSONValue?
    /// Why the user's session has ended, and where the user logs in again, for people; nil where it has not.
    package let ending: String?
    /// For how many seconds a token that cannot be renewed is good; nil for one that can.
    package let degradedFor: Int64?

    package init(_ value: JSONValue) {
        level = value["level"]?.string?.text ?? "basic"
        token = value["token"]?.string?.text
        isBound = value["token_type"]?.string?.text == "DPoP"
        expires = value["expires"]?.string?.text
        extra = value["extra"]
        if let session = value["session"], session != .null {
            let cause = session["cause"]?.string?.text ?? "unknown cause"
            let address = session["reconnect_uri"]?.string.map { ". The user logs in again at \($0.text)" } ?? ""
            ending = TextTable.shown(
                "the user's session ended at \(session["ended"]?.string?.text ?? "an unknown time") (\(cause))\(address)"
            )
        } else {
            ending = nil
        }
        degradedFor = value["degraded"]?.object == nil ? nil : value["expires_in"]?.integer ?? 0
    }

    /// Seconds since 1970; nil for a token that does not expire.
    package var expiry: Int64? { expires.flatMap { Timestamp(rfc3339: $0)?.seconds } }
}
