internal import BrokerCore
internal import CommandLineClient
internal import CredentialStore
internal import Cryptography
internal import HTTPSClient
internal import OAuth
internal import Postgres
internal import Reactor
internal import TLS
internal import TokenBroker

/// The configuration from the environment. All variables are checked, and all faults are reported together, before
/// anything is opened or bound.
struct Configuration: Sendable {
    enum Store: Sendable {
        /// A directory. Keys that are not configured are generated there at the first start.
        case files(directory: String)
        case postgres(PostgresConfiguration, PostgresRecordStore.Listening)
    }

    /// All faults of a configuration, one line each, with the variable's name and without its value.
    struct Faults: Error {
        let lines: [String]
    }

    var listen: SocketAddress
    /// The address for probes and metrics; nil means that `listen` also serves them.
    var operationsListen: SocketAddress?
    /// The certificate with which `listen` accepts connections by TLS; nil for plain HTTP.
    var certificate: ListenerCertificate.Files?
    var publicBaseURL: String
    var store: Store
    /// Whether `serve` brings the database's schema up to date.
    var migratesSchema: Bool
    var masterKeys: SecretBytes?
    var masterKeySource: MasterKeySource
    /// The file from which `masterKeys` was read or, without keys, the file in which the embedded store saves new ones.
    var masterKeysFile: String? { if case .file(let path) = masterKeySource { path } else { nil } }
    /// Whether the keys are to be in the directory of the embedded store.
    var leavesMasterKeysToStore: Bool { masterKeySource == .store }
    var adminKeys: AdminKeys?
    var limits: Limits
    /// Whose tokens say who a workload is.
    var workloadIssuers: [WorkloadIssuer]
    /// The directory in which a replica with a database stores grants that the database could not accept; nil keeps
    /// them in memory.
    var journalDirectory: String?
    var trustedCAFile: String?
    /// The proxy through which providers are reached over https; nil for none.
    var proxy: OutboundProxy?
    /// Which servers providers may be.
    var providerTargets: TargetPolicy
    /// Where the files must be that tenants name for their clients; nil for anywhere.
    var clientFileDirectories: [String]?
    var logLevel: LogLevel
    var logsReads: Bool
    /// Whether the memory of the service is kept out of swap.
    var locksMemory: Bool
    var audit: AuditTrail.Settings
    var eventLoops: Int?
    var maximumConnections: Int
    /// The most connections from one source; nil means that a source is limited only while the server is full.
    var maximumConnectionsPerSource: Int?
    /// The proxies that are trusted to name the client of a request.
    var trustedProxies: [NetworkRange]
    var providerConcurrency: Int
    var providerTimeout: Duration
    /// How long a caller waits for a renewal while the held token is valid.
    var renewalPatience: Duration
    var quarantine: Duration
    var expiryNotice: Duration
    var eventRetention: Duration
    var eventLimit: Int
    /// How long stored grants are kept in memory, in case the database loses its last commits; zero keeps none.
    var grantMemory: Duration
    var journalWait: Duration
    var cacheBytes: Int
    var cacheValidity: Duration
    var shutdownGrace: Duration
    /// The variables that name a file which other users can read.
    var exposedFiles: [StaticString]
    /// Unknown variables with the prefix TOKEN_BROKER_. A start only warns about them, because refusing to start would
    /// be worse than ignoring them. `config check` reports them as faults.
    var unknownVariables: [UnknownVariable]
    /// How many variables of Kubernetes' service links are ignored.
    var serviceLinkCount: Int

