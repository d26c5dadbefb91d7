internal import ExternalText
internal import JSON
internal import OAuth

/// The members that say what requests to the provider have: those of `RequestShape.Own` that are no maps.
extension TenantConfiguration {
    mutating func readRequests(_ reader: inout ObjectReader) {
        requests.resources = AskedGrant.resources(&reader)
        requests.audience = AskedGrant.audience(&reader)
        requests.nonce = reader.choice("nonce", NonceUse.self)
        requests.omitsEmpty = reader.bool("omit_empty")
        requests.repeatsScopes = reader.bool("repeat_scope")
        requests.revocation = reader.object("revocation") { RevocationShape(&$0) }
    }

    func encodeRequests(to json: inout JSONWriter) {
        AskedGrant.encode(resources: requests.resources, requests.audience, to: &json)
        json.memberIfPresent("nonce", requests.nonce?.rawValue)
        if let omitsEmpty = requests.omitsEmpty { json.member("omit_empty", omitsEmpty) }
        if let repeatsScopes = requests.repeatsScopes { json.member("repeat_scope", repeatsScopes) }
        if let revocation = requests.revocation {
            json.name("revocation")
            revocation.encode(to: &json)
        }
    }
}
