package import HTTPCodec
package import Reactor

/// What a server listens on and how much of its callers it bears with. Every limit is inclusive; every time-out is
/// total, counted from the beginning of what it bounds, so that a peer which sends an octet now and then gains nothing.
package struct ServerConfiguration: Sendable {
    /// Port 0 lets the kernel choose; `Server.address` tells the choice.
    package var address: SocketAddress
    /// Event loops, each with its own listener and thread: at least 1, or nil for one for each processor.
    package var loopCount: Int?
    package var limits: RequestLimits
    /// From the first byte of a head to its last, and from a connection's beginning to its first byte. Default 10 s.
    /// Then 408, or a silent close where not one byte has come.
    package var headTimeout: Duration
    /// From the end of the head to the end of the content. Default 30 s. Then 408.
    package var bodyTimeout: Duration
    /// How long a connection may wait for its next request. Default 60 s. Then a silent close.
    package var idleTimeout: Duration
    /// How long bytes may wait for a peer that does not read them. Default 30 s. Then the connection is reset.
    package var writeTimeout: Duration
    /// How long input is read and dropped after a last answer, so that no reset eats it. Default 2 s.
    package var lingerTimeout: Duration
    /// How many bytes are read and dropped after a last answer. Default 1 MiB.
    package var lingerBytes: Int
    /// Connections at once, over all loops. Default 10 000. Beyond it a connection of the same loop gives way: of those
    /// that are idle, have sent no whole head, or send content without a known caller, the one that has waited for longest.
    /// A source with more than `sourceShare` makes room among its own connections; they are the first to give way to other
    /// sources, and where no connection waits even one of theirs that is in use does. Where none gives way, the new
    /// connection is answered 503.
    package var maximumConnections: Int
    /// Connections at once from one source, over all loops; beyond it the source's longest waiting one gives way, or the
    /// new one is answered 503. Default nil: no limit while the server is not full. Trusted proxies have none.
    package var maximumConnectionsPerSource: Int?
    /// How many connections of a full server one source may have before it gives way to others: a tenth of
    /// `maximumConnections`, or `maximumConnectionsPerSource` where that is less, and at least 1.
    var sourceShare: Int { max(1, min(maximumConnections / 10, maximumConnectionsPerSource ?? .max)) }
    /// How long a connection must have waited before it gives way to a new one, unless its source has more than its share.
    /// Default 1 s: one whose client is about to use it again is not taken from it.
    package var idleGrace: Duration
    /// Unsent bytes of answers from which on a connection's further requests are not read and a stream's writer waits;
    /// requests are not read on a connection whose socket is full, either. Default 64 KiB. One answer, and one write to a
    /// stream, may exceed it.
    package var unsentBytes: Int
    /// Bytes of contents that the requests of one loop may hold together, from their first to the end of the answer.
    /// Default 64 MiB. What would exceed it is answered 503: the oldest contents that are sent without a known caller, then
    /// the request itself.
    package var contentBytes: Int
    /// Bytes of answers that the clients of one loop may leave unread together, beyond what the kernel holds for them.
    /// Default 64 MiB. Beyond it the connection whose client has not read for longest is reset.
    package var answerBytes = 64 << 20
    /// For `Retry-After` in a 503 to a refused connection or request. Default 1 s.
    package var retryAfterSeconds: Int
    /// How long a request may have waited for its turn on a loop that has been busy without a pause for `overloadTime`.
    /// Default 20 ms. Where 64 or more wait, and the first of them has for that long all through another `overloadTime`,
    /// it is answered 503, and the newest are served first: those that are taken are answered in time, instead of all late.
    package var turnBudget: Duration = .milliseconds(20)
    /// Default 100 ms: a burst is not an overload.
    package var overloadTime: Duration = .milliseconds(100)

    /// The proxies whose `Forwarded` and `X-Forwarded-For` are believed, and whose connections no source's share is about:
    /// whose they are is not known before their heads. Default none.
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

    /// How often the deadlines of all connections are looked at: late by a quarter of the shortest time-out at most,
    /// and by a second at most. One look at an integer for each connection costs less than arming and disarming a
    /// timer for each request, and an idle connection carries no timer.
    var sweepInterval: Duration {
        let shortest = min(headTimeout, bodyTimeout, idleTimeout, writeTimeout, lingerTimeout)
        return min(max(shortest / 4, .milliseconds(5)), .seconds(1))
    }
}

/// Time-outs of a configuration, in nanoseconds: a `Duration` would have to be taken apart for each request.
struct Timeouts {
    let head, body, idle, linger: Int64

    init(_ configuration: ServerConfiguration) {
        head = configuration.headTimeout.nanoseconds
        body = configuration.bodyTimeout.nanoseconds
        idle = configuration.idleTimeout.nanoseconds
        linger = configuration.lingerTimeout.nanoseconds
    }
}
