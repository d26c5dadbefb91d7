package import ExternalText
package import JSON

/// The metadata of a protected resource (RFC 9728 §2), as far as a client needs it.
package struct ProtectedResource: Sendable, Equatable {
    /// The identifier that the resource has for its authorization servers (RFC 8707 §2).
    package let identifier: WireText
    /// The issuers that grant tokens for it, in the order of the document. Never empty; eight at most.
    package let authorizationServers: [WireText]
    /// The scopes that it names; empty for none.
    package let scopes: [WireText]

    /// More issuers of a document are not looked at.
    package static let mostServers = 8

    /// Nil where the document names no resource, or no authorization server.
    package init?(_ json: JSONValue) {
        guard let identifier = json["resource"]?.string,
            let servers = json["authorization_servers"]?.array?.compactMap(\.string).filter({ !$0.isEmpty }),
            !servers.isEmpty
        else { return nil }
        self.identifier = identifier
        authorizationServers = Array(servers.prefix(Self.mostServers))
        scopes = json["scopes_supported"]?.array?.compactMap(\.string) ?? []
    }

    /// Whether the document may speak for the resource at this address: its identifier is the address, or one that the address
    /// lies below, as where one document is for all resources of a host. A document of another host would have the broker ask
    /// for tokens of that host, and give them to this one.
    /// - Parameter address: scheme, authority and path, as the identifier's are compared.
    package func isOf(_ address: (origin: WireText, path: WireText), identifier: (origin: WireText, path: WireText))
        -> Bool
    {
        guard address.origin == identifier.origin else { return false }
        let (wanted, given) = (Self.trimmed(address.path), Self.trimmed(identifier.path))
        return given.isEmpty || wanted == given || wanted.starts(with: WireText(given.text + "/"))
    }

    private static func trimmed(_ path: WireText) -> WireText {
        path.ends(with: "/") ? path.prefix(path.count - 1) : path
    }
}
