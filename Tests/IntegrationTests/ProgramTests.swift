import BrokerTesting
import DevelopmentProvider
import FoundationEssentials
import HTTPCodec
import HTTPSClient
import JSON
import Reactor
import Testing

/// What an operator sees of `token-broker`: starts, refusals to start, stops.
@Suite(.timeLimit(.minutes(3)))
struct `The program` {
    private let directory = StoreFixtureDirectory()

    @Test func `a first start makes keys for itself, and a later one finds its credentials with them`() async throws {
        let port = try PostgresServer.freePort()
        let variables = ["DATA_DIR": directory.path, "ADMIN_KEY": ""]
        var process = try await start(port, variables)
        let key = try text("admin.key")
        #expect(key.hasPrefix("tba_") && key.utf8.count == 47)
        for name in ["admin.key", "master.keys"] {
            let attributes = try FileManager.default.attributesOfItem(atPath: directory.path + "/" + name)
            #expect((attributes[.posixPermissions] as? Int) == 0o600)
        }
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.put, "/tenants/t1", key: key, body: #"{"client_id": "c1"}"#).status == 201)
        #expect(await process.terminate() == 0)
        process = try await start(port, variables)
        #expect(try await broker.call(.get, "/tenants/t1", key: key).status == 200)
        #expect(await process.terminate() == 0)
    }

    @Test func `a second process on the same directory is refused`() async throws {
        let process = try await start(try PostgresServer.freePort(), ["DATA_DIR": directory.path])
        let second = try await run(["TOKEN_BROKER_DATA_DIR": directory.path])
        #expect(second.status == 1)
        #expect(second.output.contains("is in use by another process"))
        await process.terminate()
    }

    // H100
    @Test func `a second process on the same port is refused`() async throws {
        let port = try PostgresServer.freePort()
        let process = try await start(port, ["DATA_DIR": directory.path])
        let other = StoreFixtureDirectory()
        let second = try await run([
            "TOKEN_BROKER_DATA_DIR": other.path, "TOKEN_BROKER_LISTEN": "127.0.0.1:\(port)",
        ])
        #expect(second.status == 1)
        #expect(second.output.contains("cannot listen"))
        await process.terminate()
    }

