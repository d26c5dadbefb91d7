import BrokerTesting
import ExternalText
import FoundationEssentials
import JSON
import Testing

@testable import CommandLineClient

/// What an import refuses before it sends anything: there is no broker at the address.
@Suite struct `An import that cannot be made` {
    private let directory = StoreFixtureDirectory()

    private func file(_ name: String, _ bytes: Data) throws -> String {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let path = directory.path + "/" + name
        try bytes.write(to: URL(filePath: path))
        return path
    }

    private func run(_ words: String...) async -> (status: ExitStatus?, terminal: RecordedTerminal) {
        await CommandLines.run(
            ["import"] + words,
            [
                "TOKEN_BROKER_URL": "http://localhost:59999", "TOKEN_BROKER_API_KEY": "key",
                "TOKEN_BROKER_TENANT": "music",
            ])
    }

    private static let line = #"{"storage_key": "ada", "credentials": {"level": "user"}, "refresh_token": "r"}"# + "\n"

    @Test func `is refused for a place at which its state cannot be kept`() async throws {
        let path = try file("users.ndjson", Data(Self.line.utf8))
        let (status, terminal) = await run("ndjson", path, "--state", directory.path + "/missing/state")
        #expect(status == .refused)
        #expect(terminal.errors.contains("cannot be written"), "\(terminal.errors)")
        #expect(terminal.errors.contains("--state names another place"))
        #expect(!terminal.errors.contains("anew"))
        let names = try FileManager.default.contentsOfDirectory(atPath: directory.path)
        #expect(names == ["users.ndjson"])
    }

    @Test(arguments: ["", "root:x:0:0:root", "{}", "{\"input\": {}}"])
    func `is refused for another file in the place of its state, which is not to be removed`(text: String) async throws
    {
        let path = try file("users.ndjson", Data(Self.line.utf8))
        let state = try file("state", Data(text.utf8))
        let (status, terminal) = await run("ndjson", path, "--state", state)
        #expect(status == .refused)
        #expect(terminal.errors.contains("is not what token-broker import has written"), "\(terminal.errors)")
        #expect(!terminal.errors.contains("rm "))
    }

    @Test(arguments: [line, line + line, "\u{feff}\n" + line])
    func `is refused for lines of ndjson as the file of a program`(text: String) async throws {
        let path = try file("users.ndjson", Data(text.utf8))
        for format in ["spotipy", "authlib", "nango", "rclone"] {
            let (status, terminal) = await run(format, path)
            #expect(status == .refused)
            #expect(terminal.errors.contains("import it as ndjson"), "\(terminal.errors)")
            #expect(terminal.errors.contains("Try: token-broker import ndjson "))
        }
    }

    @Test func `is refused for a file that is longer than those of its format`() async throws {
        let path = try file("cache", Data(count: TokenFileFormat.longest + 1))
        let (status, terminal) = await run("spotipy", path)
        #expect(status == .refused)
        #expect(terminal.errors.contains("has more than \(TokenFileFormat.longest) bytes"), "\(terminal.errors)")
    }

    @Test func `is refused for a file that became shorter since it was opened`() throws {
        let path = try file("users.ndjson", Data(Self.line.utf8))
        let input = try ImportInput(path, RecordedTerminal())
        try #expect(input.piece(at: 0).count == Self.line.utf8.count)
        try #expect(input.piece(at: Self.line.utf8.count).isEmpty)
        let handle = try #require(FileManager.default.contents(atPath: path)).prefix(10)
        try handle.write(to: URL(filePath: path))
        try #expect(input.piece(at: 0).count == 10)
        let refusal = #expect(throws: CommandError.self) { try input.piece(at: 10) }
        #expect(refusal?.text.contains("became shorter") == true)
    }

    @Test(arguments: ["\u{feff}[gd]\ntype = drive\n", "\u{feff}[gd]\r\ntype = drive\r\n"])
    func `is not one with a mark of the encoding in rclone's configuration`(text: String) throws {
        let entries = try TokenFileFormat.rclone.read(Array(text.utf8))
        #expect(entries.map(\.name) == ["gd"])
    }

    @Test func `is not one with a mark of the encoding in YAML`() throws {
        #expect(try YAMLReader.value(of: "\u{feff}tenants: {}") == .object(["tenants": .object([:])]))
    }

    @Test func `is told with the broker's words, and the option's name in them`() {
        let item = ImportItem(number: 1, content: .line([]))
        let outcome = ImportOutcome(
            item: item,
            told: .object([
                "outcome": .string("conflict"),
                "detail": .string("Only an import with replace=true replaces it."),
            ]))
        #expect(outcome.complaint == "line 1: conflict: Only an import with --replace replaces it.")
    }
}
