import BrokerTesting
import CommandLineClient
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Testing

/// The commands about users at a broker that runs as a program.
@Suite(.timeLimit(.minutes(5))) struct `The commands about users` {
    private static func json(_ line: String) throws -> JSONValue { try JSONValue(parsing: Array(line.utf8)) }

    // MARK: token

    @Test func `print a token alone, and say why there is none`() async throws {
        let fixture = try await UserFixture()
        let none = await fixture.run("token", "web")
        #expect(none.status == .notLoggedIn)
        #expect(none.terminal.output == "")
        #expect(none.terminal.errors.contains("no user is logged in under the storage key default of the tenant web"))
        #expect(none.terminal.errors.contains("Try: token-broker login web\n"))
        let other = await fixture.run("token", "--tenant", "web", "--storage-key", "u1", "--level", "user")
        #expect(other.status == .notLoggedIn)
        #expect(other.terminal.errors.contains("Try: token-broker login web --storage-key u1\n"))

        try await fixture.store("the-token")
        for words in [
            ["token", "web"], ["token", "--tenant", "web"], ["token", "web", "--format", "bearer", "--level", "user"],
        ] {
            let terminal = RecordedTerminal()
            guard
                case .run(let invocation) = CommandProgram.step(
                    words, terminal: terminal, environment: fixture.environment)
            else {
                Issue.record("\(words) is refused: \(terminal.errors)")
                continue
            }
            #expect(await CommandProgram.run(invocation) == .done)
            #expect(terminal.output == "the-token\n" && terminal.errors == "", "\(words)")
        }
        let json = await fixture.run("token", "web", "--json")
        #expect(try Self.json(json.terminal.output)["token"]?.string == "the-token")
        let shell = await fixture.run("token", "web", "--format", "env", "--env", "GH_TOKEN")
        #expect(shell.terminal.output == "export TOKEN_BROKER_TOKEN='the-token'\nexport GH_TOKEN='the-token'\n")
        await fixture.close()
    }

    @Test(arguments: [
        (["--host", "a"], "--host is for --format git and --format docker only"),
        (["--username", "a", "--format", "bearer"], "--username is for --format git and --format docker only"),
        (["--env", "A"], "--env is for --format env only"),
        (["--account", "1", "--json"], "--account is for --format aws-process only"),
        (["--role", "r", "--format", "env"], "--role is for --format aws-process only"),
        (["--region", "r", "--format", "git", "get"], "--region is for --format aws-process only"),
    ])
    func `refuse options of another format`(words: [String], complaint: String) async {
        let (status, terminal) = await CommandLines.run(["token", "web"] + words)
        #expect(status == .usage)
        #expect(terminal.errors == "token-broker: \(complaint)\nTry: token-broker token --help\n")
    }

    @Test func `refuse words that do not fit together`() async throws {
        let fixture = try await UserFixture()
        for words in [
            ["token", "web", "--tenant", "other"], ["token", "web", "--json", "--format", "env"],
            ["token", "web", "--format", "git"], ["token", "web", "--format", "git", "list"], ["token", "web", "get"],
            ["token", "web", "--min-ttl", "-1"], ["token", "web", "--min-ttl", "86401"],
            ["token", "web", "--format", "env", "--env", "A-B"], ["login", "web", "--upgrade"],
            ["run", "--tenant", "web"],
            ["run", "--tenant", "web", "--env", "1", "--", "true"], ["logout", "web"], ["list", "web", "--limit", "0"],
        ] {
            let terminal = RecordedTerminal()
            switch CommandProgram.step(words, terminal: terminal, environment: fixture.environment) {
            case .end(let status): #expect(status == .usage, "\(words)")
            case .run(let invocation): #expect(await CommandProgram.run(invocation) == .usage, "\(words)")
            case .service: Issue.record("\(words) is a command of the service")
            }
            #expect(terminal.errors.contains("Try: token-broker "), "\(words)")
            #expect(terminal.output == "", "\(words)")
        }
        #expect((await fixture.run("token", "nosuch")).status == .notFound)
        let forced = await fixture.run("token", "web", "--force-refresh")
        #expect(forced.status == .notLoggedIn && forced.terminal.errors.contains("Try: token-broker status web"))
        await fixture.close()
    }

    // MARK: Git, Docker, Google

    @Test func `answer Git for the hosts that are named`() async throws {
        let fixture = try await UserFixture()
        try await fixture.store("the-token")
        func ask(_ host: String, _ scheme: String = "https") async -> (ExitStatus, String) {
            let asked = RecordedTerminal(answers: ["protocol=\(scheme)", "host=\(host)", ""])
            let done = await fixture.run(
                "token", "web", "--format", "git", "--host", "git.example", "get", terminal: asked)
            return (done.status, asked.output)
        }
        let answer = "username=oauth2\npassword=the-token\npassword_expiry_utc=4070908800\n"
        #expect(await ask("git.example") == (.done, answer))
        #expect(await ask("GIT.example") == (.done, answer))
        #expect(await ask("other.example") == (.done, ""))
        #expect(await ask("git.example", "http") == (.done, ""))
        await fixture.close()
    }

    @Test func `renew a token that Git says is refused, and log out no user for it`() async throws {
        let fixture = try await UserFixture()
        let begun = try await fixture.start("device", "web", "--storage-key", "u2", "--json")
        let code = try #require(try Self.json(try await begun.line { $0.hasPrefix("{") })["user_code"]?.string?.text)
        try await fixture.decide(code)
        #expect(await begun.exitStatus() == 0)

        func erase(_ password: String) async -> ExitStatus {
            let terminal = RecordedTerminal(answers: ["protocol=https", "host=h", "password=\(password)", ""])
            let words = await fixture.run(
                "token", "web", "--storage-key", "u2", "--format", "git", "erase", terminal: terminal)
            #expect(terminal.output == "")
            return words.status
        }
        func token() async -> String { await fixture.run("token", "web", "--storage-key", "u2").terminal.output }
        let first = await token()
        #expect(await erase("another password") == .done)
        #expect(await token() == first)
        #expect(await erase(String(first.dropLast())) == .done)
        let second = await token()
        #expect(second != first && !second.isEmpty)
        #expect(await erase(String(first.dropLast())) == .done)
        #expect(await token() == second)

        // Without a refresh token there is nothing to renew.
        try await fixture.store("the-token")
        let refused = RecordedTerminal(answers: ["host=h", "password=the-token", ""])
        #expect(await fixture.run("token", "web", "--format", "git", "erase", terminal: refused).status == .done)
        #expect(refused.errors.contains("could not be renewed"))
        #expect(await fixture.run("token", "web").terminal.output == "the-token\n")
        await fixture.close()
    }

    @Test func `answer Docker, and tell it on standard output why there is nothing`() async throws {
        let fixture = try await UserFixture()
        func ask(_ server: String, _ action: String) async -> (ExitStatus, String) {
            let terminal = RecordedTerminal(answers: [server])
            let done = await fixture.run(
                "token", "web", "--format", "docker", "--host", "ghcr.io", action, terminal: terminal)
            return (done.status, terminal.output)
        }
        let none = await ask("https://ghcr.io", "get")
        #expect(none.0 == .notLoggedIn && none.1.contains("no user is logged in"))
        try await fixture.store("the-token")
        let found = await ask("https://ghcr.io", "get")
        #expect(found.0 == .done)
        #expect(try Self.json(found.1)["Secret"]?.string == "the-token")
        #expect(try Self.json(found.1)["ServerURL"]?.string == "https://ghcr.io")
        #expect(await ask("docker.io", "get") == (.notFound, "credentials not found in native keychain\n"))
        #expect(await ask("", "list") == (.done, "{}\n"))
        #expect(await ask("ghcr.io", "erase") == (.done, ""))
        #expect(await ask(#"{"ServerURL": "ghcr.io"}"#, "store") == (.done, ""))
        await fixture.close()
    }

    @Test func `tell Google of a failure with the exit status of a success`() async throws {
        let fixture = try await UserFixture()
        let none = await fixture.run("token", "web", "--format", "google-executable")
        #expect(none.status == .done && none.terminal.errors == "")
        #expect(try Self.json(none.terminal.output)["success"]?.bool == false)
        try await fixture.store("opaque")
        let opaque = await fixture.run("token", "web", "--format", "google-executable")
        #expect(try Self.json(opaque.terminal.output)["message"]?.string?.text.contains("no JWT") == true)
        #expect(await fixture.run("token", "web", "--format", "aws-process").status == .failed)
        await fixture.close()
    }

    // MARK: Logins

    @Test func `log a user in by a browser`() async throws {
        let fixture = try await UserFixture()
        let login = try await fixture.start("login", "web", "--storage-key", "u1", "--scope", "r_usr", "--json")
        let begun = try Self.json(try await login.line { $0.hasPrefix("{") })
        try await fixture.logIn(at: try #require(begun["login_uri"]?.string?.text))
        let end = try Self.json(try await login.line { $0.hasPrefix(#"{"status""#) })
        #expect(end["status"]?.string == "completed" && end["storage_key"]?.string == "u1")
        _ = try await login.line {
            $0.hasPrefix("Logged in") && $0.hasSuffix("under the storage key u1 of the tenant web.")
        }
        _ = try await login.line { $0 == "Next: token-broker token web --storage-key u1" }
        #expect(await login.exitStatus() == 0)
        let stored = try await fixture.admin.call(.get, "/credentials?storage_key=u1", tenant: "web")
        #expect(stored.json["level"]?.string == "user")
        await fixture.close()
    }

    @Test func `say that a login by a code was refused`() async throws {
        let fixture = try await UserFixture()
        let login = try await fixture.start("device", "web", "--json")
        let begun = try Self.json(try await login.line { $0.hasPrefix("{") })
        try await fixture.decide(try #require(begun["user_code"]?.string?.text), "deny")
        _ = try await login.line { $0.contains("the login has failed (access_denied)") }
        _ = try await login.line { $0 == "Try: token-broker device web" }
        #expect(await login.exitStatus() == ExitStatus.notLoggedIn.rawValue)
        await fixture.close()
    }

    @Test func `show the address to a person, with its QR code where that fits`() async throws {
        let fixture = try await UserFixture()
        let person = RecordedTerminal(isTerminal: true, canAsk: true)
        #expect(await fixture.run("login", "web", "--no-wait", terminal: person).status == .done)
        #expect(person.output == "")
        #expect(person.errors.contains("http://127.0.0.1:\(fixture.port)/login/start/web/"))
        #expect(person.errors.contains("\u{1b}[38;5;231;48;5;16m██"))
        let plain = RecordedTerminal(isTerminal: true, canAsk: true)
        #expect(
            await fixture.run("login", "web", "--no-wait", terminal: plain, variables: ["NO_COLOR": "1"]).status
                == .done)
        #expect(plain.errors.contains("██") && !plain.errors.contains("\u{1b}"))
        let program = RecordedTerminal()
        #expect(await fixture.run("device", "web", "--no-wait", terminal: program).status == .done)
        #expect(program.errors.contains("type this code") && !program.errors.contains("█"))
        await fixture.close()
    }

    // MARK: status, list, logout

    @Test func `show, list and end logins`() async throws {
        let fixture = try await UserFixture()
        let nothing = await fixture.run("status", "web")
        #expect(nothing.status == .notLoggedIn && nothing.terminal.output.contains("logged in       no"))
        let empty = await fixture.run("list", "web")
        #expect(empty.status == .done && empty.terminal.errors == "There are no users of the tenant web.\n")

        for number in 1...3 { try await fixture.store("t\(number)", storageKey: "u\(number)") }
        let status = await fixture.run("status", "web", "--storage-key", "u1")
        #expect(status.status == .done && status.terminal.output.contains("logged in       yes"))
        let json = await fixture.run("status", "web", "--storage-key", "u1", "--json")
        #expect(try Self.json(json.terminal.output)["logged_in"]?.bool == true)
        let list = await fixture.run("list", "web")
        #expect(list.terminal.output.split(separator: "\n").count == 4)
        let lines = await fixture.run("list", "web", "--json", "--limit", "2")
        let keys = try lines.terminal.output.split(separator: "\n").map {
            try Self.json(String($0))["storage_key"]?.string
        }
        #expect(keys == ["u1", "u2"])
        #expect(await fixture.run("list", "web", "--state", "held", "--json").terminal.output == "")
        #expect(await fixture.run("list", "web", "--expires-before", "soon").status == .usage)
        // In so long: they expire in 2099.
        #expect(await fixture.run("list", "web", "--expires-before", "2h", "--json").terminal.output == "")
        let later = await fixture.run("list", "web", "--expires-before", "99999d", "--json")
        #expect(later.terminal.output.split(separator: "\n").count == 3, "\(later.terminal.errors)")
        let unasked = await fixture.run("logout", "web", "--storage-key", "u1")
        #expect(unasked.status == .usage)
        #expect(
            unasked.terminal.errors.hasSuffix("Try: token-broker logout web --storage-key u1 --yes\n"),
            "\(unasked.terminal.errors)")
        let stranger = await fixture.run("logout", "web", "--storage-key", "stranger", "--yes")
        #expect(stranger.status == .done)
        #expect(
            stranger.terminal.errors == "No user was logged in under the storage key stranger of the tenant web.\n")

        let hesitant = RecordedTerminal(isTerminal: true, canAsk: true, answers: ["n"])
        #expect(await fixture.run("logout", "web", "--storage-key", "u1", terminal: hesitant).status == .failed)
        #expect(await fixture.run("status", "web", "--storage-key", "u1").status == .done)
        let sure = RecordedTerminal(isTerminal: true, canAsk: true, answers: ["y"])
        #expect(await fixture.run("logout", "web", "--storage-key", "u1", terminal: sure).status == .done)
        #expect(await fixture.run("status", "web", "--storage-key", "u1").status == .notLoggedIn)
        let script = await fixture.run("logout", "web", "--storage-key", "u2", "--yes", "--json")
        #expect(script.status == .done)
        #expect(try Self.json(script.terminal.output)["storage_key"]?.string == "u2")
        #expect(await fixture.run("status", "web", "--storage-key", "u2").status == .notLoggedIn)
        await fixture.close()
    }

    // MARK: run

    @Test func `run a program with the token, and end as it does`() async throws {
        let fixture = try await UserFixture()
        try await fixture.store("the-token")
        let program = try await fixture.start(
            "run", "--tenant", "web", "--env", "GH_TOKEN", "--", "sh", "-c",
            #"echo "$TOKEN_BROKER_TOKEN/$GH_TOKEN/$KEPT" $(env | grep -o "^TOKEN_BROKER_[A-Z_]*" | sort); grep -E "Sig(Blk|Ign)" /proc/self/status; exit 7"#,
            variables: ["KEPT": "kept", "TOKEN_BROKER_ADMIN_KEY_FILE": "/a", "TOKEN_BROKER_MASTER_KEYS_VAULT": "v"])
        #expect(await program.exitStatus() == 7)
        #expect(program.lines.first == "the-token/the-token/kept TOKEN_BROKER_TOKEN TOKEN_BROKER_URL")
        // The two signals of the C library's own, 32 and 33, are none of the program's.
        let signals = program.lines.filter { $0.hasPrefix("Sig") }.compactMap { UInt64($0.suffix(16), radix: 16) }
        #expect(signals.map { $0 & ~(3 << 31) } == [0, 0], "\(program.lines)")
        for (name, status, text) in [
            ("there-is-no-such-program", 127, "there is no program there-is-no-such-program"),
            ("/etc/passwd", 126, "/etc/passwd cannot be started: execvp /etc/passwd: Permission denied"),
        ] as [(String, Int32, String)] {
            let missing = try await fixture.start("run", "--tenant", "web", "--", name)
            #expect(await missing.exitStatus() == status)
            #expect(missing.lines == ["token-broker: " + text])
        }
        let none = try await fixture.start("run", "--tenant", "web", "--storage-key", "u1", "--", "true")
        #expect(await none.exitStatus() == ExitStatus.notLoggedIn.rawValue)
        await fixture.close()
    }

    @Test func `hand on none of the broker's own variables but its address`() {
        let own = ["API_KEY", "API_KEY_FILE", "MASTER_KEYS_VAULT", "DATABASE_URL", "DATABASE_URL_FILE", "TOKEN", "URL"]
        let environment = Dictionary(uniqueKeysWithValues: own.map { ("TOKEN_BROKER_" + $0, "x") })
        let handed = ChildEnvironment.variables(of: environment.merging(["PATH": "p"]) { $1 })
        #expect(handed == ["TOKEN_BROKER_URL": "x", "PATH": "p"])
    }
}
