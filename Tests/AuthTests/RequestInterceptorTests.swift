import Auth
import AuthTesting
import BrokerTesting
import FoundationEssentials
import HTTPCodec
import Synchronization
import Testing

/// What a program can do to the library's requests.
@Suite(.timeLimit(.minutes(1))) struct `Request interceptors` {
    private struct Refusal: Error {}

    /// The requests that an interceptor has seen.
    private final class Seen: Sendable {
        private let requests = Mutex<[ProviderRequest]>([])

        var all: [ProviderRequest] { requests.withLock { $0 } }

        func append(_ request: ProviderRequest) { requests.withLock { $0.append(request) } }
    }

    private static let granted = ScriptedAnswer.json(
        200, #"{"access_token": "a-1", "refresh_token": "r-1", "expires_in": 3600, "token_type": "Bearer"}"#)

    private static var configuration: AuthConfiguration {
        var configuration = AuthConfiguration(
            credentialsStorageKey: "main", clientID: "the-app", clientSecret: "s-1", provider: "oidc")
        configuration.endpoints = .init(
            authorization: URL(string: "https://provider.example/authorize"),
            token: URL(string: "https://provider.example/token?tenant=7"))
        configuration.requestHeaders = ["X-Partner": "acme"]
        configuration.retry = .init(tries: 2, firstPause: .milliseconds(100))
        return configuration
    }

    /// Asks for client credentials at a provider that is a script.
    private static func ask(
        _ transport: ScriptedTransport, clock: ManualClock? = nil,
        _ interceptor: @escaping RequestInterceptor
    ) async -> Result<Credentials, AuthError> {
        let environment = AuthEnvironment.scripted(transport, clock: clock, requestInterceptor: interceptor)
        let client = AuthClient(configuration, in: environment)
        let result: Result<Credentials, AuthError>
        do throws(AuthError) {
            result = .success(try await client.credentialsProvider.getCredentials())
        } catch {
            result = .failure(error)
        }
        await environment.close(within: .zero)
        return result
    }

    @Test func `see each request, without its secrets`() async throws {
        let (transport, seen) = (ScriptedTransport(), Seen())
        transport.enqueue(Self.granted)
        let result = await Self.ask(transport) { request in
            seen.append(request)
            return [:]
        }
        #expect(try result.get().token == "a-1")
        let request = try #require(seen.all.first)
        #expect(seen.all.count == 1)
        #expect((request.method, request.url.absoluteString) == ("POST", "https://provider.example/token"))
        #expect(request.bodyLength > 0)
        #expect(request.headerFields["X-Partner"] == "acme")
        #expect(request.headerFields["Content-Type"] == "application/x-www-form-urlencoded")
        let names = Set(request.headerFields.keys.map { $0.lowercased() })
        #expect(names.isDisjoint(with: ["authorization", "cookie"]))
        #expect(!"\(request)".contains("s-1") && !"\(request)".contains("tenant=7"))
        // The provider gets them nevertheless.
        #expect(transport.requests.first?.field("Authorization") != nil)
        #expect(transport.requests.first?.url == "https://provider.example/token?tenant=7")
    }

    @Test func `add header fields, and replace those of the configuration`() async throws {
        let transport = ScriptedTransport()
        transport.enqueue(Self.granted)
        let result = await Self.ask(transport) { _ in
            ["X-Request-ID": "7", "x-partner": "other", "User-Agent": "mine/1"]
        }
        #expect(try result.get().token == "a-1")
        let fields = try #require(transport.seen.first?.fields)
        #expect(fields.values("X-Request-ID") == ["7"])
        #expect(fields.values("X-Partner") == ["other"])
        #expect(fields.values("User-Agent") == ["mine/1"])
        #expect(fields.values("Accept").count == 1)
    }

    @Test(
        arguments: [
            ("Authorization", "Bearer x"), ("authorization", "Bearer x"), ("Content-Type", "text/plain"),
            ("Content-Length", "1"), ("Host", "other.example"), ("Transfer-Encoding", "chunked"),
            ("Connection", "close"), ("Cookie", "a=b"), ("Proxy-Authorization", "x"), ("traceparent", "00"),
            ("Accept-Encoding", "br"), ("X-A", "a\r\nX-B: b"), ("X-A", ""), ("X A", "1"), ("", "1"),
            ("X-A", String(repeating: "x", count: 1025)), (String(repeating: "X", count: 65), "1"),
        ])
    func `may not add what the library writes itself or what no header has`(name: String, value: String) async throws {
        let transport = ScriptedTransport()
        let result = await Self.ask(transport) { _ in [name: value] }
        #expect(throws: AuthError.self) { try result.get() }
        if case .failure(let error) = result { #expect(error.code == .illegalConfiguration) }
        #expect(transport.requests.isEmpty)
    }

    @Test(arguments: [(20, true), (21, false)])
    func `add twenty fields at most`(count: Int, isSent: Bool) async throws {
        let transport = ScriptedTransport()
        if isSent { transport.enqueue(Self.granted) }
        let fields = Dictionary(uniqueKeysWithValues: (0..<count).map { ("X-\($0)", "1") })
        let result = await Self.ask(transport) { _ in fields }
        #expect((try? result.get().token) == (isSent ? "a-1" : nil))
        #expect(transport.requests.count == (isSent ? 1 : 0))
    }

    @Test func `may not add two fields whose names differ by case only`() async throws {
        let transport = ScriptedTransport()
        let result = await Self.ask(transport) { _ in ["X-A": "1", "x-a": "2"] }
        if case .failure(let error) = result { #expect(error.code == .illegalConfiguration) }
        #expect(transport.requests.isEmpty)
    }

    @Test(arguments: [(1, true), (2, false)])
    func `refuse a request, which is tried again`(refusals: Int, isServed: Bool) async throws {
        let transport = ScriptedTransport()
        if isServed { transport.enqueue(Self.granted) }
        let seen = Seen()
        let result = await Self.ask(transport) { request in
            seen.append(request)
            if seen.all.count <= refusals { throw Refusal() }
            return [:]
        }
        #expect((try? result.get().token) == (isServed ? "a-1" : nil))
        if case .failure(let error) = result { #expect(error.code == .networkError) }
        #expect(seen.all.count == 2)
        #expect(transport.requests.count == (isServed ? 1 : 0))
    }

    @Test func `do not hold a request for longer than it may take`() async throws {
        let clock = ManualClock(Date(timeIntervalSince1970: 1_800_000_000))
        let transport = ScriptedTransport()
        transport.enqueue(Self.granted)
        let (seen, gate) = (Seen(), Gate())
        async let result = Self.ask(transport, clock: clock) { request in
            seen.append(request)
            if seen.all.count == 1 { await gate.opened() }
            return [:]
        }
        await clock.waitForSleep(of: .seconds(10))
        clock.advance(by: .seconds(10))
        await clock.waitForSleep(of: .milliseconds(100))
        clock.advance(by: .milliseconds(100))
        #expect(try await result.get().token == "a-1")
        gate.open()
        #expect(seen.all.count == 2)
    }
}
