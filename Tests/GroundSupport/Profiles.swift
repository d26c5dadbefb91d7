import ExternalText
package import OAuth

/// Profiles that tests name.
extension ProviderPreset {
    package static let oidc = shipped("oidc")
    package static let spotify = shipped("spotify")
    package static let authgear = shipped("authgear")
    package static let duckduckgo = shipped("duckduckgo")

    /// The providers of the systems that the broker implements whole, and any OpenID provider.
    package static let seeds: [ProviderPreset] = [.tidal, .oidc, .spotify, .authgear, .duckduckgo]
}
