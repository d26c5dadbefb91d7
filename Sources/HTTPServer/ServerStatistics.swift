package import HTTPCodec

/// A server's counts, for metrics.
package struct ServerStatistics: Sendable, Equatable {
    /// Connections that are open now, without refused ones.
    package var connectionsOpen = 0
    /// Connections accepted since the start, with refused ones.
    package var connectionsAccepted = 0
    /// Connections reset because the peer did not read its answers.
    package var connectionsStalled = 0
    /// Connections closed to make room for another one while they were idle, had sent no whole head, or sent content
    /// without a known caller.
    package var connectionsEvicted = 0
    /// Refused connections and requests: answered 503, reset, or closed.
    package var refusals: [Refusal: Int] = [:]
    /// Requests received since the start, with refused ones.
    package var requests = 0
    /// The server's own answers to malformed, too large or too slow requests, by status.
    package var faults: [Status: Int] = [:]

    package init() {}

    mutating func add(_ other: ServerStatistics) {
        connectionsOpen += other.connectionsOpen
        connectionsAccepted += other.connectionsAccepted
        connectionsEvicted += other.connectionsEvicted
        connectionsStalled += other.connectionsStalled
        requests += other.requests
        refusals.merge(other.refusals, uniquingKeysWith: +)
        faults.merge(other.faults, uniquingKeysWith: +)
    }
}
