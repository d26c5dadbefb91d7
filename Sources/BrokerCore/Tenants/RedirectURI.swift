package import ExternalText
package import HTTPCodec
import OAuth

/// Addresses to which browsers are sent back after a login (RFC 6749 §3.1.2).
package enum RedirectURI {
    /// What is wrong with a text that is to be an absolute URI without a fragment; nil for nothing.
    package static func fault(_ text: WireText) -> String? {
        AbsoluteURI.isValid(text) ? nil : "must be an absolute URI without fragment"
    }

    /// What is wrong with a text that is to be registered as a redirect URI; nil for nothing. Codes that go over the network are not
    /// sent in the clear: `http` is for the device itself only (RFC 8252 §7.3), which browsers hold to be safe by any of these names.
    package static func registrationFault(_ text: WireText) -> String? {
        if let fault = fault(text) { return fault }
        let parts = text.split(at: ":", limit: 2)
        let scheme = parts[0].lowercased
        guard scheme == http || scheme == https else { return nil }
        guard parts[1].starts(with: "//"), !text.contains("\\") else {
            return "must have // and a host behind its scheme"
        }
        let authority = WireText(parts[1].utf8.dropFirst(2).prefix { !"/?".utf8.contains($0) })
        if authority.contains("@") { return "must not have user information" }
        let host = WireText(authority.utf8.prefix(hostCount(of: authority) ?? 0)).lowercased
        if host.isEmpty { return "must have a host" }
        if scheme == http, !loopbackHosts.contains(host) {
            return "must be https, a scheme of the app's own, or http on 127.0.0.1, [::1] or localhost"
        }
        return nil
    }

    /// How many bytes of an authority are its host; nil where something else than a port follows.
    private static func hostCount(of authority: WireText) -> Int? {
        let bytes = Array(authority.utf8)
        let end: Int
        if bytes.first == UInt8(ascii: "[") {
            guard let close = bytes.firstIndex(of: UInt8(ascii: "]")) else { return nil }
            end = close + 1
        } else {
            end = bytes.firstIndex(of: UInt8(ascii: ":")) ?? bytes.count
        }
        let port = bytes[end...]
        if port.isEmpty { return end }
        let isPort = port.first == UInt8(ascii: ":") && port.dropFirst().allSatisfy(\.isDigit) && port.count <= 6
        return isPort ? end : nil
    }

    private static let http: WireText = "http"
    private static let https: WireText = "https"
    private static let loopbackHosts: [WireText] = ["127.0.0.1", "[::1]", "localhost"]
    private static let loopbackOrigins = loopbackHosts.map { WireText("http://\($0)") }

    /// Whether a request's URI is the listed one. RFC 9700 §2.1: exact comparison; RFC 8252 §7.3: of a loopback address without
    /// its port. `localhost` counts as one, since apps register it.
    package static func matches(_ given: WireText, listed: WireText) -> Bool {
        if given == listed { return true }
        for host in loopbackOrigins
        where listed.starts(with: host) && given.starts(with: host) {
            guard let left = afterPort(given, host), let right = afterPort(listed, host) else { return false }
            return left == right
        }
        return false
    }

    /// What follows the host and its port; nil where something else than a port of 1 to 5 digits, a path, a query or the end
    /// follows the host.
    private static func afterPort(_ uri: WireText, _ host: WireText) -> WireText? {
        var rest = uri.utf8.dropFirst(host.count)
        if rest.first == UInt8(ascii: ":") {
            let digits = rest.dropFirst().prefix { $0.isDigit }
            guard (1...5).contains(digits.count) else { return nil }
            rest = rest.dropFirst(1 + digits.count)
        }
        guard rest.isEmpty || rest.first == UInt8(ascii: "/") || rest.first == UInt8(ascii: "?") else { return nil }
        return WireText(rest)
    }

    /// The URI with parameters added to its query.
    package static func adding(_ pairs: [FormEncoding.Pair], to uri: String) -> String {
        let separator = WireText(uri).contains("?") ? (WireText(uri).ends(with: "?") ? "" : "&") : "?"
        return uri + separator + FormEncoding.encode(pairs)
    }
}
