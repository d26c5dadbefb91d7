import BrokerCore
import ExternalText
public import FoundationEssentials
import OAuth

/// App-to-app authentication: a login through another app of the same device, and letting another app in (Authgear's design).
///
/// The device key is a P-256 key that this library makes for each login and stores sealed with the login's tokens. It never leaves
/// the store in the clear.
///
/// `open` is given a link, opens it as a universal link or an app link, and returns whether the app that it belongs to has opened
/// it. It must not open the link in a browser: another app could get the code there.
extension AuthClient {
    /// Begins a login through another app: opens that app by a link.
    /// - Throws: `linkNotOpened` if `open` returns false; `illegalArgument` for an address that cannot be used. The login that was
    ///   begun then ends by itself after ten minutes.
    public func startApp2AppAuthentication(
        options: App2AppAuthenticateOptions, open: @Sendable (URL) async -> Bool
    ) async throws(AuthError) {
        let (link, redirectURI) = (options.authorizationEndpoint.absoluteString, options.redirectURI.absoluteString)
        let state = options.state.map { WireText($0) }
        guard state.map({ $0.count <= App2AppAuthenticateOptions.longestState }) ?? true else {
            throw AuthError(
                .illegalArgument,
                message: "state has more than \(App2AppAuthenticateOptions.longestState) bytes.")
        }
        let uri = try await run { opened, tenant throws(BrokerError) in
            // The app names its own links here, so lists of them have no use.
            var configuration = tenant.configuration
            configuration.allowedRedirectURIs = [redirectURI]
            var settings = configuration.appToApp ?? TenantConfiguration.AppToApp()
            settings.authorizationEndpoints = [link]
            configuration.appToApp = settings
            let begun = try await opened.broker.logins.begin(
                .init(
                    storageKey: .default, redirectURI: WireText(redirectURI), returnTo: nil, language: nil, email: nil,
                    customParameters: [:], authorizationEndpoint: WireText(link), stateSuffix: state),
                of: Tenant(name: tenant.name, version: tenant.version, configuration: configuration))
            return begun.loginURI
        }
        try await Self.follow(uri, open)
    }

    /// Ends a login through another app, by the link with which that app has opened this one.
    /// - Returns: the `state` of the options with which the login began; nil for none.
    /// - Throws: as `finalizeLogin`; `authorizationError` if the other app did not let this one in.
    @discardableResult
    public func handleApp2AppAuthenticationResult(url: URL) async throws(AuthError) -> String? {
        let text = WireText(url.absoluteString)
        let parts = text.split(at: "?", limit: 2)
        guard parts.count == 2 else {
            throw AuthError(.illegalArgument, message: "The link has no result.")
        }
        let query = parts[1].split(at: "#", limit: 2)[0]
        try await finalizeLogin(loginResponseQuery: query.text)
        // The whole state was compared with that of the login.
        let state = (try? AuthorizationResponse(query: query))?.state?.split(at: ".", limit: 2) ?? []
        return state.count == 2 ? state[1].text : nil
    }

    /// Reads a link of another app; nil for one that is no request to be let in.
    public func parseApp2AppAuthenticationRequest(url: URL) -> App2AppAuthenticateRequest? {
        guard let request = AppToAppRequest(link: WireText(url.absoluteString)) else { return nil }
        return App2AppAuthenticateRequest(
            url: url, clientID: request.clientID.text, redirectURI: request.redirectURI.text,
            codeChallenge: request.codeChallenge.text, state: request.state?.text)
    }

    /// Lets the other app in: asks the provider for a code, and opens the other app with it.
    ///
    /// While the provider is asked, no process refreshes the tokens of this storage key.
    /// - Throws: `unauthenticated` if no user is logged in or the login has no device key; `authorizationError` if the provider
    ///   refuses, after the other app was told; `networkError` and `retryableError` if the provider does not answer now;
    ///   `linkNotOpened` if `open` returns false.
    public func approveApp2AppAuthenticationRequest(
        _ request: App2AppAuthenticateRequest, open: @Sendable (URL) async -> Bool
    ) async throws(AuthError) {
        let answer = try await run { opened, tenant throws(BrokerError) in
            let parsed = try opened.broker.appAdmission.request(WireText(request.url.absoluteString))
            return try await opened.broker.appAdmission.approve(parsed, self.id(of: tenant), of: tenant, for: nil)
        }
        try await Self.follow(answer.redirectURI, open)
        if !answer.isApproved {
            throw AuthError(
                .authorizationError, message: "The provider did not let the other app in.",
                providerErrorCode: answer.error)
        }
    }

    /// Tells the other app that it is not let in, and opens it.
    /// - Parameters:
    ///   - error: an error of OAuth, such as `access_denied`. Nil means the provider's usual one.
    ///   - description: for the other app's developers; nil for none.
    /// - Throws: `linkNotOpened` if `open` returns false.
    public func rejectApp2AppAuthenticationRequest(
        _ request: App2AppAuthenticateRequest, error: String? = nil, description: String? = nil,
        open: @Sendable (URL) async -> Bool
    ) async throws(AuthError) {
        let answer = try await run { opened, tenant throws(BrokerError) in
            let parsed = try opened.broker.appAdmission.request(WireText(request.url.absoluteString))
            return try await opened.broker.appAdmission.reject(
                parsed, self.id(of: tenant), error: error.map { WireText($0) },
                description: description.map { WireText($0) })
        }
        try await Self.follow(answer, open)
    }

    static func follow(_ uri: String, _ open: (URL) async -> Bool) async throws(AuthError) {
        guard let url = URL(string: uri) else {
            throw AuthError(.illegalArgument, message: "The link is not a URL.")
        }
        guard await open(url) else {
            throw AuthError(
                .linkNotOpened, message: "The link was not opened in the app that it belongs to.",
                providerErrorCode: "invalid_client")
        }
    }
}
