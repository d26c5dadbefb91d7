package import ExternalText
internal import HTTPCodec

/// A link by which one app asks another app of the same device to let it in.
package struct AppToAppRequest: Sendable, Equatable {
    package let clientID: WireText
    package let redirectURI: WireText
    package let codeChallenge: WireText
    package let state: WireText?

    /// The longest link that is read, in bytes.
    package static let longest = 16_384

    /// Reads a link; nil for one that is no such request.
    package init?(_ uri: WireText) {
        guard uri.count <= Self.longest, !uri.contains("#") else { return nil }
        let parts = uri.split(at: "?", limit: 2)
        guard parts.count == 2, parts[0].contains(":"), let pairs = try? FormEncoding.decode(parts[1]) else {
            return nil
        }
        var values: [WireText: WireText] = [:]
        for pair in pairs where values.updateValue(pair.value, forKey: pair.name) != nil { return nil }
        guard let clientID = values["client_id"], !clientID.isEmpty, let redirectURI = values["redirect_uri"],
            RedirectURI.fault(redirectURI) == nil, let challenge = values["code_challenge"], !challenge.isEmpty
        else { return nil }
        self.clientID = clientID
        self.redirectURI = redirectURI
        codeChallenge = challenge
        state = values["state"]
    }

    /// The link that brings the other app its answer. A query of the redirect URI is replaced.
    func answer(_ pairs: [FormEncoding.Pair]) -> String {
        let base = redirectURI.split(at: "?", limit: 2)[0].text
        return base + "?" + FormEncoding.encode(pairs + (state.map { [FormEncoding.Pair("state", $0)] } ?? []))
    }
}
