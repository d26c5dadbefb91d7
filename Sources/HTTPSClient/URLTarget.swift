import ExternalText
import Reactor

/// An absolute `http` or `https` URL in the strict form to which the broker sends requests.
///
/// It refuses everything that two parsers could read differently: user information, fragments, backslashes, white
/// space, control characters, text outside ASCII, percent escapes in the host, empty labels, and a host that ends in a
/// number without being a dotted quad (`127.1`, `2130706433`, `0x7f.1`), which resolvers read as an address. It also
/// refuses ports below 1024 other than 80 and 443, because they belong to other protocols (SSH, SMTP).
package struct URLTarget: Sendable, Hashable, CustomStringConvertible {
    package enum Scheme: String, Sendable, Hashable, CaseIterable {
        case http
        case https

        /// The port of a URL without a port (RFC 9110 §4.2).
        package var defaultPort: UInt16 {
            switch self {
            case .http: 80
            case .https: 443
            }
        }
    }

    /// The server that a connection goes to (RFC 6454 §4).
    package struct Origin: Sendable, Hashable {
        package let scheme: Scheme
        /// A lower-case DNS name, a dotted quad, or an IPv6 address without brackets.
        package let host: String
        package let port: UInt16

        /// The value of a `Host` field (RFC 9110 §7.2), without the port if it is the scheme's default.
        package var authority: String { port == scheme.defaultPort ? name : authorityWithPort }

        /// The target of a request for a tunnel (RFC 9112 §3.2.3), which names the port in any case.
        var authorityWithPort: String { "\(name):\(port)" }

        private var name: String { host.utf8.contains(UInt8(ascii: ":")) ? "[\(host)]" : host }
    }

    package let origin: Origin
    /// The request target in origin-form (RFC 9112 §3.2.1): a path that starts with `/`, and the query, if there is
    /// one.
    package let pathAndQuery: String

    package var scheme: Scheme { origin.scheme }
    package var host: String { origin.host }
    package var port: UInt16 { origin.port }

    /// Reads a URL; nil when the text is not in the strict form.
    package init?(_ text: String) { self.init(text, takesAnyPort: false) }

    /// The port of `text`, if it is the only fault of that URL; otherwise nil.
    package static func refusedPort(of text: String) -> UInt16? {
        URLTarget(text) == nil ? URLTarget(text, takesAnyPort: true)?.port : nil
    }

    private init?(_ text: String, takesAnyPort: Bool) {
        let bytes = Array(text.utf8)
        guard bytes.count <= Self.maximumLength, bytes.allSatisfy(Self.isURLByte),
            let colon = bytes.firstIndex(of: UInt8(ascii: ":"))
        else { return nil }
        guard let scheme = Scheme(WireText(String(decoding: bytes[..<colon], as: UTF8.self)).lowercased),
            bytes[(colon + 1)...].starts(with: [UInt8(ascii: "/"), UInt8(ascii: "/")])
        else { return nil }
        let rest = bytes[(colon + 3)...]
        let end = rest.firstIndex { $0 == UInt8(ascii: "/") || $0 == UInt8(ascii: "?") } ?? rest.endIndex
        guard let (host, port) = Self.hostAndPort(rest[..<end], scheme: scheme, takesAnyPort: takesAnyPort)
        else { return nil }
        let target = rest[end...]
        guard Self.hasWholeEscapes(target) else { return nil }
        origin = Origin(scheme: scheme, host: host, port: port)
        let prefix = target.first == UInt8(ascii: "/") ? "" : "/"
        pathAndQuery = prefix + String(decoding: target, as: UTF8.self)
    }

    package var description: String { "\(origin.scheme.rawValue)://\(origin.authority)\(pathAndQuery)" }

    /// Longer URLs have no use here and do not fit into the request lines of common servers.
    private static let maximumLength = 8000

    /// RFC 3986 Appendix A: the characters of a URI except `#`, which begins a fragment.
    private static func isURLByte(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"),
            UInt8(ascii: "~"), UInt8(ascii: ":"), UInt8(ascii: "/"), UInt8(ascii: "?"), UInt8(ascii: "["),
            UInt8(ascii: "]"), UInt8(ascii: "@"), UInt8(ascii: "!"), UInt8(ascii: "$"), UInt8(ascii: "&"),
            UInt8(ascii: "'"), UInt8(ascii: "("), UInt8(ascii: ")"), UInt8(ascii: "*"), UInt8(ascii: "+"),
            UInt8(ascii: ","), UInt8(ascii: ";"), UInt8(ascii: "="), UInt8(ascii: "%"):
            true
        default: false
        }
    }

    private static func hasWholeEscapes(_ bytes: ArraySlice<UInt8>) -> Bool {
        var index = bytes.startIndex
        while index < bytes.endIndex {
            if bytes[index] == UInt8(ascii: "%") {
                guard index + 2 < bytes.endIndex, isHexDigit(bytes[index + 1]), isHexDigit(bytes[index + 2]) else {
                    return false
                }
                index += 2
            } else if bytes[index] == UInt8(ascii: "[") || bytes[index] == UInt8(ascii: "]") {
                // RFC 3986 §3.2.2: brackets are allowed only around an IP literal.
                return false
            }
            index += 1
        }
        return true
    }

    private static func hostAndPort(
        _ authority: ArraySlice<UInt8>, scheme: Scheme, takesAnyPort: Bool
    ) -> (String, UInt16)? {
        let host: String
        let afterHost: ArraySlice<UInt8>
        if authority.first == UInt8(ascii: "[") {
            guard let close = authority.firstIndex(of: UInt8(ascii: "]")) else { return nil }
            // Parsed and written again, so that each address has one spelling. inet_pton(3) refuses zone identifiers,
            // which have no meaning for a host on the internet.
            let literal = String(decoding: authority[(authority.startIndex + 1)..<close], as: UTF8.self)
            guard let address = SocketAddress(numericHost: literal, port: 0), case .v6 = address.ip else { return nil }
            host = address.host
            afterHost = authority[(close + 1)...]
        } else {
            let colon = authority.firstIndex(of: UInt8(ascii: ":")) ?? authority.endIndex
            guard let name = registeredName(authority[..<colon]) else { return nil }
            host = name
            afterHost = authority[colon...]
        }
        if afterHost.isEmpty { return (host, scheme.defaultPort) }
        let digits = afterHost.dropFirst()
        guard afterHost.first == UInt8(ascii: ":"), (1...5).contains(digits.count),
            digits.allSatisfy({ isDigit($0) }), digits.first != UInt8(ascii: "0"),
            let port = UInt16(String(decoding: digits, as: UTF8.self)),
            takesAnyPort || port >= 1024 || port == 80 || port == 443
        else { return nil }
        return (host, port)
    }

    /// A DNS name of letters, digits, hyphens and underscores (RFC 1123 §2.1, RFC 2181 §11), or a dotted quad.
    private static func registeredName(_ bytes: ArraySlice<UInt8>) -> String? {
        guard (1...253).contains(bytes.count) else { return nil }
        let lowercase = bytes.map { $0 >= UInt8(ascii: "A") && $0 <= UInt8(ascii: "Z") ? $0 | 0x20 : $0 }
        let text = String(decoding: lowercase, as: UTF8.self)
        var label = lowercase[..<0]
        var rest = lowercase[...]
        repeat {
            label = rest.prefix { $0 != UInt8(ascii: ".") }
            guard (1...63).contains(label.count), label.first != UInt8(ascii: "-"), label.last != UInt8(ascii: "-"),
                label.allSatisfy({
                    isDigit($0) || isLowercase($0) || $0 == UInt8(ascii: "-") || $0 == UInt8(ascii: "_")
                })
            else { return nil }
            if label.endIndex == rest.endIndex { break }
            rest = rest[(label.endIndex + 1)...]
        } while true
        // A last label that is a number makes the whole name an IPv4 address for inet_aton(3) and browsers, in
        // shortened, octal or hexadecimal spelling. Only the dotted quad is accepted.
        return !isNumber(label) || SocketAddress(numericHost: text, port: 0) != nil ? text : nil
    }

    private static func isNumber(_ label: ArraySlice<UInt8>) -> Bool {
        if label.starts(with: [UInt8(ascii: "0"), UInt8(ascii: "x")]) {
            return label.dropFirst(2).allSatisfy(isHexDigit)
        }
        return label.allSatisfy(isDigit)
    }

    private static func isDigit(_ byte: UInt8) -> Bool { byte >= UInt8(ascii: "0") && byte <= UInt8(ascii: "9") }

    private static func isLowercase(_ byte: UInt8) -> Bool { byte >= UInt8(ascii: "a") && byte <= UInt8(ascii: "z") }

    private static func isHexDigit(_ byte: UInt8) -> Bool {
        isDigit(byte) || (byte | 0x20 >= UInt8(ascii: "a") && byte | 0x20 <= UInt8(ascii: "f"))
    }
}
