import BrokerTesting
import CommandLineClient
import FoundationEssentials
import HTTPCodec
import Testing

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
        for words in [["keys", "status"], ["doctor"], ["doctor", "store"], ["audit", "verify"]] {
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
                "bash", "-c", #"exec 2>&1; exec 3> >(exec true); wait $!; exec "$0" "$@" >&3"#,
                BrokerProcess.program("token-broker"),
            ]
                + words)
        #expect(await process.exitStatus() == 141)
        #expect(process.lines.isEmpty, "\(process.lines)")
    }

    @Test(arguments: [["--help"], ["version"], ["help", "variables"], ["keys", "generate"], ["man"]])
    func `says that its output is lost where the disk is full`(words: [String]) async throws {
        let process = try await TestProcess.start(
            ["bash", "-c", #"exec "$0" "$@" 2>&1 >/dev/full"#, BrokerProcess.program("token-broker")] + words)
        #expect(await process.exitStatus() == 1)
        #expect(
            process.lines == ["token-broker: standard output cannot be written: write: No space left on device"])
    }

    /// Runs a program at a terminal, with standard error in a file, and types what it is to ask for.
    private static let typing = #"""
        import os, pty, sys
        child, terminal = pty.fork()
        if child == 0:
            os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600), 2)
            os.execv(sys.argv[2], sys.argv[2:])
        shown = b""
        while b"Key for" not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, b"s3cret-key\n")
        try:
            while part := os.read(terminal, 1024):
                shown += part
        except OSError:
            pass
        print(os.waitpid(child, 0)[1], shown)
        """#

    @Test func `shows no secret that is typed, whatever becomes of its standard error`() async throws {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let contexts = directory.path + "/contexts.json"
        let process = try await TestProcess.start(
            [
                DialogueProcess.python, "-c", Self.typing, directory.path + "/errors",
                BrokerProcess.program("token-broker"),
                "context", "add", "a", "--url", "http://a.example", "--no-check",
            ], environment: ["TOKEN_BROKER_CONTEXTS": contexts])
        #expect(await process.exitStatus() == 0)
        #expect(process.lines == [#"0 b'Key for http://a.example: \r\n'"#], "\(process.lines)")
        #expect(String(decoding: try Data(contentsOf: URL(filePath: contexts)), as: UTF8.self).contains("s3cret-key"))
    }

    @Test func `leaves nothing of a file that is not complete when a signal ends it`() async throws {
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let key = directory.path + "/key"
        try Data(#"{"kty": "EC", "crv": "P-256", "x": "x", "y": "y"}"#.utf8).write(to: URL(filePath: key))
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"
        let server = try await TLSTestServer(tls: nil, [.read, .send(head + "a..b.c.d\n"), .hold])
        let process = try await BrokerProcess.start(
            command: ["export", "--tenant", "t", "--yes", "--jwk", key, "--file", directory.path + "/sealed"],
            environment: ["TOKEN_BROKER_URL": "http://localhost:\(server.port)", "TOKEN_BROKER_API_KEY": "key"])
        // The file is there before the request is.
        _ = try await server.report(afterRequests: 1)
        let names = try FileManager.default.contentsOfDirectory(atPath: directory.path)
        #expect(names.count == 2 && names.contains { $0.hasPrefix("sealed.") }, "\(names)")
        #expect(await process.terminate() == 130)
        #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path) == ["key"])
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
