import BrokerTesting
import CommandLineClient
import FoundationEssentials
import Testing

@Suite struct `Kept contexts` {
    private let directory = StoreFixtureDirectory()
    private var path: String { directory.path + "/a/contexts.json" }
    private var environment: [String: String] { ["TOKEN_BROKER_CONTEXTS": path] }

    private func mode(_ path: String) throws -> Int? {
        try FileManager.default.attributesOfItem(atPath: path)[.posixPermissions] as? Int
    }

    /// Writes the file as another program might have.
    private func write(_ text: String, mode: Int = 0o600) throws {
        try FileManager.default.createDirectory(
            atPath: directory.path + "/a", withIntermediateDirectories: true)
        try Data(text.utf8).write(to: URL(filePath: path))
        try FileManager.default.setAttributes([.posixPermissions: mode], ofItemAtPath: path)
    }

    @Test func `are kept in a file that only their owner may read, in a directory of theirs`() async throws {
        let terminal = RecordedTerminal(answers: ["key-one"])
        let added = await CommandLines.run(
            ["context", "add", "work", "--url", "https://broker.example/", "--tenant", "music", "--no-check"],
            environment, terminal: terminal)
        #expect(added.status == .done, "\(terminal.errors)")
        #expect(terminal.secrets == 1)
        #expect(try mode(path) == 0o600)
        #expect(try mode(directory.path + "/a") == 0o700)
        #expect(try mode(directory.path) == 0o700)
        let kept = try Contexts.read(environment)
        #expect(kept.current == "work")
        #expect(
            kept.entries == [
                "work": Contexts.Entry(url: "https://broker.example/", apiKey: "key-one", tenant: "music")
            ])
        // A file that was readable is so no more once it is replaced.
        try kept.write(environment)
        #expect(try mode(path) == 0o600)
        let names = try FileManager.default.contentsOfDirectory(atPath: directory.path + "/a")
        #expect(names.sorted() == ["contexts.json", "contexts.json.lock"])
    }

    @Test func `are listed without their keys, used and removed`() async throws {
        for (name, key) in [("one", "secret-1"), ("two", "secret-2")] {
            let added = await CommandLines.run(
                ["context", "add", name, "--url", "http://\(name).example", "--no-check"], environment,
                terminal: RecordedTerminal(answers: [key]))
            #expect(added.status == .done)
        }
        let listed = await CommandLines.run(["context", "list"], environment)
        #expect(listed.terminal.output.contains("*  two   http://two.example"), "\(listed.terminal.output)")
        let json = await CommandLines.run(["context", "list", "--json"], environment)
        #expect(
            json.terminal.output
                == #"{"current":"two","contexts":[{"name":"one","url":"http://one.example","has_key":true},"#
                + #"{"name":"two","url":"http://two.example","has_key":true}]}"# + "\n")
        #expect(!(listed.terminal.output + json.terminal.output).contains("secret"))
        #expect(await CommandLines.run(["context", "use", "one"], environment).status == .done)
        #expect(try Contexts.read(environment).current == "one")
        let other = await CommandLines.run(["context", "use", "tow"], environment)
        #expect(other.status == .configuration)
        #expect(other.terminal.errors.contains("did you mean two?"))
        #expect(await CommandLines.run(["context", "remove", "one"], environment).status == .done)
        let left = try Contexts.read(environment)
        #expect(left.current == nil && left.entries.keys.sorted() == ["two"])
    }

    @Test(arguments: [0o644, 0o640, 0o604, 0o620, 0o602])
    func `that others can use are refused`(mode: Int) async throws {
        try write(#"{"contexts":{}}"#, mode: mode)
        let listed = await CommandLines.run(["context", "list"], environment)
        #expect(listed.status == .configuration)
        #expect(listed.terminal.errors.contains("other users can use \(path)"))
        #expect(listed.terminal.errors.contains("Try: chmod 600 \(path)"))
    }

    @Test(arguments: [
        "", "{", "[]", "{}", #"{"contexts":[]}"#, #"{"contexts":{"a":{}}}"#, #"{"contexts":{"a":{"url":1}}}"#,
    ])
    func `that are damaged are refused, and stay as they are`(text: String) async throws {
        try write(text)
        let added = await CommandLines.run(
            ["context", "add", "a", "--url", "http://a.example"], environment,
            terminal: RecordedTerminal(answers: ["k"]))
        #expect(added.status == .configuration)
        #expect(added.terminal.errors.contains("\(path) is damaged"))
        #expect(String(decoding: try Data(contentsOf: URL(filePath: path)), as: UTF8.self) == text)
    }

    @Test(
        arguments: [
            (["TOKEN_BROKER_CONTEXTS": "/a/b", "XDG_CONFIG_HOME": "/c", "HOME": "/d"], "/a/b"),
            (["XDG_CONFIG_HOME": "/c", "HOME": "/d"], "/c/token-broker/contexts.json"),
            (
                ["TOKEN_BROKER_CONTEXTS": "", "XDG_CONFIG_HOME": "", "HOME": "/d"],
                "/d/.config/token-broker/contexts.json"
            ),
            ([:], nil),
        ] as [([String: String], String?)])
    func `are where the variables say`(environment: [String: String], path: String?) {
        #expect(Contexts.path(environment) == path)
    }

    @Test func `are none without a home, and cannot be kept then`() async throws {
        #expect(try Contexts.read([:]) == Contexts())
        #expect(try Contexts.read(environment) == Contexts())
        let added = await CommandLines.run(
            ["context", "add", "a", "--url", "http://a.example", "--no-check"],
            terminal: RecordedTerminal(answers: ["k"]))
        #expect(added.status == .configuration)
        #expect(added.terminal.errors.contains("set HOME, XDG_CONFIG_HOME or TOKEN_BROKER_CONTEXTS"))
    }

    @Test func `need an address and a key`() async {
        for (words, answers, complaint) in [
            (["context", "add", "a"], ["k"], "--url is missing"),
            (["context", "add", "a", "--url", "http://a.example"], [], "no key was given"),
            (["context", "add", "a", "--url", "http://a.example"], [""], "no key was given"),
            (["context", "add", "a", "--url", "ftp://a.example"], ["k"], "no http or https address"),
            (["context", "add", "a", "--url", "http://a.example:22"], ["k"], "no HTTP answers at port 22"),
            (["context", "add", "a", "--url", "http://a.example/raw?x=1"], ["k"], "has a query or a fragment"),
            (["context", "add", "a", "--url", "http://a.example/raw#x"], ["k"], "has a query or a fragment"),
            (["context", "add", "a", "--url", "http://u:hunter2@a.example"], ["k"], "a user name or a password"),
            (["context", "add", "a", "--url", "u:hunter2@a.example"], ["k"], "a user name or a password"),
            (["context", "add", "", "--url", "http://a.example"], ["k"], "the name of the context is empty"),
            (["context", "add", "a\u{7}", "--url", "http://a.example"], ["k"], "has control characters: a\u{fffd}"),
            (
                ["context", "add", "a", "--url", "http://a.example", "--tenant", "\u{1b}]0;x"], ["k"],
                "the tenant's name has control characters"
            ),
            (["context", "add", "a", "--url", "http://a.example"], ["\u{feff}hunter2"], "is no API key"),
            (["context", "add", "a", "--url", "http://a.example"], ["hunter2\0"], "is no API key"),
            (["context", "add", "a", "--url", "http://a.example"], ["hunter2\u{fffd}"], "is no API key"),
            (["context", "add", "a", "--url", "http://a.example"], ["\u{1b}[200~hunter2\u{1b}[201~"], "is no API key"),
            (["context", "add", "a", "--url", "a.example"], ["k"], "a.example has no scheme: write https://a.example"),
            (
                ["context", "add", "a", "--url", "localhost:9480"], ["k"],
                "localhost:9480 has no scheme: write http://localhost:9480"
            ),
        ] as [([String], [String], String)] {
            let added = await CommandLines.run(words, environment, terminal: RecordedTerminal(answers: answers))
            #expect(added.status == .usage)
            #expect(!added.terminal.errors.contains("hunter2"))
            #expect(added.terminal.errors.contains(complaint), "\(added.terminal.errors)")
            #expect(!FileManager.default.fileExists(atPath: path))
        }
    }

    /// A server that answers once.
    private func add(answering status: Int, _ body: String) async throws -> (
        status: ExitStatus?, terminal: RecordedTerminal
    ) {
        let type = status < 400 ? "application/json" : "application/problem+json"
        let head = "HTTP/1.1 \(status) x\r\nConnection: close\r\nContent-Type: \(type)\r\n"
        let server = try await TLSTestServer(
            tls: nil, [.read, .send("\(head)Content-Length: \(body.utf8.count)\r\n\r\n\(body)"), .hold])
        let added = await CommandLines.run(
            ["context", "add", "a", "--url", "http://localhost:\(server.port)"], environment,
            terminal: RecordedTerminal(answers: ["k"]))
        let report = try await server.report(afterConnections: 1)
        #expect(report.requests.count == 1)
        return added
    }

    @Test func `are kept with a key that the broker takes, and not with one that it refuses`() async throws {
        let refused = try await add(answering: 401, #"{"code": "unauthorized", "detail": "The API key is unknown."}"#)
        #expect(refused.status == .forbidden)
        #expect(
            refused.terminal.errors.contains(
                "nothing is kept: The API key is unknown.\nWith --no-check it is kept all the same.\n"
                    + "Try: token-broker context add a --url http://localhost:"), "\(refused.terminal.errors)")
        for (status, body) in [
            (404, #"{"title": "Not Found", "status": 404, "detail": "There is no such path."}"#), (200, "{}"),
            (404, "<html>"), (302, ""),
        ] {
            let other = try await add(answering: status, body)
            #expect(other.status == .failed)
            #expect(other.terminal.errors.contains("no token-broker answers at http://localhost:"))
        }
        #expect(!FileManager.default.fileExists(atPath: path))
        let taken = try await add(answering: 200, #"{"providers": []}"#)
        #expect(taken.status == .done, "\(taken.terminal.errors)")
        #expect(try Contexts.read(environment).entries["a"]?.apiKey == "k")
    }

    @Test func `are kept with a warning where the broker cannot be reached`() async throws {
        let port = try PostgresServer.freePort()
        let added = await CommandLines.run(
            ["context", "add", "a", "--url", "http://127.0.0.1:\(port)"], environment,
            terminal: RecordedTerminal(answers: ["k"]))
        #expect(added.status == .done)
        #expect(
            added.terminal.errors.contains(
                "Kept without having been tried: the broker at http://127.0.0.1:\(port) cannot be reached: "
                    + "no address of the host accepted a connection"), "\(added.terminal.errors)")
    }

    @Test func `are all there after several were added at once`() async throws {
        let environment = environment
        let names = (0..<8).map { "c\($0)" }
        await withTaskGroup(of: Void.self) { group in
            for name in names {
                group.addTask {
                    let added = await CommandLines.run(
                        ["context", "add", name, "--url", "http://a.example", "--no-check"], environment,
                        terminal: RecordedTerminal(answers: ["k"]))
                    #expect(added.status == .done)
                }
            }
        }
        #expect(try Contexts.read(environment).entries.keys.sorted() == names)
    }

    @Test(arguments: [true, false])
    func `stay behind a symbolic link, also one that leads to nothing yet`(isThere: Bool) throws {
        let target = directory.path + "/real.json"
        if isThere { try Contexts().write(["TOKEN_BROKER_CONTEXTS": target]) }
        try FileManager.default.createDirectory(atPath: directory.path + "/a", withIntermediateDirectories: true)
        try FileManager.default.createSymbolicLink(atPath: path, withDestinationPath: "../real.json")
        let kept = Contexts(current: nil, entries: ["a": Contexts.Entry(url: "http://a.example")])
        try kept.write(environment)
        #expect(try FileManager.default.destinationOfSymbolicLink(atPath: path) == "../real.json")
        #expect(try Contexts.read(["TOKEN_BROKER_CONTEXTS": target]) == kept)
    }

    @Test(
        arguments: [
            ([:], nil),
            (["TOKEN_BROKER_URL": "http://b.example"], "TOKEN_BROKER_URL is set: commands speak to http://b.example"),
            (["TOKEN_BROKER_API_KEY": "k"], "TOKEN_BROKER_API_KEY is set: commands use that key at work"),
            (["TOKEN_BROKER_CONTEXT": "home"], "TOKEN_BROKER_CONTEXT is set: commands use home, not work"),
            (["TOKEN_BROKER_CONTEXT": "work", "TOKEN_BROKER_URL": "http://b.example"], nil),
        ] as [([String: String], String?)])
    func `are listed with the variable that hides the one in use`(
        variables: [String: String], note: String?
    ) async throws {
        try Contexts(current: "work", entries: ["work": Contexts.Entry(url: "http://a.example", apiKey: "k")])
            .write(environment)
        let listed = await CommandLines.run(["context", "list"], environment.merging(variables) { $1 })
        if let note {
            #expect(listed.terminal.errors.contains(note), "\(listed.terminal.errors)")
        } else {
            #expect(listed.terminal.errors.isEmpty)
        }
    }
}
