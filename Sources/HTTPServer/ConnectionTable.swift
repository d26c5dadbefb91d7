internal import Reactor

/// A worker's connections in numbered slots, and in what order they give way to new ones.
struct ConnectionTable {
    private var connections: [Connection?] = []
    private var freeSlots: [Int] = []
    private var lastSerial: UInt64 = 0
    private(set) var count = 0
    /// The slots that have had a connection, by a time before which theirs was not idle: it is looked at when that is the
    /// earliest.
    private var idleSince = TimeHeap()
    private var isListed: [Bool] = []
    /// The slot at which the next search among the connections of some sources goes on.
    private var nextSearched = 0

    /// How many connections a search looks at.
    private static let looksPerSearch = 512

    var slotCount: Int { connections.count }

    subscript(_ slot: Int) -> Connection? { slot < connections.count ? connections[slot] : nil }

    /// The connection of that name, unless it is closed.
    subscript(_ id: ConnectionID) -> Connection? {
        guard let connection = self[id.slot], connection.id.serial == id.serial else { return nil }
        return connection
    }

    /// A number that no connection and no other caller of this has.
    mutating func nextSerial() -> UInt64 {
        lastSerial += 1
        return lastSerial
    }

    /// The name of the next connection, which is to be inserted.
    mutating func nextID() -> ConnectionID {
        ConnectionID(slot: freeSlots.popLast() ?? connections.count, serial: nextSerial())
    }

    mutating func insert(_ connection: Connection, at now: MonotonicInstant) {
        let slot = connection.id.slot
        if slot == connections.count {
            connections.append(connection)
            isListed.append(false)
        } else {
            connections[slot] = connection
        }
        if !isListed[slot] {
            isListed[slot] = true
            idleSince.insert(now, UInt64(slot))
        }
        count += 1
    }

    mutating func remove(_ connection: Connection) {
        connections[connection.id.slot] = nil
        freeSlots.append(connection.id.slot)
        count -= 1
    }

    /// What a search has found.
    struct Found {
        /// The connection that has waited for longest.
        var waiting: Connection?
        /// Where none has waited for long enough, one that is in use.
        var inUse: Connection?
    }

    /// Looks for a connection that gives way to a new one: the one that has waited for longest, if it has for `grace`. Where
    /// none is found, also for one that is in use.
    ///
    /// No call looks at more than a few: a client that makes connections without end would otherwise have each attempt
    /// looked at as many times as there are connections. Behind more than that which are in use, a waiting one is found
    /// some attempts later.
    mutating func search(grace: Duration) -> Found {
        let now = MonotonicInstant.now
        var inUse: Connection?
        for _ in 0..<Self.looksPerSearch {
            guard let first = idleSince.first, first.time < now, first.time.advanced(by: grace) <= now else { break }
            idleSince.removeFirst()
            let slot = Int(first.number)
            guard let connection = connections[slot] else {
                isListed[slot] = false
                continue
            }
            var since = now
            if !connection.isRefused, connection.givesWay {
                since = connection.waitsSince
                if since == first.time, Self.mayGo(connection) {
                    idleSince.insert(since, first.number)
                    return Found(waiting: connection)
                }
            }
            if inUse == nil, !connection.isRefused { inUse = connection }
            // Not before it was: a client that waits for its turn is not looked at again for the time of grace.
            idleSince.insert(since == first.time ? now : since, first.number)
        }
        return Found(inUse: inUse)
    }

    /// The same among the connections of some sources. Looks at as many slots as `search(grace:)` does, and the next call
    /// at those behind them, so that each connection is reached however many others there are.
    mutating func search(grace: Duration, among isEligible: (NetworkSource) -> Bool) -> Found {
        let now = MonotonicInstant.now
        var found = Found()
        var earliest = now
        for _ in 0..<min(Self.looksPerSearch, connections.count) {
            let slot = nextSearched < connections.count ? nextSearched : 0
            nextSearched = slot + 1
            guard let connection = connections[slot], !connection.isRefused,
                let source = connection.source, isEligible(source)
            else { continue }
            if connection.givesWay, connection.waitsSince.advanced(by: grace) <= now {
                let since = connection.waitsSince
                if since < earliest, Self.mayGo(connection) { (found.waiting, earliest) = (connection, since) }
            } else if found.inUse == nil {
                found.inUse = connection
            }
        }
        return found
    }

    /// Whether nothing has come that its client waits to have answered: that would be with the kernel yet.
    private static func mayGo(_ connection: Connection) -> Bool {
        connection.isStalled || !Kernel.hasInput(connection.descriptor)
    }
}