    /// - Parameter command: decides what is required. `migrate` requires a database and no keys, so that the account
    ///   that changes the schema need not be able to decrypt records. `examineStore` requires no admin key and, with a
    ///   database, a journal.
    init(environment: [String: String], for command: Command) throws(Faults) {
        var reader = EnvironmentReader(environment)
        let listen =
            reader.value("LISTEN").map { Self.address($0) } ?? SocketAddress(numericHost: "127.0.0.1", port: 8080)
        if listen == nil {
            reader.note("LISTEN", "must be a numeric address and a port, such as 127.0.0.1:8080 or [::]:8080")
        }
        self.listen = listen ?? SocketAddress(ip: .v4([127, 0, 0, 1]), port: 8080)

        operationsListen = nil
        if let text = reader.value("OPERATIONS_LISTEN") {
            operationsListen = Self.address(text)
            if operationsListen == nil {
                reader.note("OPERATIONS_LISTEN", "must be a numeric address and a port, such as 0.0.0.0:8081")
            } else if operationsListen == self.listen {
                reader.note("OPERATIONS_LISTEN", "must differ from TOKEN_BROKER_LISTEN")
            }
        }

        certificate = Self.certificate(&reader, for: command)
        let base = reader.value("PUBLIC_BASE_URL")
        if let base, let port = URLTarget.refusedPort(of: base) {
            reader.note(
                "PUBLIC_BASE_URL", "must not have the port \(port): of the ports below 1024 only 80 and 443 are allowed"
            )
        } else if let base, Self.isBaseURL(base) == false {
            reader.note("PUBLIC_BASE_URL", "must be an http or https URL without query and fragment")
        }
        if base == nil, self.listen.ip.isUnspecified, command.concernsService {
            reader.note(
                "PUBLIC_BASE_URL",
                "is required when TOKEN_BROKER_LISTEN is \(self.listen), which means all addresses of this machine and is no "
                    + "address for a browser: set the URL at which browsers reach the broker, such as "
                    + "https://broker.example.com")
        }
        publicBaseURL = (base ?? "\(certificate == nil ? "http" : "https")://\(self.listen)").trimmingSlash

        let databaseURL = reader.secret("DATABASE_URL", fileVariable: "TOKEN_BROKER_DATABASE_URL_FILE")
        let directory = reader.value("DATA_DIR")
        journalDirectory = reader.value("JOURNAL_DIR")
        trustedCAFile = reader.value("TRUSTED_CA_FILE")
        if let trustedCAFile, !SmallFile.isReadable(trustedCAFile) {
            reader.note("TRUSTED_CA_FILE", "cannot be read")
        }
        proxy = Self.proxy(&reader)
        // Without a database, the embedded store creates a missing file.
        (masterKeySource, masterKeys) = reader.masterKeys(
            mayBeMissing: databaseURL == nil, for: command, over: Self.outbound(trustedCAFile, proxy))
        let adminKey = reader.secret("ADMIN_KEY", fileVariable: "TOKEN_BROKER_ADMIN_KEY_FILE").map {
            SecretBytes(utf8: $0)
        }
        adminKeys = nil
        if let adminKey {
            do throws(AdminKeys.Fault) {
                adminKeys = try AdminKeys(parsing: adminKey)
            } catch {
                reader.note("ADMIN_KEY", "\(error)")
            }
        }
        if let databaseURL {
            let connections = reader.integer("DATABASE_CONNECTIONS", in: 1...64) ?? 4
            let usesPooler = reader.bool("DATABASE_POOLER") ?? false
            let listening = Self.listening(&reader)
            do {
                var configuration = try PostgresConfiguration(databaseURL)
                configuration.maximumConnections = connections
                configuration.usesPooler = usesPooler
                store = .postgres(configuration, listening)
            } catch {
                reader.note("DATABASE_URL", "\(error)")
                store = .files(directory: "")
            }
            if directory != nil { reader.note("DATA_DIR", "is not used together with TOKEN_BROKER_DATABASE_URL") }
            if masterKeySource == .store, command.needsMasterKeys {
                reader.note(
                    "MASTER_KEYS", "is required with TOKEN_BROKER_DATABASE_URL; token-broker keys generate prints one")
            }
            if case .examineStore = command {
                if journalDirectory == nil {
                    reader.note(
                        "JOURNAL_DIR",
                        "is required with TOKEN_BROKER_DATABASE_URL, because only the journal can be examined")
                }
            } else if adminKey == nil, command.needsAdminKey {
                reader.note("ADMIN_KEY", "is required with TOKEN_BROKER_DATABASE_URL")
            }
        } else {
            store = .files(directory: directory ?? "/var/lib/token-broker")
            if journalDirectory != nil {
                reader.note("JOURNAL_DIR", "requires TOKEN_BROKER_DATABASE_URL; the embedded store has no journal")
            }
            if command == .migrate {
                reader.note("DATABASE_URL", "is required to migrate; the embedded store has no schema")
            }
        }

        migratesSchema = reader.bool("MIGRATE") ?? true
        providerTargets = Self.providerTargets(&reader)
        clientFileDirectories = reader.directories("CLIENT_FILE_DIRECTORIES")
        workloadIssuers = reader.workloadIssuers(allowsHTTP: providerTargets.allowsHTTP)
        logLevel = reader.choice("LOG_LEVEL", LogLevel.self) ?? .info
        logsReads = reader.bool("LOG_READS") ?? false
        locksMemory = reader.bool("LOCK_MEMORY") ?? false
        audit = Self.audit(&reader)
        eventLoops = reader.integer("EVENT_LOOPS", in: 1...256)
        maximumConnections = reader.integer("MAX_CONNECTIONS", in: 1...1_000_000) ?? 10_000
        maximumConnectionsPerSource = reader.integer("MAX_CONNECTIONS_PER_SOURCE", in: 1...1_000_000)
        trustedProxies = Self.networks("TRUSTED_PROXIES", &reader)
        providerTimeout = .seconds(Int64(reader.integer("PROVIDER_TIMEOUT", in: 1...20) ?? 10))
        renewalPatience = .seconds(Int64(reader.integer("RENEWAL_PATIENCE", in: 0...60) ?? 2))
        providerConcurrency = reader.integer("PROVIDER_CONCURRENCY", in: 1...1024) ?? ProviderBudget.Limits().places
        quarantine = .seconds(Int64(reader.integer("QUARANTINE_DAYS", in: 0...3650) ?? 7) * 86_400)
        expiryNotice = .seconds(Int64(reader.integer("EXPIRY_NOTICE", in: 0...86_400) ?? 300))
        eventRetention = .seconds(Int64(reader.integer("EVENT_DAYS", in: 1...365) ?? 7) * 86_400)
        eventLimit = reader.integer("EVENT_LIMIT", in: 1000...1_000_000_000) ?? 1_000_000
        grantMemory = .seconds(Int64(reader.integer("GRANT_MEMORY", in: 0...86_400) ?? 900))
        journalWait = .seconds(Int64(reader.integer("JOURNAL_WAIT", in: 0...3600) ?? 60))
        cacheBytes = (reader.integer("CACHE_MEGABYTES", in: 1...1_048_576) ?? 256) << 20
        cacheValidity = .seconds(Int64(reader.integer("CACHE_SECONDS", in: 0...3600) ?? 5))
        shutdownGrace = .seconds(Int64(reader.integer("SHUTDOWN_GRACE", in: 1...3600) ?? 25))
        limits = Limits(&reader)
        exposedFiles = reader.exposedFiles
        unknownVariables = reader.unknownVariables
        serviceLinkCount = reader.serviceLinkCount
        if command == .checkConfiguration {
            for variable in unknownVariables { reader.fault(unknown: variable) }
        }
        if !reader.faults.isEmpty { throw Faults(lines: reader.faults) }
    }

