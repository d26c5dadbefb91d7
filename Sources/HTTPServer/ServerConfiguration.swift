package import HTTPCodec
package import Reactor
package import TLS

/// What a server listens on, and its limits. Every limit is inclusive. Every time-out is total: it counts from the
/// beginning of what it bounds, so a peer gains nothing by sending a byte now and then.
package struct ServerConfiguration: Sendable {
    /// With port 0 the kernel chooses a port, which `Server.address` has.
    package var address: SocketAddress
    /// The number of event loops, at least 1. Each has its own listener and thread. Default nil: one for each processor.
    package var loopCount: Int?
    package var limits: RequestLimits
    /// From the first byte of a head to its last, and from accepting a connection to its first byte. Default 10 s. Then
    /// the answer is 408; a connection on which no byte has come is closed without an answer.
    package var headTimeout: Duration
    /// From the end of the head to the end of the content. Default 30 s. Then the answer is 408.
    package var bodyTimeout: Duration
    /// How long a connection may wait for its next request. Default 60 s. Then it is closed without an answer.
    package var idleTimeout: Duration
    /// How long unsent bytes may wait for a peer that does not read. Default 30 s. Then the connection is reset.
    package var writeTimeout: Duration
    /// How long input is read and dropped after a connection's last answer. Closing with unread input would reset the
    /// connection, and the reset could destroy that answer. Default 2 s.
    package var lingerTimeout: Duration
    /// How many bytes are read and dropped after a connection's last answer. Default 1 MiB.
    package var lingerBytes: Int
    /// The most connections at once, over all loops. Default 10 000. Beyond it, a connection of the same loop is closed
    /// for a new one: of the connections that are idle, have sent no whole head, or send content without a known caller,
    /// the one which has waited for longest. A source with more than `sourceShare` gets room only among its own
    /// connections. For other sources these are closed first, and if none of them waits, even one that is in use. If
    /// there is none to close, the new connection is answered 503.
    package var maximumConnections: Int
    /// The most connections at once from one source, over all loops. Beyond it, the source's connection that has waited
    /// for longest is closed for the new one; if none waits, the new one is answered 503. Default nil: no limit while the
    /// server is not full. Trusted proxies have no limit.
    package var maximumConnectionsPerSource: Int?
    /// How many connections of a full server one source may have before it has to make room for others: a tenth of
    /// `maximumConnections`, or `maximumConnectionsPerSource` where that is less, and at least 1.
    var sourceShare: Int { max(1, min(maximumConnections / 10, maximumConnectionsPerSource ?? .max)) }
    /// How long a connection must have waited before it may be closed for a new one, unless its source has more than its
    /// share, or no whole request has come from it and no other one gives way. Default 1 s, so that a client which is about to
    /// send its next request does not lose its connection.
    package var idleGrace: Duration
    /// From this many unsent bytes of answers on, no further request is read from a connection and a stream's writer
    /// waits. Default 64 KiB. One answer, or one write to a stream, may exceed it. No request is read from a connection
    /// whose socket is full, either.
    package var unsentBytes: Int
    /// From this many unsent bytes of a streamed answer on, its writer waits while the request's content is still coming. More
    /// than `unsentBytes`, because many clients read nothing before they have sent everything: if the writer waited, nothing
    /// would be read from such a client either, and both would wait. Default 16 MiB. `answerBytes` bounds the sum.
    package var unreadAnswerBytes = 16 << 20
    /// How many bytes of content the requests of one loop may hold together, each until its answer is complete. Default
    /// 64 MiB. Beyond it, requests are answered 503: first the oldest ones whose content comes without a known caller,
    /// then the request that needs the room.
    package var contentBytes: Int
    /// How many bytes of answers one loop keeps for clients that do not read, beyond what the kernel keeps. Default
    /// 64 MiB. Beyond it, the connection whose client has not read for longest is reset.
    package var answerBytes = 64 << 20
    /// `Retry-After` of the 503 that a refused connection or request gets. Default 1 s.
    package var retryAfterSeconds: Int
    /// How long a request may wait for its turn on a loop that has been busy without a pause for `overloadTime`. Default
    /// 20 ms. When 64 or more requests wait, and the oldest has waited for longer than this in every turn of a further
    /// `overloadTime`, the oldest are answered 503 and the newest are served first: some requests are answered in time,
    /// where otherwise all would be late.
    package var maximumQueueingDelay: Duration = .milliseconds(20)
    /// Default 100 ms, so that a burst is not an overload.
    package var overloadTime: Duration = .milliseconds(100)

    /// The certificate with which every connection is accepted by TLS. Default nil: connections are not encrypted. Where it has
    /// authorities of clients, `RequestHandler.identities` tells who the client of a connection is.
    ///
    /// `headTimeout` bounds the handshake and the first byte of the first request together. A refused connection is closed
    /// without an answer, because an answer would cost a handshake.
    package var tls: TLSServerContext?
    /// The most connections of one loop whose TLS handshakes are not complete. Default 1000. Beyond it, the one of them
    /// which was accepted first is closed.
    package var maximumHandshakes = 1000

    /// The proxies whose `Forwarded` and `X-Forwarded-For` are believed. Their connections count for no source, because
    /// the client is not known before a head is read. Default none.
    package var trustedProxies = TrustedProxies()

    package init(
        address: SocketAddress, loopCount: Int? = nil, limits: RequestLimits = RequestLimits(),
        headTimeout: Duration = .seconds(10), bodyTimeout: Duration = .seconds(30),
        idleTimeout: Duration = .seconds(60), writeTimeout: Duration = .seconds(30),
        lingerTimeout: Duration = .seconds(2), lingerBytes: Int = 1_048_576, maximumConnections: Int = 10_000,
        idleGrace: Duration = .seconds(1), unsentBytes: Int = 65_536, contentBytes: Int = 64 << 20,
        retryAfterSeconds: Int = 1
    ) {
        self.address = address
        self.loopCount = loopCount
        self.limits = limits
        self.headTimeout = headTimeout
        self.bodyTimeout = bodyTimeout
        self.idleTimeout = idleTimeout
        self.writeTimeout = writeTimeout
        self.lingerTimeout = lingerTimeout
        self.lingerBytes = lingerBytes
        self.maximumConnections = maximumConnections
        self.idleGrace = idleGrace
        self.unsentBytes = unsentBytes
        self.contentBytes = contentBytes
        self.retryAfterSeconds = retryAfterSeconds
    }

    /// The time between two checks of all deadlines: a quarter of the shortest time-out, at least 5 ms, at most 1 s. A
    /// connection is closed late by at most this. Comparing an integer for each connection costs less than setting and
    /// cancelling a timer for each request.
    var sweepInterval: Duration {
        let shortest = min(headTimeout, bodyTimeout, idleTimeout, writeTimeout, lingerTimeout)
        return min(max(shortest / 4, .milliseconds(5)), .seconds(1))
    }
}

/// Time-outs of a configuration, in nanoseconds, so that no `Duration` is converted for each request.
struct Timeouts {
    let head, body, idle, linger: Int64

    init(_ configuration: ServerConfiguration) {
        head = configuration.headTimeout.nanoseconds
        body = configuration.bodyTimeout.nanoseconds
        idle = configuration.idleTimeout.nanoseconds
        linger = configuration.lingerTimeout.nanoseconds
    }
}
