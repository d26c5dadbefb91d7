import HTTPCodec
package import Reactor

/// An HTTP/1.1 client that sends few requests and verifies that each reaches its intended server.
///
/// It follows no redirect, decodes no response, and sends no request twice. It keeps connections for later requests to
/// the same origin with the same pins. Any task may use it; its work runs on one event loop.
package final class HTTPSClient: Sendable {
    /// What the client has done so far.
    package struct Counters: Sendable, Equatable {
        /// Opened connections, counted once the TLS handshake is complete.
        package var connectionsOpened = 0
        /// Requests that used an idle connection.
        package var connectionsReused = 0
        /// Opened connections whose handshake resumed an earlier TLS session.
        package var sessionsResumed = 0

        package init(connectionsOpened: Int = 0, connectionsReused: Int = 0, sessionsResumed: Int = 0) {
            self.connectionsOpened = connectionsOpened
            self.connectionsReused = connectionsReused
            self.sessionsResumed = sessionsResumed
        }
    }

    /// Makes OpenSSL load its algorithms, which takes about a millisecond once in a process. Without this call the
    /// first client loads them. Any thread may call it.
    package static func prepare() { TLSContext.prepare() }

    let pool: ConnectionPool
    /// A task that sends requests avoids switching threads if it prefers this executor.
    package let executor: (any TaskExecutor)?

    /// - Parameter resolver: is asked once for each connection to a named host. The client checks the returned
    ///   addresses and connects to them.
    package init(
        configuration: HTTPSClientConfiguration, loop: EventLoop, resolver: NameResolver
    ) throws(HTTPSClientConfigurationError) {
        executor = EventLoopTaskExecutor(loop)
        pool = try ConnectionPool(configuration: configuration, loop: loop, resolver: resolver)
    }

    /// Sends the request at most once and waits for the whole response, whatever its status.
    ///
    /// Cancelling the task ends the exchange and closes its connection.
    package func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        try await pool.exchange(request)
    }

    /// Sends the request at most once and passes the response's body on as it comes, whatever its status and its size.
    ///
    /// The time limits of the request and of the client end with the response's head. From then on only the receiver's
    /// `idleLimit` ends the exchange, and the cancelling of the task, which closes the connection. The exchange has one of the
    /// connections to the origin (`maximumConnectionsPerOrigin`) to its end, and `close` waits for it.
    /// - Returns: the response without its body, once the body has ended or the receiver wants no more.
    package func stream(
        _ request: ClientRequest, to receiver: ResponseReceiver
    ) async throws(TransportError) -> ClientResponse {
        var request = request
        request.receiver = receiver
        return try await pool.exchange(request)
    }

    /// Connects to the server, verifies its chain and host name, and returns the chain's certificates from the leaf to the
    /// root. Sends no request. Empty for `http`.
    package func certificates(of origin: URLTarget.Origin) async throws(TransportError) -> [VerifiedCertificate] {
        try await pool.certificates(of: origin)
    }

    /// Refuses further requests with `.cancelled`, closes idle connections, and returns when the running exchanges have
    /// ended. Their deadlines bound this wait. Call this before the loop is shut down.
    package func close() async {
        await pool.close()
    }

    package var counters: Counters {
        get async { await pool.counters }
    }
}