    /// The files of the listener's certificate, which `serve` and `config check` also read.
    private static func certificate(
        _ reader: inout EnvironmentReader, for command: Command
    ) -> ListenerCertificate.Files? {
        let (certificate, key) = (reader.value("TLS_CERTIFICATE"), reader.value("TLS_KEY"))
        let authorities = reader.value("TLS_CLIENT_CA")
        guard let certificate, let key else {
            if authorities != nil, certificate == nil {
                reader.note(
                    "TLS_CLIENT_CA",
                    "requires TOKEN_BROKER_TLS_CERTIFICATE: only a listener with TLS can ask for certificates")
            }
            if certificate != nil { reader.note("TLS_KEY", "is required with TOKEN_BROKER_TLS_CERTIFICATE") }
            if key != nil { reader.note("TLS_CERTIFICATE", "is required with TOKEN_BROKER_TLS_KEY") }
            return nil
        }
        let files = ListenerCertificate.Files(certificate: certificate, key: key, clientAuthorities: authorities)
        guard command.concernsService else { return files }
        do throws(TLSServerError) {
            _ = try files.read()
        } catch {
            switch error {
            case .certificateFile, .name:
                reader.note("TLS_CERTIFICATE", "names a file without a certificate that can be used")
            case .keyFile:
                reader.note("TLS_KEY", "names a file without a private key that can be read without a passphrase")
            case .otherKey: reader.note("TLS_KEY", "names a key that does not belong to the certificate")
            case .clientAuthorities:
                reader.note(
                    "TLS_CLIENT_CA",
                    "names a file without certificates of certification authorities, or with others, or with more than "
                        + "\(TLSClientAuthorities.most)")
            case .unavailable: reader.note("TLS_CERTIFICATE", "cannot be used, because OpenSSL cannot set up TLS")
            }
            return files
        }
        reader.checkAccess(toSecretFile: key, variable: "TLS_KEY", fullName: "TOKEN_BROKER_TLS_KEY")
        return files
    }

