import Reactor

/// What Git asks a credential helper, and what it is answered: lines `name=value`, gitcredentials(7).
package struct GitCredential: Sendable, Equatable {
    /// By name; the last value counts. Those whose name ends in `[]` are left out. Of `url`, `protocol` and `host` are taken.
    package private(set) var attributes: [String: String] = [:]

    /// - Parameter input: up to an empty line, or to its end.
    package init(_ input: [UInt8]) {
        // By bytes: a carriage return and a line feed are one character of a String.
        for line in input.split(separator: 0x0a, omittingEmptySubsequences: false) {
            let text = String(decoding: line.last == 0x0d ? line.dropLast() : line, as: UTF8.self)
            guard !text.isEmpty else { break }
            guard let sign = text.firstIndex(of: "="), !text[..<sign].hasSuffix("[]") else { continue }
            let value = String(text[text.index(after: sign)...])
            attributes[String(text[..<sign])] = value
            if text[..<sign] == "url" { take(url: value) }
        }
    }

    /// An address stands for its parts.
    private mutating func take(url: String) {
        guard let mark = url.firstRange(of: "://") else {
            attributes["protocol"] = ""
            return
        }
        attributes["protocol"] = String(url[..<mark.lowerBound])
        let authority = url[mark.upperBound...].prefix { !"/?#".contains($0) }
        attributes["host"] = String(
            authority.lastIndex(of: "@").map { authority[authority.index(after: $0)...] } ?? authority)
    }

    package var host: String? { attributes["host"]?.lowercased() }

    /// Whether the token would cross a network that others can read: by anything but https, unless it stays on this machine.
    package var isExposed: Bool { Self.isExposed(scheme: attributes["protocol"] ?? "", host: host ?? "") }

    /// - Parameters:
    ///   - scheme: in any case of letters.
    ///   - host: in small letters, with the port if there is one.
    static func isExposed(scheme: String, host: String) -> Bool {
        switch scheme.lowercased() {
        case "https": false
        case "http": !isLoopback(host)
        default: true
        }
    }

    /// Whether a host is `localhost` or an address of this machine's own: `127.0.0.1:3000`, `[::1]`.
    private static func isLoopback(_ host: String) -> Bool {
        var name = host[...]
        var port = host[host.endIndex...]
        if host.hasPrefix("[") {
            guard let end = host.firstIndex(of: "]") else { return false }
            name = host[..<end].dropFirst()
            port = host[host.index(after: end)...]
        } else if let colon = host.firstIndex(of: ":") {
            (name, port) = (host[..<colon], host[colon...])
        }
        guard port.isEmpty || port.first == ":" && port.utf8.dropFirst().allSatisfy({ (0x30...0x39).contains($0) })
        else {
            return false
        }
        return LocalNames.isLoopback(String(name))
    }

    /// The answer. The user that Git names already stays.
    /// - Parameter expiry: seconds since 1970.
    package func answer(_ token: String, username: String, expiry: Int64?) -> String {
        "username=\(attributes["username"] ?? username)\npassword=\(token)\n"
            + (expiry.map { "password_expiry_utc=\($0)\n" } ?? "")
    }
}
