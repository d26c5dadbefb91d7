internal import HTTPCodec
internal import Reactor

/// What makes two requests able to share a connection: the same server, held to the same pins.
struct PoolKey: Hashable, Sendable {
    let origin: URLTarget.Origin
    let pins: PinSet?
}

/// Lends connections to exchanges and keeps the idle ones, on the client's loop.
///
/// An exchange first takes one of its key's slots and holds it to its end. It then uses an idle connection or opens
/// one; since there are never more idle connections than free slots, both kinds together stay within the limit.
actor ConnectionPool {
    private struct Idle {
        let connection: ClientConnection
        let since: MonotonicInstant
        let expiry: ScheduledAction
    }

    /// The connections of one key.
    private struct Slots {
        var taken = 0
        /// In order of arrival. False tells that the client was closed.
        var waiting: [Expectation<Bool>] = []
        /// Used from the end: what has been idle longest is left to expire.
        var idle: [Idle] = []

        var isUnused: Bool { taken == 0 && waiting.isEmpty && idle.isEmpty }
    }

    /// A connection that an exchange may use, and whether it carried others before.
    struct Lease {
        let connection: ClientConnection
        let isReused: Bool
    }

    let configuration: HTTPSClientConfiguration
    let loop: EventLoop
    let resolver: NameResolver
    let context: TLSContext
    private let roots: TrustedRoots
    private var systemRoots: Task<Bool, Never>?
    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    private var slots: [PoolKey: Slots] = [:]
    private var idleCount = 0
    /// At most one session for each key, each used once.
    private var sessions: [PoolKey: ResumableSession] = [:]
    private var running = 0
    private var isClosed = false
    private var closers: [CheckedContinuation<Void, Never>] = []
    private(set) var counters = HTTPSClient.Counters()

    private static let maximumSessions = 256

    init(
        configuration: HTTPSClientConfiguration, loop: EventLoop, resolver: NameResolver
    ) throws(HTTPSClientConfigurationError) {
        self.configuration = configuration
        self.loop = loop
        self.resolver = resolver
        roots = try TrustedRoots(file: configuration.trustedCAFile)
        context = try TLSContext(roots: roots)
    }

    // MARK: Exchanges

    /// Runs `body` while it holds one of the key's slots.
    func withSlot<R>(
        _ key: PoolKey, until deadline: MonotonicInstant, _ body: () async throws(TransportError) -> R
    ) async throws(TransportError) -> R {
        if isClosed { throw .cancelled }
        running += 1
        defer { exchangeEnded() }
        try await takeSlot(key, until: deadline)
        defer { giveSlotBack(key) }
        return try await body()
    }

    /// An idle connection that has kept quiet, or a new one.
    func lease(_ key: PoolKey, until deadline: MonotonicInstant) async throws(TransportError) -> Lease {
        while let idle = slots[key]?.idle.popLast() {
            idleCount -= 1
            loop.cancel(idle.expiry)
            if idle.connection.silence() == .quiet {
                counters.connectionsReused += 1
                idle.connection.beginRequest()
                return Lease(connection: idle.connection, isReused: true)
            }
        }
        let connection = try await connect(key, resuming: takeSession(key), until: deadline)
        counters.connectionsOpened += 1
        if connection.isResumed { counters.sessionsResumed += 1 }
        // A server that speaks first is not a server of HTTP; its words must not become the answer.
        switch connection.silence() {
        case .quiet: return Lease(connection: connection, isReused: false)
        case .broken: throw .malformedResponse
        case .ended: throw .connectionLost(requestSent: false)
        }
    }

    /// Takes back a connection whose exchange is complete and whose server agreed to another.
    func keep(_ connection: ClientConnection, for key: PoolKey) {
        guard !isClosed, configuration.maximumIdleConnections > 0, connection.silence() == .quiet else { return }
        connection.releaseBuffers()
        if idleCount >= configuration.maximumIdleConnections { closeLongestIdle() }
        let now = MonotonicInstant.now
        let identity = ObjectIdentifier(connection)
        let expiry = loop.schedule(at: now.advanced(by: configuration.idleTimeout)) { [weak self] in
            self?.assumeIsolated { $0.closeIdle(identity, of: key) }
        }
        slots[key, default: Slots()].idle.append(Idle(connection: connection, since: now, expiry: expiry))
        idleCount += 1
    }

    /// Remembers what the connection's server has given to resume with.
    func remember(_ connection: ClientConnection, for key: PoolKey) {
        guard let session = connection.resumableSession() else { return }
        if sessions.count >= Self.maximumSessions, sessions[key] == nil {
            // Any of them: losing one costs a whole handshake and nothing else.
            if let other = sessions.keys.first { sessions[other] = nil }
        }
        sessions[key] = session
    }

    /// Refuses new exchanges, closes the idle connections and returns when the last running exchange has ended.
    func close() async {
        isClosed = true
        for key in Array(slots.keys) {
            for idle in slots[key]?.idle ?? [] { loop.cancel(idle.expiry) }
            for waiting in slots[key]?.waiting ?? [] { waiting.fulfil(false) }
            slots[key]?.idle = []
            slots[key]?.waiting = []
            forgetIfUnused(key)
        }
        idleCount = 0
        sessions = [:]
        if running > 0 { await withCheckedContinuation { closers.append($0) } }
    }

    /// What the idle connections keep of memory for received bytes, in bytes.
    var idleBufferSize: Int { slots.values.reduce(0) { $0 + $1.idle.reduce(0) { $0 + $1.connection.bufferSize } } }

    private func exchangeEnded() {
        running -= 1
        guard running == 0 else { return }
        for closer in closers { closer.resume() }
        closers = []
    }

    private func takeSession(_ key: PoolKey) -> ResumableSession? {
        guard let session = sessions.removeValue(forKey: key), session.verifiedUntil > .now else { return nil }
        return session
    }

    /// Reads the system's roots, once, for the first session. They are no part of the start: they take longer than all
    /// the rest of it and 1.4 MiB, and a broker without a provider at work needs none.
    /// - Returns: false where memory or threads are short; a later connection tries again.
    func trustSystemRoots() async -> Bool {
        let reading = systemRoots ?? readSystemRoots()
        systemRoots = reading
        let isRead = await reading.value
        // Another one may be under way by now.
        if !isRead, systemRoots == reading { systemRoots = nil }
        return isRead
    }

    private func readSystemRoots() -> Task<Bool, Never> {
        Task { [roots] in
            await withCheckedContinuation { continuation in
                do throws(SystemError) {
                    // A thread of its own for the 20 ms: neither the loop nor the few that all tasks share may block.
                    try Thread.start(name: "roots") { continuation.resume(returning: roots.addSystemRoots()) }.detach()
                } catch {
                    continuation.resume(returning: false)
                }
            }
        }
    }

    // MARK: Slots

    private func takeSlot(_ key: PoolKey, until deadline: MonotonicInstant) async throws(TransportError) {
        if slots[key, default: Slots()].taken < max(1, configuration.maximumConnectionsPerOrigin) {
            slots[key, default: Slots()].taken += 1
            return
        }
        let turn = Expectation<Bool>()
        slots[key]?.waiting.append(turn)
        do throws(WaitInterrupted) {
            if try await turn.wait(on: loop, until: deadline) { return }
        } catch {
            slots[key]?.waiting.removeAll { $0 === turn }
            if error == .deadlineExceeded { throw .timedOut(.connectionSlot, requestSent: false) }
        }
        throw .cancelled
    }

    private func giveSlotBack(_ key: PoolKey) {
        while slots[key]?.waiting.isEmpty == false {
            // One who gave up meanwhile leaves the slot to the next.
            if let next = slots[key]?.waiting.removeFirst(), next.fulfil(true) { return }
        }
        slots[key]?.taken -= 1
        forgetIfUnused(key)
    }

    private func forgetIfUnused(_ key: PoolKey) {
        if slots[key]?.isUnused == true { slots[key] = nil }
    }

    private func closeIdle(_ identity: ObjectIdentifier, of key: PoolKey) {
        guard let index = slots[key]?.idle.firstIndex(where: { ObjectIdentifier($0.connection) == identity }),
            let idle = slots[key]?.idle.remove(at: index)
        else { return }
        loop.cancel(idle.expiry)
        idleCount -= 1
        forgetIfUnused(key)
    }

    private func closeLongestIdle() {
        let oldest = slots.lazy.flatMap { key, slots in slots.idle.map { (key, $0) } }.min { $0.1.since < $1.1.since }
        guard let (key, idle) = oldest else { return }
        closeIdle(ObjectIdentifier(idle.connection), of: key)
    }
}
