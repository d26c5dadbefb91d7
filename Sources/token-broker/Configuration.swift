internal import BrokerCore
internal import CredentialStore
internal import Cryptography
internal import HTTPSClient
internal import OAuth
internal import Postgres
internal import Reactor
internal import TokenBroker

/// What the environment says, checked as a whole: every fault is found before anything is opened or bound.
struct Configuration: Sendable {
    enum Store: Sendable {
        /// A directory; keys that are not configured are made there on first start.
        case files(directory: String)
        case postgres(PostgresConfiguration, PostgresRecordStore.Listening)
    }

    /// Everything that is wrong, one line each, with the variable's name and without its value.
    struct Faults: Error {
        let lines: [String]
    }

    var listen: SocketAddress
    var publicBaseURL: String
    var store: Store
    /// Whether `serve` brings the database's schema up to date by itself.
    var migratesSchema: Bool
    var masterKeys: SecretBytes?
    var adminKey: SecretBytes?
    /// Where a shared store's replica keeps what the store could not take; nil keeps it in memory.
    var journalDirectory: String?
    var trustedCAFile: String?
    /// Where providers may be.
    var providerTargets: TargetPolicy
    var logLevel: LogLevel
    var logsReads: Bool
    var eventLoops: Int?
    var maximumConnections: Int
    var providerConcurrency: Int
    var providerTimeout: Duration
    var quarantine: Duration
    var expiryNotice: Duration
    var eventRetention: Duration
    var eventLimit: Int
    var cacheBytes: Int
    var cacheValidity: Duration
    var shutdownGrace: Duration
    /// Variables with our prefix that mean nothing: worth a warning, no fault, since orchestrators add their own.
    var unknownVariables: [String]

