import BrokerCore
import BrokerTesting
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import OAuth
import Reactor
import Synchronization
import Testing

/// Replicas of `token-broker` whose PostgreSQL fails over to a standby that had not received the last commits. The
/// provider takes a refresh token once, and ends the session when it is presented again.
@Suite(.timeLimit(.minutes(4)))
struct `The program and a standby that is behind` {
    private static let users = 40
    /// Of these, logged out while the standby is behind.
    private static let leavers = 0..<3

    /// Two clusters, a provider and replicas of the program.
    private final class Setting: Sendable {
        let primary: PostgresServer
        let standby: PostgresServer
        let provider: RunningProvider
        let brokers: [BrokerClient]
        private let files = StoreFixtureDirectory()
        private let variables: [[String: String]]
        private let ports: [UInt16]
        private let running: Mutex<[TestProcess]>

        var processes: [TestProcess] { running.withLock { $0 } }

        init(replicas: Int, hasJournal: Bool = false, _ others: [String: String] = [:]) async throws {
            primary = try await PostgresServer()
            standby = try await PostgresServer(replicaOf: primary)
            var configuration = ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1")])
            configuration.rotation = .rotate(grace: .zero)
            provider = try RunningProvider(configuration)
            var (ports, variables): ([UInt16], [[String: String]]) = ([], [])
            var (processes, brokers): ([TestProcess], [BrokerClient]) = ([], [])
            for index in 0..<replicas {
                var own = [
                    "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
                    "DATABASE_URL": "postgresql://postgres:\(PostgresServer.password)@\(primary.address):"
                        + "\(primary.port),\(standby.address):\(standby.port)/postgres?sslmode=disable"
                        + "&target_session_attrs=read-write",
                    // Nothing is limited: many users are refreshed at once by one key.
                    "WRITE_RATE": "0", "LOGIN_RATE": "0", "REQUEST_RATE": "0",
                ]
                if hasJournal {
                    let directory = "\(files.path)/journal-\(index)"
                    try FileManager.default.createDirectory(
                        atPath: directory, withIntermediateDirectories: true,
                        attributes: [.posixPermissions: 0o700])
                    own["JOURNAL_DIR"] = directory
                }
                own.merge(others) { _, new in new }
                let port = try PostgresServer.freePort()
                variables.append(own)
                ports.append(port)
                processes.append(try await BrokerProcess.start(port: port, own))
                brokers.append(try BrokerClient(port: port))
            }
            (self.ports, self.variables, self.brokers) = (ports, variables, brokers)
            running = Mutex(processes)
            try await brokers[0].makeTenant(at: provider)
            for user in 0..<users {
                try await brokers[user % replicas].logIn(storageKey: "u\(user)", user: "user-\(user)", at: provider)
            }
            try await standby.catchUp(with: primary)
        }

        /// Each user is refreshed, and some are logged out, while the standby receives nothing.
        func work() async throws {
            try await standby.cutOff()
            for user in 0..<users {
                let answer = try await refresh(user, at: user % brokers.count)
                try #require(answer.status == 200, "\(answer.text)")
            }
            for user in leavers {
                let answer = try await brokers[user % brokers.count].call(
                    .delete, "/credentials?storage_key=u\(user)", tenant: "t1")
                try #require(answer.status == 204, "\(answer.text)")
            }
        }

        func refresh(_ user: Int, at replica: Int) async throws -> BrokerHarness.Answer {
            try await Self.refresh(user, brokers[replica])
        }

        private static func refresh(_ user: Int, _ broker: BrokerClient) async throws -> BrokerHarness.Answer {
            try await broker.call(
                .get, "/credentials?policy=local_force_refresh&storage_key=u\(user)", tenant: "t1")
        }

        func restart(_ replica: Int) async throws {
            let process = try await BrokerProcess.start(port: ports[replica], variables[replica])
            running.withLock { $0[replica] = process }
        }

        func failOver() async throws {
            try await primary.kill()
            try await standby.promote()
        }

        /// The users who are logged in, and those whose tokens a replica cannot have refreshed.
        func loggedIn(at replica: Int) async throws -> Set<Int> {
            let broker = brokers[replica]
            return try await withThrowingTaskGroup(of: Int?.self) { group in
                for user in 0..<`The program and a standby that is behind`.users {
                    group.addTask {
                        var answer = try await Self.refresh(user, broker)
                        // A replica refuses for a while, until no other replica may have a newer token.
                        let deadline = MonotonicInstant.after(.seconds(60))
                        while answer.status == 503, MonotonicInstant.now < deadline {
                            try await Task.sleep(for: .milliseconds(100))
                            answer = try await Self.refresh(user, broker)
                        }
                        return answer.status == 200 && answer.json["level"]?.string == "user" ? user : nil
                    }
                }
                return try await group.reduce(into: []) { users, user in if let user { users.insert(user) } }
            }
        }

        /// Whether the replica has the user's credentials, without a refresh.
        func isLoggedIn(_ user: Int, at replica: Int) async throws -> Bool {
            let answer = try await brokers[replica].call(
                .get, "/credentials?policy=local&storage_key=u\(user)", tenant: "t1")
            return answer.status == 200 && answer.json["level"]?.string == "user"
        }

        func lines(_ event: String, at replica: Int) -> [JSONValue] {
            processes[replica].lines.compactMap { line in
                guard line.contains("\"event\":\"\(event)\"") else { return nil }
                return try? JSONValue(parsing: Array(line.utf8))
            }
        }

        func close() async throws {
            for process in processes { #expect(await process.terminate() == 0) }
            for broker in brokers { await broker.close() }
            await provider.close()
            try await standby.stop(.immediate)
        }
    }

