package import ExternalText

/// The sub-status with which a provider's API refuses a token (TIDAL's Auth design, "API errors").
package enum APISubStatus {
    /// Whether the text is one of the five sub-statuses that force a refresh. Other sub-statuses do not: a 401 with
    /// 4005, for example, is about the asset and not about the token.
    package static func forcesRefresh(_ text: WireText) -> Bool {
        switch text {
        case "11003", "6001", "11001", "11002", "11101": true
        default: false
        }
    }
}
