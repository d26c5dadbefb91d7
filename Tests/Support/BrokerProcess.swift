/// The program `token-broker` of this build, running on a port of its own.
package enum BrokerProcess {
    /// Starts the program with the given variables (without their prefix) and waits until it listens.
    package static func start(port: UInt16, _ variables: [String: String]) async throws -> TestProcess {
        var environment = [
            "TOKEN_BROKER_LISTEN": "127.0.0.1:\(port)", "TOKEN_BROKER_ADMIN_KEY": BrokerHarness.adminKey,
        ]
        for (name, value) in variables { environment["TOKEN_BROKER_\(name)"] = value }
        let process = try await TestProcess.start([program("token-broker")], environment: environment)
        _ = try await process.line { $0.contains(#""event":"listening""#) }
        return process
    }

    /// The path of a program that was built together with the tests.
    package static func program(_ name: String) -> String {
        let tests = CommandLine.arguments[0].split(separator: "/", omittingEmptySubsequences: false)
        return tests.dropLast().joined(separator: "/") + "/" + name
    }
}
