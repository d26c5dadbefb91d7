import Auth
import BrokerTesting
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import Synchronization
import Testing

/// The library as an app of the built broker, whose token endpoint has the biometric grant.
@Suite(.timeLimit(.minutes(2))) struct `Biometric logins of the library at the program` {
    private static let redirectURI = "http://127.0.0.1:7/callback"

    private static func prepare(_ broker: BrokerClient, at provider: RunningProvider) async throws {
        let tenant = try await broker.call(
            .put, "/tenants/t1",
            body: #"""
                {"provider": "oidc", "issuer": "\#(provider.baseURL)", "client_id": "broker",
                 "client_secret": "the secret", "scopes": ["r_usr"]}
                """#)
        #expect(tenant.status == 201, "\(tenant.text)")
        for (name, members) in [
            (
                "player",
                #", "x_app2app_enabled": true, "x_app2app_biometric_protection_required": true, "biometric_enabled": true"#
            ), ("radio", ""),
        ] {
            let registered = try await broker.call(
                .put, "/tenants/t1/clients/\(name)",
                body: #"{"redirect_uris": ["http://127.0.0.1/callback"], "storage_key": "default"\#(members)}"#)
            #expect(registered.status == 201, "\(registered.text)")
        }
    }

    private static func configuration(_ issuer: String) -> AuthConfiguration {
        var configuration = AuthConfiguration(
            credentialsStorageKey: "main", clientID: "player", provider: "authgear", issuer: URL(string: issuer))
        configuration.endpoints = .init(
            authorization: URL(string: issuer + "/oauth2/authorize"), token: URL(string: issuer + "/oauth2/token"))
        return configuration
    }

    @Test func `set up a key, log in by it and let another app in`() async throws {
        let provider = try RunningProvider(
            ProviderConfiguration(
                profile: .rfc, clients: [ProviderClient("broker", secret: "the secret", scopes: ["r_usr"])]))
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port, ["DATA_DIR": directory.path, "ALLOW_INSECURE_PROVIDERS": "true"])
        let broker = try BrokerClient(port: port)
        try await Self.prepare(broker, at: provider)
        var browser = AppBrowser([broker], at: provider)
        let code = try await browser.logIn(to: "player", redirectURI: Self.redirectURI, as: "alice")
        let session = try await broker.exchange(code, of: "player", redirectURI: Self.redirectURI)
        #expect(session.status == 200, "\(session.text)")

        let environment = AuthEnvironment(storage: .memory, allowsInsecureProviders: true)
        let keys = SoftwareDeviceKeys(in: environment) { _ in true }
        let auth = AuthClient(
            Self.configuration("http://127.0.0.1:\(port)"), in: environment, deviceKeys: keys)
        let options = BiometricOptions(reason: "Log in", deviceInfo: ["model": "Phone"])
        try await auth.setCredentials(
            Credentials(
                clientID: "player", expires: Date(timeIntervalSinceNow: 600),
                token: try #require(session.json["access_token"]?.text)),
            refreshToken: try #require(session.json["refresh_token"]?.text))
        try await auth.enableBiometric(options: options)
        try await auth.logout()
        try await auth.authenticateBiometric(options: options)
        let token = try #require(try await auth.credentialsProvider.getCredentials().token)
        #expect(provider.provider.introspect(accessToken: token) != nil)
        let listed = try await broker.call(.get, "/tenants/t1/sessions?client_id=player")
        #expect(listed.json["sessions"]?.array?.first?["device_info"]?["model"]?.text == "Phone", "\(listed.text)")

        // The player lets the radio in.
        let link = URL(
            string: "https://player.example/authorize?client_id=radio&redirect_uri="
                + "http%3A%2F%2F127.0.0.1%3A7%2Fcallback&code_challenge=\(ProviderDriver.challenge)&state=s1")
        let request = auth.parseApp2AppAuthenticationRequest(url: try #require(link))
        let opened = Mutex<String?>(nil)
        try await auth.approveApp2AppBiometricAuthenticationRequest(try #require(request), options: options) { url in
            opened.withLock { $0 = url.absoluteString }
            return true
        }
        let parameters = BrokerHarness.parameters(of: try #require(opened.withLock { $0 }))
        #expect(parameters["state"] == "s1")
        let radio = try await broker.exchange(
            try #require(parameters["code"]), of: "radio", redirectURI: Self.redirectURI)
        #expect(radio.status == 200, "\(radio.text)")

        // The key ends with the login.
        let logout = try await broker.call(.delete, "/credentials", tenant: "t1")
        #expect(logout.status == 204, "\(logout.text)")
        let error = await #expect(throws: AuthError.self) { try await auth.authenticateBiometric(options: options) }
        #expect(error?.code == .biometricNotEnabled)
        #expect(try await !auth.isBiometricEnabled())

        await environment.close()
        #expect(await process.terminate() == 0)
        await broker.close()
        await provider.close()
    }
}
