import Synchronization

/// Which host of a configuration took the last connection, so that the next one begins there: a host that drops packets, or
/// has become a standby, holds up one connection and not every one.
final class HostMemory: Sendable {
    private let last = Atomic<Int>(0)
    /// How often in a row no host has taken a connection, up to `mostRounds`.
    private let rounds = Atomic<Int>(0)
    private static let mostRounds = 5

    /// The numbers of all hosts, in the order in which they are tried.
    func order(of count: Int) -> [Int] {
        let first = last.load(ordering: .relaxed)
        guard first > 0, first < count else { return Array(0..<count) }
        return [first] + (0..<count).filter { $0 != first }
    }

    /// The host has taken a connection.
    func connected(to host: Int) {
        last.store(host, ordering: .relaxed)
        rounds.store(0, ordering: .relaxed)
    }

    /// No host has taken a connection. The next time, each may take twice as long: one may be far away, or may have to wake up.
    func noneConnected() {
        let count = rounds.load(ordering: .relaxed)
        if count < Self.mostRounds { rounds.store(count + 1, ordering: .relaxed) }
    }

    /// - Parameter usual: for how long a host is tried before the next one, while hosts take connections.
    func patience(_ usual: Duration) -> Duration { usual * (1 << rounds.load(ordering: .relaxed)) }
}
