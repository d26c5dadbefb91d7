/// A client registration.
package struct ProviderClient: Sendable, Equatable {
    package var id: String
    /// Nil makes a public client (RFC 6749 §2.1).
    package var secret: String?
    /// Taken beside `secret`, as a provider does for a while when a secret is changed.
    package var formerSecrets: [String] = []
    /// Answered as `clientName` with the tidal profile, and shown on the login page.
    package var name: String
    /// The scopes that it may ask for, and gets when it asks for none; nil allows any.
    package var scopes: [String]?
    /// Compared character by character (RFC 9700 §2.1); empty allows any that is safe to redirect to.
    package var redirectURIs: [String]

    package init(
        _ id: String, secret: String? = nil, name: String? = nil, scopes: [String]? = nil, redirectURIs: [String] = []
    ) {
        self.id = id
        self.secret = secret
        self.name = name ?? id
        self.scopes = scopes
        self.redirectURIs = redirectURIs
    }
}
