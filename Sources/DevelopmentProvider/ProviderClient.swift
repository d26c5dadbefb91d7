import ExternalText

/// A client registration.
package struct ProviderClient: Sendable, Equatable {
    package var id: String
    /// Nil makes a public client (RFC 6749 §2.1).
    package var secret: String?
    /// Secrets that are accepted in addition to `secret`, as providers do for a while after a change of the secret.
    package var formerSecrets: [String] = []
    /// The JSON text of a JWK set: the keys that sign the JWTs by which the client authenticates at the `rfc` profile. Nil for a
    /// client that shows no JWTs.
    package var publicKeys: String?
    /// The tidal profile returns it as `clientName`, and the login page shows it.
    package var name: String
    /// The scopes that the client may request, and that it gets when it requests none; nil allows any scopes.
    package var scopes: [String]?
    /// Redirect URIs are compared character by character (RFC 9700 §2.1). An empty list allows any safe redirect URI.
    package var redirectURIs: [String]
    /// Whether its refresh tokens are rotated, in the authgear profile; nil means as the configuration says.
    package var rotatesRefreshTokens: Bool?
    /// `x_app2app_enabled`: whether its sessions let other apps in.
    package var allowsAppToApp = false
    /// `x_app2app_insecure_device_key_binding_enabled`: whether a session without a device key may get one later.
    package var bindsInsecurely = false
    /// `x_app2app_biometric_protection_required`: whether its sessions let other apps in by a biometric key only.
    package var requiresBiometricProtection = false

    package init(
        _ id: String, secret: String? = nil, name: String? = nil, scopes: [String]? = nil, redirectURIs: [String] = []
    ) {
        self.id = id
        self.secret = secret
        self.name = name ?? id
        self.scopes = scopes
        self.redirectURIs = redirectURIs
    }

    func allows(_ redirectURI: WireText) -> Bool {
        redirectURIs.isEmpty || redirectURIs.contains { WireText($0) == redirectURI }
    }
}
