/// How a kind of provider differs from the next: data, so that no code asks which provider it talks to.
package struct ProviderPreset: Sendable, Equatable {
    /// How a client shows who it is at the token endpoint (RFC 7591 §2).
    package enum ClientAuthentication: String, Sendable, CaseIterable {
        case clientSecretBasic = "client_secret_basic"
        case clientSecretPost = "client_secret_post"
        /// A public client: its identifier alone, in the form.
        case none
    }

    /// The value of a tenant's `provider`.
    package let name: String
    package let loginServiceBaseURI: String?
    package let authServiceBaseURI: String?
    /// `sha256/…` digests of which one must be in the verified chain; empty where the provider publishes none.
    package let pinnedCertificates: [String]
    /// What the method is when neither the tenant nor the provider's metadata names one.
    package let clientAuthentication: ClientAuthentication
    /// The query parameter that carries the login page's language.
    package let languageParameter: String
    /// The query parameter that carries the address to fill in.
    package let emailParameter: String
    /// Whether `client_unique_key` goes out with the authorization request and the code exchange.
    package let sendsClientUniqueKey: Bool
    /// Whether the code exchange and the refresh repeat the scopes. RFC 6749 has none in the exchange and reads an
    /// absent one in a refresh as "the same as granted".
    package let repeatsScopes: Bool
    /// Whether client credentials are asked for with the configured scopes.
    package let scopesClientCredentials: Bool
    /// The lifetime of a token whose answer names none and which is no JWT.
    package let defaultLifetime: Duration

    package static let tidal = ProviderPreset(
        name: "tidal",
        loginServiceBaseURI: "https://login.tidal.com",
        authServiceBaseURI: "https://auth.tidal.com/v1",
        // Amazon Root CA 1 to 4: what auth.tidal.com's chain ends in, three of them as backups.
        pinnedCertificates: [
            "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=",
            "sha256/f0KW/FtqTjs108NpYj42SrGvOB2PpxIVM8nWxjPqJGE=",
            "sha256/NqvDJlas/GRcYbcWE8S/IceH9cq77kg0jVhZeAPXq8k=",
            "sha256/9+ze1cZgR9KO1kZrVDxA4HQ6voHRCSVNz4RdTCx4U8U=",
        ],
        clientAuthentication: .clientSecretPost,
        languageParameter: "lang",
        emailParameter: "email",
        sendsClientUniqueKey: true,
        repeatsScopes: true,
        scopesClientCredentials: false,
        defaultLifetime: .seconds(3600))

    package static let oidc = ProviderPreset(
        name: "oidc",
        loginServiceBaseURI: nil,
        authServiceBaseURI: nil,
        pinnedCertificates: [],
        // RFC 6749 §2.3.1: every server must take HTTP Basic.
        clientAuthentication: .clientSecretBasic,
        // OpenID Connect Core §3.1.2.1.
        languageParameter: "ui_locales",
        emailParameter: "login_hint",
        sendsClientUniqueKey: false,
        repeatsScopes: false,
        scopesClientCredentials: true,
        defaultLifetime: .seconds(3600))

    package static let all: [ProviderPreset] = [.tidal, .oidc]

    package static func named(_ name: String) -> ProviderPreset? { all.first { $0.name == name } }
}
