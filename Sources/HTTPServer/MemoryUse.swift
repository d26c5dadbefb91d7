import Reactor

/// How many bytes of one kind the connections of a loop hold together, and which connection has held some for longest.
struct MemoryUse {
    /// Includes bytes that the owner of this counts beside those of the connections.
    private(set) var sum = 0
    /// The slots whose connections have held bytes. A slot's time is not later than that since which its connection has.
    private var slots = SlotQueue()

    mutating func change(by count: Int) { sum += count }

    /// Lists the connection of this slot, which has held bytes since then.
    mutating func list(_ slot: Int, since: MonotonicInstant) { slots.insert(since, slot) }

    /// The connection that has held bytes for longest.
    /// - Parameter since: since when a connection has; nil when it holds none any more.
    mutating func oldest(
        in connections: ConnectionTable, since: (Connection) -> MonotonicInstant?
    ) -> Connection? {
        slots.first { slot in connections[slot].flatMap(since) }.flatMap { connections[$0] }
    }
}
