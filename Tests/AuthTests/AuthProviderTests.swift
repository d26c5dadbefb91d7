import Auth
import AuthTesting
import FoundationEssentials
import OAuth
import Testing

/// Tests that each function of `AuthProvider` makes a provider that the library knows.
@Suite struct `A typed provider` {
    private static let issuerURL = URL(string: "https://login.example.com") ?? URL(filePath: "/")

    /// One of each function that is made of a profile, with what it requires.
    private static let made: [AuthProvider] = [
        .airtable(clientID: "c"), .amazonSeller(applicationID: "acme", clientID: "c", clientSecret: "s"),
        .asana(clientID: "c", clientSecret: "s"), .atlassian(clientID: "c", clientSecret: "s"),
        .auth0(domain: "acme.example.com", clientID: "c"), .authgear(issuer: issuerURL, clientID: "c"),
        .bitbucket(clientID: "c", clientSecret: "s"), .box(clientID: "c", clientSecret: "s"),
        .calendly(clientID: "c", clientSecret: "s"), .canva(clientID: "c", clientSecret: "s"),
        .clickup(clientID: "c", clientSecret: "s"), .cognito(region: "acme", userPoolID: "acme", clientID: "c"),
        .discord(clientID: "c"), .docusign(clientID: "c"), .dropbox(clientID: "c"), .duckduckgo(clientID: "c"),
        .facebook(clientID: "c", clientSecret: "s"), .figma(clientID: "c", clientSecret: "s"),
        .fitbit(clientID: "c", clientSecret: "s"), .github(clientID: "c", clientSecret: "s"),
        .githubApp(clientID: "c", clientSecret: "s"), .gitlab(clientID: "c"),
        .google(clientID: "c", clientSecret: "s"), .hubspot(clientID: "c", clientSecret: "s"),
        .instagram(clientID: "c", clientSecret: "s"), .intercom(clientID: "c", clientSecret: "s"),
        .keycloak(domain: "acme.example.com", realm: "acme", clientID: "c"), .linear(clientID: "c"),
        .linkedin(clientID: "c", clientSecret: "s"), .microsoft(clientID: "c"),
        .miro(clientID: "c", clientSecret: "s"), .monday(clientID: "c", clientSecret: "s"),
        .notion(clientID: "c", clientSecret: "s"), .okta(domain: "acme.example.com", clientID: "c"),
        .openai(clientID: "c"), .paypal(clientID: "c", clientSecret: "s"),
        .pipedrive(clientID: "c", clientSecret: "s"), .quickbooks(clientID: "c", clientSecret: "s"),
        .reddit(clientID: "c", clientSecret: "s"), .salesforce(clientID: "c"),
        .shopify(shop: "acme.example.com", clientID: "c", clientSecret: "s"),
        .slack(clientID: "c", clientSecret: "s"),
        .snowflake(account: "acme.example.com", clientID: "c", clientSecret: "s"), .spotify(clientID: "c"),
        .square(clientID: "c", clientSecret: "s"), .strava(clientID: "c", clientSecret: "s"),
        .stripe(clientID: "c", clientSecret: "s"), .threads(clientID: "c", clientSecret: "s"),
        .tiktok(clientID: "c", clientSecret: "s"), .twitch(clientID: "c"),
        .webflow(clientID: "c", clientSecret: "s"), .x(clientID: "c"), .xero(clientID: "c"),
        .zendesk(subdomain: "acme", clientID: "c", clientSecret: "s"), .zoho(clientID: "c", clientSecret: "s"),
        .zoom(clientID: "c"),
    ]

    private static let own: [AuthProvider] = [
        .tidal(clientID: "c", clientUniqueKey: "u"), .issuer(issuerURL, clientID: "c"),
        .issuer(issuerURL, clientID: "c", clientSecret: "s"),
        .endpoints(
            .init(authorization: issuerURL.appending(path: "authorize"), token: issuerURL.appending(path: "token")),
            clientID: "c"),
    ]

    private static func environment() -> AuthEnvironment { AuthEnvironment.scripted(ScriptedTransport()) }

    @Test func `there is a function for each profile that has logins`() {
        let others: Set<String> = ["mcp", "static"]
        #expect(Self.made.map(\.name) == ShippedProfiles.names.filter { !others.contains($0) && !owned.contains($0) })
        #expect(Set(Self.own.map(\.name)) == owned)
    }

    private let owned: Set<String> = ["tidal", "oidc", "oauth2"]

    @Test func `the library takes each provider with what its function requires`() async throws {
        let environment = Self.environment()
        for provider in Self.made + Self.own {
            let configuration = AuthConfiguration(credentialsStorageKey: "\(provider)", provider: provider)
            #expect(configuration.provider == provider.name && configuration.clientID == "c")
            let auth = AuthClient(configuration, in: environment)
            await #expect(throws: Never.self, "\(provider)") { try await auth.isUserLoggedIn() }
        }
        await environment.close(within: .zero)
    }

    @Test func `a login goes to the provider that was named`() async throws {
        let environment = Self.environment()
        func page(_ provider: AuthProvider) async throws -> String {
            let auth = AuthClient(
                AuthConfiguration(credentialsStorageKey: provider.name, provider: provider, scopes: ["a"]),
                in: environment)
            return try await auth.initializeLogin(
                redirectURI: try #require(URL(string: "http://127.0.0.1:8123/callback"))
            ).absoluteString
        }
        let spotify = try await page(.spotify(clientID: "c"))
        #expect(spotify.hasPrefix("https://accounts.spotify.com/authorize?") && spotify.contains("client_id=c"))
        let github = try await page(.github(clientID: "c", clientSecret: "s", domain: "acme.ghe.com"))
        #expect(github.hasPrefix("https://acme.ghe.com/login/oauth/authorize?"))
        let plain = try await page(
            .endpoints(
                .init(
                    authorization: URL(string: "https://login.example.com/go"),
                    token: URL(string: "https://login.example.com/token")), clientID: "c"))
        #expect(plain.hasPrefix("https://login.example.com/go?"))
        await environment.close(within: .zero)
    }

    @Test func `a parameter that the provider does not have is an illegal argument`() async throws {
        let environment = Self.environment()
        var configuration = AuthConfiguration(credentialsStorageKey: "main", provider: .spotify(clientID: "c"))
        configuration.providerParameters = ["domain": "acme.example.com"]
        let auth = AuthClient(configuration, in: environment)
        let error = await #expect(throws: AuthError.self) { try await auth.isUserLoggedIn() }
        #expect(error?.code == .illegalArgument)
        await environment.close(within: .zero)
    }

    @Test func `an issuer that is no address is an illegal argument`() async throws {
        let environment = Self.environment()
        for provider in [AuthProvider.issuer(URL(string: ""), clientID: "c"), .authgear(issuer: nil, clientID: "c")] {
            let auth = AuthClient(
                AuthConfiguration(credentialsStorageKey: provider.name, provider: provider), in: environment)
            let error = await #expect(throws: AuthError.self) { try await auth.isUserLoggedIn() }
            #expect(error?.code == .illegalArgument)
        }
        await environment.close(within: .zero)
    }

    @Test func `a provider does not print its secrets`() {
        let provider = AuthProvider.google(clientID: "c", clientSecret: "a-secret")
        var text = "\(provider) " + String(reflecting: provider)
        dump(provider, to: &text)
        #expect(!text.contains("a-secret"))
        #expect("\(provider)" == "client c of provider google")
    }
}
