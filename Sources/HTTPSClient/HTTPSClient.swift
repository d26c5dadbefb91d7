internal import HTTPCodec
package import Reactor

/// An HTTP/1.1 client for the few requests that must reach exactly the server they are meant for.
///
/// No redirect is followed, no answer is decoded, nothing is sent twice. Connections are kept for later requests to the
/// same origin under the same pins. May be used from any task; its work runs on one event loop.
package final class HTTPSClient: Sendable {
    /// What the client has done so far.
    package struct Counters: Sendable, Equatable {
        /// Connections made, TLS handshake included.
        package var connectionsOpened = 0
        /// Requests for which an idle connection was used.
        package var connectionsReused = 0
        /// Those of the connections made whose handshake resumed an earlier TLS session.
        package var sessionsResumed = 0

        package init(connectionsOpened: Int = 0, connectionsReused: Int = 0, sessionsResumed: Int = 0) {
            self.connectionsOpened = connectionsOpened
            self.connectionsReused = connectionsReused
            self.sessionsResumed = sessionsResumed
        }
    }

    /// Has OpenSSL look for what TLS needs, which takes it about a millisecond, once in a process. Without this the first
    /// client does so. From any thread.
    package static func prepare() { TLSContext.prepare() }

    let pool: ConnectionPool
    /// A task that sends requests is spared the way between threads where it prefers this one.
    package let executor: (any TaskExecutor)?

    /// - Parameter resolver: asked once for each connection to a named host; the addresses it returns are checked and
    ///   then connected to.
    package init(
        configuration: HTTPSClientConfiguration, loop: EventLoop, resolver: NameResolver
    ) throws(HTTPSClientConfigurationError) {
        executor = LoopTasks(loop)
        pool = try ConnectionPool(configuration: configuration, loop: loop, resolver: resolver)
    }

    /// Sends the request once and waits for the whole answer, whatever its status.
    ///
    /// Cancelling the task ends the exchange and closes its connection.
    package func send(_ request: ClientRequest) async throws(TransportError) -> ClientResponse {
        try await pool.exchange(request)
    }

    /// Refuses further requests with `.cancelled`, closes idle connections, and returns when the exchanges under way
    /// have ended, which their deadlines make sure of. To be called before the loop is shut down.
    package func close() async {
        await pool.close()
    }

    package var counters: Counters {
        get async { await pool.counters }
    }
}
