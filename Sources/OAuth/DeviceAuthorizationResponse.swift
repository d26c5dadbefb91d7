package import Cryptography
import ExternalText
import JSON

/// A provider's response to a device authorization request (RFC 8628 §3.2), with the RFC's member names or TIDAL's
/// camelCase names.
package struct DeviceAuthorizationResponse: Sendable, Equatable {
    /// 1 to 4096 characters of visible ASCII. It is a secret until it is used.
    package let deviceCode: SecretBytes
    /// The code that the user types: 1 to 256 bytes of UTF-8 without control characters.
    package let userCode: String
    /// An absolute http or https URI.
    package let verificationURI: String
    /// The verification URI that contains the user code; nil when the response has no usable one.
    package let verificationURIComplete: String?
    /// 1 to 86400 s; 300 s when the response has no lifetime.
    package let expiresIn: Duration
    /// The time between polls: 1 to 600 s; 5 s when the response has no interval (RFC 8628 §3.2).
    package let interval: Duration

    private static let defaultLifetimeSeconds: Int64 = 300
    private static let defaultIntervalSeconds: Int64 = 5

    /// Nil when `body` has no usable device code, user code or verification URI.
    package init?(body: [UInt8]) {
        guard let json = try? JSONValue(parsing: body), case .object(let members) = json else { return nil }
        func first(_ names: WireText...) -> JSONValue? {
            names.lazy.compactMap { members[$0] }.first { $0 != .null }
        }
        guard let deviceCode = first("device_code", "deviceCode")?.string, deviceCode.count <= 4096,
            TokenText.isSendable(deviceCode),
            let userCode = first("user_code", "userCode")?.string, Self.isPresentable(userCode),
            // Google used this name before the RFC defined its own.
            let uri = first("verification_uri", "verificationUri", "verification_url")?.string
                .flatMap(VerificationURI.absolute)
        else { return nil }
        self.deviceCode = SecretBytes(utf8: deviceCode.text)
        self.userCode = userCode.text
        verificationURI = uri
        verificationURIComplete = first("verification_uri_complete", "verificationUriComplete")?.string
            .flatMap(VerificationURI.absolute)
        let lifetime = first("expires_in", "expiresIn")?.wholeSeconds(.down) ?? Self.defaultLifetimeSeconds
        expiresIn = .seconds(min(max(lifetime, 1), 86_400))
        // Rounded up: polling earlier than the provider asks would earn a `slow_down`.
        let interval = first("interval")?.wholeSeconds(.up) ?? Self.defaultIntervalSeconds
        self.interval = .seconds(min(max(interval, 1), 600))
    }

    /// Whether a user can read and type the code.
    private static func isPresentable(_ text: WireText) -> Bool {
        guard text.count <= 256 else { return false }
        let isBlank = text.text.unicodeScalars.allSatisfy { $0.properties.isWhitespace }
        let isPrintable = text.text.unicodeScalars.allSatisfy {
            switch $0.properties.generalCategory {
            case .control, .format, .surrogate, .privateUse, .unassigned, .lineSeparator, .paragraphSeparator: false
            default: true
            }
        }
        return !isBlank && isPrintable
    }
}

/// Printing a response uses this mirror. It omits the codes: with the user code, another person could complete the
/// login.
extension DeviceAuthorizationResponse: CustomReflectable {
    package var customMirror: Mirror {
        Mirror(
            self,
            children: ["verificationURI": verificationURI, "expiresIn": expiresIn, "interval": interval],
            displayStyle: .struct)
    }
}

/// A provider's address that the user opens.
enum VerificationURI {
    /// Returns `text` as an absolute http or https URI, with `https://` in front if it has no scheme, as TIDAL sends
    /// it. Nil for another scheme, for more than 2048 characters, for a character that no URI contains (RFC 3986 §2),
    /// and for an authority that is empty or contains user information, which could mislead the user.
    static func absolute(_ text: WireText) -> String? {
        guard text.count <= 2048, text.utf8.allSatisfy(isURICharacter) else { return nil }
        let scheme = ["https://", "http://"].first { (scheme: WireText) in
            text.prefix(scheme.count).equalsIgnoringCase(scheme)
        }
        if scheme == nil, hasScheme(text) { return nil }
        let authority = text.utf8.dropFirst(scheme?.count ?? 0).prefix { !"/?#".utf8.contains($0) }
        if authority.isEmpty || authority.first == UInt8(ascii: ":") || authority.contains(UInt8(ascii: "@")) {
            return nil
        }
        return scheme == nil ? "https://" + text.text : text.text
    }

    /// Whether the text begins with a scheme (RFC 3986 §3.1). `host:8443/path` begins with a host and its port.
    private static func hasScheme(_ text: WireText) -> Bool {
        let rest = text.utf8.drop { !":/?#".utf8.contains($0) }
        guard rest.first == UInt8(ascii: ":") else { return false }
        let port = rest.dropFirst().prefix { !"/?#".utf8.contains($0) }
        return port.isEmpty || !port.allSatisfy(\.isDigit)
    }

    private static func isURICharacter(_ byte: UInt8) -> Bool {
        byte > 0x20 && byte < 0x7f && !#""<>\^`{|}"#.utf8.contains(byte)
    }
}
