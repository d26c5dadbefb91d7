import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Testing

/// Replicas of `token-broker` on one PostgreSQL, of which each is asked to create the same user's account.
@Suite(.timeLimit(.minutes(2)))
struct `The program and a user's account` {
    private static let target = "/credentials?policy=create_if_needed"

    private static func start() async throws -> (
        server: PostgresServer, provider: RunningProvider, processes: [TestProcess], brokers: [BrokerClient]
    ) {
        let server = try await PostgresServer()
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .duckduckgo, clients: [ProviderClient("app")]))
        let variables = [
            "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
            "DATABASE_URL": server.uri(database: "postgres"),
        ]
        var (processes, brokers): ([TestProcess], [BrokerClient]) = ([], [])
        for _ in 0..<3 {
            let port = try PostgresServer.freePort()
            processes.append(try await BrokerProcess.start(port: port, variables))
            brokers.append(try BrokerClient(port: port))
        }
        let answer = try await brokers[0].call(
            .put, "/tenants/t1",
            body:
                #"{"provider": "duckduckgo", "client_id": "app", "auth_service_base_uri": "\#(provider.baseURL)"}"#)
        #expect(answer.status == 201)
        return (server, provider, processes, brokers)
    }

    @Test func `is created by one replica for fifty callers of all`() async throws {
        let (server, provider, processes, brokers) = try await Self.start()
        for round in 1...3 {
            // All of them ask while the requests of the first one are under way.
            provider.provider.script(Fault(.createAccount, answerDelay: .milliseconds(500)))
            let target = Self.target + "&storage_key=k\(round)"
            let answers = try await withThrowingTaskGroup(of: BrokerHarness.Answer.self) { group in
                for caller in 0..<50 {
                    group.addTask { try await brokers[caller % 3].call(.get, target, tenant: "t1") }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            for answer in answers { #expect(answer.status == 200, "\(answer.text)") }
            #expect(Set(answers.map { $0.json["token"]?.string }).count == 1)
            #expect(Set(answers.map { $0.fields["ETag"]?.text }).count == 1)
            #expect(provider.provider.counters.requests(.createAccount) == round)
        }
        for process in processes { #expect(await process.terminate() == 0) }
        for broker in brokers { await broker.close() }
        await provider.close()
        try await server.stop(.immediate)
    }

    @Test func `is created by another replica where the first one dies before it has sent the request`() async throws {
        let (server, provider, processes, brokers) = try await Self.start()
        provider.provider.script(Fault(.authorize, delay: .seconds(60)))
        let first = Task { try? await brokers[0].call(.get, Self.target, tenant: "t1") }
        try await provider.provider.waitForRequests(1, at: .authorize)
        await processes[0].kill()
        // The others wait until the lease of the dead process has run out.
        let answers = try await withThrowingTaskGroup(of: BrokerHarness.Answer.self) { group in
            for broker in brokers.dropFirst() {
                for _ in 0..<5 { group.addTask { try await broker.call(.get, Self.target, tenant: "t1") } }
            }
            return try await group.reduce(into: []) { $0.append($1) }
        }
        for answer in answers { #expect(answer.status == 200, "\(answer.text)") }
        #expect(Set(answers.map { $0.json["token"]?.string }).count == 1)
        #expect(provider.provider.counters.requests(.createAccount) == 1)
        _ = await first.value
        for process in processes.dropFirst() { #expect(await process.terminate() == 0) }
        for broker in brokers { await broker.close() }
        await provider.close()
        try await server.stop(.immediate)
    }
}
