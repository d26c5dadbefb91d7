import Cryptography
import ExternalText
import HTTPCodec
import Reactor

/// A proxy through which a client reaches servers over https, by a tunnel that the method CONNECT opens (RFC 9110 §9.3.6).
///
/// The connection to the proxy is not encrypted; what goes through the tunnel is. The client verifies the server's identity as
/// it does without a proxy. The proxy looks up host names, so the policy for addresses applies to hosts that are addresses only.
package struct OutboundProxy: Sendable {
    /// Why the two texts name no proxy. Retrying does not help; an operator must correct the configuration.
    package enum Fault: Error, Equatable, Sendable {
        /// Not `http://host:port`.
        case address
        /// The entry of the list of exceptions at this index is not a host, a domain, an address or a CIDR range.
        case exception(index: Int)
    }

    /// A server that is reached without the proxy.
    private enum Exception {
        case all
        /// The host itself, unless only those below it are meant, and the hosts below it.
        case domain(WireText, isBelowOnly: Bool, port: UInt16?)
        case network(NetworkRange)
        case address(SocketAddress.IP, port: UInt16)

        private static let everything: WireText = "*"

        init?(_ text: WireText) {
            if text == Self.everything {
                self = .all
                return
            }
            if let network = NetworkRange(parsing: text.text) {
                self = .network(network)
                return
            }
            let isBelowOnly = text.starts(with: ".")
            let name = isBelowOnly ? text.dropping(1) : text
            guard !name.contains("/"), !name.contains("?"),
                let origin = URLTarget("https://" + name.text)?.origin
            else { return nil }
            if let address = SocketAddress(numericHost: origin.host, port: origin.port) {
                guard !isBelowOnly else { return nil }
                self = .address(address.ip, port: origin.port)
            } else {
                // A name has no colon, so there is one only before a port.
                self = .domain(
                    WireText(origin.host), isBelowOnly: isBelowOnly, port: name.contains(":") ? origin.port : nil)
            }
        }

        func includes(_ origin: URLTarget.Origin, _ address: SocketAddress?) -> Bool {
            switch self {
            case .all: return true
            case .domain(let name, let isBelowOnly, let port):
                let host = WireText(origin.host)
                let isNamed = host == name && !isBelowOnly || host.ends(with: WireText(".\(name)"))
                return isNamed && (port == nil || port == origin.port)
            case .network(let range): return address.map { range.contains(NetworkAddress($0.ip)) } ?? false
            case .address(let ip, let port): return address?.ip == ip && port == origin.port
            }
        }
    }

    /// A lower-case DNS name, a dotted quad, or an IPv6 address without brackets.
    package let host: String
    package let port: UInt16
    /// The address without the user and the password.
    package let shownAddress: String
    /// The value of `Proxy-Authorization` (RFC 7617); nil where the address names no user.
    let authorization: SecretBytes?
    private let exceptions: [Exception]
    /// Whether the proxy also gets requests for this machine's own names and addresses. Default false: to the proxy they are
    /// its own machine's, whatever the policy for addresses says of this one. For tests, whose servers have no other.
    package var servesLocalNames = false

    /// Reads the values of the variables `HTTPS_PROXY` and `NO_PROXY`, as other programs do.
    /// - Parameters:
    ///   - text: `http://proxy.example:3128`. The scheme may be missing, and `user:password@` may precede the host, each in
    ///     percent encoding. Without a port it is 80.
    ///   - exceptions: `*` for no proxy at all, or a comma-separated list of hosts (with all hosts below them), domains that
    ///     begin with a dot (only the hosts below them), addresses and CIDR ranges. A host may have a port. Empty entries are
    ///     skipped.
    package init(parsing text: String, exceptions: String = "") throws(Fault) {
        let scheme: WireText = "http://"
        var rest = WireText(text)
        if rest.starts(with: scheme) { rest = rest.dropping(scheme.count) }
        var authorization: SecretBytes?
        if let end = rest.utf8.lastIndex(of: UInt8(ascii: "@")) {
            do throws(FormEncoding.Malformed) {
                let user = try FormEncoding.percentDecode(WireText(rest.utf8[..<end]).utf8.span)
                authorization = SecretBytes(utf8: "Basic " + Base64.encode(Array(user.utf8)))
            } catch {
                throw .address
            }
            rest = WireText(rest.utf8[rest.utf8.index(after: end)...])
        }
        guard let url = URLTarget(scheme.text + rest.text), url.pathAndQuery.utf8.elementsEqual("/".utf8) else {
            throw .address
        }
        (host, port, self.authorization) = (url.host, url.port, authorization)
        shownAddress = scheme.text + url.origin.authorityWithPort
        var found: [Exception] = []
        for (index, entry) in WireText(exceptions).split(at: ",").map(\.trimmed).enumerated() where !entry.isEmpty {
            guard let exception = Exception(entry) else { throw .exception(index: index) }
            found.append(exception)
        }
        self.exceptions = found
    }

    /// Whether the proxy is used for that server. Never for `http://`, whose messages the proxy could read, and never for
    /// a name or an address of this machine: the policy for addresses decides whether that may be called.
    package func serves(_ origin: URLTarget.Origin) -> Bool {
        guard origin.scheme == .https, servesLocalNames || !LocalNames.include(origin.host) else { return false }
        let address = SocketAddress(numericHost: origin.host, port: origin.port)
        return !exceptions.contains { $0.includes(origin, address) }
    }

    /// The request for a tunnel to a server.
    func connectRequest(to origin: URLTarget.Origin) -> [UInt8] {
        let target = origin.authorityWithPort
        var request = Array("CONNECT \(target) HTTP/1.1\r\nHost: \(target)\r\n".utf8)
        if let authorization {
            request += Array("Proxy-Authorization: ".utf8) + authorization.revealedBytes + Array("\r\n".utf8)
        }
        return request + Array("\r\n".utf8)
    }
}

/// Two proxies are one where a request gets to the same address with the same password. The exceptions are not compared.
extension OutboundProxy: Hashable {
    package static func == (left: OutboundProxy, right: OutboundProxy) -> Bool {
        left.host == right.host && left.port == right.port && left.authorization == right.authorization
    }

    package func hash(into hasher: inout Hasher) {
        hasher.combine(host)
        hasher.combine(port)
    }
}
