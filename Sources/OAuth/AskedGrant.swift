package import ExternalText
import HTTPCodec
package import JSON

/// What a grant is asked for beside the client's scopes: it is sent with the authorization request, with the exchange of the code
/// and with each refresh of the set that was granted. An object, since most grants have none.
package final class AskedGrant: Sendable, Equatable {
    /// The scopes in place of the client's; nil for the client's.
    package let scopes: ScopeSet?
    /// The identifiers of the APIs that the token is for (RFC 8707 §2), in their order. At most 8.
    package let resources: [WireText]
    /// The same for providers that have a parameter of their own for it; nil for none.
    package let audience: WireText?

    /// The most resources of one grant.
    package static let mostResources = 8
    /// The longest identifier, in bytes.
    package static let longestIdentifier = 2048

    /// Nil where nothing is asked for.
    package init?(scopes: ScopeSet? = nil, resources: [WireText] = [], audience: WireText? = nil) {
        if scopes == nil, resources.isEmpty, audience == nil { return nil }
        self.scopes = scopes
        self.resources = resources
        self.audience = audience
    }

    package static func == (left: AskedGrant, right: AskedGrant) -> Bool {
        left.scopes == right.scopes && left.resources == right.resources && left.audience == right.audience
    }

    /// The parameters beside `scope`.
    var pairs: [FormEncoding.Pair] {
        resources.map { .init("resource", $0) } + (audience.map { [.init("audience", $0)] } ?? [])
    }

    /// Whether one of the parameters has that name.
    func hasParameter(_ name: WireText) -> Bool {
        switch name {
        case Self.audienceName: audience != nil
        case Self.resourceName: !resources.isEmpty
        default: false
        }
    }

    package static let audienceName: WireText = "audience"
    private static let resourceName: WireText = "resource"

    // MARK: From outside

    /// What is wrong with the identifier of a resource; nil where it can be sent (RFC 8707 §2: an absolute URI without a fragment).
    package static func resourceFault(_ text: WireText) -> String? {
        let parts = text.split(at: ":", limit: 2)
        let isScheme =
            parts[0].utf8.first.map { $0.isLowercaseLetter || $0.isUppercaseLetter } == true
            && parts[0].utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "+-.".utf8.contains($0)
            }
        let isPlain = text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f && !"#\"<>\\^`{|}".utf8.contains($0) }
        guard text.count <= longestIdentifier, parts.count == 2, isScheme, !parts[1].isEmpty, isPlain else {
            return "must be an absolute URI without a fragment, of at most \(longestIdentifier) bytes"
        }
        return nil
    }

    /// Reads `resource`, a text or a list of texts.
    package static func resources(_ reader: inout ObjectReader) -> [WireText] {
        reader.stringOrStrings("resource", check: resourceFault) ?? []
    }

    /// Reads `audience`.
    package static func audience(_ reader: inout ObjectReader) -> WireText? {
        reader.string("audience", limit: longestIdentifier)
    }

    // MARK: Kept

    /// Writes the members `scopes`, `resource` and `audience`.
    package func encode(to json: inout JSONWriter) {
        json.object { json in
            if let scopes { json.member("scopes", scopes.values) }
            if !resources.isEmpty { json.member("resource", resources.map(\.text)) }
            json.memberIfPresent("audience", audience?.text)
        }
    }

    /// Reads the members that `encode` writes, from outside; nil where there is none of them.
    /// - Parameter check: what is wrong with a scope; nil for one that may be asked for.
    package static func brought(_ reader: inout ObjectReader, scopes check: (WireText) -> String?) -> AskedGrant? {
        let scopes = reader.strings("scopes", atMost: ScopeSet.most, check: check).flatMap { ScopeSet($0) }
        return AskedGrant(scopes: scopes, resources: resources(&reader), audience: audience(&reader))
    }

    /// Nil for a value that `encode` has not written.
    package convenience init?(_ json: JSONValue) {
        let scopes = json["scopes"]?.array?.compactMap(\.string)
        self.init(
            scopes: scopes.flatMap { ScopeSet($0) }, resources: json["resource"]?.array?.compactMap(\.string) ?? [],
            audience: json["audience"]?.string)
    }
}
