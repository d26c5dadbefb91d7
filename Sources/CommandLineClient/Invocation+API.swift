internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import Reactor

extension Invocation {
    /// The broker that the command speaks to: by `--context`, else by `TOKEN_BROKER_URL` and `TOKEN_BROKER_API_KEY` (or
    /// `TOKEN_BROKER_API_KEY_FILE`), else by the current context, else the one on this machine with the key that it has made.
    /// - Parameter ofAllTenants: whether the command is about all tenants, whichever the context and the variables name.
    /// - Throws: `configuration` and `forbidden`, and says what to set.
    package func broker(ofAllTenants: Bool = false) throws(CommandError) -> BrokerAPI {
        let entry = try chosenEntry()
        try GivenWords.checkAddress(entry.url, .configuration)
        let known = if let key = entry.apiKey { key } else { try key(for: entry.url) }
        guard let key = known else {
            throw CommandError(
                .forbidden, "there is no key for \(entry.url): set TOKEN_BROKER_API_KEY, or keep one in a context",
                next: "token-broker context add NAME --url \(entry.url)")
        }
        try GivenWords.checkKey(key, keyPlace(entry), .configuration)
        let tenant = self["tenant"] ?? environment.text("TOKEN_BROKER_TENANT") ?? entry.tenant
        if let tenant {
            try GivenWords.checkName(tenant, "the tenant's name", has("tenant") ? .usage : .configuration)
        }
        return try BrokerAPI(
            url: entry.url, apiKey: key, tenant: ofAllTenants ? nil : tenant,
            caFile: environment.text("TOKEN_BROKER_CA_FILE"))
    }

    /// The tenant that the command is about.
    /// - Throws: `usage` where nothing names one.
    package func requiredTenant(_ api: BrokerAPI) throws(CommandError) -> String {
        if let tenant = api.tenant { return tenant }
        throw CommandError(.usage, "which tenant? Name it with --tenant", next: "token-broker tenants list")
    }

    private func chosenEntry() throws(CommandError) -> Contexts.Entry {
        if let name = self["context"] ?? environment.text("TOKEN_BROKER_CONTEXT") {
            let contexts = try Contexts.read(environment)
            guard let entry = contexts.entries[name] else {
                throw CommandError(
                    .configuration, Nearest.complaint(about: name, "context", among: contexts.entries.keys.sorted()),
                    next: "token-broker context list")
            }
            return entry
        }
        if let url = environment.text("TOKEN_BROKER_URL") { return Contexts.Entry(url: url) }
        let contexts = try Contexts.read(environment)
        if let name = contexts.current, let entry = contexts.entries[name] { return entry }
        return Contexts.Entry(url: Self.localURL(environment))
    }

    /// The broker of this machine: at the address of `TOKEN_BROKER_LISTEN`, else at the usual one.
    static func localURL(_ environment: [String: String]) -> String {
        guard let listen = environment.text("TOKEN_BROKER_LISTEN"), let colon = listen.lastIndex(of: ":") else {
            return "http://127.0.0.1:8080"
        }
        let host = listen[..<colon]
        return
            "http://\(host == "0.0.0.0" || host.isEmpty ? "127.0.0.1" : host == "[::]" ? "[::1]" : host)\(listen[colon...])"
    }

    /// A key by the variables; else the operator's, which a broker with the embedded store has made for itself. That is of no use to
    /// a broker elsewhere, and must not be sent there.
    private func key(for url: String) throws(CommandError) -> String? {
        if let key = environment.text("TOKEN_BROKER_API_KEY") { return key }
        if let path = environment.text("TOKEN_BROKER_API_KEY_FILE") {
            guard let key = Self.firstLine(of: path) else {
                throw CommandError(.configuration, "TOKEN_BROKER_API_KEY_FILE: \(path) cannot be read")
            }
            return key
        }
        guard url == Self.localURL(environment) || Self.isOfThisMachine(url) else { return nil }
        return UserDirectories.dataDirectories(environment).lazy.compactMap { Self.firstLine(of: $0 + "/admin.key") }
            .first
    }

    /// Where the key of a broker stands.
    private func keyPlace(_ entry: Contexts.Entry) -> String {
        if entry.apiKey != nil { return "the key of the context" }
        for name in ["TOKEN_BROKER_API_KEY", "TOKEN_BROKER_API_KEY_FILE"] where environment.text(name) != nil {
            return name
        }
        return "admin.key of the broker on this machine"
    }

    private static func isOfThisMachine(_ url: String) -> Bool {
        guard let host = URLTarget(url.hasSuffix("/") ? url : url + "/")?.host else { return false }
        return host == "localhost" || SocketAddress(numericHost: host, port: 0)?.ip.isLoopback == true
    }

    private static func firstLine(of path: String) -> String? {
        guard let bytes = try? SmallFile.read(path, limit: 4096) else { return nil }
        let line = String(decoding: bytes.prefix { $0 != 0x0a && $0 != 0x0d }, as: UTF8.self)
        return line.isEmpty ? nil : line
    }
}

/// Where a broker on this machine keeps its data.
package enum UserDirectories {
    /// Of a broker that a person has started with `token-broker up`: `XDG_DATA_HOME`, else `~/.local/share`.
    package static func dataOfUser(_ environment: [String: String]) -> String? {
        (environment.text("XDG_DATA_HOME") ?? environment.text("HOME").map { $0 + "/.local/share" }).map {
            $0 + "/token-broker"
        }
    }

    /// The directories in which the operator's key may be, the likeliest first.
    static func dataDirectories(_ environment: [String: String]) -> [String] {
        if let directory = environment.text("TOKEN_BROKER_DATA_DIR") { return [directory] }
        return [dataOfUser(environment), "/var/lib/token-broker"].compactMap(\.self)
    }
}

extension [String: String] {
    /// The variable's value, if it is set and not empty.
    func text(_ name: String) -> String? { self[name].flatMap { $0.isEmpty ? nil : $0 } }
}
