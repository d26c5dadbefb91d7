import BrokerTesting
import FoundationEssentials
import HTTPCodec
import Reactor
import Testing

@testable import CommandLineClient

/// Which broker a command speaks to, with which key, and about which tenant.
@Suite struct `The broker of a command` {
    private let directory = StoreFixtureDirectory()
    private var contexts: String { directory.path + "/contexts.json" }
    private var data: String { directory.path + "/token-broker" }

    private func choose(_ environment: [String: String], _ words: [String] = []) throws(CommandError) -> BrokerAPI {
        guard let invocation = CommandLines.invocation(["context", "list"] + words, environment) else {
            throw CommandError(.usage, "the words are refused")
        }
        return try invocation.broker()
    }

    private func keep(_ current: String?) throws {
        let kept = Contexts(
            current: current,
            entries: [
                "work": Contexts.Entry(url: "https://work.example", apiKey: "work-key", tenant: "music"),
                "bare": Contexts.Entry(url: "https://bare.example"),
                "here": Contexts.Entry(url: "http://localhost:9000"),
            ])
        try kept.write(["TOKEN_BROKER_CONTEXTS": contexts])
    }

    /// The key that a broker on this machine has made, and where it listens as long as the result is held.
    private func serveLocally(
        _ address: String = "127.0.0.1", port: UInt16 = 9000, isTLS: Bool = false, hasOwnKey: Bool = true
    ) throws -> HeldFile {
        try FileManager.default.createDirectory(atPath: data, withIntermediateDirectories: true)
        try Data("local-key\n".utf8).write(to: URL(filePath: data + "/admin.key"))
        return try LocalBroker.announce(
            in: data, at: try #require(SocketAddress(numericHost: address, port: port)), isTLS: isTLS,
            hasOwnKey: hasOwnKey)
    }

    @Test(
        arguments: [
            ([], [:], "https://work.example", "work-key", "music"),
            (["--context", "bare"], ["TOKEN_BROKER_API_KEY": "k"], "https://bare.example", "k", nil),
            ([], ["TOKEN_BROKER_CONTEXT": "bare", "TOKEN_BROKER_API_KEY": "k"], "https://bare.example", "k", nil),
            (["--context", "work"], ["TOKEN_BROKER_CONTEXT": "bare"], "https://work.example", "work-key", "music"),
            (
                ["--context", "work"], ["TOKEN_BROKER_URL": "http://a.example", "TOKEN_BROKER_API_KEY": "k"],
                "https://work.example", "work-key", "music"
            ),
            // An address by the variable has nothing to do with the current context.
            (
                [], ["TOKEN_BROKER_URL": "http://a.example/x//", "TOKEN_BROKER_API_KEY": "k"], "http://a.example/x",
                "k", nil
            ),
            (["--tenant", "t1"], ["TOKEN_BROKER_TENANT": "t2"], "https://work.example", "work-key", "t1"),
            ([], ["TOKEN_BROKER_TENANT": "t2"], "https://work.example", "work-key", "t2"),
            ([], ["TOKEN_BROKER_URL": "http://127.0.0.1:9000"], "http://127.0.0.1:9000", "local-key", nil),
            ([], ["TOKEN_BROKER_URL": "http://127.0.0.1:9000/"], "http://127.0.0.1:9000", "local-key", nil),
            // Something else may listen at the other loopback address.
            (["--context", "here"], [:], "http://127.0.0.1:9000", "local-key", nil),
            // A key by the variable is for the variable's address, else for the one in use.
            ([], ["TOKEN_BROKER_API_KEY": "k"], "https://work.example", "k", "music"),
            (
                ["--context", "bare"], ["TOKEN_BROKER_URL": "https://bare.example/", "TOKEN_BROKER_API_KEY": "k"],
                "https://bare.example", "k", nil
            ),
            (
                [], ["TOKEN_BROKER_URL": "http://127.0.0.1:9000", "TOKEN_BROKER_API_KEY": "k"],
                "http://127.0.0.1:9000", "k", nil
            ),
        ] as [([String], [String: String], String, String, String?)])
    func `is that of the option, else of the variables, else of the current context`(
        words: [String], variables: [String: String], url: String, key: String, tenant: String?
    ) throws {
        try keep("work")
        let held = try serveLocally()
        defer { held.remove() }
        let all = ["TOKEN_BROKER_CONTEXTS": contexts, "XDG_DATA_HOME": directory.path].merging(variables) { $1 }
        let broker = try choose(all, words)
        #expect(broker.url == url)
        #expect(broker.apiKey == key)
        #expect(broker.tenant == tenant)
    }

