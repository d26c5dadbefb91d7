import Containers
import HTTPCodec
import Reactor
import Waiting

/// Two requests with the same key may share a connection: they go to the same server, require the same pins, leave by the same
/// proxy, show the same certificate, and may go to the same addresses.
struct PoolKey: Hashable, Sendable {
    let origin: URLTarget.Origin
    let pins: PinSet?
    let avoidsListedNetworks: Bool
    /// The proxy of the request; nil for the client's.
    var proxy: OutboundProxy?
    var certificate: ClientCertificate?
}

/// Lends connections to exchanges and keeps idle connections. Runs on the client's loop.
///
/// An exchange takes a slot of its key and holds the slot until it ends. With the slot it uses an idle connection or
/// opens a new one. There are never more idle connections than free slots, so idle and busy connections together stay
/// within the limit.
actor ConnectionPool {
    private struct Idle {
        let connection: ClientConnection
        let since: MonotonicInstant
        let expiry: ScheduledAction
    }

    /// The slots and connections of one key.
    private struct Slots {
        var taken = 0
        /// Exchanges that wait for a slot, in order of arrival. The value false means that the client was closed.
        var waiting = WaitList<Void, Result<Bool, WaitInterrupted>>()
        /// Exchanges take from the end, so that connections which are not needed stay idle and expire.
        var idle: [Idle] = []

        var isUnused: Bool { taken == 0 && waiting.isEmpty && idle.isEmpty }
    }

    /// A connection that an exchange may use, and whether earlier exchanges used it.
    struct BorrowedConnection {
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
    /// At most one TLS session for each key. Each is used once.
    private var sessions = BoundedTable<PoolKey, ResumableSession>(capacity: 256)
    /// The contexts of the connections that show a certificate. Those that are forgotten are made again.
    private var contexts = BoundedTable<ClientCertificate, TLSContext>(capacity: 64)
    /// When the use of a backup pin was last reported for a server.
    private var backupReports = BoundedTable<URLTarget.Origin, MonotonicInstant>(capacity: 256)
    private var running = 0
    private var isClosed = false
    private var closeWaiters = WaitList<Void, Void>()
    private(set) var counters = HTTPSClient.Counters()

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

    /// Runs `body` while it holds a slot of `key`.
    func withSlot<R>(
        for key: PoolKey, until deadline: MonotonicInstant, _ body: () async throws(TransportError) -> R
    ) async throws(TransportError) -> R {
        if isClosed { throw .cancelled }
        running += 1
        defer { endExchange() }
        try await takeSlot(for: key, until: deadline)
        defer { releaseSlot(key) }
        return try await body()
    }

    /// Returns an idle connection on which the server has sent nothing, or opens a new connection.
    /// - Parameter new: whether only a new one will do. It takes the place of an idle one where there are as many connections
    ///   as there may be.
    func borrow(
        for key: PoolKey, new: Bool = false, until deadline: MonotonicInstant
    ) async throws(TransportError) -> BorrowedConnection {
        if new { makeRoom(for: key) }
        while !new, let idle = slots[key]?.idle.popLast() {
            idleCount -= 1
            loop.cancel(idle.expiry)
            if idle.connection.idleState() == .quiet {
                counters.connectionsReused += 1
                idle.connection.beginRequest()
                return BorrowedConnection(connection: idle.connection, isReused: true)
            }
        }
        let connection = try await connect(key, resuming: takeSession(key), until: deadline)
        counters.connectionsOpened += 1
        if connection.isResumed { counters.sessionsResumed += 1 }
        if connection.matchesBackupPinOnly { reportBackupPin(at: key.origin) }
        // An HTTP server does not send first; its bytes must not be taken for the response.
        switch connection.idleState() {
        case .quiet: return BorrowedConnection(connection: connection, isReused: false)
        case .receivedData: throw .malformedResponse
        case .closed: throw .connectionLost(requestSent: false)
        }
    }

    /// Opens a connection for its certificates alone, and closes it.
    func certificates(of origin: URLTarget.Origin) async throws(TransportError) -> [VerifiedCertificate] {
        let key = PoolKey(origin: origin, pins: nil, avoidsListedNetworks: false)
        let deadline = MonotonicInstant.after(configuration.exchangeTimeout)
        return try await withSlot(for: key, until: deadline) { () throws(TransportError) in
            try await connect(key, resuming: nil, until: deadline).certificates()
        }
    }

    /// Reports each server once an hour at most.
    private func reportBackupPin(at origin: URLTarget.Origin) {
        guard let report = configuration.onBackupPin else { return }
        let now = MonotonicInstant.now
        if let last = backupReports[origin], last.advanced(by: .seconds(3600)) > now { return }
        backupReports.setNewest(now, forKey: origin)
        report(origin)
    }

    /// Keeps a connection for the next exchange. Its last exchange is complete, and its server allows another.
    func keepIdle(_ connection: ClientConnection, for key: PoolKey) {
        guard !isClosed, configuration.maximumIdleConnections > 0, connection.idleState() == .quiet else { return }
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

    /// Keeps the TLS session that the server offered for resumption.
    func keepSession(of connection: ClientConnection, for key: PoolKey) {
        guard let session = connection.resumableSession() else { return }
        sessions.setNewest(session, forKey: key)
    }

    /// Refuses new exchanges, closes the idle connections, and returns when the last running exchange has ended.
    func close() async {
        isClosed = true
        for key in Array(slots.keys) {
            for idle in slots[key]?.idle ?? [] { loop.cancel(idle.expiry) }
            for waiting in slots[key]?.waiting.removeAll() ?? [] { waiting.resume(returning: .success(false)) }
            slots[key]?.idle = []
            removeIfUnused(key)
        }
        idleCount = 0
        sessions.removeAll()
        if running > 0 { await closeWaiters.enter().value() }
    }

    /// The size of the buffers of all idle connections, in bytes.
    var idleBufferSize: Int { slots.values.reduce(0) { $0 + $1.idle.reduce(0) { $0 + $1.connection.bufferSize } } }

    private func endExchange() {
        running -= 1
        guard running == 0 else { return }
        for waiter in closeWaiters.removeAll() { waiter.resume() }
    }

    private func takeSession(_ key: PoolKey) -> ResumableSession? {
        guard let session = sessions.removeValue(forKey: key), session.verifiedUntil > .now else { return nil }
        return session
    }

    /// The settings of connections that show the certificate, or none; nil where memory is short, and for a certificate that cannot
    /// be used.
    func context(for certificate: ClientCertificate?) -> TLSContext? {
        guard let certificate else { return context }
        if let known = contexts[certificate] { return known }
        guard let made = try? TLSContext(roots: roots, certificate: certificate) else { return nil }
        contexts.setNewest(made, forKey: certificate)
        return made
    }

    /// Reads the system's roots, once, before the first TLS session. The start does not read them, because that takes
    /// longer than the rest of the start and 1.4 MiB, and a broker without a provider needs none.
    /// - Returns: false when memory or threads are short; a later connection tries again.
    func trustSystemRoots() async -> Bool {
        let reading = systemRoots ?? readSystemRoots()
        systemRoots = reading
        let isRead = await reading.value
        // Another attempt may be running by now.
        if !isRead, systemRoots == reading { systemRoots = nil }
        return isRead
    }

    private func readSystemRoots() -> Task<Bool, Never> {
        Task { [roots] in
            await withCheckedContinuation { continuation in
                do throws(SystemError) {
                    // Reading takes about 20 ms and must block neither the loop nor the threads that all tasks share.
                    try Thread.start(name: "roots") { continuation.resume(returning: roots.addSystemRoots()) }.detach()
                } catch {
                    continuation.resume(returning: false)
                }
            }
        }
    }

    // MARK: Slots

    private func takeSlot(for key: PoolKey, until deadline: MonotonicInstant) async throws(TransportError) {
        if slots[key, default: Slots()].taken < max(1, configuration.maximumConnectionsPerOrigin) {
            slots[key, default: Slots()].taken += 1
            return
        }
        let slot = slots[key, default: Slots()].waiting.enter()
        do throws(WaitInterrupted) {
            if try await slot.value(on: loop, until: deadline) { return }
        } catch {
            _ = slots[key]?.waiting.remove(slot)
            if error == .deadlineExceeded { throw .timedOut(.connectionSlot, requestSent: false) }
        }
        throw .cancelled
    }

    private func releaseSlot(_ key: PoolKey) {
        while let next = slots[key]?.waiting.popFirst() {
            // An exchange that has stopped waiting leaves the slot to the next one.
            if next.waiter.resume(returning: .success(true)) { return }
        }
        slots[key]?.taken -= 1
        removeIfUnused(key)
    }

    private func removeIfUnused(_ key: PoolKey) {
        if slots[key]?.isUnused == true { slots[key] = nil }
    }

    private func closeIdle(_ identity: ObjectIdentifier, of key: PoolKey) {
        guard let index = slots[key]?.idle.firstIndex(where: { ObjectIdentifier($0.connection) == identity }),
            let idle = slots[key]?.idle.remove(at: index)
        else { return }
        loop.cancel(idle.expiry)
        idleCount -= 1
        removeIfUnused(key)
    }

    /// Closes idle connections of a key until there is room for another one beside the slots that are taken.
    private func makeRoom(for key: PoolKey) {
        while let slot = slots[key], let oldest = slot.idle.first,
            slot.taken + slot.idle.count > max(1, configuration.maximumConnectionsPerOrigin)
        {
            closeIdle(ObjectIdentifier(oldest.connection), of: key)
        }
    }

    private func closeLongestIdle() {
        let oldest = slots.lazy.flatMap { key, slots in slots.idle.map { (key, $0) } }.min { $0.1.since < $1.1.since }
        guard let (key, idle) = oldest else { return }
        closeIdle(ObjectIdentifier(idle.connection), of: key)
    }
}
