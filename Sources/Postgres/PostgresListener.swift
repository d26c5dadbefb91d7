package import Reactor

/// Listens for the notifications of one channel, on a connection of its own.
///
/// A lost connection is replaced after a pause, which grows from 100 ms to 1 s. Every `interval` a round trip shows
/// that the connection works: a connection whose peer has disappeared counts as lost when that round trip takes longer
/// than `limit`.
///
/// That LISTEN succeeds does not show that notifications will arrive: a pooler in transaction mode accepts the
/// statement and forgets it, and a connection to another database or server than the writers' stays silent for ever. So
/// each connection is tested first: a notification that `prove` sends over the connections of the writers must arrive
/// on it.
package actor PostgresListener {
    package enum Event: Sendable, Equatable {
        /// Every notification whose transaction commits from now on will be heard. Earlier ones may have been missed.
        case following
        /// Every notification sent before the last round trip began has been reported.
        case alive
        /// A notification with this payload.
        case heard(String)
        /// Notifications are missed until `following` comes again. Reported once, also when `following` never came.
        case lost(PostgresError)
    }

    package struct Settings: Sendable {
        /// The pause between one round trip and the next. Default 2 s.
        package var interval: Duration = .seconds(2)
        /// The time limit of a round trip, of LISTEN, and of the test. Default 3 s.
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
    /// Whether `lost` was the last state that was reported.
    private var isLost = false

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    private static let heartbeat = PostgresStatement("SELECT 1")
    private static let longestPause: Duration = .seconds(1)

    /// - Parameters:
    ///   - channel: an identifier as it stands in SQL. It must not come from outside the program.
    ///   - prove: notifies the channel of the payload before the deadline, on another connection.
    ///   - hear: called with each event in order, on `loop`. Must not block.
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

    /// Listens until the calling task is cancelled. No event is reported after that, and the connection is closed when
    /// this returns.
    package func run() async {
        var failures = 0
        while !Task.isCancelled {
            do throws(PostgresError) {
                let connection = try await PostgresConnection.open(configuration, on: loop, resolver: resolver)
                do throws(PostgresError) {
                    _ = try await connection.execute(listen, until: .after(settings.limit))
                    let heard = try await prove(connection)
                    failures = 0
                    isLost = false
                    report(.following)
                    for notification in heard { report(.heard(notification.payload)) }
                    try await follow(connection)
                } catch {
                    await connection.close()
                    throw error
                }
            } catch {
                if !isLost { report(.lost(error)) }
                isLost = true
            }
            try? await loop.sleep(until: .after(min(PoolState.pause(afterFailures: failures), Self.longestPause)))
            failures += 1
        }
    }

    /// Tests that notifications of the channel arrive on the connection.
    /// - Returns: the notifications that arrived after the test's notification.
    private func prove(_ connection: PostgresConnection) async throws(PostgresError) -> [PostgresNotification] {
        let deadline = MonotonicInstant.after(settings.limit)
        let proof = Self.proofPrefix + String(UInt64.random(in: .min ... .max), radix: 16)
        try await prove(proof, deadline)
        while true {
            let heard = try await connection.notifications(until: deadline)
            if let index = heard.firstIndex(where: { $0.payload == proof }) { return Array(heard[(index + 1)...]) }
            if heard.isEmpty, deadline <= .now {
                throw .unexpectedResult(
                    "a notification sent as a test did not arrive on the listening connection: it may lead to another "
                        + "database, or through a pooler in transaction mode, which forgets LISTEN")
            }
        }
    }

    /// The beginning of the payload of a test notification, which this replica's listener or another replica's has
    /// sent.
    package static let proofPrefix = "proof "

    /// Reports notifications until an error occurs.
    private func follow(_ connection: PostgresConnection) async throws(PostgresError) {
        while true {
            let next = MonotonicInstant.after(settings.interval)
            while MonotonicInstant.now < next {
                for notification in try await connection.notifications(until: next) {
                    report(.heard(notification.payload))
                }
            }
            _ = try await connection.execute(Self.heartbeat, until: .after(settings.limit))
            // Notifications that arrived before the answer are reported before `alive`, which promises that.
            for notification in try await connection.notifications(until: .now) {
                report(.heard(notification.payload))
            }
            report(.alive)
        }
    }

    private func report(_ event: Event) {
        if case .heard(let payload) = event, payload.utf8.starts(with: Self.proofPrefix.utf8) { return }
        if !Task.isCancelled { hear(event) }
    }
}
