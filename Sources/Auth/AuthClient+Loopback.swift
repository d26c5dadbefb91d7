import BrokerCore
public import FoundationEssentials
import HTTPCodec
import HTTPServer
import Reactor

/// A login of a program on the command line or the desktop: the browser comes back to a port of this machine (RFC 8252 §7.3).
extension AuthClient {
    /// Where the browser comes back to.
    public struct Loopback: Sendable, Equatable {
        /// The port of 127.0.0.1. Nil, the default, means a free one; the provider must take `http://127.0.0.1` with any port as a
        /// redirect address then, as RFC 8252 demands.
        public var port: UInt16?
        /// The path. Default `/callback`.
        public var path: String
        /// How long the user has. Default 300 s; at most 600 s, after which the provider's answer is not taken any more.
        public var limit: Duration

        /// Sets the members.
        public init(port: UInt16? = nil, path: String = "/callback", limit: Duration = .seconds(300)) {
            self.port = port
            self.path = path
            self.limit = limit
        }
    }

    /// Logs the user in by the browser of this machine: listens on a port of 127.0.0.1, opens the login page, takes the one request
    /// that ends the login, answers it with a page that says what has happened, and closes the port.
    ///
    /// Requests that do not belong to the login are answered and change nothing. Only `http://127.0.0.1` is used, and not
    /// `localhost`, which another machine's name may be.
    /// - Parameters:
    ///   - loopback: where the browser comes back to.
    ///   - loginConfig: nil means the login service's defaults.
    ///   - open: opens an address in the browser, and returns whether it did; printing the address counts, too.
    /// - Throws: as `initializeLogin` and `finalizeLogin`; `authorizationError` if the user does not log in in time;
    ///   `linkNotOpened` if `open` returns false; `illegalArgument` for a port that another program uses, or another member of
    ///   `loopback` that cannot be used; `retryableError` if the task was cancelled.
    public func logIn(
        by loopback: Loopback = Loopback(), loginConfig: LoginConfig? = nil,
        open: @Sendable (URL) async -> Bool
    ) async throws(AuthError) {
        try loopback.check()
        let (outcomes, continuation) = AsyncStream.makeStream(
            of: Result<Void, AuthError>.self, bufferingPolicy: .bufferingOldest(1))
        let handler = LoopbackHandler(path: loopback.path) { [self] query throws(AuthError) in
            try await finalizeLogin(loginResponseQuery: query)
        } ended: { outcome in
            continuation.yield(outcome)
        }
        let server: Server
        do throws(SystemError) {
            server = try Server(configuration: loopback.configuration, handler: handler)
        } catch {
            throw AuthError(.illegalArgument, message: "No port of 127.0.0.1 can be listened on: \(error)")
        }
        let authority = "\(server.address)"
        handler.begin(at: authority)
        let result: Result<Void, AuthError>
        do throws(AuthError) {
            guard let redirectURI = URL(string: "http://\(authority)\(loopback.path)") else {
                throw AuthError(.illegalArgument, message: "path cannot be a part of an address.")
            }
            let page = try await initializeLogin(redirectURI: redirectURI, loginConfig: loginConfig)
            guard await open(page) else {
                throw AuthError(.linkNotOpened, message: "The login page was not opened.")
            }
            result = await Self.first(of: outcomes, within: loopback.limit, of: environment)
        } catch {
            result = .failure(error)
        }
        continuation.finish()
        // The browser gets its page.
        await server.drain(within: .seconds(2))
        await server.close()
        try result.get()
    }

    private static func first(
        of outcomes: AsyncStream<Result<Void, AuthError>>, within limit: Duration, of environment: AuthEnvironment
    ) async -> Result<Void, AuthError> {
        await withTaskGroup(of: Result<Void, AuthError>?.self) { group in
            group.addTask { await outcomes.first { _ in true } }
            group.addTask {
                guard (try? await environment.time.sleep(for: limit)) != nil else { return nil }
                return .failure(AuthError(.authorizationError, message: "The user did not log in in time."))
            }
            let first = await group.next() ?? nil
            group.cancelAll()
            let cancelled = AuthError(.retryableError, message: "The wait was cancelled.", retryAfter: .zero)
            return first ?? .failure(cancelled)
        }
    }
}

extension AuthClient.Loopback {
    /// How long a login is valid.
    private static let longest: Duration = .seconds(600)

    fileprivate func check() throws(AuthError) {
        guard limit > .zero, limit <= Self.longest else {
            throw AuthError(.illegalArgument, message: "limit must be more than 0 and at most 600 seconds.")
        }
        guard port != 0 else { throw AuthError(.illegalArgument, message: "port must be nil for a free one.") }
        let allowed = Set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/".utf8)
        guard path.utf8.first == UInt8(ascii: "/"), path.utf8.count <= 200, path.utf8.allSatisfy(allowed.contains)
        else {
            throw AuthError(
                .illegalArgument, message: "path must begin with / and have letters, digits and - . _ ~ / only.")
        }
    }

    fileprivate var configuration: ServerConfiguration {
        var configuration = ServerConfiguration(
            address: SocketAddress(ip: .v4([127, 0, 0, 1]), port: port ?? 0), loopCount: 1,
            limits: .init(requestLineBytes: 32_768, headBytes: 65_536, bodyBytes: 0), maximumConnections: 32)
        configuration.maximumQueueingDelay = .seconds(10)
        return configuration
    }
}