    @Test(
        arguments: [
            ("127.0.0.1", 9000, false, "http://127.0.0.1:9000"), ("0.0.0.0", 9000, false, "http://127.0.0.1:9000"),
            ("::", 9000, true, "https://[::1]:9000"), ("10.1.2.3", 8080, false, "http://10.1.2.3:8080"),
        ] as [(String, UInt16, Bool, String)])
    func `is else the one on this machine, where it says that it listens, with the key that it has made`(
        address: String, port: UInt16, isTLS: Bool, url: String
    ) throws {
        let held = try serveLocally(address, port: port, isTLS: isTLS)
        defer { held.remove() }
        for environment in [["XDG_DATA_HOME": directory.path], ["TOKEN_BROKER_DATA_DIR": data]] {
            let broker = try choose(environment)
            #expect(broker.url == url)
            #expect(broker.apiKey == "local-key")
        }
    }

    @Test(
        arguments: [
            ([:], "http://127.0.0.1:8080"), (["TOKEN_BROKER_LISTEN": ""], "http://127.0.0.1:8080"),
            (["TOKEN_BROKER_LISTEN": "127.0.0.1:9000"], "http://127.0.0.1:9000"),
            (["TOKEN_BROKER_LISTEN": "0.0.0.0:9000"], "http://127.0.0.1:9000"),
            (["TOKEN_BROKER_LISTEN": "[::]:9000"], "http://[::1]:9000"),
            (["TOKEN_BROKER_LISTEN": "10.1.2.3:9000"], "http://10.1.2.3:9000"),
        ] as [([String: String], String)])
    func `is at the address of the variables where none says it and a variable has the key`(
        variables: [String: String], url: String
    ) throws {
        let all = ["TOKEN_BROKER_API_KEY": "k", "TOKEN_BROKER_DATA_DIR": data].merging(variables) { $1 }
        let broker = try choose(all)
        #expect(broker.url == url)
        #expect(broker.apiKey == "k")
    }

