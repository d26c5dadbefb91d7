package import Cryptography
package import ExternalText
package import OAuth
package import Reactor

/// What callers and browsers send to the standard login, and what they get.
extension LoginFlow {
    package struct Parameters: Sendable {
        package var storageKey: StorageKey
        package var redirectURI: WireText?
        package var returnTo: WireText?
        package var language: WireText?
        package var email: WireText?
        package var customParameters: [WireText: WireText]
        /// The address of another app of the device, at which the login begins; nil for the provider's page.
        package var authorizationEndpoint: WireText?
        /// What the `state` ends with, after a full stop, so that it comes back with the response; nil for nothing.
        package var stateSuffix: WireText?
        /// What the login asks for; nil for what the tenant's configuration says.
        package var wish: LoginWish?
        /// Nil for a login that a caller of the API begins.
        var reconnection: Reconnection?

        package init(
            storageKey: StorageKey, redirectURI: WireText? = nil, returnTo: WireText? = nil, language: WireText? = nil,
            email: WireText? = nil, customParameters: [WireText: WireText] = [:],
            authorizationEndpoint: WireText? = nil, stateSuffix: WireText? = nil
        ) {
            self.stateSuffix = stateSuffix
            self.storageKey = storageKey
            self.redirectURI = redirectURI
            self.returnTo = returnTo
            self.language = language
            self.email = email
            self.customParameters = customParameters
            self.authorizationEndpoint = authorizationEndpoint
        }
    }

    /// A login that a browser begins by the address for a new login after a session's end.
    struct Reconnection: Sendable {
        let source: NetworkSource
        /// When the session ended.
        let end: Timestamp
    }

    /// What an app's authorization request asks for.
    package struct AppParameters: Sendable {
        package let client: AppClient
        package let redirectURI: String
        /// Whether the request named the redirect URI.
        package let namedRedirectURI: Bool
        /// Nil where the request has none.
        package let state: WireText?
        /// Of the method S256.
        package let codeChallenge: WireText
        package let language: WireText?
        package let email: WireText?

        package init(
            for client: AppClient, redirectURI: String, namedRedirectURI: Bool, state: WireText?,
            codeChallenge: WireText, language: WireText?, email: WireText?
        ) {
            self.client = client
            self.redirectURI = redirectURI
            self.namedRedirectURI = namedRedirectURI
            self.state = state
            self.codeChallenge = codeChallenge
            self.language = language
            self.email = email
        }
    }

    package struct Begun: Sendable {
        package let loginID: String
        package let loginURI: String
        package let startURI: String
        package let expiresIn: Duration
    }

    /// A login's outcome, as its page, its redirect or its caller gets it.
    package struct Ended: Sendable {
        package let login: LoginDescription
        package var loginID: String { login.loginID }
        package let credentialsID: CredentialsID
        package let returnTo: String?
        /// Where the app gets the outcome; nil for a login that is for no app.
        package var appReturn: AppLogin.Return?
        package let result: Result<HeldCredentials, BrokerError>
    }

    /// The address at which a browser has brought a response.
    package enum Callback: Sendable {
        case shared
        /// The address of a tenant; nil where the path has no tenant's name.
        case tenant(TenantName?)

        func fits(_ login: PendingLogin) -> Bool {
            switch (self, login.callback) {
            case (.shared, .shared): true
            case (.tenant(let name), .perTenant): name == login.tenant
            default: false
            }
        }
    }

    /// A browser that comes back from the login service.
    ///
    /// A class, because it goes through many asynchronous functions: as a value it would be passed to each in a dozen words, most
    /// of them on the stack, and release builds of Swift 6.3.1 lose their way then (they jump into the heap).
    package final class Browser: Sendable {
        /// The values of its cookies by name.
        package let cookies: [WireText: WireText]
        package let callback: Callback
        /// Whether the browser can show a page and send the page's form.
        package let canConfirm: Bool
        package let source: NetworkSource

        package init(
            cookies: [WireText: WireText], callback: Callback, canConfirm: Bool, source: NetworkSource = .unknown
        ) {
            self.cookies = cookies
            self.callback = callback
            self.canConfirm = canConfirm
            self.source = source
        }
    }

    /// The name and the value of a cookie to set.
    package struct Cookie: Sendable {
        package let name: String
        package let value: SecretBytes
    }

    /// The result of a response that a browser has brought.
    package enum Received: Sendable {
        case ended(Ended)
        /// The code is kept until the user confirms the login in the browser that gets the cookie.
        case mustConfirm(LoginDescription, Cookie)
    }
}
