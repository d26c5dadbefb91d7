import Auth
import AuthTesting
import BrokerTesting
import ExternalText
import FoundationEssentials
import HTTPCodec
import Synchronization
import Testing

/// Tests logins whose browser comes back to a port of this machine, against the development provider.
@Suite struct `A login by a loopback port` {
    /// A user with a browser.
    private struct User: Sendable {
        let provider: RunningProvider
        let browser: BrokerClient
        /// The address that the browser came back to last.
        let returned: AuthBox = AuthBox()

        /// Where the login page sends the user afterwards.
        func redirectURI(of page: URL) throws -> String {
            let items = URLComponents(url: page, resolvingAgainstBaseURL: false)?.queryItems
            return try #require(items?.first { $0.name == "redirect_uri" }?.value)
        }

        func get(_ address: String, fields: Fields = [:]) async throws -> BrokerHarness.Answer {
            try await browser.call(.get, address, key: nil, fields: fields)
        }

        /// Answers the login page and follows its redirect.
        func answer(_ page: URL, as name: String?) async throws -> BrokerHarness.Answer {
            let query = try #require(await provider.answer(page, as: name))
            let address = try redirectURI(of: page) + "?" + query
            returned.set(address)
            return try await get(address)
        }
    }

    /// Holds an address.
    private final class AuthBox: Sendable {
        private let address = Mutex("")
        func set(_ text: String) { address.withLock { $0 = text } }
        var text: String { address.withLock { $0 } }
    }

    private func run(_ body: (AuthClient, User) async throws -> Void) async throws {
        let provider = try RunningProvider()
        let environment = provider.environment()
        let browser = try BrokerClient(port: 1)
        let auth = AuthClient(provider.configuration(), in: environment)
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(auth, User(provider: provider, browser: browser)))
        } catch {
            result = .failure(error)
        }
        await environment.close()
        await browser.close()
        await provider.close()
        try result.get()
    }

    @Test func `the browser comes back to a free port, and the page says that the user is logged in`() async throws {
        try await run { auth, user async throws in
            try await auth.logIn { page in
                do {
                    let redirectURI = try user.redirectURI(of: page)
                    #expect(redirectURI.hasPrefix("http://127.0.0.1:") && redirectURI.hasSuffix("/callback"))
                    let answer = try await user.answer(page, as: "ada")
                    #expect(answer.status == 200)
                    #expect(answer.text.contains("You are logged in."))
                    #expect(answer.fields["Cache-Control"]?.text == "no-store")
                } catch {
                    Issue.record(error)
                }
                return true
            }
            #expect(try await auth.getCredentials().level == .user)
            // The port is closed.
            await #expect(throws: (any Error).self) { try await user.get(user.returned.text) }
        }
    }

    @Test func `a refusal by the user is an authorization error, and the page says so`() async throws {
        try await run { auth, user async throws in
            let error = await #expect(throws: AuthError.self) {
                try await auth.logIn { page in
                    let answer = try? await user.answer(page, as: nil)
                    #expect(answer?.text.contains("You are not logged in") == true)
                    return true
                }
            }
            #expect(error?.code == .authorizationError && error?.providerErrorCode == "access_denied")
            #expect(try await auth.getCredentials().level == .basic)
        }
    }

    @Test func `requests that do not belong to the login change nothing`() async throws {
        try await run { auth, user async throws in
            try await auth.logIn(by: .init(path: "/a/b")) { page in
                do {
                    let redirectURI = try user.redirectURI(of: page)
                    let origin = String(redirectURI.dropLast("/a/b".count))
                    #expect(try await user.get(origin + "/favicon.ico").status == 404)
                    #expect(try await user.get(redirectURI).status == 400)
                    for query in ["", "code=c", "code=c&state=guessed", "error=access_denied", "error=x&state=guessed"]
                    {
                        let answer = try await user.get(redirectURI + "?" + query)
                        #expect(answer.status == 400, "\(query)")
                        #expect(!answer.text.contains("guessed"))
                    }
                    let post = try await user.browser.call(.post, redirectURI + "?code=c", key: nil)
                    #expect(post.status == 405)
                    #expect(try await user.answer(page, as: "ada").status == 200)
                } catch {
                    Issue.record(error)
                }
                return true
            }
            #expect(try await auth.getCredentials().level == .user)
        }
    }

    @Test func `a page that is not opened is an error, and the port is closed`() async throws {
        try await run { auth, user async throws in
            let error = await #expect(throws: AuthError.self) {
                try await auth.logIn { page in
                    user.returned.set((try? user.redirectURI(of: page)) ?? "")
                    return false
                }
            }
            #expect(error?.code == .linkNotOpened)
            await #expect(throws: (any Error).self) { try await user.get(user.returned.text) }
        }
    }

    @Test(.timeLimit(.minutes(1))) func `the wait for the user ends`() async throws {
        try await run { auth, _ async throws in
            let late = await #expect(throws: AuthError.self) {
                try await auth.logIn(by: .init(limit: .milliseconds(1))) { _ in true }
            }
            #expect(late?.code == .authorizationError)
            let (opened, continuation) = AsyncStream.makeStream(of: Void.self)
            let waiting = Task {
                try await auth.logIn { _ in
                    continuation.yield()
                    return true
                }
            }
            _ = await opened.first { true }
            waiting.cancel()
            let cancelled = await #expect(throws: AuthError.self) { try await waiting.value }
            #expect(cancelled?.code == .retryableError)
        }
    }

    @Test(arguments: [
        AuthClient.Loopback(port: 0), AuthClient.Loopback(path: ""), AuthClient.Loopback(path: "callback"),
        AuthClient.Loopback(path: "/a?b"), AuthClient.Loopback(path: "/\u{E9}"), AuthClient.Loopback(limit: .zero),
        AuthClient.Loopback(limit: .seconds(601)),
        AuthClient.Loopback(path: "/" + String(repeating: "a", count: 200)),
    ])
    func `members that cannot be used are an illegal argument`(loopback: AuthClient.Loopback) async throws {
        try await run { auth, _ async throws in
            let error = await #expect(throws: AuthError.self) { try await auth.logIn(by: loopback) { _ in true } }
            #expect(error?.code == .illegalArgument)
        }
    }

    @Test func `a port that is in use is an illegal argument`() async throws {
        try await run { auth, user async throws in
            let port = try #require(URL(string: user.provider.baseURL)?.port.flatMap { UInt16(exactly: $0) })
            let error = await #expect(throws: AuthError.self) {
                try await auth.logIn(by: .init(port: port)) { _ in true }
            }
            #expect(error?.code == .illegalArgument)
        }
    }
}
