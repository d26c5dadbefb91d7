internal import BrokerTesting
internal import FoundationEssentials
internal import Testing

@testable internal import CommandLineClient

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

    /// The key that a broker on this machine has made.
    private func keepLocalKey() throws {
        try FileManager.default.createDirectory(atPath: data, withIntermediateDirectories: true)
        try Data("local-key\n".utf8).write(to: URL(filePath: data + "/admin.key"))
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
            ([], ["TOKEN_BROKER_URL": "http://[::1]:9000"], "http://[::1]:9000", "local-key", nil),
            (["--context", "here"], [:], "http://localhost:9000", "local-key", nil),
            (
                [], ["TOKEN_BROKER_URL": "http://127.0.0.1:9000", "TOKEN_BROKER_API_KEY": "k"],
                "http://127.0.0.1:9000", "k", nil
            ),
        ] as [([String], [String: String], String, String, String?)])
    func `is that of the option, else of the variables, else of the current context`(
        words: [String], variables: [String: String], url: String, key: String, tenant: String?
    ) throws {
        try keep("work")
        try keepLocalKey()
        let all = ["TOKEN_BROKER_CONTEXTS": contexts, "XDG_DATA_HOME": directory.path].merging(variables) { $1 }
        let broker = try choose(all, words)
        #expect(broker.url == url)
        #expect(broker.apiKey == key)
        #expect(broker.tenant == tenant)
    }

    @Test(
        arguments: [
            ([:], "http://127.0.0.1:8080"), (["TOKEN_BROKER_LISTEN": ""], "http://127.0.0.1:8080"),
            (["TOKEN_BROKER_LISTEN": "127.0.0.1:9000"], "http://127.0.0.1:9000"),
            (["TOKEN_BROKER_LISTEN": "0.0.0.0:9000"], "http://127.0.0.1:9000"),
            (["TOKEN_BROKER_LISTEN": "[::]:9000"], "http://[::1]:9000"),
            (["TOKEN_BROKER_LISTEN": "10.1.2.3:9000"], "http://10.1.2.3:9000"),
        ] as [([String: String], String)])
    func `is else the one on this machine, with the key that it has made`(
        variables: [String: String], url: String
    ) throws {
        try keepLocalKey()
        let broker = try choose(["XDG_DATA_HOME": directory.path].merging(variables) { $1 })
        #expect(broker.url == url)
        #expect(broker.apiKey == "local-key")
        let elsewhere = try choose(["TOKEN_BROKER_DATA_DIR": data].merging(variables) { $1 })
        #expect(elsewhere.apiKey == "local-key")
    }

    @Test func `has a key of a file, the first line of it`() throws {
        try keepLocalKey()
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
        "https://broker.example", "http://127.broker.example", "http://localhost.broker.example",
        "http://10.1.2.3:8080",
    ])
    func `elsewhere is never sent the key of the one on this machine`(url: String) throws {
        try keepLocalKey()
        let refusal = #expect(throws: CommandError.self) {
            try choose(["XDG_DATA_HOME": directory.path, "TOKEN_BROKER_URL": url])
        }
        #expect(refusal?.status == .forbidden)
        #expect(refusal?.next == "token-broker context add NAME --url \(url)")
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

    @Test func `is not guessed where a context has another name, or there is no key`() throws {
        try keep(nil)
        let environment = ["TOKEN_BROKER_CONTEXTS": contexts, "TOKEN_BROKER_DATA_DIR": data]
        let unknown = #expect(throws: CommandError.self) { try choose(environment, ["--context", "wrok"]) }
        #expect(unknown?.status == .configuration)
        #expect(unknown?.text == "unknown context wrok; did you mean work?")
        let none = #expect(throws: CommandError.self) { try choose(environment) }
        #expect(none?.status == .forbidden)
    }
}