    /// What the log calls a user.
    private static func digest(of user: Int) -> String {
        CredentialsID(tenant: TenantName("t1")!, storageKey: StorageKey("u\(user)")!).storageKeyDigest
    }

    private static let stayers = Set(0..<users).subtracting(leavers)

    /// How long a replica takes from the promotion to its first write.
    private static func expectReconnection(_ broker: BrokerClient) async throws {
        let start = MonotonicInstant.now
        while try await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}").status != 201 {
            try #require(start.duration(to: .now) < .seconds(10), "no write after the promotion")
        }
        let took = start.duration(to: .now)
        print("the first write after the promotion: \(took)")
        #expect(took < .seconds(1))
    }

    @Test func `one replica loses no session, and logs no user in who was logged out`() async throws {
        let setting = try await Setting(replicas: 1)
        try await setting.work()
        try await setting.failOver()
        try await Self.expectReconnection(setting.brokers[0])
        let loggedIn = try await setting.loggedIn(at: 0)
        print("one replica: \(loggedIn.count) of \(Self.stayers.count) are logged in")
        #expect(loggedIn == Self.stayers)
        _ = try await setting.processes[0].line { $0.contains("store_went_back") }
        let line = try #require(setting.lines("store_went_back", at: 0).first)
        #expect(line["restored"]?.integer == Int64(Self.stayers.count))
        #expect(line["ended_again"]?.integer == Int64(Self.leavers.count) && line["lost"]?.integer == 0)
        try await setting.close()
    }

    @Test func `without the memory, all are lost`() async throws {
        let setting = try await Setting(replicas: 1, ["GRANT_MEMORY": "0"])
        try await setting.work()
        try await setting.failOver()
        try await Self.expectReconnection(setting.brokers[0])
        let loggedIn = try await setting.loggedIn(at: 0)
        print("without the memory: \(loggedIn.count) of \(Self.users) are logged in")
        #expect(loggedIn.isEmpty)
        try await setting.close()
    }

    @Test func `two replicas lose no session, whichever of them is asked`() async throws {
        let setting = try await Setting(replicas: 2)
        try await setting.work()
        try await setting.failOver()
        try await Self.expectReconnection(setting.brokers[1])
        async let one = setting.loggedIn(at: 0)
        async let two = setting.loggedIn(at: 1)
        let (first, second) = try await (one, two)
        print("two replicas: \(first.count) and \(second.count) of \(Self.stayers.count) are logged in")
        #expect(first == Self.stayers && second == Self.stayers)
        try await setting.close()
    }

    @Test func `a replica that is killed at the same time loses no session with a journal`() async throws {
        let setting = try await Setting(replicas: 2, hasJournal: true)
        try await setting.work()
        await setting.processes[0].kill()
        try await setting.failOver()
        try await setting.restart(0)
        let loggedIn = try await setting.loggedIn(at: 1)
        print("killed, with a journal: \(loggedIn.count) of \(Self.stayers.count) are logged in")
        #expect(loggedIn == Self.stayers)
        try await setting.close()
    }

    @Test func `replicas that were all killed, and start one after the other, lose no session with journals`()
        async throws
    {
        let setting = try await Setting(replicas: 2, hasJournal: true)
        try await setting.work()
        for process in setting.processes { await process.kill() }
        try await setting.failOver()
        try await setting.restart(0)
        // Longer than the hold: replica 1, which has the newest token of half of the users, is waited for.
        let early = try await setting.refresh(5, at: 0)
        #expect(early.status == 503, "\(early.text)")
        #expect(setting.lines("journal_awaited", at: 0).count == 1)
        try await setting.restart(1)
        let loggedIn = try await setting.loggedIn(at: 0)
        print("started one after the other: \(loggedIn.count) of \(Self.stayers.count) are logged in")
        #expect(loggedIn == Self.stayers)
        _ = try await setting.processes[0].line { $0.contains("journal_taken_up") }
        try await setting.close()
    }

    @Test func `a replica that is killed at the same time without a journal says so where it loses a session`()
        async throws
    {
        let setting = try await Setting(replicas: 2)
        try await setting.work()
        await setting.processes[0].kill()
        try await setting.failOver()
        try await setting.restart(0)
        let loggedIn = try await setting.loggedIn(at: 1)
        let own = Self.stayers.filter { $0 % 2 == 1 }
        print("killed, without a journal: \(loggedIn.count) of \(Self.stayers.count) are logged in")
        #expect(loggedIn.isSuperset(of: own))
        // Replica 0 had refreshed these, and replica 1 asked for them what the provider had taken already. The line is written once
        // the renewal has ended, which may be after its caller has the answer.
        let lost = Set(0..<Self.users).subtracting(loggedIn).filter { $0 % 2 == 0 }
        #expect(lost.union(loggedIn).isSuperset(of: Self.stayers))
        for user in lost {
            let digest = Self.digest(of: user)
            _ = try await setting.processes[1].line { $0.contains("\"session_lost\"") && $0.contains(digest) }
        }
        // It says so of no other user.
        for user in loggedIn where try await setting.isLoggedIn(user, at: 1) {
            let digest = Self.digest(of: user)
            #expect(!setting.lines("session_lost", at: 1).contains { $0["storage_key_digest"]?.text == digest })
        }
        _ = try await setting.processes[1].line { $0.contains("store_went_back") }
        #expect(setting.lines("store_went_back", at: 1).contains { ($0["lost"]?.integer ?? 0) > 0 })
        _ = try await setting.processes[0].line { $0.contains("store_went_back") }
        try await setting.close()
    }
}