    // H052 H100
    @Test(arguments: [
        (#"k1:HwAHBgUEAwIBAAECAwQFBgcICQoLDA0ODxAREhMUFRY="#, "a key 'k1' that differs"),
        (#"k2:HwAHBgUEAwIBAAECAwQFBgcICQoLDA0ODxAREhMUFRY="#, "which TOKEN_BROKER_MASTER_KEYS lacks"),
    ])
    func `a start with the wrong key is refused and overwrites nothing`(keys: String, text: String) async throws {
        let port = try PostgresServer.freePort()
        let right = ["DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys]
        let process = try await start(port, right)
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        #expect(await process.terminate() == 0)

        let wrong = try await run(["TOKEN_BROKER_DATA_DIR": directory.path, "TOKEN_BROKER_MASTER_KEYS": keys])
        #expect(wrong.status == 1)
        #expect(wrong.output.contains(text))
        #expect(!wrong.output.contains(keys.dropFirst(3)))

        let again = try await start(port, right)
        #expect(try await broker.call(.get, "/tenants/t1").status == 200)
        #expect(await again.terminate() == 0)
    }

    // H052
    @Test func `records without their own key file are not given new keys`() async throws {
        let process = try await start(try PostgresServer.freePort(), ["DATA_DIR": directory.path])
        #expect(await process.terminate() == 0)
        try FileManager.default.removeItem(atPath: directory.path + "/master.keys")
        let next = try await run(["TOKEN_BROKER_DATA_DIR": directory.path])
        #expect(next.status == 1)
        #expect(next.output.contains("its file master.keys is missing"))
        #expect(!FileManager.default.fileExists(atPath: directory.path + "/master.keys"))
    }

    // H052 H100
    @Test func `every fault of the configuration is told at once, by its variable's name, and nothing is opened`()
        async throws
    {
        let result = try await run(
            [
                "TOKEN_BROKER_LISTEN": "localhost", "TOKEN_BROKER_DATABASE_URL": "nonsense",
                "TOKEN_BROKER_MASTER_KEYS": "k1:dG9vIHNob3J0", "TOKEN_BROKER_LOG_LEVEL": "loud",
                "TOKEN_BROKER_EVENT_LOOPS": "0", "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS": "yes",
                "TOKEN_BROKER_ADMIN_KEY": "a-key", "TOKEN_BROKER_ADMIN_KEY_FILE": "/nowhere",
                "TOKEN_BROKER_PUBLIC_BASE_URL": "ftp://x", "TOKEN_BROKER_TRUSTED_CA_FILE": "/nowhere",
                "TOKEN_BROKER_DATA_DIR": directory.path, "TOKEN_BROKER_CACHE_MEGABYTES": "0",
                "TOKEN_BROKER_CACHE_SECONDS": "3601",
            ])
        #expect(result.status == 78)
        for name in [
            "LISTEN", "DATABASE_URL", "MASTER_KEYS", "LOG_LEVEL", "EVENT_LOOPS", "ALLOW_INSECURE_PROVIDERS",
            "ADMIN_KEY", "PUBLIC_BASE_URL", "TRUSTED_CA_FILE", "DATA_DIR", "CACHE_MEGABYTES", "CACHE_SECONDS",
        ] {
            #expect(result.output.contains("TOKEN_BROKER_\(name) "), "\(name): \(result.output)")
        }
        #expect(!result.output.contains("dG9vIHNob3J0"))
        #expect(!result.output.contains("a-key"))
        #expect(!FileManager.default.fileExists(atPath: directory.path))
    }

    @Test(arguments: [
        ("TOKEN_BROKER_DATABSE_URL", "; did you mean TOKEN_BROKER_DATABASE_URL?"),
        ("TOKEN_BROKER_MASTERKEYS_FILE", "; did you mean TOKEN_BROKER_MASTER_KEYS_FILE?"),
        ("TOKEN_BROKER_LOGLEVEL", "; did you mean TOKEN_BROKER_LOG_LEVEL?"),
        ("TOKEN_BROKER_FAVOURITE_COLOUR", "; see token-broker help variables"),
        ("TOKEN_BROKER_LISTEN_FILE", "; did you mean TOKEN_BROKER_LISTEN?"),
    ])
    func `a variable that is none of the program's fails a check and is a warning at a start`(
        name: String, text: String
    ) async throws {
        let checked = try await run([name: "canary", "TOKEN_BROKER_DATA_DIR": directory.path], ["config", "check"])
        #expect(checked.status == 78)
        #expect(checked.output == "token-broker: \(name) is not a variable of token-broker\(text)")
        let variable = String(name.dropFirst("TOKEN_BROKER_".utf8.count))
        let process = try await start(
            try PostgresServer.freePort(), ["DATA_DIR": directory.path, variable: "canary"])
        #expect(await process.terminate() == 0)
        let warnings = process.lines.filter { $0.contains("unknown_environment_variable") }
        #expect(warnings.count == 1)
        #expect(warnings[0].contains(#""level":"warning""#) && warnings[0].contains(#""variable":"\#(name)""#))
        #expect(!process.lines.joined().contains("canary"))
    }

    @Test func `what an orchestrator adds, and what a store has no use for, is no mistake`() async throws {
        let checked = try await run(
            [
                "TOKEN_BROKER_SERVICE_HOST": "10.0.0.1", "TOKEN_BROKER_SERVICE_PORT": "8080",
                "TOKEN_BROKER_SERVICE_PORT_HTTP": "8080", "TOKEN_BROKER_PORT": "tcp://10.0.0.1:8080",
                "TOKEN_BROKER_PORT_8080_TCP": "tcp://10.0.0.1:8080", "TOKEN_BROKER_PORT_8080_TCP_ADDR": "10.0.0.1",
                "TOKEN_BROKER_PORT_8080_TCP_PORT": "8080", "TOKEN_BROKER_PORT_8080_TCP_PROTO": "tcp",
                "TOKEN_BROKER_API_PORT_53_UDP_PORT": "53", "TOKEN_BROKER_PORT_9090_SCTP_PORT": "9090",
                "TOKEN_BROKER_PEERS_SERVICE_HOST": "10.0.0.1", "TOKEN_BROKER_PEERS_PORT_8080_TCP_PROTO": "tcp",
                "TOKEN_BROKER_DATABASE_POOLER": "true", "TOKEN_BROKER_DATABASE_LISTEN_URL_FILE": "/nowhere",
                "TOKEN_BROKER_DATA_DIR": directory.path,
            ], ["config", "check"])
        #expect(checked.status == 0, "\(checked.output)")
        for (name, value) in [
            ("PORT", "8080"), ("PORT_8080_TCP_HOST", "a"), ("PORT_X_TCP_PORT", "8080"), ("PORT_8080_ICMP_PORT", "8080"),
            ("PORT_65536_TCP", "tcp://10.0.0.1:65536"),
        ] {
            let mistaken = try await run(
                ["TOKEN_BROKER_\(name)": value, "TOKEN_BROKER_DATA_DIR": directory.path], ["config", "check"])
            #expect(mistaken.status == 78, "\(name)")
        }
    }

    @Test func `messages name variables in full`() async throws {
        let result = try await run(
            [
                "TOKEN_BROKER_DATABASE_URL": "postgresql:///x", "TOKEN_BROKER_DATA_DIR": directory.path,
                "TOKEN_BROKER_PUBLIC_BASE_URL": "http://127.0.0.1:1",
            ], ["config", "check"])
        #expect(result.status == 78)
        #expect(result.output.contains("TOKEN_BROKER_DATA_DIR is not used together with TOKEN_BROKER_DATABASE_URL"))
        #expect(result.output.contains("TOKEN_BROKER_PUBLIC_BASE_URL must not have the port 1:"))
        // Each with its prefix.
        for name in ["DATABASE_URL", "MASTER_KEYS", "ADMIN_KEY"] {
            let mentions = result.output.matches(of: try Regex("\\b" + name + "\\b"))
            #expect(mentions.isEmpty, "\(name)")
        }
    }

    @Test func `only a database needs libpq, and a start without it says so`() async throws {
        let libraries = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: libraries.path, withIntermediateDirectories: true)
        // Found before the system's, and no library.
        try Data().write(to: URL(filePath: libraries.path + "/libpq.so.5"))
        let variables = ["LD_LIBRARY_PATH": libraries.path]
        let stored = try await run(
            variables.merging([
                "TOKEN_BROKER_DATABASE_URL": "postgresql:///x", "TOKEN_BROKER_ADMIN_KEY": BrokerHarness.adminKey,
                "TOKEN_BROKER_MASTER_KEYS": BrokerHarness.masterKeys,
            ]) { $1 }, ["config", "check"])
        #expect(stored.status == 78)
        #expect(stored.output.contains("TOKEN_BROKER_DATABASE_URL "))
        #expect(stored.output.contains("libpq cannot be loaded: "))
        let embedded = try await run(
            variables.merging(["TOKEN_BROKER_DATA_DIR": directory.path]) { $1 }, ["config", "check"])
        #expect(embedded.status == 0, "\(embedded.output)")
    }

    // H061
    @Test func `secrets come from files as well`() async throws {
        let port = try PostgresServer.freePort()
        let files = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: files.path, withIntermediateDirectories: true)
        try Data((BrokerHarness.masterKeys + "\n").utf8).write(to: URL(filePath: files.path + "/keys"))
        try Data((BrokerHarness.adminKey + "\n").utf8).write(to: URL(filePath: files.path + "/admin"))
        let process = try await start(
            port,
            [
                "DATA_DIR": directory.path, "MASTER_KEYS_FILE": files.path + "/keys",
                "ADMIN_KEY_FILE": files.path + "/admin", "ADMIN_KEY": "",
            ])
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.get, "/tenants").status == 200)
        #expect(await process.terminate() == 0)
    }

    /// Makes a file of a secret, of that mode.
    private func secret(_ text: String, mode: Int = 0o600) throws -> String {
        try FileManager.default.createDirectory(
            atPath: directory.path, withIntermediateDirectories: true, attributes: [.posixPermissions: 0o700])
        let path = directory.path + "/secret-\(mode)-\(text.utf8.count)"
        try Data(text.utf8).write(to: URL(filePath: path))
        try FileManager.default.setAttributes([.posixPermissions: mode], ofItemAtPath: path)
        return path
    }

    // H052
    @Test(arguments: [
        ("ADMIN_KEY", "a", "must have 32 to 512"), ("ADMIN_KEY", String(repeating: "a", count: 40), "must be random"),
        ("ADMIN_KEY", "ops:short,ci:" + BrokerHarness.adminKey, "the key 'ops'"),
        ("MASTER_KEYS", "k7:" + String(repeating: "A", count: 43) + "=", "('k7') is not random"),
    ])
    func `a start with a weak secret is refused by the variable's name, and so is its check`(
        name: String, value: String, text: String
    ) async throws {
        for arguments in [[], ["config", "check"]] {
            let result = try await run(
                ["TOKEN_BROKER_DATA_DIR": directory.path, "TOKEN_BROKER_\(name)": value], arguments)
            #expect(result.status == 78)
            #expect(result.output.contains("TOKEN_BROKER_\(name) "), "\(result.output)")
            #expect(result.output.contains(text), "\(result.output)")
            #expect(!result.output.contains("AAAA") && !result.output.contains("aaaa"))
        }
        #expect(!FileManager.default.fileExists(atPath: directory.path))
    }

    // H052
    @Test(arguments: [0o620, 0o602, 0o666])
    func `a start with a secret's file that others can write is refused, by way of a link too`(mode: Int) async throws {
        let path = try secret(BrokerHarness.adminKey, mode: mode)
        let link = directory.path + "/link"
        try FileManager.default.createSymbolicLink(atPath: link, withDestinationPath: path)
        for file in [path, link] {
            for arguments in [[], ["config", "check"]] {
                let result = try await run(["TOKEN_BROKER_ADMIN_KEY_FILE": file], arguments)
                #expect(result.status == 78)
                let text = "TOKEN_BROKER_ADMIN_KEY_FILE names a file that other users can write to"
                #expect(result.output.contains(text), "\(result.output)")
            }
        }
    }

    @Test(arguments: [(0o640, true), (0o604, true), (0o600, false), (0o400, false)])
    func `a secret's file that others can read is named in the log`(mode: Int, isNamed: Bool) async throws {
        let data = StoreFixtureDirectory()
        let path = try secret(BrokerHarness.adminKey, mode: mode)
        let check = try await run(["TOKEN_BROKER_ADMIN_KEY_FILE": path], ["config", "check"])
        #expect(check.status == 0)
        #expect(check.output.contains("warning: TOKEN_BROKER_ADMIN_KEY_FILE ") == isNamed)
        let process = try await start(
            try PostgresServer.freePort(), ["ADMIN_KEY": "", "ADMIN_KEY_FILE": path, "DATA_DIR": data.path])
        let line = #""event":"secret_file_readable_by_others","variable":"TOKEN_BROKER_ADMIN_KEY_FILE""#
        #expect(process.lines.contains { $0.contains(line) } == isNamed)
        #expect(await process.terminate() == 0)
    }

    // H052
    @Test(arguments: ["admin.key", "master.keys"])
    func `the embedded store's own secrets are refused where others can write them`(name: String) async throws {
        var process = try await start(try PostgresServer.freePort(), ["DATA_DIR": directory.path, "ADMIN_KEY": ""])
        #expect(
            process.lines.contains {
                $0.contains(#""event":"master_keys_beside_records""#)
                    && $0.contains("a backup of TOKEN_BROKER_DATA_DIR")
            })
        #expect(await process.terminate() == 0)
        let path = directory.path + "/" + name
        try FileManager.default.setAttributes([.posixPermissions: 0o622], ofItemAtPath: path)
        let refused = try await run(["TOKEN_BROKER_DATA_DIR": directory.path])
        #expect(refused.status == 1)
        #expect(refused.output.contains("\(path) belongs to another user or can be written by others"))
        try FileManager.default.setAttributes([.posixPermissions: 0o644], ofItemAtPath: path)
        process = try await start(try PostgresServer.freePort(), ["DATA_DIR": directory.path, "ADMIN_KEY": ""])
        let line = #""event":"secret_file_readable_by_others","file":"\#(name)""#
        #expect(process.lines.contains { $0.contains(line) })
        #expect(await process.terminate() == 0)
    }

    @Test func `an admin.key that was made weak is refused`() async throws {
        let process = try await start(try PostgresServer.freePort(), ["DATA_DIR": directory.path, "ADMIN_KEY": ""])
        #expect(await process.terminate() == 0)
        let path = directory.path + "/admin.key"
        try FileManager.default.removeItem(atPath: path)
        try Data("short".utf8).write(to: URL(filePath: path))
        try FileManager.default.setAttributes([.posixPermissions: 0o600], ofItemAtPath: path)
        let refused = try await run(["TOKEN_BROKER_DATA_DIR": directory.path])
        #expect(refused.status == 1)
        #expect(refused.output.contains("admin.key in TOKEN_BROKER_DATA_DIR must have 32 to 512"))
    }

    @Test func `new master keys are made where the configuration says, and only for an empty store`() async throws {
        let files = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: files.path, withIntermediateDirectories: true)
        let path = files.path + "/keys"
        let port = try PostgresServer.freePort()
        let variables = ["DATA_DIR": directory.path, "MASTER_KEYS_FILE": path]
        let environment = ["TOKEN_BROKER_DATA_DIR": directory.path, "TOKEN_BROKER_MASTER_KEYS_FILE": path]
        #expect(try await run(environment, ["config", "check"]).status == 0)
        #expect(!FileManager.default.fileExists(atPath: path))
        for round in 0..<2 {
            let process = try await start(port, variables)
            #expect(!process.lines.contains { $0.contains("master_keys_beside_records") })
            let broker = try BrokerClient(port: port)
            let status = try await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status
            #expect(status == (round == 0 ? 201 : 200))
            #expect(await process.terminate() == 0)
        }
        let attributes = try FileManager.default.attributesOfItem(atPath: path)
        #expect((attributes[.posixPermissions] as? Int) == 0o600)
        #expect(try FileManager.default.contentsOfDirectory(atPath: files.path) == ["keys"])
        #expect(!FileManager.default.fileExists(atPath: directory.path + "/master.keys"))

        let kept = try Data(contentsOf: URL(filePath: path))
        try FileManager.default.removeItem(atPath: path)
        let without = try await run(environment)
        #expect(without.status == 1)
        #expect(without.output.contains("holds records, but the master keys' file \(path) is missing"))
        #expect(!FileManager.default.fileExists(atPath: path))
        try kept.write(to: URL(filePath: directory.path + "/master.keys"))
        try FileManager.default.setAttributes([.posixPermissions: 0o600], ofItemAtPath: directory.path + "/master.keys")
        let elsewhere = try await run(environment)
        #expect(elsewhere.status == 1)
        #expect(elsewhere.output.contains("has its own master.keys; move that to \(path)"))
    }

    @Test func `a first start that was killed leaves nothing that keeps the next one from starting`() async throws {
        let files = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: files.path, withIntermediateDirectories: true)
        let path = files.path + "/keys"
        let port = try PostgresServer.freePort()
        let variables = ["DATA_DIR": directory.path, "MASTER_KEYS_FILE": path]
        // Before the file had its name: a draft, whole or not, and a store that is empty.
        try Data("k1:half".utf8).write(to: URL(filePath: path + ".aaaaaaaaaaaaaaaa"))
        var process = try await start(port, variables)
        #expect(await process.terminate() == 0)
        let made = try Data(contentsOf: URL(filePath: path))
        // After it had its name, before anything was sealed with it: the keys are there, and the store is empty.
        try FileManager.default.removeItem(atPath: directory.path)
        process = try await start(port, variables)
        #expect(await process.terminate() == 0)
        #expect(try Data(contentsOf: URL(filePath: path)) == made)
    }

    @Test func `a database's master keys are never made`() async throws {
        let result = try await run(
            [
                "TOKEN_BROKER_DATABASE_URL": "postgresql:///x", "TOKEN_BROKER_ADMIN_KEY": BrokerHarness.adminKey,
                "TOKEN_BROKER_MASTER_KEYS_FILE": directory.path + "-keys",
            ])
        #expect(result.status == 78)
        #expect(result.output.contains("TOKEN_BROKER_MASTER_KEYS_FILE names a file that cannot be read"))
        #expect(!FileManager.default.fileExists(atPath: directory.path + "-keys"))
    }

    @Test func `one of several admin keys is changed while the other goes on`() async throws {
        let port = try PostgresServer.freePort()
        let (new, other) = ("new-key-0123456789abcdefghijklmnop", "other-key-0123456789abcdefghijklmnop")
        for keys in ["ops:\(BrokerHarness.adminKey),ci:\(other)", "ops:\(new),ci:\(other)"] {
            let process = try await start(port, ["DATA_DIR": directory.path, "ADMIN_KEY": keys])
            let broker = try BrokerClient(port: port)
            #expect(try await broker.call(.get, "/tenants", key: other).status == 200)
            let isOld = keys.contains(BrokerHarness.adminKey)
            #expect(try await broker.call(.get, "/tenants").status == (isOld ? 200 : 401))
            #expect(try await broker.call(.get, "/tenants", key: new).status == (isOld ? 401 : 200))
            #expect(await process.terminate() == 0)
            let log = process.lines.joined()
            #expect(log.contains(#""admin":"ci""#) && !log.contains(other) && !log.contains(new))
        }
    }

    // H101 H102
    @Test func `callers cannot take the descriptors that the store needs`() async throws {
        let port = try PostgresServer.freePort()
        let process = try await TestProcess.start(
            ["/bin/sh", "-c", #"ulimit -n 128; exec "$0""#, BrokerProcess.program("token-broker")],
            environment: [
                "TOKEN_BROKER_LISTEN": "127.0.0.1:\(port)", "TOKEN_BROKER_ADMIN_KEY": BrokerHarness.adminKey,
                "TOKEN_BROKER_DATA_DIR": directory.path,
            ])
        _ = try await process.line { $0.contains(#""event":"listening""#) }
        #expect(process.lines.contains { $0.contains(#""event":"connection_limit_lowered","count":64"#) })
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        let address = try #require(SocketAddress(numericHost: "127.0.0.1", port: port))
        var strangers: [HTTPRawClient] = []
        for _ in 0..<150 {
            let stranger = try HTTPRawClient(address)
            try await stranger.send("GET / HTTP/1.1\r\nHost: a\r\n")
            strangers.append(stranger)
        }
        // While there are as many connections as there may be, this one gives way when it has been idle for a second, and a new
        // one is refused before that.
        func answer(
            _ call: (_ attempt: Int) async throws -> BrokerHarness.Answer
        ) async throws -> BrokerHarness.Answer {
            var attempt = 1
            while true {
                do {
                    return try await call(attempt)
                } catch TransportError.connectionLost {
                    attempt += 1
                }
            }
        }
        // Another tenant each time: what became of a lost call is not known.
        let second = try await answer { attempt in
            try await broker.call(.put, "/tenants/other\(attempt)", body: #"{"client_id": "c1"}"#)
        }
        #expect(second.status == 201, "\(second.text) \(process.lines.suffix(3))")
        #expect(try await answer { _ in try await broker.call(.get, "/readyz", key: nil) }.status == 200)
        for stranger in strangers { await stranger.close() }
        #expect(await process.terminate() == 0)
    }

    @Test(
        arguments: [
            (["--help"], 0, "keys reseal"), (["help", "variables"], 0, "TOKEN_BROKER_MASTER_KEYS"),
            (["--version"], 0, "token-broker "), (["version", "--json"], 0, #"{"version":""#),
            (["config", "check"], 0, "The configuration is valid."), (["keys", "generate"], 0, "k1:"),
            (["keys", "generate", "2026-11"], 0, "2026-11:"), (["keys", "generate", "a b"], 64, ""),
            (["unknown"], 2, "Try: token-broker --help"), (["healthcheck"], 1, ""),
            (["pins"], 64, "Try: token-broker pins --help"),
            (["pins", "https://localhost"], 64, "Try: token-broker pins --help"),
            (["pins", "localhost/x"], 64, "Try: token-broker pins --help"), (["pins", "a@localhost"], 64, ""),
            (["pins", "localhost:22"], 64, ""), (["keys", "genrate"], 2, "did you mean generate?"),
            (["keys", "reseal", "--rate", "0"], 64, "--rate must be a number from 1 to 100000, not 0"),
            (["keys", "reseal", "--rate", "100001"], 64, "--rate must be"),
            (["keys", "reseal", "--rate"], 64, "--rate needs a value: N"), (["keys", "retire"], 64, "ID is missing"),
            (["journal", "forget", ""], 64, "ID is empty"), (["doctor", "store", "--repair="], 64, "--repair needs"),
            (["audit", "remove"], 64, "--before is missing"),
            (["audit", "remove", "--before", "yesterday"], 64, "--before must be a time"),
            (["audit", "export", "--from=soon"], 64, "--from must be a time"),
            (["audit", "export", "--tenant", "a b"], 64, "no tenant can be called a b"),
            (["audit", "export", "--before", "x"], 64, "unknown option --before"),
            (["up", "--port", "65536"], 64, "--port must be a number from 1 to 65535"),
            (["up"], 78, "set HOME, XDG_DATA_HOME or TOKEN_BROKER_DATA_DIR"),
        ] as [([String], Int32, String)])
    func `commands say what they do`(arguments: [String], status: Int32, text: String) async throws {
        let port = try PostgresServer.freePort()
        let result = try await run(["TOKEN_BROKER_LISTEN": "127.0.0.1:\(port)"], arguments)
        #expect(result.status == status)
        #expect(result.output.contains(text), "\(result.output)")
    }

    @Test func `pins prints those of a chain that leads to a trusted root, and of no other chain`() async throws {
        let server = try await TLSTestServer([.hold], [.hold])
        let host = "localhost:\(server.port)"
        let trusting = ["TOKEN_BROKER_TRUSTED_CA_FILE": TLSTestCertificates.shared.root]
        let shown = try await run(trusting, ["pins", host])
        #expect(shown.status == 0, "\(shown.output)")
        let lines = shown.output.split(separator: "\n").map { $0.split(separator: "  ").map(String.init) }
        #expect(lines.map { $0.count == 4 ? $0[1] : "" } == ["server", "intermediate", "root"])
        var pins: [String] = []
        for name in ["good", "intermediate", "root"] { pins.append(try await TLSTestCertificates.pin(of: name)) }
        #expect(lines.compactMap(\.first) == pins)
        let refused = try await run([:], ["pins", host])
        #expect(refused.status == 1)
        #expect(
            refused.output.contains("\(host): The certificate does not lead to a trusted root"), "\(refused.output)")
        #expect(!refused.output.contains("sha256/"))
    }

    // H098 H099
    @Test func `SIGTERM lets a refresh under way end, and stores what it brought`() async throws {
        let provider = try RunningProvider(Self.configuration)
        let port = try PostgresServer.freePort()
        let variables = ["DATA_DIR": directory.path, "ALLOW_INSECURE_PROVIDERS": "true"]
        var process = try await start(port, variables)
        let broker = try BrokerClient(port: port)
        try await broker.makeTenant(at: provider)
        try await broker.logIn(at: provider)
        let before = try await broker.call(.get, "/credentials", tenant: "t1")

        provider.provider.script(Fault(.token, delay: .seconds(1)))
        async let refreshed = broker.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
        try await provider.provider.waitForRequests(1, at: .token, grant: .refreshToken)
        #expect(await process.terminate() == 0)
        let answer = try await refreshed
        #expect(answer.status == 200)
        #expect(answer.fields["ETag"] != before.fields["ETag"])

        process = try await start(port, variables)
        let after = try await broker.call(.get, "/credentials", tenant: "t1")
        #expect(after.json["token"] == answer.json["token"])
        #expect(await process.terminate() == 0)
        await provider.close()
    }

    @Test func `a hundred callers of an expired token cause one request at the provider`() async throws {
        let provider = try RunningProvider(Self.configuration)
        let port = try PostgresServer.freePort()
        let process = try await start(port, ["DATA_DIR": directory.path, "ALLOW_INSECURE_PROVIDERS": "true"])
        let broker = try BrokerClient(port: port)
        try await broker.makeTenant(at: provider)
        provider.provider.configure { $0.accessTokenLifetime = .seconds(30) }
        try await broker.logIn(at: provider)
        provider.provider.configure { $0.accessTokenLifetime = .seconds(3600) }
        let answers = try await withThrowingTaskGroup(of: BrokerHarness.Answer.self) { group in
            for _ in 0..<100 { group.addTask { try await broker.call(.get, "/credentials", tenant: "t1") } }
            return try await group.reduce(into: []) { $0.append($1) }
        }
        #expect(answers.allSatisfy { $0.status == 200 })
        #expect(Set(answers.compactMap { $0.json["token"]?.text }).count == 1)
        #expect(provider.provider.requests.count { $0.endpoint == .token && $0.grant == "refresh_token" } == 1)
        #expect(await process.terminate() == 0)
        await provider.close()
    }

    // MARK: Running it

    private static let configuration = ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1")])

    private func start(_ port: UInt16, _ variables: [String: String]) async throws -> TestProcess {
        try await BrokerProcess.start(port: port, variables)
    }

    /// Runs the program to its end; both its outputs.
    private func run(
        _ environment: [String: String], _ arguments: [String] = []
    ) async throws -> (status: Int32, output: String) {
        try await BrokerProcess.run(arguments, environment: environment)
    }

    private func text(_ name: String) throws -> String {
        let data = try Data(contentsOf: URL(filePath: directory.path + "/" + name))
        return String(decoding: data, as: UTF8.self).filter { !$0.isNewline }
    }
}