    /// - Parameter command: what the configuration is for. `migrate` needs a database and no keys: whoever changes the
    ///   schema need not be able to open what is stored.
    init(environment: [String: String], for command: Command) throws(Faults) {
        var reader = EnvironmentReader(environment)
        let listen =
            reader.value("LISTEN").map { Self.address($0) } ?? SocketAddress(numericHost: "127.0.0.1", port: 8080)
        if listen == nil {
            reader.fault("LISTEN", "must be a numeric address and a port, such as 127.0.0.1:8080 or [::]:8080")
        }
        self.listen = listen ?? SocketAddress(ip: .v4([127, 0, 0, 1]), port: 8080)

        let base = reader.value("PUBLIC_BASE_URL")
        if let base, Self.isBaseURL(base) == false {
            reader.fault("PUBLIC_BASE_URL", "must be an http or https URL without query and fragment")
        }
        publicBaseURL = (base ?? "http://\(self.listen)").trimmingSlash

        let databaseURL = reader.secret("DATABASE_URL")
        let directory = reader.value("DATA_DIR")
        journalDirectory = reader.value("JOURNAL_DIR")
        masterKeys = reader.secret("MASTER_KEYS").map { SecretBytes(utf8: $0) }
        adminKey = reader.secret("ADMIN_KEY").map { SecretBytes(utf8: $0) }
        if let masterKeys {
            do {
                _ = try Keyring(parsing: masterKeys.revealedText)
            } catch {
                reader.fault("MASTER_KEYS", "\(error)")
            }
        }
        if let adminKey, !Self.isAdminKey(adminKey.revealedText) {
            reader.fault("ADMIN_KEY", "must be 1 to 512 visible ASCII characters without spaces")
        }
        if let databaseURL {
            let connections = reader.integer("DATABASE_CONNECTIONS", 1...64) ?? 4
            let usesPooler = reader.bool("DATABASE_POOLER") ?? false
            let listening = Self.listening(&reader)
            do {
                var configuration = try PostgresConfiguration(databaseURL)
                configuration.maximumConnections = connections
                configuration.usesPooler = usesPooler
                store = .postgres(configuration, listening)
            } catch {
                reader.fault("DATABASE_URL", "\(error)")
                store = .files(directory: "")
            }
            if directory != nil { reader.fault("DATA_DIR", "is not used together with DATABASE_URL") }
            if masterKeys == nil, command != .migrate {
                reader.fault("MASTER_KEYS", "is required with DATABASE_URL; token-broker keys generate makes one")
            }
            if adminKey == nil, command != .migrate { reader.fault("ADMIN_KEY", "is required with DATABASE_URL") }
        } else {
            store = .files(directory: directory ?? "/var/lib/token-broker")
            if journalDirectory != nil {
                reader.fault("JOURNAL_DIR", "is for DATABASE_URL; the embedded store needs none")
            }
            if command == .migrate {
                reader.fault("DATABASE_URL", "is required to migrate; the embedded store has no schema")
            }
        }

        migratesSchema = reader.bool("MIGRATE") ?? true
        trustedCAFile = reader.value("TRUSTED_CA_FILE")
        if let trustedCAFile, !SmallFile.isReadable(trustedCAFile) {
            reader.fault("TRUSTED_CA_FILE", "cannot be read")
        }
        providerTargets = Self.providerTargets(&reader)
        logLevel = reader.choice("LOG_LEVEL", LogLevel.self) ?? .info
        logsReads = reader.bool("LOG_READS") ?? false
        eventLoops = reader.integer("EVENT_LOOPS", 1...256)
        maximumConnections = reader.integer("MAX_CONNECTIONS", 1...1_000_000) ?? 10_000
        providerTimeout = .seconds(Int64(reader.integer("PROVIDER_TIMEOUT", 1...20) ?? 10))
        providerConcurrency = reader.integer("PROVIDER_CONCURRENCY", 1...1024) ?? ProviderBudget.Limits().places
        quarantine = .seconds(Int64(reader.integer("QUARANTINE_DAYS", 0...3650) ?? 7) * 86_400)
        expiryNotice = .seconds(Int64(reader.integer("EXPIRY_NOTICE", 0...86_400) ?? 300))
        eventRetention = .seconds(Int64(reader.integer("EVENT_DAYS", 1...365) ?? 7) * 86_400)
        eventLimit = reader.integer("EVENT_LIMIT", 1000...1_000_000_000) ?? 1_000_000
        cacheBytes = (reader.integer("CACHE_MEGABYTES", 1...1_048_576) ?? 256) << 20
        cacheValidity = .seconds(Int64(reader.integer("CACHE_SECONDS", 0...3600) ?? 5))
        shutdownGrace = .seconds(Int64(reader.integer("SHUTDOWN_GRACE", 1...3600) ?? 25))
        unknownVariables = reader.unknownNames
        if !reader.faults.isEmpty { throw Faults(lines: reader.faults) }
    }

    private static func listening(_ reader: inout EnvironmentReader) -> PostgresRecordStore.Listening {
        switch reader.secret("DATABASE_LISTEN_URL") {
        case nil: return .automatic
        case "off": return .off
        case let url?:
            do {
                return .through(try PostgresConfiguration(url))
            } catch {
                reader.fault("DATABASE_LISTEN_URL", "\(error)")
                return .automatic
            }
        }
    }

    private static func providerTargets(_ reader: inout EnvironmentReader) -> TargetPolicy {
        let allowsEverything = reader.bool("ALLOW_INSECURE_PROVIDERS") ?? false
        var targets = TargetPolicy()
        targets.allowsHTTP = reader.bool("ALLOW_HTTP_PROVIDERS") ?? false
        if let list = reader.value("PROVIDER_NETWORKS") {
            if allowsEverything {
                reader.fault("PROVIDER_NETWORKS", "has no effect with ALLOW_INSECURE_PROVIDERS=true")
            }
            targets.networks = networks(list, &reader)
        }
        return allowsEverything ? .everything : targets
    }

    private static func networks(_ list: String, _ reader: inout EnvironmentReader) -> [IPNetwork] {
        let networks = list.split(separator: ",", omittingEmptySubsequences: false).map { IPNetwork(String($0)) }
        if networks.contains(nil) {
            reader.fault(
                "PROVIDER_NETWORKS",
                "must be networks such as 10.20.0.0/16,fd12::/16, comma-separated, without spaces and without bits "
                    + "behind the prefix")
        }
        let known = networks.compactMap { $0 }
        if known.contains(where: { !$0.isSingleAddress && $0.contains(Self.metadataService) }) {
            reader.fault(
                "PROVIDER_NETWORKS",
                "must not have a network that contains 169.254.169.254, where clouds give out credentials; name single "
                    + "addresses instead")
        }
        return known
    }

