package import HTTPCodec

/// What a server has done so far, for metrics.
package struct ServerStatistics: Sendable, Equatable {
    /// Connections open now, refused ones not counted.
    package var connectionsOpen = 0
    /// Connections accepted since the start, refused ones included.
    package var connectionsAccepted = 0
    /// Connections reset because the peer did not read its answers.
    package var connectionsStalled = 0
    /// Connections closed to make room for another one while they were idle, had sent no whole head, or sent content
    /// without a known caller.
    package var connectionsEvicted = 0
    /// What there was no room for: answered 503, or dropped.
    package var refusals: [Refusal: Int] = [:]
    /// Requests received, refused ones included.
    package var requests = 0
    /// Answers of the server's own, by status: requests that never became one.
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
