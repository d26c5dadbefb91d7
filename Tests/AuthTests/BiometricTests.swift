import Auth
import AuthTesting
import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import Synchronization
import Testing

/// Biometric logins with the library, at the development provider over sockets.
@Suite(.timeLimit(.minutes(2))) struct `Biometric logins with the library` {
    private static let callback = "https://a.example/callback"
    private static let result = "https://b.example/callback"
    private static let options = BiometricOptions(
        reason: "Log in to the player", allowsPasscode: true, deviceInfo: ["model": "Phone"])

    /// The links that were opened.
    private final class Opener: Sendable {
        private let links = Mutex<[String]>([])

        var opened: [String] { links.withLock { $0 } }

        func open(_ url: URL) async -> Bool {
            links.withLock { $0.append(url.absoluteString) }
            return true
        }
    }

    /// A user who is asked for a proof of presence.
    private final class Presence: Sendable {
        private let state = Mutex((isThere: true, asked: [BiometricOptions]()))

        var asked: [BiometricOptions] { state.withLock { $0.asked } }
        var isThere: Bool {
            get { state.withLock { $0.isThere } }
            set { state.withLock { $0.isThere = newValue } }
        }

        func ask(_ options: BiometricOptions) -> Bool {
            state.withLock { state in
                state.asked.append(options)
                return state.isThere
            }
        }
    }

    private struct World {
        let running: RunningProvider
        let environment: AuthEnvironment
        let auth: AuthClient

        var provider: DevelopmentProvider { running.provider }

        func logIn(as user: String = "alice") async throws {
            let link = try await auth.initializeLogin(redirectURI: URL(string: callback)!)
            let query = try #require(WireText(link.absoluteString).split(at: "?", limit: 2).last)
            let browser = ProviderDriver(provider)
            let page = await browser.get("/oauth2/authorize", try FormEncoding.decode(query))
            let form = try #require(ProviderForm(html: page.text), "\(page.text)")
            let answer = await browser.post(
                form.action, body: form.submission([.init("user", user), .init("decision", "approve")]))
            let parameters = try #require(answer.redirectParameters)
            try await auth.finalizeLogin(
                loginResponseQuery: FormEncoding.encode(parameters.map { .init(WireText($0), WireText($1)) }))
        }

        func userID() async throws -> String? { try await auth.credentialsProvider.getCredentials().userID }

        /// The request of the app `b`.
        func request(redirectURI: String = result) throws -> App2AppAuthenticateRequest {
            let query = FormEncoding.encode([
                .init("client_id", "b"), .init("redirect_uri", redirectURI),
                .init("code_challenge", ProviderDriver.challenge), .init("code_challenge_method", "S256"),
                .init("state", "s1"),
            ])
            let link = try #require(URL(string: "https://a.example/authorize?" + query))
            return try #require(auth.parseApp2AppAuthenticationRequest(url: link))
        }

        /// The error that the call throws.
        func error(_ body: () async throws(AuthError) -> Void) async -> AuthError? {
            do throws(AuthError) {
                try await body()
                return nil
            } catch {
                return error
            }
        }
    }

    private static func configuration(at provider: RunningProvider) -> AuthConfiguration {
        AuthConfiguration(
            credentialsStorageKey: "main", clientID: "a", provider: "authgear",
            issuer: URL(string: provider.baseURL), app2appOptions: App2AppOptions(isEnabled: true))
    }

    private static func run(
        _ device: (any DeviceKeyStore)?, _ change: (inout ProviderClient) -> Void = { _ in },
        _ body: (World) async throws -> Void
    ) async throws {
        try await run({ _ in device }, storage: .memory, change, body)
    }

    private static func run(
        _ device: (AuthEnvironment) -> (any DeviceKeyStore)?, storage: AuthEnvironment.Storage,
        _ change: (inout ProviderClient) -> Void = { _ in }, _ body: (World) async throws -> Void
    ) async throws {
        var client = ProviderClient("a", redirectURIs: [Self.callback])
        client.allowsAppToApp = true
        change(&client)
        let running = try RunningProvider(
            ProviderConfiguration(
                profile: .authgear, clients: [client, ProviderClient("b", redirectURIs: [Self.result])]))
        let environment = AuthEnvironment(storage: storage, allowsInsecureProviders: true)
        let auth = AuthClient(configuration(at: running), in: environment, deviceKeys: device(environment))
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(World(running: running, environment: environment, auth: auth)))
        } catch {
            result = .failure(error)
        }
        await environment.close()
        await running.close()
        try result.get()
    }

    @Test func `a key that was set up logs its user in after a logout`() async throws {
        let device = BiometricDevice()
        try await Self.run(device) { world in
            try await world.logIn()
            let user = try await world.userID()
            #expect(try await !world.auth.isBiometricEnabled())
            try await world.auth.enableBiometric(options: Self.options)
            #expect(try await world.auth.isBiometricEnabled())
            #expect(device.names.count == 1 && device.names.allSatisfy { (8...64).contains($0.count) })
            try await world.auth.logout()
            #expect(try await !world.auth.isUserLoggedIn())
            try await world.auth.authenticateBiometric(options: Self.options)
            #expect(try await world.userID() == user)
            #expect(user != nil)
            #expect(device.prompts == [Self.options, Self.options])
            // The next login ends the session of this one, and the token that is handed out is of the next one.
            let earlier = try #require(try await world.auth.credentialsProvider.getCredentials().token)
            try await world.auth.authenticateBiometric(options: Self.options)
            let later = try #require(try await world.auth.credentialsProvider.getCredentials().token)
            #expect(world.provider.introspect(accessToken: earlier) == nil)
            #expect(world.provider.introspect(accessToken: later) != nil)
            #expect(world.provider.counters.requests(GrantType.biometric) == 3)
        }
    }

    @Test func `an app that needs biometric protection lets another one in by the key`() async throws {
        try await Self.run(BiometricDevice()) {
            $0.requiresBiometricProtection = true
        } _: { world in
            let opener = Opener()
            try await world.logIn()
            let request = try world.request()
            let refused = await world.error { () throws(AuthError) in
                try await world.auth.approveApp2AppAuthenticationRequest(request, open: opener.open)
            }
            #expect(refused?.code == .authorizationError && refused?.providerErrorCode == "access_denied")
            try await world.auth.enableBiometric(options: Self.options)
            try await world.auth.approveApp2AppBiometricAuthenticationRequest(
                request, options: Self.options, open: opener.open)
            let answer = WireText(try #require(opener.opened.last))
            let pairs = try FormEncoding.decode(try #require(answer.split(at: "?", limit: 2).last))
            #expect(answer.text.hasPrefix(Self.result + "?"))
            #expect(pairs.contains { $0.name == "state" && $0.value == "s1" })
            let code = try #require(pairs.first { $0.name == "code" })
            var other = ProviderDriver(world.provider, clientID: "b")
            other.redirectURI = Self.result
            let redeemed = await other.redeem(code.value.text)
            #expect(redeemed.text.contains("access_token"), "\(redeemed.text)")
            // This app's user is logged in by the new session.
            let token = try #require(try await world.auth.credentialsProvider.getCredentials().token)
            #expect(world.provider.introspect(accessToken: token) != nil)
        }
    }

    @Test func `a refusal of the other app is told to both`() async throws {
        try await Self.run(BiometricDevice()) { world in
            let opener = Opener()
            try await world.logIn()
            try await world.auth.enableBiometric(options: Self.options)
            let request = try world.request(redirectURI: "https://b.example/elsewhere")
            let error = await world.error { () throws(AuthError) in
                try await world.auth.approveApp2AppBiometricAuthenticationRequest(
                    request, options: Self.options, open: opener.open)
            }
            #expect(error?.code == .authorizationError && error?.providerErrorCode == "invalid_request")
            #expect(opener.opened.last?.contains("error=invalid_request") == true)
            #expect(try await world.auth.isUserLoggedIn())
            #expect(try await world.auth.isBiometricEnabled())
        }
    }

    @Test(arguments: [
        (BiometricDevice.Trouble.refusing, AuthError.Code.biometricRefused), (.failing, .biometricUnavailable),
        (.lying, .biometricUnavailable),
    ])
    func `a device in trouble changes nothing`(
        trouble: BiometricDevice.Trouble, code: AuthError.Code
    ) async throws {
        let device = BiometricDevice()
        try await Self.run(device) { world in
            try await world.logIn()
            device.get(into: trouble)
            let first = await world.error { () throws(AuthError) in
                try await world.auth.enableBiometric(options: Self.options)
            }
            #expect(first?.code == code)
            // The key that was not set up is not left on the device.
            #expect(try await !world.auth.isBiometricEnabled())
            #expect(device.names.isEmpty)
            device.get(into: nil)
            try await world.auth.enableBiometric(options: Self.options)
            device.get(into: trouble)
            let second = await world.error { () throws(AuthError) in
                try await world.auth.authenticateBiometric(options: Self.options)
            }
            #expect(second?.code == code)
            #expect(try await world.auth.isBiometricEnabled())
            #expect(try await world.auth.isUserLoggedIn())
            device.get(into: nil)
            try await world.auth.authenticateBiometric(options: Self.options)
        }
    }

    @Test func `a key that the device or the provider does not know any more is forgotten`() async throws {
        let device = BiometricDevice()
        try await Self.run(device) { world in
            try await world.logIn()
            try await world.auth.enableBiometric(options: Self.options)
            device.forgetKeys()
            for _ in 1...2 {
                let error = await world.error { () throws(AuthError) in
                    try await world.auth.authenticateBiometric(options: Self.options)
                }
                #expect(error?.code == .biometricNotEnabled)
                #expect(try await !world.auth.isBiometricEnabled())
                #expect(try await world.auth.isUserLoggedIn())
            }
            try await world.auth.enableBiometric(options: Self.options)
            world.provider.script(
                Fault(
                    .token, grant: .biometric, status: .badRequest,
                    body: Array(#"{"error": "invalid_grant", "error_description": "InvalidCredentials"}"#.utf8)))
            let error = await world.error { () throws(AuthError) in
                try await world.auth.authenticateBiometric(options: Self.options)
            }
            #expect(error?.code == .biometricNotEnabled && error?.providerErrorCode == "invalid_grant")
            #expect(try await !world.auth.isBiometricEnabled())
            #expect(try await world.auth.isUserLoggedIn())
            #expect(device.names.isEmpty)
        }
    }

    @Test(arguments: [
        (#"{"error": "invalid_grant"}"#, Status.badRequest, AuthError.Code.unexpectedError),
        (#"{"error": "invalid_scope", "error_description": "InvalidCredentials"}"#, .badRequest, .unexpectedError),
        (#"{"error": "x_rate_limited"}"#, .tooManyRequests, .retryableError),
        ("", .serviceUnavailable, .retryableError),
    ])
    func `another answer of the provider leaves the key and the login in place`(
        body: String, status: Status, code: AuthError.Code
    ) async throws {
        let device = BiometricDevice()
        try await Self.run(device) { world in
            try await world.logIn()
            try await world.auth.enableBiometric(options: Self.options)
            world.provider.script(Fault(.token, grant: .biometric, status: status, body: Array(body.utf8)))
            let error = await world.error { () throws(AuthError) in
                try await world.auth.authenticateBiometric(options: Self.options)
            }
            #expect(error?.code == code)
            #expect(try await world.auth.isBiometricEnabled())
            #expect(try await world.auth.isUserLoggedIn())
            #expect(device.names.count == 1)
        }
    }

    @Test func `without a user, without a key and without a store of keys there are no biometric logins`() async throws
    {
        try await Self.run(BiometricDevice()) { world in
            let first = await world.error { () throws(AuthError) in
                try await world.auth.enableBiometric(options: Self.options)
            }
            #expect(first?.code == .unauthenticated)
            let second = await world.error { () throws(AuthError) in
                try await world.auth.authenticateBiometric(options: Self.options)
            }
            #expect(second?.code == .biometricNotEnabled)
            try await world.auth.disableBiometric()
            #expect(world.provider.requests.isEmpty)
        }
        try await Self.run(nil) { world in
            try await world.logIn()
            let error = await world.error { () throws(AuthError) in
                try await world.auth.enableBiometric(options: Self.options)
            }
            #expect(error?.code == .illegalArgument)
        }
    }

    @Test func `another key replaces the one before, and what is left on the device is removed later`() async throws {
        let device = BiometricDevice()
        try await Self.run(device) { world in
            try await world.logIn()
            try await world.auth.enableBiometric(options: Self.options)
            let first = device.names
            device.breakRemoval(true)
            try await world.auth.enableBiometric(options: Self.options)
            #expect(device.names.count == 2)
            let error = await world.error { () throws(AuthError) in
                try await world.auth.enableBiometric(options: Self.options)
            }
            #expect(error?.code == .biometricUnavailable)
            device.breakRemoval(false)
            try await world.auth.enableBiometric(options: Self.options)
            #expect(device.names.count == 1 && device.names != first)
            try await world.auth.authenticateBiometric(options: Self.options)
            try await world.auth.disableBiometric()
            #expect(device.names.isEmpty)
            #expect(try await !world.auth.isBiometricEnabled())
        }
    }

    @Test(arguments: [
        (PrivateKey.Kind.elliptic(.p256), DeviceKeyAlgorithm.es256, false), (.elliptic(.p256), .es256, true),
        (.rsa(bits: 2048), .rs256, false), (.rsa(bits: 2048), .ps256, false), (.ed25519, .edDSA, false),
    ])
    func `keys of each kind log their user in`(
        kind: PrivateKey.Kind, algorithm: DeviceKeyAlgorithm, signsInDER: Bool
    ) async throws {
        try await Self.run(BiometricDevice(kind, algorithm, signsInDER: signsInDER)) { world in
            try await world.logIn()
            try await world.auth.enableBiometric(options: Self.options)
            try await world.auth.authenticateBiometric(options: Self.options)
            #expect(try await world.auth.isUserLoggedIn())
        }
    }

    @Test func `a renewal during a biometric login does not log the user out`() async throws {
        try await Self.run(BiometricDevice()) { world in
            try await world.logIn()
            try await world.auth.enableBiometric(options: Self.options)
            try await world.auth.authenticateBiometric(options: Self.options)
            var updates = world.auth.credentialsProvider.bus.makeAsyncIterator()
            // The provider has ended the session before, and its answer is under way.
            world.provider.script(Fault(.token, grant: .biometric, answerDelay: .milliseconds(500)))
            let auth = world.auth
            async let login: Void = auth.authenticateBiometric(options: Self.options)
            try await world.provider.waitForRequests(3, at: .token, grant: .biometric)
            let renewed = try await auth.credentialsProvider.getCredentials(apiErrorSubStatus: "11003", refused: nil)
            try await login
            #expect(renewed.level == .user)
            let token = try #require(try await auth.credentialsProvider.getCredentials().token)
            #expect(world.provider.introspect(accessToken: token) != nil)
            let update = await updates.next()
            #expect(update?.credentials.level == .user)
        }
    }

    @Test func `software keys are sealed, and are there after a restart`() async throws {
        let directory = StoreFixtureDirectory()
        let user = Presence()
        let keys: @Sendable (AuthEnvironment) -> (any DeviceKeyStore)? = { environment in
            SoftwareDeviceKeys(in: environment) { user.ask($0) }
        }
        try await Self.run(keys, storage: .directory(directory.path)) { world in
            try await world.logIn()
            try await world.auth.enableBiometric(options: Self.options)
            user.isThere = false
            let error = await world.error { () throws(AuthError) in
                try await world.auth.authenticateBiometric(options: Self.options)
            }
            #expect(error?.code == .biometricRefused)
            user.isThere = true
            await world.environment.close()
            var count = 0
            for name in try FileManager.default.subpathsOfDirectory(atPath: directory.path) {
                guard let bytes = FileManager.default.contents(atPath: directory.path + "/" + name) else { continue }
                count += 1
                #expect(!String(decoding: bytes, as: UTF8.self).contains("PRIVATE KEY"), "\(name)")
            }
            #expect(count > 2)
            let again = AuthEnvironment(storage: .directory(directory.path), allowsInsecureProviders: true)
            let auth = AuthClient(
                Self.configuration(at: world.running), in: again, deviceKeys: keys(again))
            try await auth.logout()
            try await auth.authenticateBiometric(options: Self.options)
            #expect(try await auth.isUserLoggedIn())
            try await auth.disableBiometric()
            #expect(try await !auth.isBiometricEnabled())
            await again.close()
        }
        #expect(user.asked == [Self.options, Self.options, Self.options])
    }

    /// The Swift code of the section "Biometric logins" of LIBRARY.md and of APP2APP.md is in this function, line by line; see the
    /// test below.
    private static func runDocumentedCode(
        _ configuration: AuthConfiguration, _ environment: AuthEnvironment, _ link: URL,
        logIn: (AuthClient) async throws -> Void, openUniversalLink: @Sendable (URL) async -> Bool
    ) async throws {
        let keys = SoftwareDeviceKeys(in: environment) { options in await askUser(options.reason) }
        let auth = AuthClient(configuration, in: environment, deviceKeys: keys)
        try await logIn(auth)
        let options = BiometricOptions(reason: "Log in to the player")
        // While the user is logged in:
        try await auth.enableBiometric(options: options)
        // Later, without a password:
        if try await auth.isBiometricEnabled() {
            try await auth.authenticateBiometric(options: options)
        }
        // Another app asks to be let in:
        guard let request = auth.parseApp2AppAuthenticationRequest(url: link) else { return }
        try await auth.approveApp2AppBiometricAuthenticationRequest(request, options: options, open: openUniversalLink)
    }

    private static func askUser(_ reason: String) async -> Bool { reason == "Log in to the player" }

    @Test func `the code of the documents runs`() async throws {
        let opener = Opener()
        try await Self.run(nil) { world in
            try await Self.runDocumentedCode(
                Self.configuration(at: world.running), world.environment, try world.request().url,
                logIn: { _ in try await world.logIn() }, openUniversalLink: opener.open)
        }
        #expect(opener.opened.last?.hasPrefix(Self.result + "?code=") == true)
    }

    @Test(arguments: ["LIBRARY.md", "APP2APP.md"]) func `the code of the documents is the one that runs`(name: String)
        throws
    {
        let here = #filePath.split(separator: "/", omittingEmptySubsequences: false)
        let checkout = here.dropLast(3).joined(separator: "/")
        func text(_ path: String) throws -> String {
            String(decoding: try #require(FileManager.default.contents(atPath: path), "\(path)"), as: UTF8.self)
        }
        func lines(_ text: Substring) -> [Substring] {
            text.split(separator: "\n").map { line in line.drop { $0 == " " } }
        }
        let code = lines(try text(#filePath)[...])
        let document = try text(checkout + "/Deploy/" + name)
        let section = try #require(document.split(separator: "\n## ").first { $0.hasPrefix("Biometric logins\n") })
        let blocks = section.split(separator: "```swift\n").dropFirst().compactMap { $0.split(separator: "```").first }
        #expect(!blocks.isEmpty)
        for line in blocks.flatMap(lines) { #expect(code.contains(line), "\(line)") }
    }
}
