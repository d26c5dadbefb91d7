internal import JSON

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
            if invocation.printsJSON {
                invocation.terminal.print(json: contexts.shown)
                return
            }
            var table = TextTable("", "NAME", "URL", "TENANT", "KEY")
            for (name, entry) in contexts.entries.sorted(by: { $0.key < $1.key }) {
                table.add(
                    name == contexts.current ? "*" : "", name, entry.shownURL, entry.tenant ?? "-",
                    entry.apiKey == nil ? "none" : "kept")
            }
            invocation.show(table)
        })

    private static let add = CommandSpecification(
        "context add", "keep a broker's address and a key for it, and use it from now on",
        discussion:
            "The key is asked for without being shown, or read from standard input where that is no terminal, so that "
            + "it stands in no list of processes. A context of this name is replaced.",
        arguments: [.init("NAME", "how it is called from now on")],
        options: [.init("url", "URL", "the broker's address, such as https://broker.example")],
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
            // Refuses what is wrong before a key is asked for.
            try GivenWords.checkName(name, "the name of the context", .usage)
            try GivenWords.checkAddress(url, .usage)
            if let tenant = invocation["tenant"] {
                try GivenWords.checkName(tenant, "the tenant's name", .usage)
            }
            guard let key = invocation.terminal.secret("Key for \(url): "), !key.isEmpty else {
                throw invocation.wrong("no key was given")
            }
            try GivenWords.checkKey(key, "what was given", .usage)
            var contexts = try Contexts.read(invocation.environment)
            contexts.entries[name] = Contexts.Entry(url: url, apiKey: key, tenant: invocation["tenant"])
            contexts.current = name
            try contexts.write(invocation.environment)
            invocation.terminal.note("\(name) is kept, and is used from now on.")
        })

    private static let use = CommandSpecification(
        "context use", "use another broker from now on",
        arguments: [.init("NAME", "one of token-broker context list")],
        examples: [.init("token-broker context use work", "commands speak to this broker from now on")],
        body: { invocation throws(CommandError) in
            var contexts = try Contexts.read(invocation.environment)
            try contexts.require(invocation.arguments[0])
            contexts.current = invocation.arguments[0]
            try contexts.write(invocation.environment)
        })

    private static let remove = CommandSpecification(
        "context remove", "forget a broker and the key for it",
        arguments: [.init("NAME", "one of token-broker context list")],
        examples: [.init("token-broker context remove work", "the broker itself is not told")],
        body: { invocation throws(CommandError) in
            var contexts = try Contexts.read(invocation.environment)
            try contexts.require(invocation.arguments[0])
            contexts.entries[invocation.arguments[0]] = nil
            if contexts.current == invocation.arguments[0] { contexts.current = nil }
            try contexts.write(invocation.environment)
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
                        writer.member("url", entry.shownURL)
                        writer.memberIfPresent("tenant", entry.tenant)
                        writer.member("has_key", entry.apiKey != nil)
                    }
                }
            }
        }
    }
}

extension Contexts.Entry {
    /// An address with a password is not shown. It is refused where it is used.
    fileprivate var shownURL: String { GivenWords.isConfidential(url) ? "(has a password)" : url }
}
