import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import Testing

/// The library's examples of two apps, run as the programs that they are. The tests carry the links between them, as the system of
/// a device does.
@Suite(.timeLimit(.minutes(2))) struct `The library's example apps` {
    /// An app at the provider, which is spoken to in lines.
    private struct App: Sendable {
        private let process: DialogueProcess

        init(_ name: String, _ arguments: [String]) throws {
            process = try DialogueProcess([BrokerProcess.program(name)] + arguments)
        }

        /// Enters a line unless it is nil, and returns the next one of the output, which must begin with `beginning`.
        func next(_ beginning: String, after entered: String? = nil) async throws -> String {
            let process = process
            let line = try await DialogueProcess.blocking {
                if let entered { try process.write(entered) }
                return try process.readLine()
            }
            let text = try #require(line)
            try #require(text.hasPrefix(beginning), "\(text)")
            return String(text.dropFirst(beginning.count))
        }

        func end() async throws {
            let process = process
            try await DialogueProcess.blocking { process.end() }
        }
    }

    private static let callback = "https://a.example.com/callback"
    private static let result = "https://b.example.com/callback"

    private static func provider(_ change: (inout ProviderClient) -> Void = { _ in }) throws -> RunningProvider {
        var first = ProviderClient("a", redirectURIs: [callback])
        first.allowsAppToApp = true
        change(&first)
        return try RunningProvider(
            ProviderConfiguration(
                profile: .authgear, clients: [first, ProviderClient("b", redirectURIs: [result])]))
    }

    /// Logs alice in to the first app, at the provider's page.
    private static func logIn(_ app: App, at provider: RunningProvider) async throws -> String {
        let address = WireText(try await app.next("log in at "))
        let browser = ProviderDriver(provider.provider)
        let query = try #require(address.split(at: "?", limit: 2).last)
        let page = await browser.get("/oauth2/authorize", try FormEncoding.decode(query))
        let form = try #require(ProviderForm(html: page.text))
        let answer = await browser.post(
            form.action, body: form.submission([.init("user", "alice"), .init("decision", "approve")]))
        let parameters = try #require(answer.redirectParameters)
        let result = FormEncoding.encode(parameters.map { .init(WireText($0), WireText($1)) })
        return try await app.next("user ", after: callback + "?" + result)
    }

    @Test func `the first lets the second in`() async throws {
        let (directory, other) = (StoreFixtureDirectory(), StoreFixtureDirectory())
        let provider = try Self.provider()
        let first = try App("app-a-example", ["a", provider.baseURL, directory.path])
        let user = try await Self.logIn(first, at: provider)
        #expect(user.hasSuffix(" is logged in"))

        let second = try App("app-b-example", ["b", provider.baseURL, other.path])
        let request = try await second.next("open ")
        #expect(request.hasPrefix("https://a.example.com/authorize?client_id=b&"))
        _ = try await first.next("let b in, which gets its answer at \(Self.result)?", after: request)
        let answer = try await first.next("open ", after: "yes")
        #expect(answer.hasPrefix(Self.result + "?code="))
        #expect(try await second.next("back at ", after: answer) == "page 7")
        let name = user.dropLast(" is logged in".count)
        #expect(try await second.next("user ") == "\(name), level user")
        try await second.end()

        // A later run has the user still, and so has a run of the first app.
        let again = try App("app-b-example", ["b", provider.baseURL, other.path])
        #expect(try await again.next("user ") == "\(name), level user")
        try await again.end()
        try await first.end()
        await provider.close()
    }

    @Test func `the second is told that its user has refused`() async throws {
        let (directory, other) = (StoreFixtureDirectory(), StoreFixtureDirectory())
        let provider = try Self.provider()
        let first = try App("app-a-example", ["a", provider.baseURL, directory.path])
        _ = try await Self.logIn(first, at: provider)
        #expect(try await first.next("", after: Self.callback) == "this is not the request of an app")
        let second = try App("app-b-example", ["b", provider.baseURL, other.path])
        _ = try await first.next("let b in", after: try await second.next("open "))
        let answer = try await first.next("open ", after: "no")
        #expect(answer.hasPrefix(Self.result + "?error=access_denied&"))
        #expect(try await second.next("failed: ", after: answer).hasPrefix("authorizationError"))
        try await second.end()
        try await first.end()
        await provider.close()
    }
}
