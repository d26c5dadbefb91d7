internal import Reactor

/// The bytes that the connections of one loop hold together, and which connection has held some for longest.
struct HeldBytes {
    /// Those that connections hold, and those that are counted beside them.
    private(set) var sum = 0
    /// The slots that have held bytes, by a time before which their connection did not begin to.
    private var slots = SlotQueue()

    mutating func change(by count: Int) { sum += count }

    /// The connection in this slot holds bytes since then.
    mutating func list(_ slot: Int, since: MonotonicInstant) { slots.insert(since, slot) }

    /// The connection that has held bytes for longest.
    /// - Parameter since: since when a connection has; nil where it holds none any more.
    mutating func oldest(
        in connections: ConnectionTable, since: (Connection) -> MonotonicInstant?
    ) -> Connection? {
        slots.first { slot in connections[slot].flatMap(since) }.flatMap { connections[$0] }
    }
}
