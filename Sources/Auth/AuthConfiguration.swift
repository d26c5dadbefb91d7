internal import BrokerCore
internal import ExternalText
public import FoundationEssentials
internal import HTTPSClient
internal import JSON

/// A client at a provider: the parameters of the Auth design's `init`.
public struct AuthConfiguration: Sendable, Equatable {
    /// Names the set of credentials. Credentials that an earlier run stored under the same key are used again. Any text
    /// is allowed.
    public var credentialsStorageKey: String
    /// The client identifier that the provider assigned.
    public var clientID: String
    /// The scopes to request. Default: none.
    public var scopes: Set<String>
    /// Required for client credentials. If it is set, every request to the token endpoint contains it. Default: none.
    public var clientSecret: String?
    /// Identifies this installation of the client, for TIDAL. Default: none.
    public var clientUniqueKey: String?
    /// The base address of TIDAL's login service. Nil, the default, means TIDAL's production environment.
    public var tidalLoginServiceBaseURI: URL?
    /// The base address of TIDAL's auth service. Nil, the default, means TIDAL's production environment.
    public var tidalAuthServiceBaseURI: URL?
    /// Whether the provider's certificates are checked against known keys, for `tidal`. Default true. Set it to false
    /// only for debugging.
    public var certificatePinning: Bool
    /// The kind of provider: `tidal` (the default), `oidc`, `spotify` or `authgear`.
    public var provider: String
    /// The issuer of an OpenID or OAuth 2.0 provider, whose metadata names its endpoints. Must be nil for `tidal`.
    public var issuer: URL?
    /// The lifetime of a token whose response has no lifetime and which is not a JWT. Nil, the default, means the
    /// provider's usual lifetime, which is an hour unless another one is known.
    public var defaultLifetime: TokenLifetime?

    /// The assumed lifetime of a token.
    public enum TokenLifetime: Sendable, Equatable {
        /// Seconds: 1 to 315,360,000.
        case seconds(Int)
        /// The token is valid until the provider or an API refuses it.
        case never
    }

    /// Sets the parameters. They are checked by the calls that use them.
    public init(
        credentialsStorageKey: String, clientID: String, scopes: Set<String> = [], clientSecret: String? = nil,
        clientUniqueKey: String? = nil, tidalLoginServiceBaseURI: URL? = nil, tidalAuthServiceBaseURI: URL? = nil,
        certificatePinning: Bool = true, provider: String = "tidal", issuer: URL? = nil,
        defaultLifetime: TokenLifetime? = nil
    ) {
        self.credentialsStorageKey = credentialsStorageKey
        self.clientID = clientID
        self.scopes = scopes
        self.clientSecret = clientSecret
        self.clientUniqueKey = clientUniqueKey
        self.tidalLoginServiceBaseURI = tidalLoginServiceBaseURI
        self.tidalAuthServiceBaseURI = tidalAuthServiceBaseURI
        self.certificatePinning = certificatePinning
        self.provider = provider
        self.issuer = issuer
        self.defaultLifetime = defaultLifetime
    }
}

/// Printing a configuration uses these. They omit the client's secret and its unique key.
extension AuthConfiguration: CustomStringConvertible, CustomReflectable {
    public var description: String { "client \(clientID) of provider \(provider)" }

    public var customMirror: Mirror {
        Mirror(
            self,
            children: [
                "credentialsStorageKey": credentialsStorageKey, "clientID": clientID, "scopes": scopes,
                "provider": provider,
            ], displayStyle: .struct)
    }
}

extension AuthConfiguration {
    /// Checks the parameters and returns them as a tenant's configuration.
    func checked(for targets: TargetPolicy) throws(AuthError) -> TenantConfiguration {
        var members: [WireText: JSONValue] = [
            "provider": .string(WireText(provider)), "client_id": .string(WireText(clientID)),
            "scopes": .array(scopes.map { .string(WireText($0)) }),
            // The library has no browser whose cookie could be checked.
            "browser_binding": .string(WireText(TenantConfiguration.BrowserBinding.off.rawValue)),
        ]
        members["client_secret"] = clientSecret.map { .string(WireText($0)) }
        members["client_unique_key"] = clientUniqueKey.map { .string(WireText($0)) }
        members["login_service_base_uri"] = tidalLoginServiceBaseURI.map { .string(WireText($0.absoluteString)) }
        members["auth_service_base_uri"] = tidalAuthServiceBaseURI.map { .string(WireText($0.absoluteString)) }
        members["issuer"] = issuer.map { .string(WireText($0.absoluteString)) }
        switch defaultLifetime {
        case .seconds(let seconds)?: members["default_lifetime"] = .integer(Int64(seconds))
        case .never?: members["default_lifetime"] = .string("never")
        case nil: break
        }
        if !certificatePinning { members["certificate_pinning"] = .bool(false) }
        do throws(BrokerError) {
            return try TenantConfiguration(.object(members), rules: targets)
        } catch {
            throw AuthError(.illegalArgument, message: error.detail)
        }
    }
}

/// Parameters for the login page (the Auth design's `LoginConfig`).
public struct LoginConfig: Sendable, Equatable {
    /// The language as an ISO 639-1 code, such as `en`. With nil the login page chooses the language.
    public var language: String?
    /// The email address to fill in on the login page. Nil fills in none.
    public var email: String?
    /// Parameters that are passed to the login service. Their names must not be those of the protocol's parameters;
    /// names consist of 1 to 64 letters, digits, `_` and `-`. All names and values together have at most 4096 bytes.
    public var customParameters: [String: String]

    /// Sets the parameters. `AuthClient.initializeLogin` checks them.
    public init(language: String? = nil, email: String? = nil, customParameters: [String: String] = [:]) {
        self.language = language
        self.email = email
        self.customParameters = customParameters
    }
}
