import BrokerTesting
import DevelopmentProvider
import ExternalText
import FoundationEssentials
import HTTPCodec
import JSON
import Reactor
import Testing

/// What callers of `token-broker` see while its PostgreSQL has a fault, and afterwards.
@Suite(.timeLimit(.minutes(4)))
struct `The program and its database` {
    /// The longest that a caller waits for an answer while the database is away.
    private static let limit: Duration = .seconds(15)
    /// From the database's return to the first write.
    private static let recovery: Duration = .seconds(8)

    private static let keys = ["MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true"]

    private struct Setting {
        let server: PostgresServer
        let provider: RunningProvider
        let process: TestProcess
        let broker: BrokerClient

        func call(
            _ method: HTTPCodec.Method, _ target: String, body: String? = nil
        ) async throws -> BrokerHarness.Answer {
            let start = MonotonicInstant.now
            let answer = try await broker.call(method, target, tenant: "t1", body: body)
            #expect(start.duration(to: .now) < limit)
            return answer
        }

        /// What needs the store, reading and writing.
        func expectUnavailable(_ method: HTTPCodec.Method, _ target: String, body: String? = nil) async throws {
            let answer = try await call(method, target, body: body)
            #expect(answer.status == 503, "\(method) \(target): \(answer.text)")
            #expect(answer.json["code"]?.string == "storage_unavailable", "\(answer.text)")
            #expect((answer.fields["Retry-After"]?.text).flatMap { Int($0) } ?? 0 > 0)
        }

        /// Waits until the server's connections have heard of the setting: each hears of it by a signal of its own.
        func untilReadOnly() async throws {
            var refusals = 0
            for _ in 0..<1000 where refusals < 10 {
                let answer = try await call(.post, "/login/initialize", body: "{}")
                refusals = answer.status == 503 ? refusals + 1 : 0
            }
        }

        /// The credentials that the broker has in memory, which are valid for long yet.
        func expectCredentials() async throws {
            let answer = try await call(.get, "/credentials")
            #expect(answer.status == 200, "\(answer.text)")
        }

        /// How long it takes until a write succeeds.
        func expectRecovery(_ what: String) async throws {
            let start = MonotonicInstant.now
            while true {
                let sent = start.duration(to: .now)
                if try await call(.post, "/login/initialize", body: "{}").status == 201 { break }
                guard sent < recovery else {
                    Issue.record("no recovery: \(what)")
                    return
                }
            }
            print("the program's recovery after \(what): \(start.duration(to: .now))")
            let renewed = try await call(.get, "/credentials?policy=local_force_refresh")
            #expect(renewed.status == 200, "\(renewed.text)")
            try await expectReadiness(200)
        }

        /// What the broker has found out of its store is good for a second.
        func expectReadiness(_ status: Int) async throws {
            let start = MonotonicInstant.now
            var asked = 0
            while true {
                // What counts is when the broker was asked: this task may be held up until it sees the answer.
                let sent = start.duration(to: .now)
                let answer = try await call(.get, "/readyz")
                if answer.status == status { return }
                asked += 1
                guard sent < recovery else {
                    let log = process.lines.filter { !$0.contains("/readyz") }.suffix(20).joined(separator: "\n")
                    Issue.record(
                        "/readyz answered \(asked) times in \(sent), and never \(status): \(answer.text)\n\(log)")
                    return
                }
            }
        }
    }

    private static func run(_ body: (Setting) async throws -> Void) async throws {
        let server = try await PostgresServer()
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1")]))
        let port = try PostgresServer.freePort()
        var variables = keys
        variables["DATABASE_URL"] = server.uri(database: "postgres")
        let process = try await BrokerProcess.start(port: port, variables)
        let broker = try BrokerClient(port: port)
        try await broker.makeTenant(at: provider)
        try await broker.logIn(at: provider)
        let setting = Setting(server: server, provider: provider, process: process, broker: broker)
        try await setting.expectCredentials()
        try await body(setting)
        #expect(await process.terminate() == 0)
        await broker.close()
        await provider.close()
        try await server.stop(.immediate)
    }

