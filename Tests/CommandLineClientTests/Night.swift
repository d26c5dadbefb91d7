import BrokerTesting
import CommandLineClient
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Testing

/// A broker process with three users of a provider.
struct Night {
    let provider: RunningProvider
    let process: TestProcess
    let broker: BrokerClient
    let environment: [String: String]
    private let directory = StoreFixtureDirectory()

    init() async throws {
        provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1")]))
        let port = try PostgresServer.freePort()
        process = try await BrokerProcess.start(
            port: port,
            [
                "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
                "DATA_DIR": directory.path,
            ])
        broker = try BrokerClient(port: port)
        environment = [
            "TOKEN_BROKER_URL": "http://127.0.0.1:\(port)", "TOKEN_BROKER_API_KEY": BrokerHarness.adminKey,
            "TOKEN_BROKER_TENANT": "t1",
        ]
        try await broker.makeTenant("t1", at: provider)
        for user in ["alice", "bob", "carol"] {
            try await broker.logIn(storageKey: "user-\(user)", user: user, at: provider)
        }
    }

    func end() async {
        await process.terminate()
        await broker.close()
        await provider.close()
    }

    /// The provider answers the next refreshes of the users as if their sessions had ended.
    func refuse(_ users: String...) async throws {
        script(users.count)
        for user in users {
            let answer = try await broker.call(
                .get, "/credentials?storage_key=user-\(user)&policy=local_force_refresh", tenant: "t1")
            #expect(answer.json["session"]?["cause"]?.string == "revoked", "\(answer.text)")
        }
    }

    func run(
        _ words: [String], answers: [String] = [], canAsk: Bool = false
    ) async -> (status: CommandLineClient.ExitStatus, output: String, errors: String) {
        let terminal = RecordedTerminal(canAsk: canAsk, answers: answers)
        let status: CommandLineClient.ExitStatus
        switch CommandProgram.step(words, terminal: terminal, environment: environment) {
        case .end(let ended): status = ended
        case .run(let invocation): status = await CommandProgram.run(invocation)
        case .service: status = .usage
        }
        return (status, terminal.output, terminal.errors)
    }

    /// From now on the provider's refusals are a wave: the sessions are held.
    func beginWave() async throws {
        let answer = try await broker.call(
            .patch, "/tenants/t1", body: #"{"wave": {"users": 1, "share": 0.01, "trial": 3600}}"#)
        #expect(answer.status == 200, "\(answer.text)")
    }

    /// The provider refuses the next refresh of the user, whose session is held, and the wave's first trial, which follows at once.
    /// During a wave no other user's is asked for.
    func hold(_ user: String) async throws {
        script(2)
        let answer = try await broker.call(
            .get, "/credentials?storage_key=user-\(user)&policy=local_force_refresh", tenant: "t1")
        #expect(answer.status == 424 && answer.json["code"]?.string == "illegal_configuration", "\(answer.text)")
    }

    private func script(_ times: Int) {
        let body = #"{"error": "invalid_grant", "status": 400, "sub_status": 11003}"#
        provider.provider.script(
            Fault(
                .token, grant: .refreshToken, times: times, status: .badRequest,
                fields: ["Content-Type": "application/json"], body: Array(body.utf8)))
    }

    /// Whether the broker has a token of the user.
    func expect(_ user: String, isLoggedIn: Bool) async throws {
        let answer = try await broker.call(.get, "/credentials?storage_key=user-\(user)", tenant: "t1")
        #expect((answer.json["level"]?.string == "user") == isLoggedIn, "\(user): \(answer.text)")
    }

    /// Runs `body`, and ends the broker and the provider then.
    static func run(_ body: (Night) async throws -> Void) async throws {
        let night = try await Night()
        do {
            try await body(night)
        } catch {
            await night.end()
            throw error
        }
        await night.end()
    }

    /// The rows of a table, without its header, each with the cells that have no space.
    static func rows(_ output: String) -> [[String]] {
        output.split(separator: "\n").dropFirst().map { $0.split(separator: " ").map(String.init) }
    }
}
