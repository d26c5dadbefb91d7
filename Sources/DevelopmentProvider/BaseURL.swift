import ExternalText

/// An absolute `http` or `https` URL without query and fragment, to which paths are appended.
package struct BaseURL: Sendable, Equatable, CustomStringConvertible {
    /// The URL without a trailing slash, which is the issuer's name (RFC 8414 §2).
    package let description: String
    /// `http` or `https`.
    let scheme: String
    /// Host and port.
    let authority: String
    /// Empty, or a path that begins with a slash and does not end with one.
    let path: String

    package static let `default` = BaseURL(scheme: "http", authority: "127.0.0.1:8181", path: "")

    /// Nil for a text that is not such a URL. Trailing slashes are removed.
    package init?(_ text: String) {
        let scheme: String
        if WireText(text).starts(with: "http://") {
            scheme = "http"
        } else if WireText(text).starts(with: "https://") {
            scheme = "https"
        } else {
            return nil
        }
        guard text.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f && !"?#\"<>\\^`{|}@".utf8.contains($0) })
        else { return nil }
        let rest = text.dropFirst(scheme.count + 3)
        let authority = rest.prefix { $0 != "/" }
        guard !authority.isEmpty else { return nil }
        var path = rest.dropFirst(authority.count)
        while path.last == "/" { path.removeLast() }
        self.init(scheme: scheme, authority: String(authority), path: String(path))
    }

    /// The host without a port, and without the brackets of an IPv6 address.
    package var host: String {
        let bytes = authority.utf8
        let host =
            bytes.first == UInt8(ascii: "[")
            ? bytes.dropFirst().prefix { $0 != UInt8(ascii: "]") } : bytes.prefix { $0 != UInt8(ascii: ":") }
        return String(decoding: host, as: UTF8.self)
    }

    private init(scheme: String, authority: String, path: String) {
        description = scheme + "://" + authority + path
        self.scheme = scheme
        self.authority = authority
        self.path = path
    }
}