    private static func audit(_ reader: inout EnvironmentReader) -> AuditTrail.Settings {
        var settings = AuditTrail.Settings()
        settings.changes = reader.bool("AUDIT_CHANGES") ?? false
        switch reader.value("AUDIT_READS") {
        case nil, "none": break
        case "all": settings.reads = .all
        case let text?:
            let digits = text.utf8.allSatisfy(\.isDigit) && text.utf8.count <= 7 ? Int(text) : nil
            if let count = digits, (2...1_000_000).contains(count) {
                settings.reads = .oneIn(count)
            } else {
                reader.note("AUDIT_READS", "must be none, all, or a number from 2 to 1000000: one read in so many")
            }
        }
        if let seconds = reader.integer("AUDIT_SIGNATURE_SECONDS", in: 1...3600) {
            settings.signatureInterval = .seconds(Int64(seconds))
        }
        return settings
    }

    private static func listening(_ reader: inout EnvironmentReader) -> PostgresRecordStore.Listening {
        switch reader.secret("DATABASE_LISTEN_URL", fileVariable: "TOKEN_BROKER_DATABASE_LISTEN_URL_FILE") {
        case nil: return .automatic
        case "off": return .off
        case let url?:
            do {
                return .through(try PostgresConfiguration(url))
            } catch {
                reader.note("DATABASE_LISTEN_URL", "\(error)")
                return .automatic
            }
        }
    }

    /// Reads a comma-separated list of addresses and CIDR ranges; empty when the variable is not set.
    private static func networks(_ name: String, _ reader: inout EnvironmentReader) -> [NetworkRange] {
        guard let text = reader.value(name) else { return [] }
        let items = text.split(separator: ",", omittingEmptySubsequences: false)
        let ranges = items.map { item in NetworkRange(parsing: String(item.filter { $0 != " " })) }
        if ranges.contains(nil) {
            reader.note(
                name,
                "must be a comma-separated list of addresses and CIDR ranges, such as 10.0.0.0/8,2001:db8::1; "
                    + "a range must not have bits set after its prefix")
        }
        return ranges.compactMap(\.self)
    }

    private static func proxy(_ reader: inout EnvironmentReader) -> OutboundProxy? {
        let exceptions = reader.common("NO_PROXY")
        guard let address = reader.common("HTTPS_PROXY") else { return nil }
        do throws(OutboundProxy.Fault) {
            return try OutboundProxy(parsing: address.value, exceptions: exceptions?.value ?? "")
        } catch {
            switch error {
            case .address:
                reader.fault("\(address.name) must be the URL of an HTTP proxy, such as http://proxy.example:3128")
            case .exception(let index):
                reader.fault(
                    "\(exceptions?.name ?? "") must be * or a comma-separated list of hosts, domains, addresses and CIDR ranges; its "
                        + "entry \(index + 1) is none")
            }
            return nil
        }
    }

    /// How servers are reached that the operator has named, at any address.
    var outbound: HTTPSClientConfiguration { Self.outbound(trustedCAFile, proxy) }

    private static func outbound(_ trustedCAFile: String?, _ proxy: OutboundProxy?) -> HTTPSClientConfiguration {
        var settings = HTTPSClientConfiguration()
        settings.trustedCAFile = trustedCAFile
        settings.proxy = proxy
        settings.targets = .everything
        return settings
    }

