import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Reactor
import Testing

@testable import CommandLineClient

/// `import` and `export` with a whole broker.
@Suite(.timeLimit(.minutes(3))) struct `Import and export` {
    private let directory = StoreFixtureDirectory(isInMemory: true)
    private let files = StoreFixtureDirectory()

    private func broker() async throws -> RunningBroker {
        let broker = try await RunningBroker(directory: directory.path)
        let tenant = try await broker.call(
            .put, "/tenants/t1", body: #"{"client_id": "c1", "scopes": ["read", "write"]}"#)
        #expect(tenant.status == 201, "\(tenant.text)")
        return broker
    }

    private struct Ended {
        let status: CommandLineClient.ExitStatus
        let output: String
        let errors: String

        var lines: [JSONValue] {
            output.split(separator: "\n").compactMap { try? JSONValue(parsing: Array($0.utf8)) }
        }
    }

    private func run(
        _ broker: RunningBroker, _ words: String..., terminal: RecordedTerminal = RecordedTerminal(),
        tenant: String = "t1"
    ) async -> Ended {
        let environment = [
            "TOKEN_BROKER_URL": broker.baseURL, "TOKEN_BROKER_API_KEY": BrokerHarness.adminKey,
            "TOKEN_BROKER_TENANT": tenant,
        ]
        let status: CommandLineClient.ExitStatus
        switch CommandProgram.step(words, terminal: terminal, environment: environment) {
        case .end(let end): status = end
        case .run(let invocation): status = await CommandProgram.run(invocation)
        case .service: status = .failed
        }
        return Ended(status: status, output: terminal.output, errors: terminal.errors)
    }

    private func file(_ name: String, _ text: String) throws -> String {
        let path = files.path + "/" + name
        try SmallFile.makeDirectories(above: path)
        try SmallFile.replace(path, Array(text.utf8))
        return path
    }

    private func read(_ broker: RunningBroker, _ key: String) async throws -> JSONValue {
        try await broker.call(.get, "/credentials?storage_key=\(key)").json
    }

    // MARK: Files of programs

    @Test(arguments: [
        ("spotipy", "spotipy-cache.json", "at-example-9"), ("authlib", "authlib-token.json", "at-example-27"),
        ("requests-oauthlib", "requests-oauthlib-token.json", "at-example-16"),
    ])
    func `a program's user is stored once, and unchanged after that`(
        format: String, file: String, token: String
    ) async throws {
        let broker = try await broker()
        let path = TokenFiles.path(file)
        let words = await run(broker, "import", format, path, "--storage-key", "ada", "--dry-run")
        #expect(words.status == .done, "\(words.errors)")
        #expect(try await broker.call(.get, "/credentials/list").json["credentials"]?.array?.isEmpty == true)
        let first = await run(broker, "import", format, path, "--storage-key", "ada", "--json")
        #expect(first.lines.map { $0["outcome"]?.string } == ["imported"], "\(first.errors)")
        #expect(first.lines.map { $0["storage_key"]?.string } == ["ada"])
        let second = await run(broker, "import", format, path, "--storage-key", "ada", "--json")
        #expect(second.lines.map { $0["outcome"]?.string } == ["unchanged"])
        let list = try await broker.call(.get, "/credentials/list").json["credentials"]?.array
        #expect(list?.compactMap { $0["storage_key"]?.string } == ["ada"])
        await broker.close()
    }

    @Test func `what cannot be taken over is told with its reason, and the others are stored`() async throws {
        let broker = try await broker()
        let path = try file(
            "rclone.conf",
            """
            [gd]
            type = drive
            client_id = c1
            token = {"access_token":"a","refresh_token":"r","expiry":"2999-01-01T00:00:00Z"}
            [other]
            type = drive
            client_id = c2
            token = {"access_token":"a","refresh_token":"r"}
            [plain]
            type = local
            """)
        let ended = await run(broker, "import", "rclone", path)
        #expect(ended.status == .partly)
        #expect(
            ended.errors.contains("other: The credentials' client_id is not the configured one."), "\(ended.errors)")
        #expect(ended.errors.contains("plain: a remote of the type local without a token"))
        #expect(ended.errors.contains("2 of 3 were not taken over"))
        #expect(
            ended.output.split(separator: "\n").map { $0.split(separator: " ").joined(separator: " ") }
                == ["OUTCOME COUNT", "imported 1", "unchanged 0", "refused 2"])
        #expect(try await read(broker, "gd")["token"]?.string == "a")
        await broker.close()
    }

    @Test func `a file comes by a pipe as well`() async throws {
        let broker = try await broker()
        let terminal = RecordedTerminal(answers: [#"{"access_token": "a", "refresh_token": "r"}"#])
        let ended = await run(broker, "import", "go-oauth2", "-", "--storage-key", "ada", terminal: terminal)
        #expect(ended.status == .done, "\(ended.errors)")
        await broker.close()
    }

    @Test(arguments: [
        (["import", "spotfy", "x"], CommandLineClient.ExitStatus.usage, "did you mean spotipy?"),
        (["import", "ndjson", "x", "--storage-key", "a"], .usage, "--storage-key is not for ndjson"),
        (["import", "ndjson", "x", "--verify", "--dry-run"], .usage, "use one of them"),
        (["import", "gh", "x", "--storage-key", "a b"], .usage, "1 to 200"),
        (["import", "ndjson", "/dev/null/none"], .refused, "/dev/null/none cannot be read"),
        (["import", "gh", "/dev/null"], .refused, "has no host"),
        (["import", "ndjson", "/dev/null"], .refused, "there is nothing to import"),
        (["export"], .usage, "--jwk is missing"), (["export", "--jwk", "/dev/null"], .refused, "is no JWK"),
        (["export", "--jwk", "/dev/null", "--json"], .usage, "--json needs --file"),
    ])
    func `wrong words are refused with what is right`(
        words: [String], status: CommandLineClient.ExitStatus, text: String
    ) async {
        let terminal = RecordedTerminal()
        let environment = [
            "TOKEN_BROKER_URL": "http://127.0.0.1:18099", "TOKEN_BROKER_API_KEY": "k", "TOKEN_BROKER_TENANT": "t1",
        ]
        guard case .run(let invocation) = CommandProgram.step(words, terminal: terminal, environment: environment)
        else {
            Issue.record("\(words) is not run: \(terminal.errors)")
            return
        }
        #expect(await CommandProgram.run(invocation) == status)
        #expect(terminal.errors.contains(text), "\(terminal.errors)")
    }

    // MARK: Many lines

    private static func line(_ number: Int) -> String {
        #"{"storage_key": "u\#(number)", "refresh_token": "r\#(number)"}"#
    }

    @Test func `lines go in batches with the input's numbers, and the state is gone at the end`() async throws {
        let broker = try await broker()
        var lines = (1...1203).map(Self.line)
        lines[0] = ""
        lines[1100] = #"{"storage_key": "no such key", "refresh_token": "r"}"#
        lines[1101] = "nonsense"
        let path = try file("users.ndjson", lines.joined(separator: "\n"))
        let ended = await run(broker, "import", "ndjson", path, "--json")
        #expect(ended.status == .partly)
        #expect(ended.lines.map { $0["line"]?.integer } == (2...1203).map { Int64($0) })
        #expect(ended.lines.count { $0["outcome"]?.string == "imported" } == 1200)
        #expect(ended.lines[1099]["errors"] != nil)
        #expect(ended.lines[1100]["detail"]?.string == "it is no JSON object")
        #expect(!SmallFile.exists(path + ".import-state"))
        await broker.close()
    }

    @Test func `an import that ended early goes on where it was, and not with another file`() async throws {
        let broker = try await broker()
        let text = (1...30).map(Self.line).joined(separator: "\n") + "\n"
        let path = try file("users.ndjson", text)
        // As an import leaves it that was killed after 20 lines.
        let examined = try ImportInput(Array(text.utf8), name: path).examined()
        let order = ImportState.Order(
            name: "users.ndjson", size: text.utf8.count, digest: examined.digest, format: "ndjson", url: broker.baseURL,
            tenant: "t1", options: [])
        try ImportState(order: order, tally: ImportTally(imported: 19, refused: 1)).write(path + ".import-state")
        let other = await run(broker, "import", "ndjson", path, "--replace")
        #expect(other.status == .refused)
        #expect(other.errors.contains("is not complete"), "\(other.errors)")
        let ended = await run(broker, "import", "ndjson", path)
        #expect(ended.status == .partly)
        #expect(ended.errors.contains("20 were dealt with before"), "\(ended.errors)")
        #expect(ended.output.contains("imported   29"), "\(ended.output)")
        let list = try await broker.call(.get, "/credentials/list?limit=100").json["credentials"]?.array
        #expect(list?.count == 10)
        #expect(!SmallFile.exists(path + ".import-state"))

        try ImportState(order: order, tally: ImportTally(imported: 20)).write(path + ".import-state")
        try SmallFile.replace(path, Array((text + Self.line(31)).utf8))
        let changed = await run(broker, "import", "ndjson", path)
        #expect(changed.status == .refused)
        #expect(changed.errors.contains("is not what it was"), "\(changed.errors)")
        #expect(changed.errors.contains("Try: rm "))
        #expect(await run(broker, "import", "ndjson", path, "--dry-run").status == .done)
        await broker.close()
    }

    @Test func `outcomes that cannot be written are told as lost`() async throws {
        let broker = try await broker()
        let path = try file("users.ndjson", "{")
        let lost = await run(broker, "import", "ndjson", path, "--json", terminal: RecordedTerminal(room: 0))
        #expect(lost.status == .refused && lost.output.isEmpty)
        #expect(lost.errors.contains("token-broker: standard output cannot be written: "), "\(lost.errors)")
        await broker.close()
    }

    @Test func `a broker that is not there, or not this tenant's, is told`() async throws {
        let broker = try await broker()
        let path = try file("users.ndjson", Self.line(1))
        let ended = await run(broker, "import", "ndjson", path, tenant: "t9")
        #expect(ended.status == .notFound, "\(ended.errors)")
        await broker.close()
        let gone = await run(broker, "import", "ndjson", path)
        #expect(gone.status == .unreachable, "\(gone.errors)")
    }

    // MARK: Export

    private static let receiver =
        #"{"kty":"EC","crv":"P-256","x":"weNJy2HscCSM6AEDTDg04biOvhFhyyWvOHQfeF_PxMQ","#
        + #""y":"e8lnCO-AlStT-NJVX-crhB7QRYhiix03illJOVAOyck","kid":"move"}"#

    @Test func `an export is a new file for its owner alone, and asks first`() async throws {
        let broker = try await broker()
        let users = try file("users.ndjson", Self.line(1) + "\n" + Self.line(2))
        #expect(await run(broker, "import", "ndjson", users).status == .done)
        let key = try file("receiver.jwk", Self.receiver)
        let target = files.path + "/t1.sealed"
        let wrong = await run(
            broker, "export", "--jwk", key, "--file", target, terminal: RecordedTerminal(canAsk: true, answers: ["t2"]))
        #expect(wrong.status == .refused)
        #expect(!SmallFile.exists(target))
        let right = await run(
            broker, "export", "--jwk", key, "--file", target, terminal: RecordedTerminal(canAsk: true, answers: ["t1"]))
        #expect(right.status == .done, "\(right.errors)")
        let written = try SmallFile.readWithAccess(target, limit: 1 << 20)
        #expect(!written.access.isReadableByOthers)
        #expect(written.bytes.split(separator: 0x0a).count == 2)
        #expect(written.bytes.starts(with: "eyJ".utf8))
        let again = await run(broker, "export", "--jwk", key, "--file", target)
        #expect(again.errors.contains("exists already"))
        let piped = await run(broker, "export", "--jwk", key, "--yes")
        #expect(piped.output.split(separator: "\n").count == 2)
        let unasked = await run(broker, "export", "--jwk", key)
        #expect(unasked.status == .usage && unasked.output.isEmpty)
        #expect(unasked.errors.contains("say --yes to do it"), "\(unasked.errors)")
        let full = await run(broker, "export", "--jwk", key, "--yes", terminal: RecordedTerminal(room: 0))
        #expect(full.status == .failed)
        #expect(full.errors == "token-broker: standard output cannot be written: write: No space left on device\n")
        // A sealed file is not sent to a broker.
        let sealed = await run(broker, "import", "ndjson", target)
        #expect(sealed.errors.contains("it is sealed"), "\(sealed.errors)")
        await broker.close()
    }

    @Test func `a private key stays where it is`() throws {
        let text = Self.receiver.dropLast() + #","d":"c2VjcmV0","key_ops":["deriveBits"]}"#
        let key = try ExportCommand.publicKey(Array(text.utf8), "k")
        #expect(key["d"] == nil)
        #expect(key["key_ops"] == nil)
        #expect(key["kid"]?.string == "move")
        #expect(throws: CommandError.self) { try ExportCommand.publicKey(Array(#"{"kty":"oct","k":"x"}"#.utf8), "k") }
    }
}
