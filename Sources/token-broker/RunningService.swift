internal import BrokerCore
internal import CredentialStore
internal import Cryptography
internal import HTTPCodec
internal import HTTPSClient
internal import HTTPServer
internal import OAuth
internal import Postgres
internal import Reactor
internal import TokenBroker

/// The running service, from its store to its listener.
struct RunningService {
    /// Why the service did not come up, in one sentence for the operator.
    struct StartFailure: Error {
        let text: String
    }

    private let configuration: Configuration
    private let broker: Broker
    private let vault: Vault
    private let journal: Journal?
    private let client: HTTPSClient
    private let server: Server
    /// For probes and metrics, where they have a listener of their own.
    private let operations: Server?
    /// Keeps the time that all replicas share.
    private let clock: Task<Void, Never>
    private let log: Log
    private let output: LineWriter

    /// How long a database that does not answer is waited for at the start.
    private static let patience: Duration = .seconds(60)

    /// Connections at once of the listener for probes and metrics.
    private static let operationsConnections = 64

    /// What is left for storing what providers have granted, even where callers have used up the grace.
    private static let leastTimeToFinish: Duration = .seconds(1)

    /// Opens the store, checks the keys, binds.
    static func start(_ configuration: Configuration) async throws(StartFailure) -> RunningService {
        let time = SystemTime()
        let (output, loop) = try outbound()
        let log = Log(threshold: configuration.logLevel, time: time) { output.write($0) }
        for variable in configuration.unknownVariables {
            log.warning(
                "unknown_environment_variable", LogField.unknownVariable(variable.name, meant: variable.suggestion))
        }
        for variable in configuration.exposedFiles {
            log.warning("secret_file_readable_by_others", [.variable(variable)])
        }
        let reports = DatabaseReports(log, time: time)
        let (vault, keyring, adminKeys) = try await openStore(configuration, loop, log, reports, time)
        var journal: Journal?
        do {
            try await vault.unlock()
            if let directory = configuration.journalDirectory {
                journal = try await openJournal(directory, keyring, log)
            }
        } catch {
            await vault.close()
            throw StartFailure(text: (error as? StartFailure)?.text ?? text(of: error))
        }

        var settings = Broker.Settings(publicBaseURL: configuration.publicBaseURL, adminKeys: adminKeys)
        settings.version = Command.versionText
        settings.hasOperationsListener = configuration.operationsListen != nil
        settings.logsReads = configuration.logsReads
        settings.providerTargets = configuration.providerTargets
        settings.quarantine = configuration.quarantine
        settings.expiryNotice = configuration.expiryNotice
        settings.eventRetention = configuration.eventRetention
        settings.eventLimit = configuration.eventLimit
        // Ten writes a second for each listener at most, and a delay that nobody notices who is told that something
        // happened, not what: those at other replicas wait longer for the word of it.
        settings.eventSpan = .milliseconds(100)
        settings.cacheBytes = configuration.cacheBytes
        settings.core.grantMemory = configuration.grantMemory
        settings.core.providerBudget.places = configuration.providerConcurrency
        settings.providerTimeout = configuration.providerTimeout
        settings.core.renewalPatience = configuration.renewalPatience
        settings.rates = configuration.limits.rates
        settings.pendingLogins = configuration.limits.pendingLogins
        settings.pendingDeviceLogins = configuration.limits.pendingDeviceLogins
        settings.listenersPerKey = configuration.limits.eventStreamsPerKey
        settings.listenersPerTenant = configuration.limits.eventStreamsPerTenant

        var clientConfiguration = HTTPSClientConfiguration()
        clientConfiguration.trustedCAFile = configuration.trustedCAFile
        settings.core.limit(&clientConfiguration)
        let client: HTTPSClient
        do {
            client = try HTTPSClient(configuration: clientConfiguration, loop: loop, resolver: try NameResolver())
        } catch let error as SystemError {
            await vault.close()
            throw StartFailure(text: Self.refusal(error))
        } catch {
            await vault.close()
            throw StartFailure(text: "TOKEN_BROKER_TRUSTED_CA_FILE: \(error)")
        }
        report(configuration.providerTargets, log)

        let shared = SharedTime(time)
        do throws(StoreError) {
            try await shared.begin(with: vault, within: Self.patience, log)
        } catch {
            await journal?.close()
            await vault.close()
            throw StartFailure(text: "the store does not tell the time: \(text(of: error))")
        }
        let broker = Broker(
            settings: settings, vault: vault, journal: journal, transport: client, time: shared, log: log)
        broker.health.explain { reports.lastReason }
        do throws(BrokerError) {
            try await broker.core.takeUpJournal()
        } catch {
            await journal?.close()
            await vault.close()
            throw StartFailure(text: "the journal in TOKEN_BROKER_JOURNAL_DIR cannot be read")
        }
        var serverConfiguration = ServerConfiguration(address: configuration.listen)
        if let loops = configuration.eventLoops { serverConfiguration.loopCount = loops }
        serverConfiguration.maximumConnections = try connectionLimit(configuration, log)
        serverConfiguration.trustedProxies = TrustedProxies(configuration.trustedProxies)
        serverConfiguration.limits.bodyBytes = 1 << 20
        serverConfiguration.maximumConnectionsPerSource = configuration.maximumConnectionsPerSource
        let server: Server
        let operations: Server?
        do throws(SystemError) {
            operations = try operationsServer(configuration, broker)
        } catch {
            await journal?.close()
            await vault.close()
            throw StartFailure(text: "cannot listen on TOKEN_BROKER_OPERATIONS_LISTEN: \(error)")
        }
        do throws(SystemError) {
            server = try Server(
                configuration: serverConfiguration,
                handler: Service(
                    broker, scope: operations == nil ? .all : .api))
        } catch {
            await operations?.close()
            await journal?.close()
            await vault.close()
            throw StartFailure(text: "cannot listen: \(error)")
        }
        broker.observe { server.statistics }
        if let operations { broker.observeOperations { operations.statistics } }
        broker.start()
        let clock = Task { await shared.follow(broker.core.vault, log) }
        if let operations { log.info("listening_for_operations", [.address(operations.address)]) }
        log.info("listening", [.address(server.address)])
        ProcessMemory.giveBackStartPages()
        return RunningService(
            configuration: configuration, broker: broker, vault: vault, journal: journal, client: client,
            server: server, operations: operations, clock: clock, log: log, output: output)
    }

