internal import Glibc
package import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import Reactor

/// The program `token-broker` of this build, running on a port of its own, and a client that calls it.
package final class BrokerProcess: Sendable {
    package let baseURL: String
    package let adminKey: String
    private let process: TestProcess
    private let client: HTTPSClient

    /// Starts the program with the given variables (without their prefix) and waits until it listens.
    package static func start(
        port: UInt16, _ variables: [String: String], adminKey: String = BrokerHarness.adminKey
    ) async throws -> BrokerProcess {
        var environment = ["TOKEN_BROKER_LISTEN": "127.0.0.1:\(port)", "TOKEN_BROKER_ADMIN_KEY": adminKey]
        for (name, value) in variables { environment["TOKEN_BROKER_\(name)"] = value }
        let process = try await TestProcess.start([program("token-broker")], environment: environment)
        _ = try await process.line { $0.contains(#""event":"listening""#) }
        return try BrokerProcess(port, process, adminKey)
    }

    /// The path of a program that was built together with the tests.
    package static func program(_ name: String) -> String {
        let tests = CommandLine.arguments[0].split(separator: "/", omittingEmptySubsequences: false)
        return tests.dropLast().joined(separator: "/") + "/" + name
    }

    private init(_ port: UInt16, _ process: TestProcess, _ adminKey: String) throws {
        baseURL = "http://127.0.0.1:\(port)"
        self.process = process
        self.adminKey = adminKey
        var configuration = HTTPSClientConfiguration()
        configuration.allowsInsecureTargets = true
        configuration.firstByteTimeout = .seconds(60)
        configuration.exchangeTimeout = .seconds(60)
        configuration.maximumConnectionsPerOrigin = 128
        client = try HTTPSClient(
            configuration: configuration, loop: PostgresServer.loop, resolver: PostgresServer.resolver)
    }

    /// Everything that the program has logged.
    package var log: [String] { process.lines }

    /// SIGTERM, and the exit status.
    package func terminate() async -> Int32 {
        await client.close()
        return await process.terminate()
    }

    /// SIGKILL.
    package func kill() async {
        await client.close()
        await process.kill()
    }

    /// Sends a request with the admin key (or another, or none) and returns the answer.
    package func call(
        _ method: Method, _ target: String, key: String? = BrokerHarness.adminKey, tenant: String? = nil,
        body: String? = nil, fields: Fields = [:]
    ) async throws -> BrokerHarness.Answer {
        var fields = fields
        if let key { fields.append("Authorization", "Bearer \(key)") }
        if let tenant { fields.append("X-Tenant", tenant) }
        if body != nil, fields["Content-Type"] == nil { fields.append("Content-Type", "application/json") }
        guard let url = URLTarget(target.hasPrefix("/") ? baseURL + target : target) else {
            throw TestProcess.Failure(description: "not a URL: \(target)")
        }
        return BrokerHarness.Answer(
            try await client.send(
                ClientRequest(method: method, url: url, fields: fields, body: Array((body ?? "").utf8))))
    }
}
