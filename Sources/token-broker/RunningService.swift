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

/// The running service: its store, its clients and its listeners.
struct RunningService {
    /// Why the service could not start, in one sentence for the operator.
    struct StartFailure: Error {
        let text: String
    }

    private let configuration: Configuration
    private let broker: Broker
    private let vault: Vault
    private let journal: Journal?
    private let client: HTTPSClient
    private let server: Server
    /// The server for probes and metrics, if they have their own address.
    private let operations: Server?
    /// The task that follows the clock that all replicas share.
    private let clock: Task<Void, Never>
    private let log: Log
    private let output: LineWriter

    /// How long the start waits for a database that does not answer.
    private static let patience: Duration = .seconds(60)

    /// The most connections of the listener for probes and metrics.
    private static let operationsConnections = 64

    /// The time for storing granted tokens at the end, even if requests have used up the grace period.
    private static let leastTimeToFinish: Duration = .seconds(1)

    /// Opens the store, checks the keys and binds the listeners.
    static func start(_ configuration: Configuration) async throws(StartFailure) -> RunningService {
        let time = SystemTime()
        let (output, loop) = try makeOutputAndLoop()
        let log = Log(threshold: configuration.logLevel, time: time) { output.write($0) }
        for variable in configuration.unknownVariables {
            log.warning(
                "unknown_environment_variable", LogField.unknownVariable(variable.name, meant: variable.suggestion))
        }
        for variable in configuration.exposedFiles {
            log.warning("secret_file_readable_by_others", [.variable(variable)])
        }
        let reports = DatabaseReports(log, time: time)
        let (vault, keyring, adminKeys) = try await openStore(
            configuration, loop: loop, log: log, reports: reports, time: time)
        var journal: Journal?
        do {
            try await vault.unlock()
            if let directory = configuration.journalDirectory {
                journal = try await openJournal(directory, keyring: keyring, log: log)
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
        // At most ten writes a second for each event stream. The delay does no harm: an event only announces a change, and
        // subscribers at other replicas learn of the change even later.
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
            throw StartFailure(text: "the store's time cannot be read: \(text(of: error))")
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
        ProcessMemory.releaseStartPages()
        return RunningService(
            configuration: configuration, broker: broker, vault: vault, journal: journal, client: client,
            server: server, operations: operations, clock: clock, log: log, output: output)
    }

    /// The server for probes and metrics; nil if they have no address of their own.
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

    /// Brings the schema of the configured database up to date.
    static func migrate(_ configuration: Configuration) async throws(StartFailure) {
        let time = SystemTime()
        let (output, loop) = try makeOutputAndLoop()
        let log = Log(threshold: configuration.logLevel, time: time) { output.write($0) }
        let store = try await connect(
            configuration, migrates: true, loop: loop, log: log, reports: DatabaseReports(log, time: time), time: time)
        await store.close()
        log.info("schema_up_to_date", [])
        output.close(within: .seconds(1))
    }

    /// Reports the service as not ready at once, then waits for running requests within the grace period.
    func stop() async {
        log.info("draining", [])
        broker.beginDraining()
        let end = MonotonicInstant.after(configuration.shutdownGrace)
        await server.drain(within: configuration.shutdownGrace)
        // A provider may have granted tokens that are not stored yet. They must be stored before anything else is
        // closed.
        await broker.finish(within: max(MonotonicInstant.now.duration(to: end), Self.leastTimeToFinish))
        await client.close()
        clock.cancel()
        await clock.value
        await journal?.close()
        await vault.close()
        await server.close()
        // Closed last, so that probes learn until the end that the process is not ready.
        await operations?.drain(within: .seconds(1))
        await operations?.close()
        log.info("stopped", [])
        output.close(within: .seconds(1))
    }

    /// The writer for the log, and the event loop for connections to databases and providers.
    private static func makeOutputAndLoop() throws(StartFailure) -> (LineWriter, EventLoop) {
        do throws(SystemError) {
            return (try LineWriter(descriptor: 1), try EventLoop(name: "outbound"))
        } catch {
            throw StartFailure(text: refusal(error))
        }
    }

    private static func refusal(_ error: SystemError) -> String {
        "the system refuses threads or descriptors: \(error)"
    }

    /// Limits the connections so that descriptors are left for the store, the providers and the loops.
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
        _ configuration: Configuration, loop: EventLoop, log: Log, reports: DatabaseReports, time: SystemTime
    ) async throws(StartFailure) -> (Vault, Keyring, AdminKeys) {
        switch configuration.store {
        case .files(let directory):
            do {
                let (store, keyring) = try await EmbeddedStore.open(
                    directory, masterKeys: configuration.masterKeys, keysFile: configuration.masterKeysFile
                ) { error in log.warning("file_store_failed", [.fileStore(error)]) }
                do {
                    let adminKeys = try await adminKeys(configuration, store)
                    try await warnOfExposedSecrets(in: store, configuration: configuration, log: log)
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
                configuration, migrates: configuration.migratesSchema, loop: loop, log: log, reports: reports,
                time: time)
            return (Vault(store: store, keyring: keyring), keyring, adminKeys)
        }
    }

    /// Opens the journal, which is a file store that is encrypted with the database's keys.
    private static func openJournal(_ directory: String, keyring: Keyring, log: Log) async throws -> Journal {
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

    /// Why files cannot be used. For damaged files, also which command helps.
    private static func text(of error: any Error) -> String {
        let isDamage =
            switch error {
            case FileStoreError.damaged, VaultError.store(.damaged): true
            default: false
            }
        return isDamage ? "\(error); run token-broker doctor store to see what can be saved" : "\(error)"
    }

    /// Connects to the database, and waits for a database that is starting at the same time.
    private static func connect(
        _ configuration: Configuration, migrates: Bool, loop: EventLoop, log: Log, reports: DatabaseReports,
        time: SystemTime
    ) async throws(StartFailure) -> PostgresRecordStore {
        guard case .postgres(let database, let listening) = configuration.store else {
            throw StartFailure(text: "there is no database to connect to")
        }
        // A separate resolver, so that slow look-ups of providers' names cannot delay those of the database.
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
                    var reason = "PostgreSQL cannot be reached or refuses the connection"
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

    /// Logs where the secrets of the embedded store are less safe than they could be.
    private static func warnOfExposedSecrets(
        in store: FileRecordStore, configuration: Configuration, log: Log
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
                        "a backup of TOKEN_BROKER_DATA_DIR contains the keys that decrypt it"),
                ])
        }
    }
}