    // H083
    @Test func `credentials in memory outlive a database that is killed or stopped, and all recovers by itself`()
        async throws
    {
        try await Self.run { setting in
            for isKilled in [true, false] {
                if isKilled { try await setting.server.kill() } else { try await setting.server.stop(.fast) }
                for _ in 0..<3 {
                    try await setting.expectCredentials()
                    try await setting.expectUnavailable(.post, "/login/initialize", body: "{}")
                    try await setting.expectUnavailable(.get, "/credentials?storage_key=never-read")
                    try await setting.expectUnavailable(.put, "/tenants/t2", body: #"{"client_id": "c2"}"#)
                    try await setting.expectReadiness(503)
                    #expect(try await setting.call(.get, "/livez").status == 200)
                }
                try await setting.server.start()
                try await setting.expectRecovery("a restart")
                try await setting.expectCredentials()
            }
        }
    }

    // H084
    @Test func `credentials in memory and those in a read-only database are handed out, and what writes waits for it`()
        async throws
    {
        try await Self.run { setting in
            let usual = try await setting.call(.get, "/credentials?storage_key=nobody")
            try await setting.server.setReadOnly(true)
            try await setting.untilReadOnly()
            for round in 0..<3 {
                try await setting.expectCredentials()
                let read = try await setting.call(.get, "/credentials?storage_key=never-read-\(round)")
                #expect(read.status == usual.status, "\(usual.text) \(read.text)")
                try await setting.expectUnavailable(.post, "/login/initialize", body: "{}")
                try await setting.expectReadiness(503)
            }
            try await setting.server.setReadOnly(false)
            try await setting.expectRecovery("a read-only database")
        }
    }

    @Test func `works behind a pooler, with notifications on a direct connection, from a file, or without`()
        async throws
    {
        let server = try await PostgresServer.shared.value
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1")]))
        let pooler = try await PgBouncerServer.start(before: server)
        let database = try await server.makeDatabase()
        let files = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: files.path, withIntermediateDirectories: true)
        try Data("\(server.uri(database: database))\n".utf8).write(to: URL(filePath: files.path + "/listen"))
        var isFirst = true
        for listening in [["DATABASE_LISTEN_URL_FILE": files.path + "/listen"], [:], ["DATABASE_LISTEN_URL": "off"]] {
            let port = try PostgresServer.freePort()
            var variables = Self.keys.merging(listening) { _, new in new }
            variables["DATABASE_URL"] = pooler.uri(database: database)
            variables["DATABASE_POOLER"] = "true"
            let process = try await BrokerProcess.start(port: port, variables)
            let broker = try BrokerClient(port: port)
            if isFirst { try await broker.makeTenant(at: provider) }
            isFirst = false
            try await broker.logIn(at: provider)
            let answer = try await broker.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
            #expect(answer.status == 200)
            #expect(await process.terminate() == 0)
            let complaints = process.lines.filter {
                $0.contains("database_failed") || $0.contains("unknown_environment")
            }
            #expect(complaints == [])
            await broker.close()
        }
        await pooler.stop()
        await provider.close()
    }

    @Test func `a logout at one replica is known to the other at once`() async throws {
        let server = try await PostgresServer.shared.value
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1")]))
        let pooler = try await PgBouncerServer.start(before: server)
        let database = try await server.makeDatabase()
        var variables = Self.keys
        variables["DATABASE_URL"] = pooler.uri(database: database)
        variables["DATABASE_POOLER"] = "true"
        variables["DATABASE_LISTEN_URL"] = server.uri(database: database)
        // So nothing but a notification makes a change known soon.
        variables["CACHE_SECONDS"] = "3600"
        var processes: [TestProcess] = []
        var brokers: [BrokerClient] = []
        for _ in 0..<2 {
            let port = try PostgresServer.freePort()
            let process = try await BrokerProcess.start(port: port, variables)
            _ = try await process.line { $0.contains("change_feed_following") }
            processes.append(process)
            brokers.append(try BrokerClient(port: port))
        }
        try await brokers[0].makeTenant(at: provider)
        for round in 0..<3 {
            try await brokers[round % 2].logIn(at: provider)
            for broker in brokers {
                // The notification of a login is on its way for a moment.
                let begun = MonotonicInstant.now
                while try await broker.call(.get, "/credentials", tenant: "t1").json["level"]?.string != "user" {
                    try #require(begun.duration(to: .now) < .seconds(20))
                }
            }
            let start = MonotonicInstant.now
            #expect(try await brokers[0].call(.delete, "/credentials", tenant: "t1").status == 204)
            while try await brokers[1].call(.get, "/credentials", tenant: "t1").json["level"]?.string == "user" {
                // Without notifications it would take until the records in memory are checked, after 50 s.
                try #require(start.duration(to: .now) < .seconds(20))
            }
            print("a logout was known to the other replica after \(start.duration(to: .now))")
        }
        for process in processes { #expect(await process.terminate() == 0) }
        for broker in brokers { await broker.close() }
        await pooler.stop()
        await provider.close()
    }

    @Test func `faults of the pooler's and the listener's variables are told`() async throws {
        let server = try await PostgresServer.shared.value
        let (status, output) = try await BrokerProcess.run(
            ["config", "check"],
            [
                "ADMIN_KEY": BrokerHarness.adminKey, "MASTER_KEYS": BrokerHarness.masterKeys,
                "DATABASE_URL": server.uri(database: "postgres"), "DATABASE_POOLER": "maybe",
                "DATABASE_LISTEN_URL": "postgresql://user:hunter2@host:port/db",
            ])
        #expect(status == 78)
        #expect(output.contains("TOKEN_BROKER_DATABASE_POOLER must be true or false"))
        #expect(output.contains("TOKEN_BROKER_DATABASE_LISTEN_URL "))
        #expect(!output.contains("hunter2"))
    }
}
