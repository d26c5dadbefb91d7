import AuthTesting
import BrokerTesting
import CommandLineClient
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Testing

/// A broker as a program, and a provider with a page at which users log in.
final class UserFixture: Sendable {
    let port: UInt16
    let provider: RunningProvider
    let admin: BrokerClient
    private let directory = StoreFixtureDirectory()
    private let process: TestProcess

    /// Has the tenant `web` with a client without a secret, so that there is no token but a user's.
    init() async throws {
        var configuration = ProviderConfiguration(
            profile: .rfc, clients: [ProviderClient("app", secret: nil, scopes: ["r_usr", "w_usr"])])
        configuration.deviceInterval = .seconds(1)
        provider = try RunningProvider(configuration)
        port = try PostgresServer.freePort()
        process = try await BrokerProcess.start(
            port: port,
            [
                "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
                "PUBLIC_BASE_URL": "http://127.0.0.1:\(port)",
            ])
        admin = try BrokerClient(port: port)
        try await makeTenant("web")
    }

    func makeTenant(_ name: String) async throws {
        let answer = try await admin.call(
            .put, "/tenants/\(name)",
            body: #"""
                {"provider": "oidc", "issuer": "\#(provider.baseURL)", "client_id": "app", "scopes": ["r_usr", "w_usr"]}
                """#)
        #expect(answer.status == 201, "\(answer.text)")
    }

    /// Stores a user's credentials, which expire in the year 2099.
    func store(_ token: String, storageKey: String = "default", refreshToken: String? = nil) async throws {
        let body = JSONWriter.object { writer in
            writer.member("storage_key", storageKey)
            writer.name("credentials")
            writer.object { writer in
                writer.member("client_id", "app")
                writer.member("level", "user")
                writer.member("granted_scopes", ["r_usr"])
                writer.member("user_id", "42")
                writer.member("expires", "2099-01-01T00:00:00Z")
                writer.member("token", token)
            }
            writer.memberIfPresent("refresh_token", refreshToken)
        }
        let answer = try await admin.call(
            .put, "/credentials", tenant: "web", body: String(decoding: body, as: UTF8.self))
        #expect(answer.status == 200, "\(answer.text)")
    }

    var environment: [String: String] {
        ["TOKEN_BROKER_URL": "http://127.0.0.1:\(port)", "TOKEN_BROKER_API_KEY": BrokerHarness.adminKey]
    }

    /// Runs a command in this process.
    func run(
        _ words: String..., terminal: RecordedTerminal = RecordedTerminal(), variables: [String: String] = [:]
    ) async -> (status: ExitStatus, terminal: RecordedTerminal) {
        let environment = environment.merging(variables) { $1 }
        switch CommandProgram.step(words, terminal: terminal, environment: environment) {
        case .end(let status): return (status, terminal)
        case .run(let invocation): return (await CommandProgram.run(invocation), terminal)
        case .service:
            Issue.record("\(words) is a command of the service")
            return (.failed, terminal)
        }
    }

    /// Starts a command as a program; both its outputs are its lines.
    func start(_ words: String..., variables: [String: String] = [:]) async throws -> TestProcess {
        try await BrokerProcess.start(
            command: words,
            environment: environment.merging(["PATH": "/usr/bin:/bin"]) { $1 }.merging(variables) { $1 })
    }

    /// Types a user code into the provider's page.
    func decide(_ userCode: String, _ decision: String = "approve") async throws {
        let page = try await admin.call(
            .post, provider.baseURL + "/link", key: nil,
            body: FormEncoding.encode([
                .init("user_code", userCode), .init("user", "alice"), .init("decision", decision),
            ]),
            fields: ["Content-Type": "application/x-www-form-urlencoded"])
        #expect(page.status == 200, "\(page.text)")
    }

    /// Logs in at the provider's page as a browser does, and follows the redirect to the broker.
    func logIn(at uri: String) async throws {
        let page = try await admin.call(.get, uri, key: nil)
        let form = try #require(ProviderForm(html: page.text))
        let decision = try await admin.call(
            .post, provider.baseURL + form.action, key: nil,
            body: form.submission([.init("user", "alice"), .init("decision", "approve")]),
            fields: ["Content-Type": "application/x-www-form-urlencoded"])
        let redirect = try #require(decision.fields["Location"]?.text)
        #expect(try await admin.call(.get, redirect, key: nil).status == 200)
    }

    func close() async {
        #expect(await process.terminate() == 0)
        await admin.close()
        await provider.close()
    }
}
