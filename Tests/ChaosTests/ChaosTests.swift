import BrokerTesting
import DevelopmentProvider
import Reactor
import Testing

/// Three broker processes, one PostgreSQL and one provider that rotates refresh tokens and revokes a family whose token
/// comes back; see `ChaosSettings` for what can be chosen, and `Tests/ChaosTests/run` for long runs.
@Suite(.serialized)
struct `A cluster` {
    /// A token is renewed when it has less than a minute left: these live for a few seconds beyond that.
    private static let lifetime: Duration = .seconds(65)

    // H050 H077 H086 H088
    @Test(.timeLimit(.minutes(600)))
    func `keeps every user logged in, whatever happens to it`() async throws {
        let settings = try ChaosSettings()
        print(
            "CHAOS_SEED=\(settings.seed) CHAOS_SECONDS=\(settings.seconds) CHAOS_USERS=\(settings.users) "
                + "CHAOS_GRACE=\(settings.graceSeconds) CHAOS_PGBOUNCER=\(settings.pooling.rawValue)")
        try await ChaosCluster.run(settings, lifetime: Self.lifetime) { cluster in
            try await Self.logInAll(cluster)
            try await ChaosActivity(cluster: cluster).run()
            try await Self.conclude(cluster, "chaos")
        }
    }

    // H076
    @Test(.timeLimit(.minutes(5)))
    func `refreshes exactly when it must while nothing fails`() async throws {
        try await ChaosCluster.run(try .peaceful(seconds: 20, users: 30), lifetime: Self.lifetime) { cluster in
            try await Self.logInAll(cluster)
            try await ChaosActivity(cluster: cluster).run()
            let verdict = try await Self.conclude(cluster, "peace")
            #expect(verdict.repeats.isEmpty)
            // Every version but a login's own was brought by one call, and no call brought nothing.
            var versions: [Int: Set<Int64>] = [:]
            for read in verdict.state.reads where read.outcome == .user {
                versions[read.user, default: []].insert(read.version)
            }
            let first = verdict.state.writes.reduce(into: 0) { count, write in
                if let version = write.version, versions[write.user]?.contains(version) == true { count += 1 }
            }
            let needed = versions.values.reduce(0) { $0 + $1.count } - first
            #expect(verdict.presentations.count == needed)
            #expect(verdict.refreshes == needed)
            #expect(needed > settingsUsers(cluster))
            #expect(verdict.state.reads.allSatisfy { $0.outcome == .user })
            // No call came while the token before it was good for a minute yet.
            for entry in cluster.provider.provider.ledger.users {
                for token in entry.families.flatMap(\.refreshTokens) {
                    guard let used = token.presentedAt.first else { continue }
                    #expect(used - token.issuedAt > 4000, "\(entry.user.name) was refreshed early")
                }
            }
        }
    }

    private func settingsUsers(_ cluster: ChaosCluster) -> Int { cluster.settings.users }

    private static func logInAll(_ cluster: ChaosCluster) async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for user in 0..<cluster.settings.users {
                if user >= 24 { try await group.next() }
                group.addTask {
                    try await cluster.logIn(
                        user, first: user % cluster.replicas.count, until: .after(.seconds(60)))
                }
            }
            try await group.waitForAll()
        }
    }

    /// Looks at every user at every replica once more, draws the conclusions and prints them.
    @discardableResult
    private static func conclude(_ cluster: ChaosCluster, _ name: String) async throws -> ChaosVerdict {
        let lastWrites = Dictionary(
            cluster.records.all.writes.map { ($0.user, $0) }, uniquingKeysWith: { _, later in later })
        let last = await finalReads(cluster, lastWrites)
        await waitForListeners(cluster)
        let names = Dictionary(
            uniqueKeysWithValues: (0..<cluster.settings.users).map { (ChaosCluster.userName($0), $0) })
        let log = await ChaosLog(cluster)
        var verdict = ChaosVerdict(
            cluster.records.all, provider: cluster.provider.provider, unknownOutcomes: log.unknownOutcomes,
            polling: cluster.polling, userOfName: names, graceSeconds: cluster.settings.graceSeconds,
            judgesRecovery: cluster.settings.judgesRecovery)
        for read in last {
            guard let write = lastWrites[read.user] else { continue }
            // What was lost is told already.
            if !isRight(read, write), !verdict.losses.contains(where: { $0.family == write.families.last }) {
                verdict.add(
                    ChaosVerdict.Violation(
                        rule: .notHealed, user: read.user, at: read.begun,
                        text: "replica \(read.replica): \(read.outcome) of family \(read.family ?? 0) after a "
                            + "\(write.kind.rawValue) of families \(write.families)"))
            }
        }
        let told = try ChaosReport(cluster, verdict, log).publish(name)
        if !told.isEmpty { Issue.record("\(told)") }
        return verdict
    }

    /// Events come behind what they tell of; what has not come in this time is missing.
    private static func waitForListeners(_ cluster: ChaosCluster) async {
        let deadline = MonotonicInstant.after(.seconds(15))
        while !ChaosVerdict.isCaughtUp(cluster.records.all), MonotonicInstant.now < deadline {
            try? await Task.sleep(for: .milliseconds(500))
        }
    }

    private static func isRight(_ read: Read, _ write: Write?) -> Bool {
        switch write?.kind {
        case .login: read.outcome == .user && read.family == write?.families.last
        case .logout: read.outcome == .lower
        case nil: true
        }
    }

    /// An answer for every user from every replica: the right one, where it comes in time.
    private static func finalReads(_ cluster: ChaosCluster, _ writes: [Int: Write]) async -> [Read] {
        let deadline = MonotonicInstant.after(.seconds(20))
        return await withTaskGroup(of: [Read].self) { group in
            for replica in 0..<cluster.replicas.count {
                for part in 0..<8 {
                    group.addTask {
                        var reads: [Read] = []
                        for user in stride(from: part, to: cluster.settings.users, by: 8) {
                            var read = await cluster.read(user, at: replica)
                            while !isRight(read, writes[user]), MonotonicInstant.now < deadline {
                                try? await Task.sleep(for: .milliseconds(200))
                                read = await cluster.read(user, at: replica)
                            }
                            reads.append(read)
                        }
                        return reads
                    }
                }
            }
            return await group.reduce(into: []) { $0 += $1 }
        }
    }
}
