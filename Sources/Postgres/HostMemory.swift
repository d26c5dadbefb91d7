internal import Synchronization

/// Which host of a configuration took the last connection, so that the next one begins there: a host that drops packets, or
/// has become a standby, holds up one connection and not every one.
final class HostMemory: Sendable {
    private let last = Atomic<Int>(0)

    /// The numbers of all hosts, in the order in which they are tried.
    func order(of count: Int) -> [Int] {
        let first = last.load(ordering: .relaxed)
        guard first > 0, first < count else { return Array(0..<count) }
        return [first] + (0..<count).filter { $0 != first }
    }

    /// The host has taken a connection.
    func connected(to host: Int) { last.store(host, ordering: .relaxed) }
}
