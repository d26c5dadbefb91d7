import BrokerTesting
import Testing

/// Requests that Schemathesis makes up from openapi.yaml, with all of its checks: a few examples of what
/// `Tests/Support/openapi/fuzz` sends in a long run.
@Suite(.timeLimit(.minutes(15))) struct `Requests made up from the description` {
    @Test func `are answered as it says, and refused where it does not allow them`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let port = try PostgresServer.freePort()
        let broker = try await BrokerProcess.start(
            port: port,
            [
                "DATA_DIR": directory.path, "ALLOW_INSECURE_PROVIDERS": "true", "APP_REQUESTS_PER_ADDRESS": "0",
                "APP_REQUESTS_PER_USER": "0",
            ])
        // Behind other tests, which have deadlines.
        let made = try await TestProcess.start(
            [
                "/bin/sh", "-c", #"exec nice -n 5 "$@" 2>&1"#, "sh", OpenAPIChecker.fuzzer,
                "http://127.0.0.1:\(port)", "2",
            ],
            environment: ["ADMIN_KEY": BrokerHarness.adminKey])
        let status = await made.exitStatus()
        #expect(status == 0, "\(made.lines.joined(separator: "\n"))")
        #expect(await broker.terminate() == 0)
    }
}
