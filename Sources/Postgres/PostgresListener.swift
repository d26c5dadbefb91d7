package import Reactor

/// Hears what NOTIFY tells on one channel, on a connection of its own, for as long as it runs.
///
/// A connection that is lost is made again, after pauses that grow from 100 ms to 1 s. Every `interval` a round trip
/// shows that the connection works: one that died without a word counts as lost when that round trip is overdue.
///
/// LISTEN alone shows nothing: a pooler in transaction mode takes it and forgets it, and another database or server
/// than the one that is written to would stay silent for ever. So each connection is proven before it is trusted: a
/// notification that `prove` sends by the way of all others must be heard on it.
package actor PostgresListener {
    package enum Event: Sendable, Equatable {
        /// From here on every notification is heard whose transaction commits; earlier ones may have been missed.
        case following
        /// What was sent before the round trip began has been heard.
        case alive
        case heard(String)
        /// Nothing is heard until `following` comes again. Said once, also when following never began.
        case lost(PostgresError)
    }

    package struct Settings: Sendable {
        /// Between one round trip and the next. Default 2 s.
        package var interval: Duration = .seconds(2)
        /// The longest that a round trip, LISTEN or the proof may take. Default 3 s.
        package var limit: Duration = .seconds(3)

        package init() {}
    }

    private let configuration: PostgresConfiguration
    private let listen: PostgresStatement
    private let settings: Settings
    private let loop: EventLoop
    private let resolver: NameResolver
    private let prove: @Sendable (_ payload: String, MonotonicInstant) async throws(PostgresError) -> Void
    private let hear: @Sendable (Event) -> Void
    private var task: Task<Void, Never>?
    private var isClosed = false
    /// Whether `lost` was the last state that was told.
    private var isLost = false

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    private static let heartbeat = PostgresStatement("SELECT 1")
    private static let longestPause: Duration = .seconds(1)

    /// - Parameters:
    ///   - channel: an identifier as it stands in SQL; nothing that came from outside.
    ///   - prove: notifies the channel of the payload before the deadline, on another connection.
    ///   - hear: told everything in order, on `loop`; must not block.
    package init(
        _ configuration: PostgresConfiguration, channel: String, settings: Settings = Settings(),
        on loop: EventLoop, resolver: NameResolver,
        prove: @escaping @Sendable (_ payload: String, MonotonicInstant) async throws(PostgresError) -> Void,
        hear: @escaping @Sendable (Event) -> Void
    ) {
        var configuration = configuration
        configuration.usesPooler = false
        self.configuration = configuration
        listen = PostgresStatement(trusted: "LISTEN \(channel)")
        self.settings = settings
        self.loop = loop
        self.resolver = resolver
        self.prove = prove
        self.hear = hear
    }

    /// Begins, once.
    package func start() {
        if task == nil, !isClosed { task = Task(executorPreference: EventLoopTaskExecutor(loop)) { await self.run() } }
    }

    /// Ends the connection. Nothing is told any more.
    package func close() async {
        isClosed = true
        task?.cancel()
        await task?.value
    }

    private func run() async {
        var failures = 0
        while !isClosed {
            do throws(PostgresError) {
                let connection = try await PostgresConnection.open(configuration, on: loop, resolver: resolver)
                do throws(PostgresError) {
                    _ = try await connection.execute(listen, until: .after(settings.limit))
                    let heard = try await prove(connection)
                    failures = 0
                    isLost = false
                    tell(.following)
                    for notification in heard { tell(.heard(notification.payload)) }
                    try await follow(connection)
                } catch {
                    await connection.close()
                    throw error
                }
            } catch {
                if !isLost { tell(.lost(error)) }
                isLost = true
            }
            try? await loop.sleep(until: .after(min(PoolState.pause(afterFailures: failures), Self.longestPause)))
            failures += 1
        }
    }

    /// Shows that the channel is heard. Returns what was heard after the proof.
    private func prove(_ connection: PostgresConnection) async throws(PostgresError) -> [PostgresNotification] {
        let deadline = MonotonicInstant.after(settings.limit)
        let proof = Self.proofPrefix + String(UInt64.random(in: .min ... .max), radix: 16)
        try await prove(proof, deadline)
        while true {
            let heard = try await connection.notifications(until: deadline)
            if let index = heard.firstIndex(where: { $0.payload == proof }) { return Array(heard[(index + 1)...]) }
            if heard.isEmpty, deadline <= .now {
                throw .unexpectedResult("a connection that listens does not hear what is notified")
            }
        }
    }

    /// Of the payloads that are proofs, one's own or another listener's.
    package static let proofPrefix = "proof "

    /// Returns never but by an error.
    private func follow(_ connection: PostgresConnection) async throws(PostgresError) {
        while true {
            let next = MonotonicInstant.after(settings.interval)
            while MonotonicInstant.now < next {
                for notification in try await connection.notifications(until: next) {
                    tell(.heard(notification.payload))
                }
            }
            _ = try await connection.execute(Self.heartbeat, until: .after(settings.limit))
            // What came before the answer is told before it.
            for notification in try await connection.notifications(until: .now) { tell(.heard(notification.payload)) }
            tell(.alive)
        }
    }

    private func tell(_ event: Event) {
        if case .heard(let payload) = event, payload.utf8.starts(with: Self.proofPrefix.utf8) { return }
        if !isClosed { hear(event) }
    }
}
