internal import BrokerCore
internal import ExternalText
public import FoundationEssentials
internal import HTTPSClient
internal import JSON

/// One client at one provider: the parameters of the Auth design's `init`.
public struct AuthConfiguration: Sendable, Equatable {
    /// Names the set of credentials: what an earlier run stored under it is taken up again. Any text; every key has
    /// credentials of its own.
    public var credentialsStorageKey: String
    public var clientID: String
    /// The scopes to ask for.
    public var scopes: Set<String>
    /// Needed for client credentials. Sent to the token endpoint with every request where it is set.
    public var clientSecret: String?
    public var clientUniqueKey: String?
    /// Nil for TIDAL's production environment.
    public var tidalLoginServiceBaseURI: URL?
    /// Nil for TIDAL's production environment.
    public var tidalAuthServiceBaseURI: URL?
    /// Should be off only while debugging.
    public var certificatePinning: Bool
    /// The kind of provider: `tidal`, `oidc`, `spotify` or `authgear`.
    public var provider: String
    /// The issuer of an OpenID or OAuth 2.0 provider, whose metadata names its endpoints. Not for `tidal`.
    public var issuer: URL?
    /// How long a token lives whose answer names no lifetime and which is no JWT. Nil for the provider's usual lifetime,
    /// an hour unless it is known to be another one.
    public var defaultLifetime: TokenLifetime?

    /// How long a token is taken to live.
    public enum TokenLifetime: Sendable, Equatable {
        /// 1 to 315,360,000.
        case seconds(Int)
        /// Until the provider or an API refuses it.
        case never
    }

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

/// What prints a configuration goes by this: neither the client's secret nor its unique key is in it.
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
    /// The same, checked, as a tenant's configuration.
    func checked(for targets: TargetPolicy) throws(AuthError) -> TenantConfiguration {
        var members: [WireText: JSONValue] = [
            "provider": .string(WireText(provider)), "client_id": .string(WireText(clientID)),
            "scopes": .array(scopes.map { .string(WireText($0)) }),
            // There is no browser here whose cookie could be looked at.
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
            throw .illegalArgument(error.detail)
        }
    }
}

/// What the login page is to know (the Auth design's `LoginConfig`).
public struct LoginConfig: Sendable, Equatable {
    /// ISO 639-1, such as `en`. Nil leaves it to the browser.
    public var language: String?
    /// Filled in on the login page.
    public var email: String?
    /// Passed through to the login service. None may bear the name of a parameter of the protocol; names
    /// consist of 1 to 64 letters, digits, `_` and `-`, and all names and values together have at most 4096 bytes.
    public var customParameters: [String: String]

    public init(language: String? = nil, email: String? = nil, customParameters: [String: String] = [:]) {
        self.language = language
        self.email = email
        self.customParameters = customParameters
    }
}
