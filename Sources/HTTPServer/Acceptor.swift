internal import HTTPCodec
internal import Reactor
internal import Synchronization

/// Takes new connections from a worker's listener, makes room for them, and refuses those that there is no room for. On the
/// loop's thread only.
final class Acceptor: ReadinessHandler {
    private let server: ConnectionServer
    private let sweep: DeadlineSweep
    private let loop: EventLoop
    private let configuration: ServerConfiguration
    private let connectionCount: ConnectionCount
    private var listener: OwnedDescriptor?
    private var registration: Registration?

    /// In nanoseconds. The listener reports again what is left.
    private static let timePerTurn: Int64 = 25_000
    /// For how long connections are taken from the kernel's queue before the listener closes.
    private static let lastAccepts = Duration.milliseconds(100)
    private static let pause = Duration.milliseconds(100)
    /// Refused connections that are answered at once; more are dropped without an answer.
    /// At most an eighth of the limit: they take descriptors, too.
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
            // The kernel has no memory for the registration: the same remedy as for a lack of descriptors.
            pauseAccepting()
        }
    }

    func becameReady(_ readiness: Readiness, tag: Int) {
        _ = acceptConnections()
    }

    /// Returns whether there may be more of them.
    private func acceptConnections() -> Bool {
        guard let number = listener?.rawValue else { return false }
        let end = MonotonicInstant.now.advanced(byNanoseconds: Self.timePerTurn)
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
        } while MonotonicInstant.now < end
        return true
    }

    /// Stops listening for a moment. New connections wait in the kernel's queue; one that waits is given up, since what has
    /// run out are most likely descriptors.
    private func pauseAccepting() {
        stopAccepting()
        if let waiting = server.connections.search(grace: configuration.idleGrace).waiting { evict(waiting) }
        loop.schedule(at: .after(Self.pause)) { self.listen() }
    }

    private func stopAccepting() {
        if let registration { loop.deregister(registration) }
        registration = nil
    }

    /// Takes what the kernel has accepted already, which would be reset with the listener, and closes that.
    func drain(until deadline: MonotonicInstant) {
        let end = min(deadline, .after(Self.lastAccepts))
        while acceptConnections(), MonotonicInstant.now < end {}
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
        let source = configuration.trustedProxies.contains(peer) ? nil : NetworkSource(peer)
        let refusal = refusal(ofConnectionFrom: source)
        if refusal != nil, server.refusedConnections >= maximumRefusals { return }
        let connection = server.begin(
            accepted.takeDescriptor(), peer: peer, source: source, isRefused: refusal != nil)
        connection.beginWait(.firstRequest, at: loop.turnTime, for: server.timeouts.head)
        sweep.begin()
        if let refusal {
            server.end(connection, with: server.refusals.answer(to: refusal))
            server.serve(connection)
        } else {
            // Most often the first request has come by now. One that closes its connection is answered without the kernel
            // ever having been asked to watch it.
            server.serveWhatCame(connection)
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

    /// Counts a new connection, and makes room for it where that is needed. Returns why it is refused; nil where it is not.
    private func refusal(ofConnectionFrom source: NetworkSource?) -> Refusal? {
        let (total, ofSource) = connectionCount.add(source)
        let isOverLimit = configuration.maximumConnectionsPerSource.map { ofSource > $0 } ?? false
        if !isOverLimit, total <= configuration.maximumConnections { return nil }
        let isOverShare = isOverLimit || ofSource > connectionCount.share
        if isOverShare ? makeRoomAmongThose(of: source) : makeRoom() { return nil }
        connectionCount.remove(source)
        let refusal: Refusal = isOverShare ? .source : .connections
        server.refusals.note(refusal)
        return refusal
    }

    /// Closes the source's connection that has waited for longest. False where none has for the time of grace.
    private func makeRoomAmongThose(of source: NetworkSource?) -> Bool {
        let found = server.connections.search(grace: configuration.idleGrace) { $0 == source }
        guard let waiting = found.waiting else { return false }
        evict(waiting)
        return true
    }

    /// Closes a connection: of a source with more than its share the one that has waited for longest, else of all the one
    /// that has for longest, else one of such a source that is in use. False where there is none.
    private func makeRoom() -> Bool {
        let sources = connectionCount.sourcesOverShare
        var inUse: Connection?
        if !sources.isEmpty {
            let found = server.connections.search(grace: .zero) { sources.contains($0) }
            if let waiting = found.waiting {
                evict(waiting)
                return true
            }
            inUse = found.inUse
        }
        if let waiting = server.connections.search(grace: configuration.idleGrace).waiting {
            evict(waiting)
            return true
        }
        guard let inUse else { return false }
        server.refusals.note(.displacement)
        server.close(inUse)
        return true
    }

    private func evict(_ connection: Connection) {
        server.counters.evicted.add(1, ordering: .relaxed)
        server.close(connection)
    }
}
