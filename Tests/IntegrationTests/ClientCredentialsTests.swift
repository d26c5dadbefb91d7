import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Testing

/// Replicas of `token-broker` on one PostgreSQL, of which each is asked for a client's credentials that none has yet.
@Suite(.timeLimit(.minutes(2)))
struct `The program and a client's first credentials` {
    private static let replicas = 3

    @Test func `are fetched by one call of all replicas`() async throws {
        let server = try await PostgresServer()
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1", secret: "client-secret")]))
        let variables = [
            "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
            "DATABASE_URL": server.uri(database: "postgres"),
        ]
        var (processes, brokers): ([TestProcess], [BrokerClient]) = ([], [])
        for _ in 0..<Self.replicas {
            let port = try PostgresServer.freePort()
            processes.append(try await BrokerProcess.start(port: port, variables))
            brokers.append(try BrokerClient(port: port))
        }
        for round in 1...3 {
            let tenant = "t\(round)"
            try await brokers[0].makeTenant(tenant, at: provider)
            // All of them ask while the call of the first one is under way.
            provider.provider.script(Fault(.token, grant: .clientCredentials, answerDelay: .milliseconds(500)))
            let answers = try await withThrowingTaskGroup(of: BrokerHarness.Answer.self) { group in
                for broker in brokers {
                    for _ in 0..<4 { group.addTask { try await broker.call(.get, "/credentials", tenant: tenant) } }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(answers.count == 4 * Self.replicas)
            for answer in answers {
                #expect(answer.status == 200 && answer.json["level"]?.string == "client", "\(answer.text)")
            }
            #expect(Set(answers.map { $0.json["token"]?.string }).count == 1)
            #expect(Set(answers.map { $0.fields["ETag"]?.text }).count == 1)
            #expect(provider.provider.counters.requests(.clientCredentials) == round)
        }
        for process in processes { #expect(await process.terminate() == 0) }
        for broker in brokers { await broker.close() }
        await provider.close()
        try await server.stop(.immediate)
    }
}
