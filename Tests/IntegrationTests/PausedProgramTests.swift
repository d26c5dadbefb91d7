import BrokerTesting
import DevelopmentProvider
import HTTPCodec
import Testing

/// One process of `token-broker` that the kernel stops while it waits, for longer than it would wait: as when a virtual
/// machine is moved or a debugger is attached.
@Suite(.timeLimit(.minutes(1)))
struct `The program, stopped while the provider answers` {
    @Test func `takes the response that came meanwhile, also though its limit has passed`() async throws {
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1", secret: "client-secret")]))
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port,
            [
                "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
                "DATA_DIR": directory.path, "PROVIDER_TIMEOUT": "3",
            ])
        let broker = try BrokerClient(port: port)
        try await broker.makeTenant("t1", at: provider)
        provider.provider.script(Fault(.token, grant: .clientCredentials, answerDelay: .milliseconds(300)))
        async let answer = broker.call(.get, "/credentials", tenant: "t1")
        while provider.provider.counters.requests(.clientCredentials) == 0 {
            try await Task.sleep(for: .milliseconds(5))
        }
        process.pause()
        // The response comes, and the time limit of the call passes.
        try await Task.sleep(for: .milliseconds(3300))
        while !provider.provider.requests.contains(where: { $0.grant == "client_credentials" && $0.finishedAt != nil })
        {
            try await Task.sleep(for: .milliseconds(5))
        }
        process.resume()
        let (status, text) = (try await answer.status, try await answer.text)
        #expect(status == 200, "\(text)")
        #expect(provider.provider.counters.requests(.clientCredentials) == 1)
        #expect(await process.terminate() == 0)
        await broker.close()
        await provider.close()
    }
}
