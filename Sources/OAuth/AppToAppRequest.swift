package import ExternalText
import HTTPCodec

/// The link by which an app asks another app of the device to be let in, and the links that answer it.
package struct AppToAppRequest: Sendable, Equatable {
    /// The app that asks.
    package let clientID: WireText
    package let redirectURI: WireText
    package let codeChallenge: WireText
    /// Given back with each answer; nil when the link has none.
    package let state: WireText?

    /// The longest link, in bytes.
    package static let longest = 8000

    package init(clientID: WireText, redirectURI: WireText, codeChallenge: WireText, state: WireText?) {
        self.clientID = clientID
        self.redirectURI = redirectURI
        self.codeChallenge = codeChallenge
        self.state = state
    }

    /// Reads a link; nil for one that is no such request: it is no absolute URI, a required parameter is missing, empty or
    /// repeated, or its `redirect_uri` cannot be answered. Other parameters are ignored, `code_challenge_method` too: the
    /// only method is S256.
    package init?(link: WireText) {
        guard link.count <= Self.longest, AbsoluteURI.isValid(link, allowsFragment: true) else { return nil }
        let parts = link.split(at: "#", limit: 2)[0].split(at: "?", limit: 2)
        guard parts.count == 2, let pairs = try? FormEncoding.decode(parts[1]) else { return nil }
        func value(_ name: WireText) -> (isUsable: Bool, WireText?) {
            let values = pairs.filter { $0.name == name }
            return (values.count < 2, values.first?.value)
        }
        let state = value("state")
        guard case (true, let clientID?) = value("client_id"), case (true, let redirectURI?) = value("redirect_uri"),
            case (true, let codeChallenge?) = value("code_challenge"), state.isUsable, !clientID.isEmpty,
            !codeChallenge.isEmpty, AbsoluteURI.isValid(redirectURI)
        else { return nil }
        self.init(
            clientID: clientID, redirectURI: redirectURI, codeChallenge: codeChallenge, state: state.1)
    }

    /// The link that begins a login in another app.
    /// - Parameter endpoint: the other app's address. A query that it has is kept.
    package func link(to endpoint: String) -> String {
        var pairs: [FormEncoding.Pair] = [
            .init("client_id", clientID), .init("redirect_uri", redirectURI), .init("code_challenge_method", "S256"),
            .init("code_challenge", codeChallenge),
        ]
        if let state { pairs.append(.init("state", state)) }
        return endpoint + (WireText(endpoint).contains("?") ? "&" : "?") + FormEncoding.encode(pairs)
    }

    /// The link that brings a code to the app that has asked.
    package func answer(code: WireText) -> String { answer([.init("code", code)]) }

    /// The link that says why there is no code.
    package func answer(error: WireText, description: WireText?) -> String {
        answer([.init("error", error)] + (description.map { [.init("error_description", $0)] } ?? []))
    }

    /// A query that `redirectURI` has is replaced.
    private func answer(_ pairs: [FormEncoding.Pair]) -> String {
        let base = redirectURI.split(at: "?", limit: 2)[0].text
        return base + "?" + FormEncoding.encode(pairs + (state.map { [.init("state", $0)] } ?? []))
    }
}

/// The form of absolute URIs, whatever their scheme (RFC 3986 §4.3).
package enum AbsoluteURI {
    /// The longest URI that is taken as a redirect URI, in bytes.
    package static let longest = 2048

    /// Whether the text may be a redirect URI (RFC 6749 §3.1.2): absolute, of visible ASCII, without a fragment, and not of a
    /// scheme that runs a script or names a file.
    /// - Parameter allowsFragment: whether it may have a fragment, and any length.
    package static func isValid(_ text: WireText, allowsFragment: Bool = false) -> Bool {
        let scheme = text.split(at: ":", limit: 2)[0]
        let isAbsolute =
            scheme.count < text.count && scheme.utf8.first.map { $0.isLowercaseLetter || $0.isUppercaseLetter } ?? false
            && scheme.utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "+.-".utf8.contains($0)
            }
        let isScript = ["javascript", "data", "vbscript", "file"].contains(scheme.lowercased)
        let isVisible = text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f }
        return isAbsolute && !isScript && isVisible
            && (allowsFragment || !text.contains("#") && text.count <= longest)
    }
}
