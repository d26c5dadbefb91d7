internal import BrokerTesting
internal import CommandLineClient
internal import FoundationEssentials
internal import HTTPCodec
internal import Testing

/// `token-broker` as a person starts it.
@Suite(.timeLimit(.minutes(2))) struct `The program at a shell` {
    private let directory = StoreFixtureDirectory()

    /// Starts `token-broker up` and waits until it has said what to run next.
    private func start(_ port: UInt16) async throws -> TestProcess {
        let process = try await BrokerProcess.start(
            command: ["up", "--port", "\(port)"], environment: ["XDG_DATA_HOME": directory.path])
        _ = try await process.line { $0.hasSuffix("token-broker tenants create --help") }
        return process
    }

    @Test func `runs a broker that commands find with its key, and keeps its data for the next time`() async throws {
        let port = try PostgresServer.freePort()
        let data = directory.path + "/token-broker"
        var keys: Set<String> = []
        for _ in 1...2 {
            let process = try await start(port)
            #expect(process.lines.contains("The broker runs at http://127.0.0.1:\(port) until Control-C."))
            #expect(process.lines.contains { $0.hasPrefix("  data ") && $0.hasSuffix(" \(data)") })
            #expect(process.lines.contains { $0.hasPrefix("  admin key ") && $0.hasSuffix(" \(data)/admin.key") })
            #expect(process.lines.contains { $0.hasPrefix("  master keys ") && $0.contains(" \(data)/master.keys") })
            #expect(!process.lines.contains { $0.contains("export ") })
            keys.insert(String(decoding: try Data(contentsOf: URL(filePath: data + "/admin.key")), as: UTF8.self))
            let environment = ["XDG_DATA_HOME": directory.path]
            #expect(await CommandLines.run(["tenants", "list"], environment).status == .done)
            let second = try await BrokerProcess.run(["up"], environment: environment)
            #expect(second.status == 1)
            #expect(
                second.output.contains(
                    "\(data) is in use by another process; stop that process first: the broker at http://127.0.0.1:\(port)"
                ),
                "\(second.output)")
            #expect(await process.terminate() == 0)
            #expect(!FileManager.default.fileExists(atPath: data + "/address"))
            let after = await CommandLines.run(["tenants", "list"], environment)
            #expect(after.status == .unreachable && after.terminal.errors.hasSuffix("Try: token-broker up\n"))
        }
        #expect(keys.count == 1)
        for path in [directory.path, data] {
            let attributes = try FileManager.default.attributesOfItem(atPath: path)
            #expect((attributes[.posixPermissions] as? Int) == 0o700)
        }
    }

    @Test func `says at which data a command on the store looks, and takes those of up`() async throws {
        let data = directory.path + "/token-broker"
        let environment = ["XDG_DATA_HOME": directory.path]
        // Where the machine has a service's data as well, neither is guessed.
        let isAlone = !FileManager.default.fileExists(atPath: "/var/lib/token-broker")
        if isAlone {
            let none = try await BrokerProcess.run(["keys", "status"], environment: environment)
            #expect(
                none.status == 78 && none.output.contains("there are no data in \(data) and in /var/lib/token-broker"))
            #expect(!FileManager.default.fileExists(atPath: "/var/lib/token-broker"))
        }
        let process = try await start(try PostgresServer.freePort())
        #expect(await process.terminate() == 0)
        let chosen = "token-broker: TOKEN_BROKER_DATA_DIR is not set; looking at \(data)"
        for words in [["keys", "status"], ["doctor"], ["doctor", "store"], ["restored"], ["audit", "verify"]] {
            let result = try await BrokerProcess.run(words, environment: environment)
            #expect(result.output.contains(isAlone ? chosen : "set TOKEN_BROKER_DATA_DIR to the"), "\(result.output)")
        }
        let named = try await BrokerProcess.run(["keys", "status"], environment: ["TOKEN_BROKER_DATA_DIR": data])
        #expect(named.status == 0 && !named.output.contains("looking at"))
    }

    @Test(
        arguments: [
            (["up"], ["TOKEN_BROKER_DATABASE_URL": "postgresql:///x"], 78, "Try: token-broker serve"),
            (["up"], ["TOKEN_BROKER_DATABASE_URL_FILE": "/x"], 78, "TOKEN_BROKER_DATABASE_URL_FILE is set"),
            (["up"], ["XDG_DATA_HOME": "/dev/null"], 78, "/dev/null/token-broker cannot be made"),
            (["up", "--port", "many"], [:], 64, "--port must be a number from 1 to 65535, not many"),
            (["up"], ["TOKEN_BROKER_LISTEN": "here"], 78, "TOKEN_BROKER_LISTEN must be a numeric address"),
            (["config", "check"], ["TOKEN_BROKER_URL": "x", "TOKEN_BROKER_API_KEY_FILE": "y"], 0, "is valid"),
            (["servee"], [:], 2, "did you mean serve?"), (["serve", "--help"], [:], 0, "usage: token-broker serve"),
        ] as [([String], [String: String], Int32, String)])
    func `says what is wrong`(
        words: [String], environment: [String: String], status: Int32, text: String
    ) async throws {
        let all = ["HOME": directory.path].merging(environment) { $1 }
        let result = try await BrokerProcess.run(words, environment: all)
        #expect(result.status == status)
        #expect(result.output.contains(text), "\(result.output)")
    }

    @Test func `names its version and the commit that it was built from`() async throws {
        let shown = try await BrokerProcess.run(["--version"])
        #expect(shown.status == 0)
        let words = shown.output.split(separator: " ")
        #expect(words.count == 4 && words[0] == "token-broker" && words[2] == "(commit", "\(shown.output)")
        let json = try await BrokerProcess.run(["version", "--json"])
        #expect(json.output.hasPrefix(#"{"version":"\#(words[1])","commit":""#), "\(json.output)")
    }

    @Test(arguments: [["--help"], ["help", "variables"], ["help", "--markdown"], ["man"], ["completions", "bash"]])
    func `is quiet where its reader has gone`(words: [String]) async throws {
        let process = try await TestProcess.start(
            [
                "bash", "-c", #"exec 2>&1; set -o pipefail; "$0" "$@" | exec true"#,
                BrokerProcess.program("token-broker"),
            ]
                + words)
        #expect(await process.exitStatus() == 0)
        #expect(process.lines.isEmpty, "\(process.lines)")
    }

    @Test func `ends at a signal while it waits for a key`() async throws {
        let fifo = directory.path
        // The shell becomes the program, which reads from a pipe that stays open and empty.
        let process = try await TestProcess.start(
            [
                "bash", "-c",
                #"mkfifo "$1"; exec 3<>"$1"; echo waits; exec "$0" context add a --url http://a.example <&3"#,
                BrokerProcess.program("token-broker"), fifo,
            ], environment: ["HOME": fifo + ".home"])
        _ = try await process.line { $0 == "waits" }
        let status = await process.terminate()
        // A signal that comes before the program waits for it ends it as the kernel does.
        #expect(status == 130 || status == 128 + 15)
    }
}
