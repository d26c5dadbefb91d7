import ExternalText
import JSON
import Reactor

/// The brokers that a person works with: for each a name, an address, a key and a usual tenant. They are kept in a file that only
/// its owner may read, as JSON:
///
///     {"current": "work", "contexts": {"work": {"url": "https://broker.example", "api_key": "…", "tenant": "music"}}}
package struct Contexts: Sendable, Equatable {
    package struct Entry: Sendable, Equatable {
        package var url: String
        package var apiKey: String?
        package var tenant: String?

        package init(url: String, apiKey: String? = nil, tenant: String? = nil) {
            self.url = url
            self.apiKey = apiKey
            self.tenant = tenant
        }
    }

    package var current: String?
    package var entries: [String: Entry]

    package init(current: String? = nil, entries: [String: Entry] = [:]) {
        self.current = current
        self.entries = entries
    }

    private static let limit = 1 << 20

    /// `TOKEN_BROKER_CONTEXTS`, else `token-broker/contexts.json` in `XDG_CONFIG_HOME`, else in `~/.config`. Nil where none of
    /// the three is set.
    package static func path(_ environment: [String: String]) -> String? {
        if let path = environment.text("TOKEN_BROKER_CONTEXTS") { return path }
        let configuration = environment.text("XDG_CONFIG_HOME") ?? environment.text("HOME").map { $0 + "/.config" }
        return configuration.map { $0 + "/token-broker/contexts.json" }
    }

    /// What is in the file; none where there is no file.
    /// - Throws: `configuration` for a file that cannot be read, that others may read, or that is damaged.
    package static func read(_ environment: [String: String]) throws(CommandError) -> Contexts {
        guard let path = path(environment) else { return Contexts() }
        let file: (bytes: [UInt8], access: FileAccess)
        do throws(SystemError) {
            file = try SmallFile.readWithAccess(path, limit: limit)
        } catch {
            if error.isNoSuchFile { return Contexts() }
            throw CommandError(.configuration, "\(path) cannot be read: \(error)")
        }
        if file.access.isReadableByOthers || file.access.isWritableByOthers {
            throw CommandError(
                .configuration, "other users can use \(path), which holds keys",
                next: "chmod 600 " + ShellWord.quoted(path))
        }
        guard let contexts = Contexts(decoding: file.bytes) else {
            throw CommandError(
                .configuration, "\(path) is damaged: it must be what token-broker context has written",
                next: "mv \(ShellWord.quoted(path)) \(ShellWord.quoted(path + ".old"))")
        }
        return contexts
    }

    /// Replaces the file in one step; its directory is made where it is missing. A symbolic link stays, and the file that it leads
    /// to is replaced.
    package func write(_ environment: [String: String]) throws(CommandError) {
        let path = SmallFile.pathBehindLinks(try Self.requiredPath(environment))
        do throws(SystemError) {
            try SmallFile.makeDirectories(above: path)
            try SmallFile.replace(path, encoded)
        } catch {
            throw CommandError(.configuration, "\(path) cannot be written: \(error)")
        }
    }

    /// Reads, changes and writes, while no other process does it.
    package static func change(
        _ environment: [String: String], _ body: (inout Contexts) throws(CommandError) -> Void
    ) throws(CommandError) {
        let lock = try lock(SmallFile.pathBehindLinks(try requiredPath(environment)) + ".lock")
        defer { extendLifetime(lock) }
        var contexts = try read(environment)
        try body(&contexts)
        try contexts.write(environment)
    }

    private static func lock(_ path: String) throws(CommandError) -> OwnedDescriptor {
        do throws(SystemError) {
            try SmallFile.makeDirectories(above: path)
            return try FileLock.take(path)
        } catch {
            throw CommandError(.configuration, "\(path) cannot be used: \(error)")
        }
    }

    private static func requiredPath(_ environment: [String: String]) throws(CommandError) -> String {
        if let path = path(environment) { return path }
        throw CommandError(
            .configuration, "set HOME, XDG_CONFIG_HOME or TOKEN_BROKER_CONTEXTS, so that contexts can be kept")
    }

    var encoded: [UInt8] {
        JSONWriter.object { writer in
            writer.memberIfPresent("current", current)
            writer.name("contexts")
            writer.object { writer in
                for (name, entry) in entries.sorted(by: { $0.key < $1.key }) {
                    writer.name(name)
                    writer.object { writer in
                        writer.member("url", entry.url)
                        writer.memberIfPresent("api_key", entry.apiKey)
                        writer.memberIfPresent("tenant", entry.tenant)
                    }
                }
            }
        } + [0x0a]
    }

    init?(decoding bytes: [UInt8]) {
        guard let value = try? JSONValue(parsing: bytes), let members = value["contexts"]?.object else { return nil }
        var entries: [String: Entry] = [:]
        for (name, entry) in members {
            guard let url = entry["url"]?.string?.text else { return nil }
            entries[name.text] = Entry(
                url: url, apiKey: entry["api_key"]?.string?.text, tenant: entry["tenant"]?.string?.text)
        }
        self.init(current: value["current"]?.string?.text, entries: entries)
    }
}