    /// The server for probes and metrics; nil where they have no listener of their own.
    private static func operationsServer(
        _ configuration: Configuration, _ broker: Broker
    ) throws(SystemError) -> Server? {
        guard let address = configuration.operationsListen else { return nil }
        var server = ServerConfiguration(address: address, loopCount: 1)
        server.maximumConnections = operationsConnections
        return try Server(
            configuration: server, handler: Service(broker, scope: .operations))
    }

    private static func report(_ targets: TargetPolicy, _ log: Log) {
        if targets.unlisted != .none {
            log.warning("insecure_providers_allowed", [])
        } else if targets.allowsHTTP {
            log.warning("http_providers_allowed", [])
        }
        if !targets.networks.isEmpty { log.info("provider_networks_allowed", [.count(targets.networks.count)]) }
    }

    /// Brings the schema of the configuration's database up to date.
    static func migrate(_ configuration: Configuration) async throws(StartFailure) {
        let time = SystemTime()
        let (output, loop) = try outbound()
        let log = Log(threshold: configuration.logLevel, time: time) { output.write($0) }
        let store = try await connect(
            configuration, migrates: true, loop, log, DatabaseReports(log, time: time), time)
        await store.close()
        log.info("schema_up_to_date", [])
        output.close(within: .seconds(1))
    }

    /// Not ready from the first moment; then what is under way comes to its end, within the grace.
    func stop() async {
        log.info("draining", [])
        broker.beginDraining()
        let end = MonotonicInstant.after(configuration.shutdownGrace)
        await server.drain(within: configuration.shutdownGrace)
        // A provider may have granted what is not stored yet; that comes before everything else.
        await broker.finish(within: max(MonotonicInstant.now.duration(to: end), Self.leastTimeToFinish))
        await client.close()
        clock.cancel()
        await clock.value
        await journal?.close()
        await vault.close()
        await server.close()
        // Last, so that probes are told to the end that the process is not ready.
        await operations?.drain(within: .seconds(1))
        await operations?.close()
        log.info("stopped", [])
        output.close(within: .seconds(1))
    }

    /// Where the log goes, and what calls to databases and providers are made on.
    private static func outbound() throws(StartFailure) -> (LineWriter, EventLoop) {
        do throws(SystemError) {
            return (try LineWriter(descriptor: 1), try EventLoop(name: "outbound"))
        } catch {
            throw StartFailure(text: refusal(error))
        }
    }

    private static func refusal(_ error: SystemError) -> String {
        "the system refuses threads or descriptors: \(error)"
    }

    /// Callers may not take every descriptor: the store, the providers and the loops need some, too.
    private static func connectionLimit(_ configuration: Configuration, _ log: Log) throws(StartFailure) -> Int {
        let available: Int
        do throws(SystemError) {
            available = try DescriptorLimit.raise()
        } catch {
            throw StartFailure(text: "the limit on open descriptors cannot be read: \(error)")
        }
        let reserve = min(256, available / 2)
        DescriptorLimit.reserve(min(available, configuration.maximumConnections + reserve))
        if configuration.maximumConnections > available - reserve {
            log.warning("connection_limit_lowered", [.count(available - reserve)])
            return available - reserve
        }
        return configuration.maximumConnections
    }

