package import ExternalText

/// What a provider's API said when it refused a token (TIDAL's Auth design, "API errors").
package enum APISubStatus {
    /// Whether the text is one of the five that force a refresh. Any other changes nothing: a 401 with 4005, say, is
    /// about the asset and not about the token.
    package static func forcesRefresh(_ text: WireText) -> Bool {
        switch text {
        case "11003", "6001", "11001", "11002", "11101": true
        default: false
        }
    }
}
