import Glibc
package import Reactor

/// Stands between a client and a server on loopback, and can keep or lose what the server says.
package actor PostgresRelay {
    package enum Mode: Sendable, Equatable {
        case forward
        /// Connections are taken and nothing is answered.
        case swallow
        /// Everything is passed on, later, each way.
        case delay(Duration)
        /// When the client's next message that contains `text` has been answered, the connection is cut instead of
        /// the answer forwarded. Then `forward`.
        case cutAnswer(to: String)
        /// The connection is cut when the client's next message that contains `text` comes, and the message is lost.
        /// Then `forward`.
        case cutBefore(String)
    }

    private final class Connection {
        let sockets: RelayedSockets
        var losesAnswer = false
        var isAnswering = true
        var isFrozen = false

        init(_ sockets: RelayedSockets) { self.sockets = sockets }

        func cut() { sockets.cut() }
    }

    nonisolated package let port: UInt16
    /// How many connections were taken.
    package private(set) var accepted = 0
    /// How many were cut by `cutAnswer` and `cutBefore`.
    package private(set) var cuts = 0
    /// How often a client spoke after it had been answered, or for the first time: round trips, begun or done.
    package private(set) var roundTrips = 0

    private let loop: EventLoop
    private let listener: OwnedDescriptor
    private var server: SocketAddress
    private var mode = Mode.forward
    private var connections: [Int: Connection] = [:]
    private var tasks: [Task<Void, Never>] = []

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    package init(to port: UInt16, on loop: EventLoop) throws {
        self.loop = loop
        server = SocketAddress(ip: .v4([127, 0, 0, 1]), port: port)
        listener = try Socket.listen(on: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0))
        self.port = try Socket.localAddress(of: listener.rawValue).port
    }

    package func start() {
        tasks.append(Task { await self.accept() })
    }

    package func set(_ mode: Mode) {
        self.mode = mode
    }

    /// Leads connections that are made from now on to another port.
    package func lead(to port: UInt16) {
        server = SocketAddress(ip: .v4([127, 0, 0, 1]), port: port)
    }

    /// Nothing passes any more on the connections that there are, and neither side is told.
    package func freezeAll() {
        for connection in connections.values { connection.isFrozen = true }
    }

    package func cutAll() {
        for connection in connections.values { connection.cut() }
    }

    package func close() async {
        for task in tasks { task.cancel() }
        for task in tasks { await task.value }
        tasks = []
        connections = [:]
    }

    private func accept() async {
        do {
            while true {
                _ = try await loop.ready(listener.rawValue, for: .readable, until: .distantFuture)
                let client = try Socket.accept(listener.rawValue).takeDescriptor()
                accepted += 1
                // Where the server is away, the client learns of it by the end of its connection.
                guard let server = try? await Socket.connect(to: server, on: loop, until: .after(.seconds(10))) else {
                    continue
                }
                let id = accepted
                connections[id] = Connection(try RelayedSockets(client: client, server: server))
                tasks.append(Task { await self.pump(id, fromClient: true) })
                tasks.append(Task { await self.pump(id, fromClient: false) })
            }
        } catch {
            // Closed: the relay is over.
            cutAll()
        }
    }

    private func pump(_ id: Int, fromClient: Bool) async {
        guard let connection = connections[id] else { return }
        let sockets = connection.sockets
        do {
            while let bytes = try await sockets.receive(fromClient: fromClient, on: loop) {
                if case .delay(let delay) = mode { try await loop.sleep(until: .after(delay)) }
                if try pass(bytes, of: connection, fromClient: fromClient) {
                    try await sockets.send(bytes, fromClient: fromClient, on: loop)
                }
            }
        } catch {
            // The other side of the relay learns of it below.
        }
        connection.cut()
    }

    /// Whether the bytes go through; throws when they end the connection.
    private func pass(_ bytes: [UInt8], of connection: Connection, fromClient: Bool) throws -> Bool {
        if fromClient, connection.isAnswering { roundTrips += 1 }
        connection.isAnswering = !fromClient
        if connection.isFrozen { return false }
        switch mode {
        case .forward, .delay: break
        case .swallow: return false
        case .cutAnswer(let text) where fromClient && bytes.contains(Array(text.utf8)):
            mode = .forward
            connection.losesAnswer = true
        case .cutBefore(let text) where fromClient && bytes.contains(Array(text.utf8)):
            mode = .forward
            cuts += 1
            throw SystemError("relay", number: ECONNABORTED)
        case .cutAnswer, .cutBefore: break
        }
        if connection.losesAnswer, !fromClient {
            cuts += 1
            throw SystemError("relay", number: ECONNABORTED)
        }
        return true
    }
}
