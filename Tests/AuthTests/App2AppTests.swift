import Auth
import AuthTesting
import FoundationEssentials
import Synchronization
import Testing

/// App-to-app authentication in the library.
@Suite(.timeLimit(.minutes(1))) struct `App to app in the library` {
    private static let challenge = "https://provider.example/challenge"
    private static let link = URL(
        string: "https://this-app.example/authorize?client_id=other&redirect_uri=https%3A%2F%2Fother.example%2Fcb"
            + "&code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&code_challenge_method=S256&state=s1")!

    /// The links that were opened.
    private final class Opener: Sendable {
        private let links = Mutex<[String]>([])
        let opens: Bool

        init(opens: Bool = true) { self.opens = opens }

        var opened: [String] { links.withLock { $0 } }

        func open(_ url: URL) async -> Bool {
            links.withLock { $0.append(url.absoluteString) }
            return opens
        }
    }

    private static func run(
        _ options: App2AppOptions? = App2AppOptions(isEnabled: true),
        _ body: (ScriptedClient, Opener) async throws -> Void
    ) async throws {
        try await ScriptedClient.run {
            $0.provider = "authgear"
            $0.app2appOptions = options
            $0.tokenVerification = nil
            $0.scopes = []
            $0.endpoints.challenge = URL(string: challenge)
        } _: { scripted async throws in
            scripted.transport.answer(
                at: challenge, with: .json(200, #"{"result": {"token": "T", "expire_at": "2027-01-15T09:00:00Z"}}"#))
            try await body(scripted, Opener())
        }
    }

    /// A login through another app.
    private static func logIn(_ scripted: ScriptedClient, _ opener: Opener) async throws {
        try await scripted.auth.startApp2AppAuthentication(
            options: .init(
                authorizationEndpoint: URL(string: "https://other-app.example/authorize")!,
                redirectURI: URL(string: "https://this-app.example/cb")!), open: opener.open)
        let opened = try #require(opener.opened.last)
        #expect(opened.hasPrefix("https://other-app.example/authorize?client_id=the-app&redirect_uri="))
        let state = try #require(opened.split(separator: "state=").last)
        scripted.transport.enqueue(
            .json(200, #"{"access_token": "a1", "refresh_token": "r1", "token_type": "Bearer", "expires_in": 3600}"#))
        try await scripted.auth.handleApp2AppAuthenticationResult(
            url: URL(string: "https://this-app.example/cb?code=c1&state=\(state)")!)
    }

    @Test func `a login through another app gets a device key, and lets a third app in`() async throws {
        try await Self.run { scripted, opener in
            try await Self.logIn(scripted, opener)
            let exchange = try #require(scripted.transport.requests.last)
            #expect(exchange.parameter("code") == "c1")
            #expect(exchange.parameter("x_app2app_device_key_jwt")?.split(separator: ".").count == 3)
            let request = try #require(scripted.auth.parseApp2AppAuthenticationRequest(url: Self.link))
            #expect(
                request.clientID == "other" && request.redirectURI == "https://other.example/cb"
                    && request.state == "s1")
            scripted.transport.enqueue(.json(200, #"{"code": "c2"}"#))
            try await scripted.auth.approveApp2AppAuthenticationRequest(request, open: opener.open)
            #expect(opener.opened.last == "https://other.example/cb?code=c2&state=s1")
            let asked = try #require(scripted.transport.requests.last)
            #expect(asked.parameter("grant_type") == "urn:authgear:params:oauth:grant-type:app2app-request")
            #expect(asked.parameter("client_id") == "other" && asked.parameter("refresh_token") == "r1")
        }
    }

    @Test(arguments: ["", "page 7&x=1", "a.b", "süß"])
    func `the state of the options comes back, and a changed one ends nothing`(state: String) async throws {
        try await Self.run { scripted, opener in
            try await scripted.auth.startApp2AppAuthentication(
                options: .init(
                    authorizationEndpoint: URL(string: "https://other-app.example/authorize")!,
                    redirectURI: URL(string: "https://this-app.example/cb")!, state: state), open: opener.open)
            let query = try #require(opener.opened.last?.split(separator: "&state=").last)
            let error = await #expect(throws: AuthError.self) {
                try await scripted.auth.handleApp2AppAuthenticationResult(
                    url: URL(string: "https://this-app.example/cb?code=c1&state=\(query)x")!)
            }
            #expect(error?.code == .illegalArgument)
            scripted.transport.enqueue(
                .json(
                    200, #"{"access_token": "a1", "refresh_token": "r1", "token_type": "Bearer", "expires_in": 3600}"#))
            let returned = try await scripted.auth.handleApp2AppAuthenticationResult(
                url: URL(string: "https://this-app.example/cb?code=c1&state=\(query)")!)
            #expect(returned == state)
        }
    }

    @Test(arguments: [(1024, true), (1025, false)])
    func `a state has 1024 bytes at most`(length: Int, isAccepted: Bool) async throws {
        try await Self.run { scripted, opener in
            let options = App2AppAuthenticateOptions(
                authorizationEndpoint: URL(string: "https://other-app.example/authorize")!,
                redirectURI: URL(string: "https://this-app.example/cb")!,
                state: String(repeating: "s", count: length))
            do throws(AuthError) {
                try await scripted.auth.startApp2AppAuthentication(options: options, open: opener.open)
                #expect(isAccepted)
            } catch {
                #expect(!isAccepted && error.code == .illegalArgument)
            }
            #expect(opener.opened.count == (isAccepted ? 1 : 0))
        }
    }

    @Test func `a refusal is told to the other app and to the caller`() async throws {
        try await Self.run { scripted, opener in
            try await Self.logIn(scripted, opener)
            let request = try #require(scripted.auth.parseApp2AppAuthenticationRequest(url: Self.link))
            scripted.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
            let error = await #expect(throws: AuthError.self) {
                try await scripted.auth.approveApp2AppAuthenticationRequest(request, open: opener.open)
            }
            #expect(error?.code == .authorizationError && error?.providerErrorCode == "invalid_grant")
            #expect(opener.opened.last == "https://other.example/cb?error=invalid_grant&state=s1")
            try await scripted.auth.rejectApp2AppAuthenticationRequest(request, open: opener.open)
            #expect(opener.opened.last == "https://other.example/cb?error=x_app2app_rejected&state=s1")
        }
    }

    @Test func `a link that is not opened in its app is an error`() async throws {
        try await Self.run { scripted, opener in
            try await Self.logIn(scripted, opener)
            let request = try #require(scripted.auth.parseApp2AppAuthenticationRequest(url: Self.link))
            let closed = Opener(opens: false)
            let error = await #expect(throws: AuthError.self) {
                try await scripted.auth.rejectApp2AppAuthenticationRequest(request, open: closed.open)
            }
            #expect(error?.code == .linkNotOpened && error?.providerErrorCode == "invalid_client")
        }
    }

    @Test(arguments: [nil, App2AppOptions(isEnabled: false)])
    func `without a device key no app is let in`(options: App2AppOptions?) async throws {
        try await Self.run(options) { scripted, opener in
            try await Self.logIn(scripted, opener)
            #expect(scripted.transport.requests.last?.parameter("x_app2app_device_key_jwt") == nil)
            let request = try #require(scripted.auth.parseApp2AppAuthenticationRequest(url: Self.link))
            let error = await #expect(throws: AuthError.self) {
                try await scripted.auth.approveApp2AppAuthenticationRequest(request, open: opener.open)
            }
            #expect(error?.code == .unauthenticated)
        }
    }

    @Test func `with insecure binding the first approval makes a key`() async throws {
        try await Self.run(App2AppOptions(isEnabled: false, isInsecureDeviceKeyBindingEnabled: true)) {
            scripted, opener in
            try await Self.logIn(scripted, opener)
            let request = try #require(scripted.auth.parseApp2AppAuthenticationRequest(url: Self.link))
            scripted.transport.enqueue(.json(200, #"{"code": "c2"}"#))
            try await scripted.auth.approveApp2AppAuthenticationRequest(request, open: opener.open)
            #expect(opener.opened.last == "https://other.example/cb?code=c2&state=s1")
        }
    }

    @Test(arguments: [
        "https://a.example/authorize", "https://a.example/?client_id=a&redirect_uri=https%3A%2F%2Fb.example",
        "https://a.example/?redirect_uri=https%3A%2F%2Fb.example&code_challenge=c",
    ])
    func `another link is no request`(link: String) async throws {
        try await Self.run { scripted, _ in
            #expect(scripted.auth.parseApp2AppAuthenticationRequest(url: URL(string: link)!) == nil)
        }
    }
}
