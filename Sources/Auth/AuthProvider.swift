public import FoundationEssentials

/// A provider with a client there, for `AuthConfiguration.init(credentialsStorageKey:provider:scopes:_:)`: what the provider needs is
/// an argument, and a mistake in its name does not compile.
///
///     AuthConfiguration(credentialsStorageKey: "main", provider: .spotify(clientID: "abc"), scopes: ["user-read-email"])
///
/// There is a function for each provider that the library knows, in `AuthProvider+Profiles.swift`, and `issuer` and `endpoints` for
/// any other. Where `clientSecret` is nil, the client is a public one, or shows what `AuthConfiguration.clientProof` says.
public struct AuthProvider: Sendable, Equatable {
    /// The kind of provider: `AuthConfiguration.provider`.
    public let name: String
    /// The client identifier that the provider assigned.
    public let clientID: String
    let clientSecret: String?
    let clientUniqueKey: String?
    let parameters: [String: String]
    let issuer: URL?
    let endpoints: AuthConfiguration.Endpoints
    let clientAuthentication: AuthConfiguration.ClientAuthentication?

    init(
        _ name: String, _ clientID: String, _ clientSecret: String?, clientUniqueKey: String? = nil,
        parameters: [String: String] = [:], issuer: URL? = nil,
        endpoints: AuthConfiguration.Endpoints = AuthConfiguration.Endpoints(),
        clientAuthentication: AuthConfiguration.ClientAuthentication? = nil
    ) {
        self.name = name
        self.clientID = clientID
        self.clientSecret = clientSecret
        self.clientUniqueKey = clientUniqueKey
        self.parameters = parameters
        self.issuer = issuer
        self.endpoints = endpoints
        self.clientAuthentication = clientAuthentication
    }

    /// TIDAL.
    /// - Parameter clientUniqueKey: identifies this installation of the client. Default: none.
    public static func tidal(clientID: String, clientSecret: String? = nil, clientUniqueKey: String? = nil) -> Self {
        Self("tidal", clientID, clientSecret, clientUniqueKey: clientUniqueKey)
    }

    /// Any provider that publishes OpenID's or RFC 8414's metadata below its issuer.
    /// - Parameter issuer: nil, as of a text that is no address, is an illegal argument of the calls that use it.
    public static func issuer(_ issuer: URL?, clientID: String, clientSecret: String? = nil) -> Self {
        Self(
            "oidc", clientID, clientSecret, issuer: issuer,
            clientAuthentication: clientSecret == nil ? AuthConfiguration.ClientAuthentication.none : nil)
    }

    /// Any provider that follows RFC 6749.
    /// - Parameter endpoints: `authorization` and `token` are needed.
    public static func endpoints(
        _ endpoints: AuthConfiguration.Endpoints, clientID: String, clientSecret: String? = nil
    ) -> Self {
        Self("oauth2", clientID, clientSecret, endpoints: endpoints)
    }
}

extension AuthConfiguration {
    /// Sets the parameters of a provider. They are checked by the calls that use them; the others have their defaults.
    /// - Parameters:
    ///   - credentialsStorageKey: names the set of credentials.
    ///   - provider: the provider, and the client there.
    ///   - scopes: the scopes to request. Default: those that the provider's profile requests by default.
    ///   - set: sets others.
    public init(
        credentialsStorageKey: String, provider: AuthProvider, scopes: Set<String> = [],
        _ set: (inout AuthConfiguration) -> Void = { _ in }
    ) {
        self.init(
            credentialsStorageKey: credentialsStorageKey, clientID: provider.clientID, scopes: scopes,
            clientSecret: provider.clientSecret, clientUniqueKey: provider.clientUniqueKey, provider: provider.name,
            issuer: provider.issuer)
        endpoints = provider.endpoints
        clientAuthentication = provider.clientAuthentication
        providerParameters = provider.parameters
        set(&self)
    }
}

/// Printing a provider uses these. They omit the client's secret and its unique key.
extension AuthProvider: CustomStringConvertible, CustomReflectable {
    public var description: String { "client \(clientID) of provider \(name)" }

    public var customMirror: Mirror {
        Mirror(self, children: ["name": name, "clientID": clientID], displayStyle: .struct)
    }
}
