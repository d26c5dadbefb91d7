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

    /// Starts a command of the program with the given environment. Both its outputs are its lines.
    package static func start(
        command arguments: [String], environment: [String: String]
    ) async throws -> TestProcess {
        try await TestProcess.start(
            ["/bin/sh", "-c", #"exec "$@" 2>&1"#, "sh", program("token-broker")] + arguments, environment: environment)
    }

    /// Starts a command of the program with the given variables (without their prefix) and no others.
    package static func start(command arguments: [String], _ variables: [String: String]) async throws -> TestProcess {
        let named = variables.map { ("TOKEN_BROKER_" + $0.key, $0.value) }
        return try await start(command: arguments, environment: Dictionary(uniqueKeysWithValues: named))
    }

    /// Runs a command of the program to its end, with the given variables (without their prefix) and no others.
    package static func run(
        _ arguments: [String], _ variables: [String: String] = [:]
    ) async throws -> (status: Int32, output: String) {
        await outcome(of: try await start(command: arguments, variables))
    }

    /// Runs a command of the program to its end, with the given environment.
    package static func run(
        _ arguments: [String], environment: [String: String]
    ) async throws -> (status: Int32, output: String) {
        await outcome(of: try await start(command: arguments, environment: environment))
    }

    private static func outcome(of process: TestProcess) async -> (status: Int32, output: String) {
        let status = await process.exitStatus()
        return (status, process.lines.joined(separator: "\n"))
    }

    /// The path of a program that was built together with the tests.
    package static func program(_ name: String) -> String {
        let tests = CommandLine.arguments[0].split(separator: "/", omittingEmptySubsequences: false)
        return tests.dropLast().joined(separator: "/") + "/" + name
    }
}