    private static let metadataService = SocketAddress.IP.v4([169, 254, 169, 254])

    private static func address(_ text: String) -> SocketAddress? {
        guard let colon = text.lastIndex(of: ":"), let port = UInt16(text[text.index(after: colon)...]) else {
            return nil
        }
        var host = text[..<colon]
        if host.hasPrefix("["), host.hasSuffix("]") { host = host.dropFirst().dropLast() }
        return SocketAddress(numericHost: String(host), port: port)
    }

    static func isAdminKey(_ text: String) -> Bool { TokenText.isSendable(text) && text.utf8.count <= 512 }

    private static func isBaseURL(_ text: String) -> Bool {
        guard let url = URLTarget(text) else { return false }
        return !url.pathAndQuery.contains("?")
    }
}

/// Reads variables with our prefix and remembers what is wrong with them.
private struct EnvironmentReader {
    private static let prefix = "TOKEN_BROKER_"

    private let environment: [String: String]
    private var known: Set<String> = []
    private(set) var faults: [String] = []

    init(_ environment: [String: String]) {
        self.environment = environment
    }

    mutating func fault(_ name: String, _ text: String) {
        faults.append("\(Self.prefix)\(name) \(text)")
    }

    /// The variable's text; an empty one counts as unset, as compose files and charts write it.
    mutating func value(_ name: String) -> String? {
        known.insert(Self.prefix + name)
        return environment[Self.prefix + name].flatMap { $0.isEmpty ? nil : $0 }
    }

    /// The variable itself, or the content of the file that its `_FILE` form names, without the newline at its end.
    mutating func secret(_ name: String) -> String? {
        let direct = value(name)
        guard let path = value(name + "_FILE") else { return direct }
        if direct != nil {
            fault(name, "and \(Self.prefix)\(name)_FILE are both set; set one of them")
            return nil
        }
        guard let bytes = try? SmallFile.read(path, limit: 65_536), let text = String(validating: bytes, as: UTF8.self)
        else {
            fault(name + "_FILE", "names a file that cannot be read")
            return nil
        }
        let trimmed = text.trimmingNewlines
        if trimmed.isEmpty { fault(name + "_FILE", "names an empty file") }
        return trimmed.isEmpty ? nil : trimmed
    }

    mutating func integer(_ name: String, _ range: ClosedRange<Int>) -> Int? {
        guard let text = value(name) else { return nil }
        if let number = Int(text), range.contains(number) { return number }
        fault(name, "must be a whole number from \(range.lowerBound) to \(range.upperBound)")
        return nil
    }

    mutating func bool(_ name: String) -> Bool? {
        switch value(name) {
        case nil: return nil
        case "true": return true
        case "false": return false
        default:
            fault(name, "must be true or false")
            return nil
        }
    }

    mutating func choice<T: RawRepresentable & CaseIterable>(_ name: String, _ type: T.Type) -> T?
    where T.RawValue == String {
        guard let text = value(name) else { return nil }
        if let choice = T(rawValue: text) { return choice }
        fault(name, "must be one of " + T.allCases.map(\.rawValue).joined(separator: ", "))
        return nil
    }

    /// Kubernetes adds `…_SERVICE_HOST`, `…_PORT` and their like for a service of our name.
    var unknownNames: [String] {
        environment.keys.filter { name in
            name.hasPrefix(Self.prefix) && !known.contains(name) && !known.contains(name + "_FILE")
                && !name.hasPrefix(Self.prefix + "SERVICE_") && !name.hasPrefix(Self.prefix + "PORT")
        }.sorted()
    }
}

extension String {
    fileprivate var trimmingSlash: String {
        var text = self
        while text.hasSuffix("/") { text.removeLast() }
        return text
    }

    fileprivate var trimmingNewlines: String {
        var text = Substring(self)
        while let last = text.last, last.isNewline { text.removeLast() }
        return String(text)
    }
}
