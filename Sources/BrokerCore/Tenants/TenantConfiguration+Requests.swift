internal import Cryptography
internal import ExternalText
internal import HTTPSClient
internal import JSON
internal import OAuth

/// The members that say what requests to the provider have: those of `RequestShape.Own` that are no maps.
extension TenantConfiguration {
    /// What grants are asked for beside the client's scopes, where a login names nothing else; nil for nothing.
    var askedGrant: AskedGrant? { preset.shape.replaced(by: requests).asked }

    /// Whether there is a provider to ask. There is none for keys that do not come by OAuth, unless the tenant names one.
    var hasProvider: Bool { preset.hasLogins || effectiveIssuer != nil || configuredServer != nil }

    mutating func readRequests(_ reader: inout ObjectReader) {
        requests.resources = AskedGrant.resources(&reader)
        requests.audience = AskedGrant.audience(&reader)
        requests.nonce = reader.choice("nonce", NonceUse.self)
        requests.omitsEmpty = reader.bool("omit_empty")
        requests.repeatsScopes = reader.bool("repeat_scope")
        requests.revocation = reader.object("revocation") { RevocationShape(&$0) }
        outboundProxy = reader.value(
            "outbound_proxy",
            rule: "must be http://host:port, with user:password@ before the host where the proxy wants it"
        ) { text in
            guard text.starts(with: "http://"), (try? OutboundProxy(parsing: text.text)) != nil else { return nil }
            return SecretBytes(utf8: text.text)
        }
    }

    /// Writes them: the proxy's user and password for the sealed record only.
    func encodeRequests(to json: inout JSONWriter, revealingSecret: Bool) {
        if revealingSecret {
            json.memberIfPresent("outbound_proxy", outboundProxy?.revealedText)
        } else {
            json.memberIfPresent(
                "outbound_proxy", outboundProxy.flatMap { try? OutboundProxy(parsing: $0.revealedText) }?.shownAddress)
        }
        AskedGrant.encode(
            resources: protectedResource.map { [WireText($0)] } ?? requests.resources, requests.audience,
            to: &json)
        json.memberIfPresent("nonce", requests.nonce?.rawValue)
        if let omitsEmpty = requests.omitsEmpty { json.member("omit_empty", omitsEmpty) }
        if let repeatsScopes = requests.repeatsScopes { json.member("repeat_scope", repeatsScopes) }
        if let revocation = requests.revocation {
            json.name("revocation")
            revocation.encode(to: &json)
        }
    }
}
