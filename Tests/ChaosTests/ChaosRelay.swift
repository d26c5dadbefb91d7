import BrokerTesting
import Reactor

/// Stands between replicas and their database or their provider, to cut connections, or to lose, keep back or cut short
/// what goes over them. That the server is away is no end of it.
actor ChaosRelay {
    enum Mode: Sendable, Equatable {
        case forward
        /// Connections stand, and nothing goes through.
        case swallow
        /// What clients send arrives, and no answer comes back.
        case loseAnswers
        /// Nothing that clients send arrives.
        case loseRequests
        /// What clients send arrives so much later, also when they have gone meanwhile.
        case delayRequests(Duration)
        /// Connections end within the next piece of an answer.
        case truncateAnswers
    }

    private final class Connection {
        let sockets: RelayedSockets
        var hasLost = false
        /// The directions that are still open.
        var directions = 2

        init(_ sockets: RelayedSockets) { self.sockets = sockets }

        func cut() { sockets.cut() }
    }

    nonisolated let port: UInt16

    private let loop: EventLoop
    private let listener: OwnedDescriptor
    private var server: SocketAddress
    private var mode = Mode.forward
    private var connections: [Int: Connection] = [:]
    private var lastConnection = 0
    private var accepting: Task<Void, Never>?

    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    init(to port: UInt16, on loop: EventLoop) throws {
        self.loop = loop
        server = SocketAddress(ip: .v4([127, 0, 0, 1]), port: port)
        listener = try Socket.listen(on: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0))
        self.port = try Socket.localAddress(of: listener.rawValue).port
    }

    func start() {
        accepting = Task { await self.accept() }
    }

    /// What was lost cannot be caught up with: the connections that lost something are cut when things go on.
    func set(_ mode: Mode) {
        self.mode = mode
        if mode == .forward { for connection in connections.values where connection.hasLost { connection.cut() } }
    }

    /// Leads connections that are made from now on to that server, and cuts the others.
    func lead(to server: SocketAddress) {
        self.server = server
        cutAll()
    }

    /// How many there were.
    @discardableResult
    func cutAll() -> Int {
        for connection in connections.values { connection.cut() }
        return connections.count
    }

    func close() async {
        accepting?.cancel()
        await accepting?.value
        cutAll()
    }

    private func accept() async {
        while !Task.isCancelled {
            do {
                _ = try await loop.ready(listener.rawValue, for: .readable, until: .distantFuture)
                let client = try Socket.accept(listener.rawValue).takeDescriptor()
                // The client's descriptor is closed where the server is away: it sees its connection end.
                let server = try await Socket.connect(to: server, on: loop, until: .after(.seconds(10)))
                lastConnection += 1
                let id = lastConnection
                connections[id] = Connection(try RelayedSockets(client: client, server: server))
                Task { await self.pump(id, fromClient: true) }
                Task { await self.pump(id, fromClient: false) }
            } catch {
                continue
            }
        }
    }

    private func pump(_ id: Int, fromClient: Bool) async {
        guard let connection = connections[id] else { return }
        let sockets = connection.sockets
        do {
            while let bytes = try await sockets.receive(fromClient: fromClient, on: loop) {
                switch (mode, fromClient) {
                case (.swallow, _), (.loseAnswers, false), (.loseRequests, true): connection.hasLost = true
                case (.truncateAnswers, false):
                    connection.hasLost = true
                    try await sockets.send(Array(bytes.prefix(bytes.count / 2)), fromClient: fromClient, on: loop)
                    connection.cut()
                case (.delayRequests(let delay), true):
                    try await loop.sleep(until: .after(delay))
                    // What comes behind something lost would mean something else there.
                    if !connection.hasLost { try await sockets.send(bytes, fromClient: fromClient, on: loop) }
                case (.forward, _), (.loseAnswers, true), (.loseRequests, false), (.delayRequests, false),
                    (.truncateAnswers, true):
                    // One that has lost something is cut as soon as things go on.
                    if !connection.hasLost || mode != .forward {
                        try await sockets.send(bytes, fromClient: fromClient, on: loop)
                    }
                }
            }
        } catch {
            // One end is gone; the other learns of it below.
        }
        connection.cut()
        connection.directions -= 1
        if connection.directions == 0 { connections[id] = nil }
    }
}
