public import Auth
package import DevelopmentProvider
import ExternalText
public import FoundationEssentials
import HTTPCodec
import HTTPServer
package import Reactor
package import TLS

/// A development provider in this process, on a loopback port that the kernel chose: it logs in every user by any name.
///
/// Any task may use it. Keep it until the environments that use it are closed, and `close` it then.
public final class RunningProvider: Sendable {
    package let provider: DevelopmentProvider
    /// `http://127.0.0.1:` or `https://localhost:`, and the port; the issuer with the RFC profile.
    public let baseURL: String
    package var address: SocketAddress { server.address }
    private let server: Server

    /// - Parameters:
    ///   - configuration: its base URL is replaced by the one listened on.
    ///   - tls: what connections are encrypted with; nil for plain HTTP.
    ///   - now: the provider's time in milliseconds since 1970.
    ///   - clock: what the delays of faults are measured by.
    /// - Throws: `SystemError` when no port can be had.
    package init(
        _ configuration: ProviderConfiguration, tls: TLSServerContext? = nil,
        now: @escaping @Sendable () -> Int64 = { DevelopmentProvider.systemTime() },
        clock: any Clock<Duration> = ContinuousClock()
    ) throws {
        provider = DevelopmentProvider(configuration, now: now, clock: clock)
        let address = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
        var serverConfiguration = DevelopmentProvider.serverConfiguration(address: address, loopCount: 1)
        serverConfiguration.tls = tls
        server = try Server(configuration: serverConfiguration, handler: provider)
        baseURL = tls == nil ? "http://\(server.address)" : "https://localhost:\(server.address.port)"
        if let url = BaseURL(baseURL) { provider.configure { $0.baseURL = url } }
    }

    /// Ends its connections and its thread.
    public func close() async {
        await server.close()
    }
}

// MARK: - For programs that use the library

extension RunningProvider {
    /// How it behaves.
    public enum Kind: Sendable, CaseIterable {
        /// As TIDAL's login and auth services.
        case tidal
        /// As an OpenID provider that follows the RFCs. Its access tokens are JWTs.
        case oidc
        /// As DuckDuckGo's Auth v2: accounts without a login page, which `OAuthClient` creates and activates. The platform
        /// signature of an account is the name of its user.
        case duckduckgo
    }

    /// Starts a provider with one client.
    /// - Parameters:
    ///   - kind: default `tidal`.
    ///   - clientID: the client identifier.
    ///   - clientSecret: nil, the default, makes a public client.
    ///   - scopes: the scopes that the client may request.
    /// - Throws: `SystemError` when no port can be had; a retry may help.
    public convenience init(
        _ kind: Kind = .tidal, clientID: String = "test-app", clientSecret: String? = nil,
        scopes: Set<String> = ["r_usr", "openid", "privacypro"]
    ) throws {
        var configuration = ProviderConfiguration(
            profile: kind.profile,
            clients: [ProviderClient(clientID, secret: clientSecret, scopes: scopes.sorted())])
        configuration.deviceInterval = .seconds(1)
        if kind == .oidc { configuration.accessTokenFormat = .jwt }
        try self.init(configuration)
    }

    /// The configuration of its client.
    /// - Parameters:
    ///   - storageKey: names the set of credentials.
    ///   - scopes: the scopes to request.
    public func configuration(storageKey: String = "test", scopes: Set<String> = ["r_usr"]) -> AuthConfiguration {
        let (profile, client) = (provider.configuration.profile, provider.configuration.clients[0])
        var configuration = AuthConfiguration(
            credentialsStorageKey: storageKey, clientID: client.id, scopes: scopes, clientSecret: client.secret,
            certificatePinning: false)
        if profile == .duckduckgo {
            (configuration.provider, configuration.scopes) = ("duckduckgo", ["privacypro"])
            configuration.tidalAuthServiceBaseURI = URL(string: baseURL)
        } else if profile == .tidal {
            configuration.tidalLoginServiceBaseURI = URL(string: baseURL)
            configuration.tidalAuthServiceBaseURI = URL(string: baseURL + "/v1")
        } else {
            (configuration.provider, configuration.issuer) = ("oidc", URL(string: baseURL))
            if client.secret == nil { configuration.clientAuthentication = AuthConfiguration.ClientAuthentication.none }
        }
        return configuration
    }

    /// An environment for this provider, with the credentials in memory.
    public func environment() -> AuthEnvironment { AuthEnvironment(storage: .memory, allowsInsecureProviders: true) }

    /// Does what a user does at the login page, without a browser.
    /// - Parameters:
    ///   - loginURL: what `AuthClient.initializeLogin` has returned.
    ///   - user: a name of 1 to 100 characters; nil refuses the login.
    /// - Returns: the query for `AuthClient.finalizeLogin`; nil for an address that is not the login page of this
    ///   provider.
    public func answer(_ loginURL: URL, as user: String?) async -> String? {
        let parts = WireText(loginURL.absoluteString).split(at: "?", limit: 2)
        guard parts.count == 2, parts[0] == WireText(baseURL + "/authorize") else { return nil }
        let page = await provider.respond(to: Request(method: .get, path: "/authorize", query: parts[1].text))
        guard let form = ProviderForm(html: String(decoding: page.body, as: UTF8.self)) else { return nil }
        let answer = await post(form.action, form.submission(Self.decision(user)))
        return answer.fields.values("Location").first.flatMap { location in
            let parts = location.split(at: "?", limit: 2)
            return parts.count == 2 ? parts[1].text : nil
        }
    }

    /// Does what a user does on the page for device logins.
    /// - Parameter user: a name of 1 to 100 characters; nil refuses the login.
    /// - Returns: whether a device waits with the code.
    public func answer(_ login: DeviceAuthorizationResponse, as user: String?) async -> Bool {
        let form = FormEncoding.encode([.init("user_code", login.userCode)] + Self.decision(user))
        return await post("/link", form).status == .ok
    }

    private static func decision(_ user: String?) -> [FormEncoding.Pair] {
        [.init("user", user ?? "test"), .init("decision", user == nil ? "deny" : "approve")]
    }

    private func post(_ path: String, _ form: String) async -> Response {
        await provider.respond(
            to: Request(
                method: .post, path: path, fields: ["Content-Type": "application/x-www-form-urlencoded"],
                body: Array(form.utf8)))
    }

    /// Makes all access tokens expire now.
    public func expireAccessTokens() { provider.expire(.accessTokens) }

    /// Ends all sessions of a user, as the user can at the provider.
    public func endSessions(of user: String) { provider.revokeAll(userID: ProviderUser(user).id) }

    /// How many requests came to the token endpoint.
    public var tokenRequests: Int { provider.counters.requests(Endpoint.token) }
}

extension RunningProvider.Kind {
    fileprivate var profile: ProviderProfile {
        switch self {
        case .tidal: .tidal
        case .oidc: .rfc
        case .duckduckgo: .duckduckgo
        }
    }
}