    @Test func `has a key of a file, the first line of it`() throws {
        let held = try serveLocally()
        defer { held.remove() }
        let file = data + "/key"
        let environment = ["XDG_DATA_HOME": directory.path, "TOKEN_BROKER_API_KEY_FILE": file]
        #expect(throws: CommandError(.configuration, "TOKEN_BROKER_API_KEY_FILE: \(file) cannot be read")) {
            try choose(environment)
        }
        try Data("file-key\r\nmore".utf8).write(to: URL(filePath: file))
        #expect(try choose(environment).apiKey == "file-key")
        #expect(try choose(environment.merging(["TOKEN_BROKER_API_KEY": "k"]) { $1 }).apiKey == "k")
    }

    @Test(arguments: [
        "https://broker.example", "http://127.broker.example:9000", "http://localhost.broker.example:9000",
        "http://10.1.2.3:9000", "http://127.0.0.1:8080", "http://127.0.0.2:9000", "http://[::1]:9000",
        "https://127.0.0.1:9000", "http://127.0.0.1:9000/other",
    ])
    func `elsewhere is never sent the key of the one on this machine`(url: String) throws {
        let held = try serveLocally()
        defer { held.remove() }
        let refusal = #expect(throws: CommandError.self) {
            try choose(["XDG_DATA_HOME": directory.path, "TOKEN_BROKER_URL": url])
        }
        #expect(refusal?.status == .forbidden)
        #expect(refusal?.next == "token-broker context add NAME --url \(ShellWord.quoted(url))")
    }

    @Test(
        arguments: [
            (["TOKEN_BROKER_API_KEY": "hunter2\n"], [], ExitStatus.configuration, "TOKEN_BROKER_API_KEY is no API key"),
            (["TOKEN_BROKER_API_KEY": "hünter2"], [], .configuration, "TOKEN_BROKER_API_KEY is no API key"),
            (["TOKEN_BROKER_TENANT": "mu\u{1b}sic"], [], .configuration, "the tenant's name has control characters"),
            ([:], ["--tenant", "mu\nsic"], .usage, "the tenant's name has control characters: mu\u{fffd}sic"),
            ([:], ["--tenant", ""], .usage, "the tenant's name is empty"),
            (["TOKEN_BROKER_URL": "http://u:hunter2@h.example"], [], .configuration, "a user name or a password in it"),
            (["TOKEN_BROKER_URL": "http://h.example?x=1"], [], .configuration, "has a query or a fragment"),
            (["TOKEN_BROKER_CA_FILE": "/nonexistent"], [], .configuration, "TOKEN_BROKER_CA_FILE: /nonexistent"),
        ] as [([String: String], [String], ExitStatus, String)])
    func `is refused by name where what is given cannot be sent`(
        variables: [String: String], words: [String], status: ExitStatus, complaint: String
    ) throws {
        let usual = ["TOKEN_BROKER_URL": "http://h.example", "TOKEN_BROKER_API_KEY": "k"]
        let refusal = #expect(throws: CommandError.self) { try choose(usual.merging(variables) { $1 }, words) }
        #expect(refusal?.status == status)
        #expect(refusal?.text.contains(complaint) == true, "\(refusal?.text ?? "")")
        #expect(refusal?.text.contains("hunter2") == false)
    }

    @Test func `at the address of one that has ended is not sent its key`() async throws {
        let environment = ["XDG_DATA_HOME": directory.path]
        let url = "http://127.0.0.1:9000"
        let held = try serveLocally()
        let broker = try choose(environment)
        // What a killed broker leaves behind.
        let left = try Data(contentsOf: URL(filePath: data + "/address"))
        held.remove()
        try left.write(to: URL(filePath: data + "/address"))
        let gone = await #expect(throws: CommandError.self) { try await broker.send(.init(.get, "/tenants")) }
        #expect(gone?.text == "the broker in \(data) serves at \(url) no more")
        let none = #expect(throws: CommandError.self) { try choose(environment) }
        #expect(none?.status == .unreachable)
        #expect(none?.next == "token-broker up")
        let named = #expect(throws: CommandError.self) {
            try choose(environment.merging(["TOKEN_BROKER_URL": url]) { $1 })
        }
        #expect(named?.status == .forbidden)
    }

    @Test func `that was given another key is not sent the one in its directory`() throws {
        let held = try serveLocally(hasOwnKey: false)
        defer { held.remove() }
        let environment = ["XDG_DATA_HOME": directory.path]
        #expect(#expect(throws: CommandError.self) { try choose(environment) }?.status == .forbidden)
        let broker = try choose(environment.merging(["TOKEN_BROKER_API_KEY": "k"]) { $1 })
        #expect(broker.url == "http://127.0.0.1:9000")
        #expect(broker.apiKey == "k")
    }

    @Test func `by a context gets no key that a variable has for another address`() throws {
        try keep("work")
        let environment = [
            "TOKEN_BROKER_CONTEXTS": contexts, "TOKEN_BROKER_URL": "http://a.example", "TOKEN_BROKER_API_KEY": "k",
        ]
        #expect(
            #expect(throws: CommandError.self) { try choose(environment, ["--context", "bare"]) }?.status == .forbidden)
        let url = ["TOKEN_BROKER_CONTEXTS": contexts, "TOKEN_BROKER_URL": "http://a.example"]
        #expect(#expect(throws: CommandError.self) { try choose(url) }?.status == .forbidden)
    }

    @Test func `is not guessed where a context has another name, or none runs`() throws {
        try keep(nil)
        let environment = ["TOKEN_BROKER_CONTEXTS": contexts, "TOKEN_BROKER_DATA_DIR": data]
        let unknown = #expect(throws: CommandError.self) { try choose(environment, ["--context", "wrok"]) }
        #expect(unknown?.status == .configuration)
        #expect(unknown?.text == "unknown context wrok; did you mean work?")
        let none = #expect(throws: CommandError.self) { try choose(environment) }
        #expect(none?.status == .unreachable)
    }
}
