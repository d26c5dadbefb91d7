/// The connections whose TLS handshakes are not complete, in the order in which they were accepted. On the loop's thread
/// only.
struct HandshakeQueue {
    /// The identities from `first` on. Some of them may be complete or closed by now.
    private var identities: [ConnectionID] = []
    private var first = 0
    private(set) var count = 0

    /// A handshake begins.
    mutating func append(_ id: ConnectionID) {
        identities.append(id)
        count += 1
    }

    /// A handshake is complete, or its connection is closed.
    mutating func end() {
        count -= 1
        if count == 0 {
            identities = []
            first = 0
        }
    }

    /// The connection that has waited for the end of its handshake for longest.
    mutating func oldest(in connections: ConnectionTable) -> Connection? {
        while first < identities.count {
            if let connection = connections[identities[first]], connection.isShakingHands { return connection }
            first += 1
        }
        return nil
    }

    /// Removes the identities of handshakes that have ended, when there are many of them.
    mutating func compact(in connections: ConnectionTable) {
        guard identities.count > 2 * count + 64 else { return }
        identities = identities[first...].filter { connections[$0]?.isShakingHands == true }
        first = 0
    }
}
