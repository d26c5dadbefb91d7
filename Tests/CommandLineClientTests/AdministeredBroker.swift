import BrokerTesting
import CommandLineClient
import FoundationEssentials
import JSON

/// A broker of this build on a port and a directory of its own, with the command line in this process in front of it.
final class AdministeredBroker: Sendable {
    struct Outcome {
        let status: ExitStatus
        let output: String
        let errors: String

        /// Standard output as one JSON document; null for none.
        var json: JSONValue { (try? JSONValue(parsing: Array(output.utf8))) ?? .null }
    }

    private let directory: StoreFixtureDirectory
    private let process: TestProcess
    private let url: String
    /// Where nothing answers.
    private let emptyURL: String

    init() async throws {
        directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        url = "http://127.0.0.1:\(port)"
        emptyURL = "http://127.0.0.1:\(try PostgresServer.freePort())"
        process = try await BrokerProcess.start(
            port: port, ["DATA_DIR": directory.path, "PUBLIC_BASE_URL": "https://broker.example"])
    }

    /// Runs a command line.
    /// - Parameters:
    ///   - answers: what a person types, or the lines of standard input.
    ///   - canAsk: whether there is a person.
    ///   - isBrokerThere: false for an address where nothing answers.
    ///   - room: how many bytes standard output takes.
    func run(
        _ words: [String], answers: [String] = [], canAsk: Bool = false, isBrokerThere: Bool = true,
        room: Int = .max
    ) async -> Outcome {
        let terminal = RecordedTerminal(canAsk: canAsk, answers: answers, room: room)
        let environment = [
            "TOKEN_BROKER_URL": isBrokerThere ? url : emptyURL,
            "TOKEN_BROKER_API_KEY": BrokerHarness.adminKey,
        ]
        let status: ExitStatus =
            switch CommandProgram.step(words, terminal: terminal, environment: environment) {
            case .end(let status): status
            case .run(let invocation): await CommandProgram.run(invocation)
            case .service: .failed
            }
        return Outcome(status: status, output: terminal.output, errors: terminal.errors)
    }

    /// What commands speak to it with.
    func api() throws -> BrokerAPI {
        let environment = ["TOKEN_BROKER_URL": url, "TOKEN_BROKER_API_KEY": BrokerHarness.adminKey]
        guard let invocation = CommandLines.invocation(["tenants", "list"], environment) else {
            throw CommandError(.usage, "the words are refused")
        }
        return try invocation.broker()
    }

    /// Runs a command line whose words have no spaces in them.
    func run(_ line: String, answers: [String] = [], canAsk: Bool = false, room: Int = .max) async -> Outcome {
        await run(line.split(separator: " ").map(String.init), answers: answers, canAsk: canAsk, room: room)
    }

    /// Writes a file beside the broker's own, and returns its path.
    func file(_ name: String, _ text: String) throws -> String {
        let path = directory.path + "/" + name
        try Data(text.utf8).write(to: URL(filePath: path))
        return path
    }
}
