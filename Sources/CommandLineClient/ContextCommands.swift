import ExternalText
import HTTPCodec
import JSON

/// `token-broker context`: which broker, with which key.
enum ContextCommands {
    static let all = [list, add, use, remove]

    private static let list = CommandSpecification(
        "context list", "list the brokers that are kept",
        discussion:
            "A context is a name for a broker's address, a key and a usual tenant. Contexts are kept in a file that "
            + "only you may read: ~/.config/token-broker/contexts.json, or where TOKEN_BROKER_CONTEXTS says. Keys are not shown.",
        examples: [.init("token-broker context list", "which brokers there are, and which one is used")],
        body: { invocation throws(CommandError) in
            let contexts = try Contexts.read(invocation.environment)
            noteHiding(contexts, invocation)
            if invocation.printsJSON {
                invocation.terminal.print(json: contexts.shown)
                return
            }
            var table = TextTable("", "NAME", "URL", "TENANT", "KEY")
            for (name, entry) in contexts.entries.sorted(by: { $0.key < $1.key }) {
                table.add(
                    name == contexts.current ? "*" : "", name, GivenWords.shown(address: entry.url),
                    entry.tenant ?? "-",
                    entry.apiKey == nil ? "none" : "kept")
            }
            invocation.show(table)
        })

    /// Says where commands do not use the context that has the star, or not its key.
    private static func noteHiding(_ contexts: Contexts, _ invocation: Invocation) {
        let environment = invocation.environment
        func set(_ names: String...) -> String? { names.first { environment.text($0) != nil } }
        guard let name = contexts.inUse?.name else { return }
        if let other = environment.text("TOKEN_BROKER_CONTEXT") {
            if other != name {
                invocation.terminal.note("TOKEN_BROKER_CONTEXT is set: commands use \(other), not \(name).")
            }
        } else if let url = environment.text("TOKEN_BROKER_URL") {
            invocation.terminal.note(
                "TOKEN_BROKER_URL is set: commands speak to \(GivenWords.shown(address: url)), not to \(name).")
        } else if let variable = set("TOKEN_BROKER_API_KEY", "TOKEN_BROKER_API_KEY_FILE") {
            invocation.terminal.note("\(variable) is set: commands use that key at \(name), not the one that is kept.")
        }
    }

    private static let add = CommandSpecification(
        "context add", "keep a broker's address and a key for it, and use it from now on",
        discussion:
            "The key is asked for without being shown, or read from standard input where that is no terminal, so that "
            + "it stands in no list of processes. A context of this name is replaced.\n\n"
            + "The broker is asked once whether it takes the key: a key that it refuses is not kept. One that cannot be reached now "
            + "is kept with a warning.",
        arguments: [.init("NAME", "how it is called from now on")],
        options: [
            .init("url", "URL", "the broker's address, such as https://broker.example"),
            .init("no-check", nil, "do not ask the broker"),
        ],
        examples: [
            .init(
                "token-broker context add work --url https://broker.example --tenant music",
                "ask for the key and keep it"),
            .init(
                "token-broker context add work --url https://broker.example <key.txt", "with a key that is in a file"),
        ],
        body: { invocation throws(CommandError) in
            guard let url = invocation["url"] else { throw invocation.wrong("--url is missing: the broker's address") }
            let name = invocation.arguments[0]
            // Refuses what is wrong before it asks for anything.
            try GivenWords.checkName(name, "the name of the context", .usage)
            try GivenWords.checkAddress(url, .usage)
            if let tenant = invocation["tenant"] {
                try GivenWords.checkName(tenant, "the tenant's name", .usage)
            }
            _ = try Contexts.read(invocation.environment)
            guard let key = invocation.terminal.secret("Key for \(url): "), !key.isEmpty else {
                throw invocation.wrong("no key was given")
            }
            try GivenWords.checkKey(key, "what was given", .usage)
            let entry = Contexts.Entry(url: url, apiKey: key, tenant: invocation["tenant"])
            let api = try BrokerAPI(
                BrokerChoice(url: url, apiKey: key), tenant: entry.tenant,
                caFile: invocation.environment.text("TOKEN_BROKER_CA_FILE"))
            if !invocation.has("no-check") { try await check(api, invocation) }
            try Contexts.change(invocation.environment) { contexts in
                contexts.entries[name] = entry
                contexts.current = name
            }
            invocation.terminal.note("\(name) is kept, and is used from now on.")
        })

    /// Asks the broker once for something that each key may read.
    /// - Throws: `forbidden` for a key that it refuses, and `failed` for what is no broker.
    private static func check(_ api: BrokerAPI, _ invocation: Invocation) async throws(CommandError) {
        do throws(CommandError) {
            let answer = try await api.send(BrokerAPI.Request(.get, "/providers", limit: .seconds(10)))
            if try answer.json().object?["providers"] == nil {
                throw api.stranger("what comes names no providers")
            }
        } catch {
            switch error.status {
            case .unreachable, .tryLater: invocation.terminal.note("Kept without having been tried: \(error.text)")
            default:
                throw CommandError(
                    error.status, "nothing is kept: \(error.text)\nWith --no-check it is kept all the same.",
                    next: invocation.again())
            }
        }
    }

    private static let use = CommandSpecification(
        "context use", "use another broker from now on",
        arguments: [.init("NAME", "one of token-broker context list")],
        examples: [.init("token-broker context use work", "commands speak to this broker from now on")],
        body: { invocation throws(CommandError) in
            try Contexts.change(invocation.environment) { contexts throws(CommandError) in
                try contexts.require(invocation.arguments[0])
                contexts.current = invocation.arguments[0]
            }
        })

    private static let remove = CommandSpecification(
        "context remove", "forget a broker and the key for it",
        arguments: [.init("NAME", "one of token-broker context list")],
        examples: [.init("token-broker context remove work", "the broker itself is not told")],
        body: { invocation throws(CommandError) in
            try Contexts.change(invocation.environment) { contexts throws(CommandError) in
                try contexts.require(invocation.arguments[0])
                contexts.entries[invocation.arguments[0]] = nil
                if contexts.current == invocation.arguments[0] { contexts.current = nil }
            }
        })
}

extension Contexts {
    /// - Throws: `configuration` for a name that is none of them, as with `--context`.
    fileprivate func require(_ name: String) throws(CommandError) {
        if entries[name] != nil { return }
        throw CommandError(
            .configuration, Nearest.complaint(about: name, "context", among: entries.keys.sorted()),
            next: "token-broker context list")
    }

    /// Without the keys.
    fileprivate var shown: [UInt8] {
        JSONWriter.object { writer in
            writer.memberIfPresent("current", current)
            writer.name("contexts")
            writer.array { writer in
                for (name, entry) in entries.sorted(by: { $0.key < $1.key }) {
                    writer.object { writer in
                        writer.member("name", name)
                        writer.member("url", GivenWords.shown(address: entry.url))
                        writer.memberIfPresent("tenant", entry.tenant)
                        writer.member("has_key", entry.apiKey != nil)
                    }
                }
            }
        }
    }
}
