import ExternalText
public import FoundationEssentials
import JSON

/// How an app takes part in app-to-app authentication (Authgear's design).
public struct App2AppOptions: Sendable, Equatable {
    /// Whether new logins get a device key, by which the app can let other apps in.
    public var isEnabled: Bool
    /// Whether a login without a device key gets one when the app lets another app in for the first time. The provider must
    /// allow that for this client. Use it for users who logged in before the app took part.
    public var isInsecureDeviceKeyBindingEnabled: Bool

    /// Sets the options.
    public init(isEnabled: Bool, isInsecureDeviceKeyBindingEnabled: Bool = false) {
        self.isEnabled = isEnabled
        self.isInsecureDeviceKeyBindingEnabled = isInsecureDeviceKeyBindingEnabled
    }

    var members: [WireText: JSONValue] {
        [
            "enabled": .bool(isEnabled),
            "insecure_device_key_binding": .bool(isInsecureDeviceKeyBindingEnabled),
        ]
    }
}

/// How a login through another app begins.
public struct App2AppAuthenticateOptions: Sendable, Equatable {
    /// A link that the other app opens.
    public var authorizationEndpoint: URL
    /// A link that opens this app, to which the other app returns the result.
    public var redirectURI: URL
    /// What `handleApp2AppAuthenticationResult` returns in the end, such as the page that the user had asked for: 1,024 bytes
    /// of UTF-8 at most. The other app sees it. Nil, the default, means nothing. The link's own `state` has random bits besides,
    /// by which the library knows its login again.
    public var state: String?

    /// Sets the options.
    public init(authorizationEndpoint: URL, redirectURI: URL, state: String? = nil) {
        self.authorizationEndpoint = authorizationEndpoint
        self.redirectURI = redirectURI
        self.state = state
    }

    /// The longest `state`, in bytes of UTF-8.
    static let longestState = 1024
}

/// The request of another app to be let in. Show the user who asks before you approve it.
public struct App2AppAuthenticateRequest: Sendable, Equatable {
    /// The link that brought the request.
    public let url: URL
    /// The client identifier of the app that asks.
    public let clientID: String
    /// The link that opens the app that asks.
    public let redirectURI: String
    /// The app's PKCE challenge (RFC 7636).
    public let codeChallenge: String
    /// Comes back to the app as it is; nil for none.
    public let state: String?
}
