import HTTPCodec
import Reactor
import Synchronization

/// Accepts connections from a worker's listener. When the server is full, it closes another connection for a new one or
/// refuses the new one. On the loop's thread only.
final class Acceptor: ReadinessHandler {
    private let server: ConnectionServer
    private let sweep: DeadlineSweep
    private let loop: EventLoop
    private let configuration: ServerConfiguration
    private let connectionCount: ConnectionCount
    private var listener: OwnedDescriptor?
    private var registration: Registration?

    /// For how long connections are accepted in one turn, in nanoseconds. The listener reports the rest again.
    private static let timePerTurn: Int64 = 25_000
    /// For how long a drain accepts what is in the kernel's queue before it closes the listener.
    private static let lastAccepts = Duration.milliseconds(100)
    private static let pause = Duration.milliseconds(100)
    /// How many refused connections may be open; further ones are closed without an answer. At most an eighth of the
    /// limit, because refused connections need descriptors, too.
    private var maximumRefusals: Int { min(64, max(1, configuration.maximumConnections / 8)) }

    init(_ server: ConnectionServer, _ listener: consuming OwnedDescriptor, _ connectionCount: ConnectionCount) {
        self.server = server
        self.connectionCount = connectionCount
        self.listener = consume listener
        sweep = DeadlineSweep(server)
        loop = server.loop
        configuration = server.configuration
    }

    // MARK: Accepting

    /// Starts or resumes accepting.
    func listen() {
        guard let number = listener?.rawValue, registration == nil else { return }
        do throws(SystemError) {
            registration = try loop.registerListener(number, self)
        } catch {
            // The kernel has no memory for the registration. A lack of descriptors has the same remedy.
            pauseAccepting()
        }
    }

    func becameReady(_ readiness: Readiness, tag: Int) {
        _ = acceptConnections()
    }

    /// Returns whether there may be more connections to accept.
    private func acceptConnections() -> Bool {
        guard let number = listener?.rawValue else { return false }
        let end = loop.now.advanced(byNanoseconds: Self.timePerTurn)
        repeat {
            do throws(SystemError) {
                admit(try Socket.accept(number))
            } catch {
                switch Kernel.acceptFailure(error.number) {
                case .none: return false
                case .skip: continue
                case .pause:
                    pauseAccepting()
                    return false
                }
            }
        } while loop.now < end
        return true
    }

    /// Stops accepting for a moment; new connections wait in the kernel's queue. Most likely the process has run out of
    /// descriptors, so a connection that waits is closed.
    private func pauseAccepting() {
        stopAccepting()
        if let waiting = search(grace: configuration.idleGrace).waiting { evict(waiting) }
        loop.schedule(after: Self.pause) { self.listen() }
    }

    private func stopAccepting() {
        if let registration { loop.deregister(registration) }
        registration = nil
    }

    /// Accepts what is in the kernel's queue, which closing the listener would reset, and closes the listener.
    func drain(until deadline: MonotonicInstant) {
        let end = min(deadline, loop.now.advanced(by: Self.lastAccepts))
        while acceptConnections(), loop.now < end {}
        close()
    }

    /// Closes the listener.
    func close() {
        stopAccepting()
        listener = nil
    }

    private func admit(_ accepted: consuming Socket.Accepted) {
        server.counters.accepted.add(1, ordering: .relaxed)
        let peer = accepted.peerAddress
        let isFromTrustedProxy = configuration.trustedProxies.contains(peer)
        let refusal = refusal(ofConnectionFrom: isFromTrustedProxy ? nil : NetworkSource(peer))
        let isAnswered = configuration.tls == nil && server.refusedConnections < maximumRefusals
        if refusal != nil, !isAnswered { return }
        let connection = server.begin(
            accepted.takeDescriptor(), peer: peer, isFromTrustedProxy: isFromTrustedProxy, isRefused: refusal != nil)
        // Memory is short.
        if configuration.tls != nil, connection.tls == nil { return server.close(connection) }
        connection.beginWait(.firstRequest, at: loop.turnTime, for: server.timeouts.head)
        sweep.begin()
        if let refusal {
            server.end(connection, with: server.refusals.answer(to: refusal))
            server.serve(connection)
        } else {
            // Most often the first request has arrived by now. When it also ends its connection, the connection is never
            // registered with epoll.
            server.serveUnreportedInput(connection)
        }
        if connection.phase == .closed { return }
        do throws(SystemError) {
            connection.registration = try loop.register(
                connection.descriptor, handler: server.turns, tag: connection.id.slot)
        } catch {
            server.close(connection)
        }
    }

    // MARK: Making room

    /// Counts a new connection, and closes another one for it when the server is full. Returns why the new connection is
    /// refused; nil when it is not.
    private func refusal(ofConnectionFrom source: NetworkSource?) -> Refusal? {
        let (total, ofSource) = connectionCount.add(source)
        let isOverLimit = configuration.maximumConnectionsPerSource.map { ofSource > $0 } ?? false
        if !isOverLimit, total <= configuration.maximumConnections { return nil }
        let isOverShare = isOverLimit || ofSource > connectionCount.share
        if isOverShare ? makeRoom(amongThoseOf: source) : makeRoom() { return nil }
        connectionCount.remove(source)
        let refusal: Refusal = isOverShare ? .source : .connections
        server.refusals.note(refusal)
        return refusal
    }

    /// Closes the source's connection that has waited for longest. False when none has waited for `idleGrace`.
    private func makeRoom(amongThoseOf source: NetworkSource?) -> Bool {
        let found = search(grace: configuration.idleGrace) { $0 == source }
        guard let waiting = found.waiting else { return false }
        evict(waiting)
        return true
    }

    /// Closes one connection: of the sources with more than their share, the connection that has waited for longest; if
    /// none waits, the one of all connections that has waited for longest; if none has waited for `idleGrace`, the oldest
    /// whose request has not arrived, or in part; if there is none, one of the former sources' that is in use. False when
    /// there is none of these.
    ///
    /// A request in part has no grace: clients that send nothing, or parts of requests, and connect again at once could else
    /// keep the server full of connections that are younger than the grace, and whole requests would be refused.
    private func makeRoom() -> Bool {
        let sources = connectionCount.sourcesOverShare
        var inUse: Connection?
        if !sources.isEmpty {
            let found = search(grace: .zero) { sources.contains($0) }
            if let waiting = found.waiting {
                evict(waiting)
                return true
            }
            inUse = found.inUse
        }
        if let waiting = search(grace: configuration.idleGrace).waiting {
            evict(waiting)
            return true
        }
        if let unfinished = server.connections.searchUnfinished(at: loop.now) {
            evict(unfinished)
            return true
        }
        guard let inUse else { return false }
        server.refusals.note(.displacement)
        server.close(inUse)
        return true
    }

    private func search(grace: Duration) -> ConnectionTable.Found {
        server.connections.search(grace: grace, at: loop.now)
    }

    private func search(grace: Duration, among isEligible: (NetworkSource) -> Bool) -> ConnectionTable.Found {
        server.connections.search(grace: grace, at: loop.now, among: isEligible)
    }

    private func evict(_ connection: Connection) {
        server.counters.evicted.add(1, ordering: .relaxed)
        server.close(connection)
    }
}
