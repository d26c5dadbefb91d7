import Reactor

/// A worker's connections in numbered slots, and the order in which they are closed for new ones.
struct ConnectionTable {
    private var connections: [Connection?] = []
    private var freeSlots: [Int] = []
    private var lastSerial: UInt64 = 0
    private(set) var count = 0
    /// The slots that have had a connection, by a time since which theirs has waited at the longest. The connection's own
    /// time is looked at when its slot is the first.
    private var idleSince = TimeHeap()
    private var isListed: [Bool] = []
    /// The slot at which the next search among the connections of some sources continues.
    private var nextSearched = 0

    /// How many connections a search looks at.
    private static let looksPerSearch = 512

    var slotCount: Int { connections.count }

    subscript(_ slot: Int) -> Connection? { slot < connections.count ? connections[slot] : nil }

    /// The connection with this identity; nil when it is closed.
    subscript(_ id: ConnectionID) -> Connection? {
        guard let connection = self[id.slot], connection.id.serial == id.serial else { return nil }
        return connection
    }

    /// Returns a number that it never returned before.
    mutating func nextSerial() -> UInt64 {
        lastSerial += 1
        return lastSerial
    }

    /// The identity of the next connection, which the caller inserts.
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
        /// A connection that is in use; nil when none was looked at.
        var inUse: Connection?
    }

    /// Looks for the connection that has waited for longest, and for at least `grace`.
    ///
    /// A call looks at no more than `looksPerSearch` connections, so that a client which connects again and again does not
    /// have all connections looked at each time. A connection that waits behind more connections in use is found by one of
    /// the next calls.
    mutating func search(grace: Duration, at now: MonotonicInstant) -> Found {
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
            // A slot's time only moves later. A connection that waits for its turn is not looked at again before `grace`
            // has passed.
            idleSince.insert(since == first.time ? now : since, first.number)
        }
        return Found(inUse: inUse)
    }

    /// The same among the connections of some sources. A call looks at as many slots as `search(grace:at:)`, and the next
    /// call continues behind them, so that the calls reach every connection.
    mutating func search(
        grace: Duration, at now: MonotonicInstant, among isEligible: (NetworkSource) -> Bool
    ) -> Found {
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

    /// The oldest connection whose request has not arrived, or in part, and which did not begin to wait for the rest just now.
    /// Looks at as many slots as the other searches, and the next call continues behind them.
    mutating func searchUnfinished(at now: MonotonicInstant) -> Connection? {
        var found: Connection?
        var earliest = now
        for _ in 0..<min(Self.looksPerSearch, connections.count) {
            let slot = nextSearched < connections.count ? nextSearched : 0
            nextSearched = slot + 1
            guard let connection = connections[slot], !connection.isRefused, connection.awaitsRestOfRequest,
                connection.waitsSince < earliest, Self.mayGo(connection)
            else { continue }
            (found, earliest) = (connection, connection.waitsSince)
        }
        return found
    }

    /// Whether no request waits in the kernel's buffer to be read.
    private static func mayGo(_ connection: Connection) -> Bool {
        connection.isStalled || !Kernel.hasInput(connection.descriptor)
    }
}