    private static func providerTargets(_ reader: inout EnvironmentReader) -> TargetPolicy {
        let isInsecure = reader.bool("ALLOW_INSECURE_PROVIDERS") ?? false
        var targets = isInsecure ? TargetPolicy.development : TargetPolicy()
        if reader.bool("ALLOW_HTTP_PROVIDERS") ?? false { targets.allowsHTTP = true }
        let networks = Self.networks("PROVIDER_NETWORKS", &reader)
        if isInsecure, !networks.allSatisfy(\.isLinkLocalOrMetadataService) {
            reader.note(
                "PROVIDER_NETWORKS",
                "has no effect with TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true, except for link-local addresses and the "
                    + "metadata services of clouds")
        }
        if networks.contains(where: { !$0.isSingleAddress && $0.contains(NetworkAddress(Self.metadataService)) }) {
            reader.note(
                "PROVIDER_NETWORKS",
                "must not contain a network with 169.254.169.254, at which clouds provide credentials; list single "
                    + "addresses instead")
        }
        targets.networks = networks
        return targets
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

    private static func isBaseURL(_ text: String) -> Bool {
        guard let url = URLTarget(text) else { return false }
        return !url.pathAndQuery.contains("?")
    }
}

extension Configuration {
    /// The limits of one API key and one tenant. Zero in the environment means no limit, which is nil here.
    struct Limits: Sendable {
        var rates = Rates()
        var pendingLogins: Int?
        var pendingDeviceLogins: Int?
        var pendingAppLogins: Int?
        var eventStreamsPerKey: Int?
        var eventStreamsPerTenant: Int?
        var appRequests = TokenEndpointLimits.Limits()
        /// The lifetime of API keys whose creator names none.
        var apiKeyLifetime: Duration?
        /// The longest lifetime of new API keys.
        var apiKeyLongestLifetime: Duration?

        init(_ reader: inout EnvironmentReader) {
            rates.logins = reader.rate("LOGIN_RATE", rates.logins)
            rates.deviceLogins = reader.rate("DEVICE_LOGIN_RATE", rates.deviceLogins)
            rates.writes = reader.rate("WRITE_RATE", rates.writes)
            rates.requests = reader.rate("REQUEST_RATE", rates.requests)
            rates.requestsOfTenant = reader.rate("TENANT_REQUEST_RATE", rates.requestsOfTenant)
            rates.requestsFromAddress = reader.rate("ADDRESS_REQUEST_RATE", rates.requestsFromAddress)
            if let rate = reader.integer("AUTHENTICATION_FAILURE_RATE", in: 0...1_000_000) {
                rates.authenticationFailures = rate == 0 ? nil : Rate(perSecond: rate, burst: rate)
            }
            let usual = CredentialsBroker.Settings()
            pendingLogins = reader.limit("PENDING_LOGINS", usual.pendingLogins)
            pendingDeviceLogins = reader.limit("PENDING_DEVICE_LOGINS", usual.pendingDeviceLogins)
            pendingAppLogins = reader.limit("PENDING_APP_LOGINS", usual.pendingAppLogins)
            eventStreamsPerKey = reader.limit("EVENT_STREAMS_PER_KEY", usual.listenersPerKey)
            eventStreamsPerTenant = reader.limit("EVENT_STREAMS_PER_TENANT", usual.listenersPerTenant)
            apiKeyLifetime = reader.days("API_KEY_DAYS")
            apiKeyLongestLifetime = reader.days("API_KEY_MAX_DAYS")
            if let longest = apiKeyLongestLifetime, let usual = apiKeyLifetime, usual > longest {
                reader.note("API_KEY_DAYS", "must not be more than TOKEN_BROKER_API_KEY_MAX_DAYS")
            }
            appRequests.perAddress = reader.limit("APP_REQUESTS_PER_ADDRESS", appRequests.perAddress)
            appRequests.perUser = reader.limit("APP_REQUESTS_PER_USER", appRequests.perUser)
        }
    }
}

extension Configuration {
    /// Reads the master keys again. Blocks.
    /// - Returns: nil where the embedded store has them in its directory.
    static func masterKeys(environment: [String: String]) throws(Faults) -> Keyring? {
        var reader = EnvironmentReader(environment)
        let outbound = Self.outbound(reader.value("TRUSTED_CA_FILE"), Self.proxy(&reader))
        let (_, keys) = reader.masterKeys(mayBeMissing: false, for: .serve, over: outbound)
        guard reader.faults.isEmpty else { throw Faults(lines: reader.faults) }
        return keys.flatMap { try? Keyring(parsing: $0.revealedText) }
    }
}
