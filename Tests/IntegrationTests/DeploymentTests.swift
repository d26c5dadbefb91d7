import BrokerTesting
import Glibc
import Testing

/// What `Deploy/compose.yaml` describes, run as processes: the same configuration files, commands and variables.
@Suite(.timeLimit(.minutes(4)))
struct `The deployment` {
    private static let checkout =
        #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast(3).joined(separator: "/")

    @Test func `a user logs in across replicas, which are killed, stopped and left without a database`() async throws {
        let python = Self.checkout + "/.build-tools/python/bin/python"
        try #require(unsafe access(python, X_OK) == 0, "\(python) is missing: Deploy/test installs it")
        let programs = BrokerProcess.program("").dropLast()
        let process = try await TestProcess.start([
            python, "-u", Self.checkout + "/Tests/DeployTests/topology.py", String(programs),
        ])
        let status = await process.exitStatus()
        #expect(status == 0, "\(process.lines.joined(separator: "\n"))")
    }
}
