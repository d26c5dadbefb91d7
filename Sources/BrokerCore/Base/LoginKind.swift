/// How a user logs in.
package enum LoginKind: String, Sendable, CaseIterable {
    /// In a browser that comes back to the broker (RFC 6749 §4.1).
    case standard
    /// On another device, with a code (RFC 8628).
    case device
}
