package import ExternalText
package import HTTPCodec
internal import OAuth

/// Addresses to which browsers are sent back after a login (RFC 6749 §3.1.2).
package enum RedirectURI {
    /// What is wrong with a text that is to be an absolute URI without a fragment; nil for nothing.
    package static func fault(_ text: WireText) -> String? {
        AbsoluteURI.isValid(text) ? nil : "must be an absolute URI without fragment"
    }

    /// Whether a request's URI is the listed one. RFC 9700 §2.1: exact comparison; RFC 8252 §7.3: of a loopback address without
    /// its port.
    package static func matches(_ given: WireText, listed: WireText) -> Bool {
        if given == listed { return true }
        for host in ["http://127.0.0.1", "http://[::1]"] as [WireText]
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
