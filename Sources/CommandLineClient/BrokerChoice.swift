import HTTPSClient
import Reactor

/// Which broker a command speaks to, with which key, and about which tenant. A key goes only to the address that it was given for.
struct BrokerChoice {
    let url: String
    let apiKey: String
    /// The usual tenant of the context.
    let tenant: String?
    /// The broker of this machine whose own key it is, and which alone may get it.
    let local: LocalBroker?
    /// What to run where the broker does not answer.
    let whenUnreachable: String

    /// A broker with the key that was given for it.
    init(url: String, apiKey: String) {
        (self.url, self.apiKey, tenant, local) = (url, apiKey, nil, nil)
        whenUnreachable = "token-broker context list"
    }

    /// - Throws: `configuration`, `forbidden` and `unreachable`, and says what to set or to start.
    init(_ invocation: Invocation) throws(CommandError) {
        let environment = invocation.environment
        let url = environment.text("TOKEN_BROKER_URL")
        let key = try Self.keyOfVariables(environment)
        let locals = LocalBrokers(environment)
        if let (_, entry) = try Self.namedContext(invocation) {
            // The variable's key is for the variable's address.
            let isForIt = url == nil || url?.trimmingSlash == entry.url.trimmingSlash
            try self.init(entry, key: Key(of: entry) ?? (isForIt ? key : nil), locals)
        } else if let url {
            try self.init(Contexts.Entry(url: url), key: key, locals)
        } else if let (_, entry) = try Contexts.read(environment).inUse {
            try self.init(entry, key: key ?? Key(of: entry), locals)
        } else if let key {
            let url = try locals.only()?.url ?? Self.usualURL(environment)
            try self.init(Contexts.Entry(url: url), key: key, locals)
        } else {
            try self.init(onlyOf: locals, environment)
        }
    }

    /// The context that the command line names, or `TOKEN_BROKER_CONTEXT`.
    static func namedContext(_ invocation: Invocation) throws(CommandError) -> (name: String, entry: Contexts.Entry)? {
        guard let name = invocation["context"] ?? invocation.environment.text("TOKEN_BROKER_CONTEXT") else {
            return nil
        }
        let contexts = try Contexts.read(invocation.environment)
        guard let entry = contexts.entries[name] else {
            throw CommandError(
                .configuration, Nearest.complaint(about: name, "context", among: contexts.entries.keys.sorted()),
                next: "token-broker context list")
        }
        return (name, entry)
    }

    private init(_ entry: Contexts.Entry, key: Key?, _ locals: LocalBrokers) throws(CommandError) {
        try GivenWords.checkAddress(entry.url, .configuration)
        tenant = entry.tenant
        whenUnreachable = Self.whenUnreachable(entry.url, locals)
        if let key {
            (url, apiKey, local) = (entry.url, try key.checked(), nil)
            return
        }
        for broker in locals.serving {
            guard let address = broker.address(for: entry.url), let key = broker.apiKey else { continue }
            (url, apiKey, local) = (address, try Key(key, of: broker).checked(), broker)
            return
        }
        let others = locals.serving.map { "; the broker in \($0.directory) is at \($0.url)" }.joined()
        throw CommandError(
            .forbidden,
            "there is no key for \(entry.url): set TOKEN_BROKER_API_KEY, or keep one in a context"
                + (LocalNames.isLoopback(ofURL: entry.url) ? others : ""),
            next: "token-broker context add NAME --url " + ShellWord.quoted(entry.url))
    }

    /// The broker of this machine with the key that it has made.
    private init(onlyOf locals: LocalBrokers, _ environment: [String: String]) throws(CommandError) {
        let places = locals.directories.joined(separator: " and ")
        if let broker = try locals.only() {
            guard let key = broker.apiKey else {
                throw CommandError(
                    .forbidden,
                    "the broker at \(broker.url) has not made its admin key itself: set TOKEN_BROKER_API_KEY to it")
            }
            (url, apiKey, tenant, local) = (broker.url, try Key(key, of: broker).checked(), nil, broker)
            whenUnreachable = "token-broker up"
            return
        }
        if let directory = locals.closed.first {
            throw CommandError(
                .forbidden,
                "\(directory) is another user's, so that the broker there cannot be found: run this as that user, or set "
                    + "TOKEN_BROKER_URL and TOKEN_BROKER_API_KEY",
                next: "token-broker context add NAME --url " + Self.usualURL(environment))
        }
        throw CommandError(
            .unreachable, "no broker runs on this machine with its data in \(places), and no other one is named",
            next: "token-broker up")
    }

    private static func whenUnreachable(_ url: String, _ locals: LocalBrokers) -> String {
        guard LocalNames.isLoopback(ofURL: url) else { return "token-broker context list" }
        guard let other = locals.serving.first, other.address(for: url) == nil else { return "token-broker up" }
        return "export TOKEN_BROKER_URL=\(other.url)"
    }

    /// Where a broker of this machine listens that does not say it: at `TOKEN_BROKER_LISTEN`, else at the usual address.
    static func usualURL(_ environment: [String: String]) -> String {
        guard let listen = environment.text("TOKEN_BROKER_LISTEN"), let colon = listen.lastIndex(of: ":") else {
            return "http://127.0.0.1:8080"
        }
        let host = listen[..<colon]
        return
            "http://\(host == "0.0.0.0" || host.isEmpty ? "127.0.0.1" : host == "[::]" ? "[::1]" : host)\(listen[colon...])"
    }

    private static func keyOfVariables(_ environment: [String: String]) throws(CommandError) -> Key? {
        if let key = environment.text("TOKEN_BROKER_API_KEY") { return Key(key, "TOKEN_BROKER_API_KEY") }
        guard let path = environment.text("TOKEN_BROKER_API_KEY_FILE") else { return nil }
        guard let key = GivenFile.firstLine(of: path) else {
            throw CommandError(.configuration, "TOKEN_BROKER_API_KEY_FILE: \(path) cannot be read")
        }
        return Key(key, "TOKEN_BROKER_API_KEY_FILE")
    }

    /// A key, and where it stands.
    private struct Key {
        private let text: String
        /// As the subject of a sentence.
        private let place: String

        init(_ text: String, _ place: String) { (self.text, self.place) = (text, place) }

        init?(of entry: Contexts.Entry) {
            guard let key = entry.apiKey else { return nil }
            self.init(key, "the key of the context")
        }

        init(_ text: String, of broker: LocalBroker) { self.init(text, "admin.key in \(broker.directory)") }

        /// - Throws: `configuration` for what cannot be sent.
        func checked() throws(CommandError) -> String {
            try GivenWords.checkKey(text, place, .configuration)
            return text
        }
    }
}

extension Contexts {
    /// The one that commands use which name none.
    package var inUse: (name: String, entry: Entry)? {
        current.flatMap { name in entries[name].map { (name, $0) } }
    }
}

extension LocalNames {
    /// Whether a URL's host is this machine.
    static func isLoopback(ofURL text: String) -> Bool {
        URLTarget(ofBroker: text).map { isLoopback($0.host) } ?? false
    }
}

extension String {
    /// An address without the slashes at its end.
    package var trimmingSlash: String {
        var text = self
        while text.hasSuffix("/") { text.removeLast() }
        return text
    }
}

extension URLTarget {
    /// The root of a broker's address, which may end with a slash.
    init?(ofBroker address: String) { self.init(address.hasSuffix("/") ? address : address + "/") }
}
