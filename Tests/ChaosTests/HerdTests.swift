import BrokerTesting
import DevelopmentProvider
import FoundationEssentials
import HTTPCodec
import HTTPSClient
import Reactor
import Synchronization
import Testing

/// Storage keys whose tokens have all run out, read at all replicas at once. `HERD_KEYS` says how many: 2000 unless
/// given, which a debug build does in seconds; `Tests/ChaosTests/run` takes 10,000.
@Suite(.serialized)
struct `A herd of expired tokens` {
    /// Calls at one time: to each replica, and to the provider where it is measured alone.
    private static let callersPerReplica = 64

    // H076 H090
    @Test(.timeLimit(.minutes(10)))
    func `is refreshed once each, at about the speed of the provider`() async throws {
        let count = ProcessInfo.processInfo.environment["HERD_KEYS"].flatMap(Int.init) ?? 2000
        let settings = try ChaosSettings.peaceful(seconds: 5, users: count)
        try await ChaosCluster.run(settings, lifetime: .seconds(3600)) { cluster in
            let provider = cluster.provider.provider
            try await Self.each(count, callers: 48) { user in
                try await cluster.logIn(
                    user, isExpired: true, first: user % cluster.replicas.count, until: .after(.seconds(60)))
            }
            #expect(provider.ledgerSummary.presentations == 0)

            let begun = MonotonicInstant.now
            try await withThrowingTaskGroup(of: Void.self) { group in
                for replica in 0..<cluster.replicas.count {
                    group.addTask {
                        try await Self.each(count, callers: Self.callersPerReplica) { user in
                            try await Self.read(user, at: replica, of: cluster)
                        }
                    }
                }
                try await group.waitForAll()
            }
            let herd = begun.duration(to: .now)

            let summary = provider.ledgerSummary
            #expect(summary.presentations == count)
            #expect(summary.rotations == count)
            #expect(summary.presentedAgain == 0)
            #expect(summary.familiesAlive == count)
            let requests = provider.requests.filter { $0.grant == GrantType.refreshToken.rawValue }
            #expect(requests.count == count)

            let alone = try await Self.measureProvider(cluster, count)
            try Self.publish(cluster, count, summary, herd: herd, alone: alone)
            // The provider runs in this process and shares its processors with three replicas, the database and the
            // readers: this bounds a stall, and is no measure of speed.
            #expect(herd < .seconds(30) + alone * 20)
        }
    }

    /// Reads until there is a token: a replica may say that it was waited for long enough.
    private static func read(_ user: Int, at replica: Int, of cluster: ChaosCluster) async throws {
        let deadline = MonotonicInstant.after(.seconds(120))
        while true {
            let read = await cluster.read(user, at: replica)
            if read.outcome == .user { return }
            guard case .refused(503, _) = read.outcome, MonotonicInstant.now < deadline else {
                throw ChaosCluster.Failure(description: "user \(user) at replica \(replica): \(read.outcome)")
            }
            try await Task.sleep(for: .milliseconds(100))
        }
    }

    /// As many refreshes at the provider itself, by as many callers.
    private static func measureProvider(_ cluster: ChaosCluster, _ count: Int) async throws -> Duration {
        let sessions = cluster.provider.provider.openSessions(users: (0..<count).map { "alone-\($0)" }) ?? []
        let tokens = sessions.compactMap(\.refreshToken)
        var configuration = HTTPSClientConfiguration()
        configuration.targets = .everything
        configuration.maximumConnectionsPerOrigin = callersPerReplica * ChaosSettings.replicas
        configuration.firstByteTimeout = .seconds(60)
        configuration.exchangeTimeout = .seconds(60)
        let loop = try EventLoop(name: "herd")
        let client = try HTTPSClient(configuration: configuration, loop: loop, resolver: PostgresServer.resolver)
        guard let url = URLTarget(cluster.provider.baseURL + "/v1/oauth2/token") else {
            throw ChaosCluster.Failure(description: "no URL: \(cluster.provider.baseURL)")
        }
        let begun = MonotonicInstant.now
        try await each(tokens.count, callers: callersPerReplica * ChaosSettings.replicas) { number in
            let form = FormEncoding.encode([
                .init("grant_type", "refresh_token"), .init("client_id", "app"),
                .init("refresh_token", tokens[number]),
            ])
            let answer = try await client.send(
                ClientRequest(
                    method: .post, url: url, fields: ["Content-Type": "application/x-www-form-urlencoded"],
                    body: Array(form.utf8)))
            guard answer.status == .ok else {
                throw ChaosCluster.Failure(description: "the provider answered \(answer.status)")
            }
        }
        let alone = begun.duration(to: .now)
        await client.close()
        loop.shutDown()
        return alone
    }

    /// Does the work for each number, in order, by so many callers at a time.
    private static func each(
        _ count: Int, callers: Int, _ work: @escaping @Sendable (Int) async throws -> Void
    ) async throws {
        let next = Counter()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for _ in 0..<min(callers, count) {
                group.addTask {
                    while let number = next.take(below: count) { try await work(number) }
                }
            }
            try await group.waitForAll()
        }
    }

    private final class Counter: Sendable {
        private let next = Atomic<Int>(0)

        func take(below end: Int) -> Int? {
            let number = next.add(1, ordering: .relaxed).oldValue
            return number < end ? number : nil
        }
    }

    private static func publish(
        _ cluster: ChaosCluster, _ count: Int, _ herdSummary: LedgerSummary, herd: Duration, alone: Duration
    ) throws {
        let reads = cluster.records.all.reads
        let waits = reads.filter { $0.outcome == .user }.map { $0.ended - $0.begun }.sorted()
        func rate(_ time: Duration) -> Int { Int(Double(count) / (time / .seconds(1))) }
        let table = """
            == herd
            storage keys               \(count) under \(cluster.tenantCount) tenants
            reads                      \(waits.count), by \(callersPerReplica) callers at each of \
            \(cluster.replicas.count) replicas
            asked to come back         \(reads.count - waits.count)
            refreshes                  \(herdSummary.rotations), \(herdSummary.presentedAgain) tokens presented again
            time                       \(herd.milliseconds) ms, \(rate(herd)) refreshes a second
            wait of a reader           \(waits[waits.count / 2]) ms in the middle, \
            \(waits[waits.count * 99 / 100]) ms of 99 in a hundred, \(waits[waits.count - 1]) ms at most
            the provider alone         \(alone.milliseconds) ms, \(rate(alone)) refreshes a second

            """
        print(table)
        try FileManager.default.createDirectory(atPath: ".build-artefacts", withIntermediateDirectories: true)
        try Data(table.utf8).write(to: URL(filePath: ".build-artefacts/herd.txt"))
    }
}