    private static func openStore(
        _ configuration: Configuration, _ loop: EventLoop, _ log: Log, _ reports: DatabaseReports, _ time: SystemTime
    ) async throws(StartFailure) -> (Vault, Keyring, AdminKeys) {
        switch configuration.store {
        case .files(let directory):
            do {
                let (store, keyring) = try await EmbeddedStore.open(
                    directory, masterKeys: configuration.masterKeys, keysFile: configuration.masterKeysFile
                ) { error in log.warning("file_store_failed", [.fileStore(error)]) }
                do {
                    let adminKeys = try await adminKeys(configuration, store)
                    try await warn(of: store, configuration, log)
                    return (Vault(store: store, keyring: keyring), keyring, adminKeys)
                } catch {
                    await store.close()
                    throw error
                }
            } catch let failure as StartFailure {
                throw failure
            } catch {
                throw StartFailure(text: text(of: error))
            }
        case .postgres:
            guard let keys = configuration.masterKeys, let adminKeys = configuration.adminKeys,
                let keyring = try? Keyring(parsing: keys.revealedText)
            else { throw StartFailure(text: "the configuration lacks keys") }
            let store = try await connect(
                configuration, migrates: configuration.migratesSchema, loop, log, reports, time)
            return (Vault(store: store, keyring: keyring), keyring, adminKeys)
        }
    }

    /// The journal is a store of files with the database's keys.
    private static func openJournal(_ directory: String, _ keyring: Keyring, _ log: Log) async throws -> Journal {
        do {
            let store = try await FileRecordStore(directory: directory) { error in
                log.warning("journal_failed", [.fileStore(error)])
            }
            let vault = Vault(store: store, keyring: keyring)
            do {
                try await vault.unlock()
            } catch {
                await vault.close()
                throw error
            }
            return Journal(vault: vault)
        } catch {
            throw StartFailure(text: "TOKEN_BROKER_JOURNAL_DIR: \(text(of: error))")
        }
    }

    /// Why files cannot be used, and where they are damaged, what to do about it.
    private static func text(of error: any Error) -> String {
        let isDamage =
            switch error {
            case FileStoreError.damaged, VaultError.store(.damaged): true
            default: false
            }
        return isDamage ? "\(error); token-broker doctor store says what can be saved" : "\(error)"
    }

    /// A database that starts at the same time as we do is waited for.
    private static func connect(
        _ configuration: Configuration, migrates: Bool, _ loop: EventLoop, _ log: Log, _ reports: DatabaseReports,
        _ time: SystemTime
    ) async throws(StartFailure) -> PostgresRecordStore {
        guard case .postgres(let database, let listening) = configuration.store else {
            throw StartFailure(text: "there is no database to connect to")
        }
        // Its own, so that names of providers cannot keep the database's from being looked up.
        let resolver: NameResolver
        do throws(SystemError) {
            resolver = try NameResolver(name: "db-resolver", limits: .database)
        } catch {
            throw StartFailure(text: refusal(error))
        }
        var direct: PostgresConfiguration?
        if case .through(let listener) = listening { direct = listener }
        DatabaseReports.noteLinks(database, listener: direct, log)
        let end = time.monotonic.advanced(by: patience)
        while true {
            do throws(StoreError) {
                return try await PostgresRecordStore.open(
                    database, on: loop, resolver: resolver, migrates: migrates, listening: listening,
                    revalidateAfter: configuration.cacheValidity
                ) { failure in
                    reports.note(failure)
                }
            } catch {
                log.warning("store_failed", [.store(error)])
                guard error == .unavailable, time.monotonic < end else {
                    var reason = "PostgreSQL cannot be reached or refuses"
                    if let failure = reports.lastReason { reason += " (\(failure))" }
                    if case .damaged(let what) = error { reason = what }
                    throw StartFailure(text: "TOKEN_BROKER_DATABASE_URL: \(reason)")
                }
            }
            do {
                try await time.sleep(for: .seconds(1))
            } catch {
                throw StartFailure(text: "stopped before PostgreSQL answered")
            }
        }
    }

    private static func adminKeys(
        _ configuration: Configuration, _ store: FileRecordStore
    ) async throws -> AdminKeys {
        if let keys = configuration.adminKeys { return keys }
        if let key = try await store.secret(.adminKey) {
            do throws(AdminKeys.Fault) {
                return try AdminKeys(parsing: SecretBytes(utf8: key))
            } catch {
                throw StartFailure(text: "the file \(StoreSecret.adminKey.rawValue) in TOKEN_BROKER_DATA_DIR \(error)")
            }
        }
        let key = "tba_" + Base64URL.encode(try SecureRandom.bytes(32))
        try await store.keep(.adminKey, key)
        return try AdminKeys(parsing: SecretBytes(utf8: key))
    }

    /// Says where the embedded store's secrets are kept less safely than they can be.
    private static func warn(
        of store: FileRecordStore, _ configuration: Configuration, _ log: Log
    ) async throws(FileStoreError) {
        for secret in StoreSecret.allCases where try await store.isReadableByOthers(secret) {
            log.warning("secret_file_readable_by_others", [.file(secret)])
        }
        if configuration.masterKeys == nil, configuration.masterKeysFile == nil {
            log.warning(
                "master_keys_beside_records",
                [
                    .file(.masterKeys),
                    .reason(
                        "a backup of TOKEN_BROKER_DATA_DIR contains the keys that open it"),
                ])
        }
    }
}
