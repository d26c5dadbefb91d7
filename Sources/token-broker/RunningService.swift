import BrokerCore
import CommandLineClient
import CredentialStore
import Cryptography
import HTTPCodec
import HTTPSClient
import HTTPServer
import OAuth
import Postgres
import Reactor
import TokenBroker
import Waiting

/// The running service: its store, its clients and its listeners.
struct RunningService {
    private let configuration: Configuration
    private let broker: Broker
    private let resources: BrokerResources
    private let server: Server
    /// The server for probes and metrics, if they have their own address.
    private let operations: Server?
    /// The task that reads the listener's certificate again when its files change.
    private let renewal: Task<Void, Never>?
    private let files: FileRecordStore?
    /// Where commands of this machine find the broker; nil with a database.
    private let announced: HeldFile?
    /// Reads the configured master keys.
    private let keyReads = SingleFlight<Int, Result<Keyring?, Configuration.Faults>>()
    private let log: Log
    private let output: LineWriter

    /// How long the start waits for a database that does not answer.
    private static let patience: Duration = .seconds(60)

    /// The most connections of the listener for probes and metrics.
    private static let operationsConnections = 64

    /// The time for storing granted tokens at the end, even if requests have used up the grace period.
    private static let leastTimeToFinish: Duration = .seconds(1)

    /// Opens the store, checks the keys and binds the listeners.
    static func start(_ configuration: Configuration) async throws(CommandFailure) -> RunningService {
        let time = SystemTime()
        let (output, loop) = try makeOutputAndLoop()
        let log = Log(threshold: configuration.logLevel, time: time) { output.write($0) }
        for variable in configuration.unknownVariables {
            log.warning(
                "unknown_environment_variable", LogField.unknownVariable(variable.name, meant: variable.suggestion))
        }
        if configuration.serviceLinkCount > 0 {
            log.info("service_links_ignored", [.count(configuration.serviceLinkCount)])
        }
        for variable in configuration.exposedFiles {
            log.warning(
                "secret_file_readable_by_others", [.variable(variable.name, isFileForm: variable.isFileForm)])
        }
        let store = try await openStore(configuration, loop: loop, log: log, time: time)
        var settings = configuration.broker
        settings.adminKeys = try await adminKeys(configuration, store, log)
        settings.version = Command.versionText
        settings.hasOperationsListener = configuration.operationsListen != nil
        // At most ten writes a second for each event stream. The delay does no harm: an event only announces a change, and
        // subscribers at other replicas learn of the change even later.
        settings.core.eventSpan = .milliseconds(100)
        report(settings.core.providerTargets, log)
        let resources = try await openResources(
            store, for: settings.core, configuration, loop: loop, log: log, time: time)
        do throws(CommandFailure) {
            return try await RunningService(configuration, settings, resources, log, output)
        } catch {
            await resources.close()
            throw error
        }
    }

    /// Makes the broker, binds the listeners and starts the jobs. The caller closes the resources if it fails.
    private init(
        _ configuration: Configuration, _ settings: Broker.Settings, _ resources: BrokerResources, _ log: Log,
        _ output: LineWriter
    ) async throws(CommandFailure) {
        (self.configuration, self.resources, self.log, self.output) = (configuration, resources, log, output)
        let store = resources.store
        files = store.files
        broker = Broker(
            settings: settings, vault: resources.vault, journal: resources.journal, transport: resources.client,
            time: resources.time, log: log)
        broker.health.explain { store.reports.lastReason }
        do throws(StoreError) {
            try await broker.core.audit.open()
        } catch {
            throw CommandFailure(text: "the audit log cannot be written: \(store.reports.lastReason ?? "\(error)")")
        }
        do throws(BrokerError) {
            try await broker.core.takeUpJournal()
        } catch {
            throw CommandFailure(text: "the journal in TOKEN_BROKER_JOURNAL_DIR cannot be read")
        }
        var listener = configuration.server
        listener.maximumConnections = try Self.connectionLimit(listener.maximumConnections, log)
        listener.limits.bodyBytes = Service.longestContent
        let certificate: ListenerCertificate?
        do {
            certificate = try configuration.certificate.map {
                try ListenerCertificate($0, time: SystemTime(), log: log)
            }
        } catch {
            throw CommandFailure(text: "TOKEN_BROKER_TLS_CERTIFICATE, TLS_KEY and TLS_CLIENT_CA: \(error)")
        }
        listener.tls = certificate?.context
        do throws(SystemError) {
            operations = try Self.operationsServer(configuration, broker)
        } catch {
            throw CommandFailure(text: "cannot listen on TOKEN_BROKER_OPERATIONS_LISTEN: \(error)")
        }
        do throws(SystemError) {
            server = try Server(
                configuration: listener, handler: Service(broker, scope: operations == nil ? .all : .api))
        } catch {
            await operations?.close()
            throw CommandFailure(text: "cannot listen: \(error)", isAddressTaken: error.isAddressTaken)
        }
        broker.observe { [server] in server.statistics }
        if let operations { broker.observeOperations { operations.statistics } }
        if let certificate { broker.observeCertificate { certificate.expires } }
        resources.start(broker.core)
        if let operations { log.info("listening_for_operations", [.address(operations.address)]) }
        log.info("listening", [.address(server.address)])
        ProcessMemory.releaseStartPages()
        renewal = certificate.map { certificate in Task { await certificate.follow() } }
        announced = Self.announce(server.address, configuration, log)
    }

    /// Says in the directory of the embedded store where the broker listens, from now on.
    private static func announce(_ address: SocketAddress, _ configuration: Configuration, _ log: Log) -> HeldFile? {
        guard case .files(let directory) = configuration.store else { return nil }
        do throws(SystemError) {
            return try LocalBroker.announce(
                in: directory, at: address, isTLS: configuration.certificate != nil,
                hasOwnKey: configuration.broker.adminKeys == nil)
        } catch {
            // The disk may be full, which keeps no broker from serving.
            log.warning("address_not_kept", [.configurationFault("\(error)")])
            return nil
        }
    }

    /// Reads the master keys again, and uses them from now on if the store can do without the others. To be called by one
    /// task at a time. Where it fails, the keys stay, and the log says why. A task that is cancelled does not wait for a command
    /// that prints the keys.
    func readKeysAgain() async {
        // Reading blocks: a command may take seconds.
        let read = await keyReads.run(0, within: nil) {
            await withCheckedContinuation { continuation in
                let read: @Sendable () -> Void = {
                    continuation.resume(
                        returning: Result { () throws(Configuration.Faults) in
                            try Configuration.masterKeys(environment: ProcessEnvironment.variables)
                        })
                }
                do throws(SystemError) {
                    try Thread.start(name: "master-keys", read).detach()
                } catch {
                    continuation.resume(
                        returning: .failure(Configuration.Faults(lines: ["the system refuses a thread: \(error)"])))
                }
            }
        }
        guard let read else { return }
        do throws(CommandFailure) {
            let keyring = try await keyring(read.value)
            do throws(OpeningFailure) {
                let adoption = try await resources.adopt(keyring)
                let key = LogField.masterKey(keyring.primaryID)
                if adoption.isChanged {
                    log.info("master_keys_replaced", [key])
                } else {
                    log.info("master_keys_unchanged", [key])
                }
                if let fault = adoption.journalFault {
                    log.error("journal_keys_not_replaced", [.configurationFault("\(fault)")])
                }
            } catch {
                throw CommandFailure(error)
            }
        } catch {
            log.error("master_keys_not_replaced", [.configurationFault(error.text)])
        }
    }

    /// The configured keys, else those in the directory of the embedded store.
    private func keyring(
        _ configured: Result<Keyring?, Configuration.Faults>
    ) async throws(CommandFailure) -> Keyring {
        do {
            if let keyring = try configured.get() { return keyring }
            guard let text = try await files?.secret(.masterKeys) else {
                throw CommandFailure(text: "the file \(StoreSecret.masterKeys.rawValue) is missing")
            }
            return try Keyring(parsing: text)
        } catch let faults as Configuration.Faults {
            throw CommandFailure(text: faults.lines.joined(separator: "; "))
        } catch let failure as CommandFailure {
            throw failure
        } catch {
            throw CommandFailure(text: "\(error)")
        }
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
    static func migrate(_ configuration: Configuration) async throws(CommandFailure) {
        let time = SystemTime()
        let (output, loop) = try makeOutputAndLoop()
        let log = Log(threshold: configuration.logLevel, time: time) { output.write($0) }
        guard case .postgres(let database) = configuration.store else {
            throw CommandFailure(text: "there is no database to connect to")
        }
        do throws(OpeningFailure) {
            try await BrokerStore.migrate(
                BrokerStore.Database(database, options(configuration)), on: loop, log: log, time: time)
        } catch {
            throw CommandFailure(error)
        }
        log.info("schema_up_to_date", [])
        output.close(within: .seconds(1))
    }

    /// Reports the service as not ready at once, waits for running requests within the grace period, and closes everything.
    func close() async {
        announced?.remove()
        broker.beginDraining()
        renewal?.cancel()
        log.info("draining", [])
        let end = MonotonicInstant.after(configuration.shutdownGrace)
        await server.drain(within: configuration.shutdownGrace)
        // A provider may have granted tokens that are not stored yet. They must be stored before anything else is
        // closed.
        await resources.finish(
            broker.core, within: max(MonotonicInstant.now.duration(to: end), Self.leastTimeToFinish))
        await resources.close()
        await server.close()
        // Closed last, so that probes learn until the end that the process is not ready.
        await operations?.drain(within: .seconds(1))
        await operations?.close()
        log.info("stopped", [])
        output.close(within: .seconds(1))
    }

    /// The writer for the log, and the event loop for connections to databases and providers.
    static func makeOutputAndLoop() throws(CommandFailure) -> (LineWriter, EventLoop) {
        do throws(SystemError) {
            let output = try LineWriter(descriptor: 1) { count in
                Log.line(.warning, "log_lines_dropped", [.count(count)], at: SystemTime().now)
            }
            return (output, try EventLoop(name: "outbound"))
        } catch {
            throw CommandFailure(.system(error))
        }
    }

    /// Limits the connections so that descriptors are left for the store, the providers and the loops.
    private static func connectionLimit(_ wanted: Int, _ log: Log) throws(CommandFailure) -> Int {
        let available: Int
        do throws(SystemError) {
            available = try DescriptorLimit.raise()
        } catch {
            throw CommandFailure(text: "the limit on open descriptors cannot be read: \(error)")
        }
        let reserve = min(256, available / 2)
        DescriptorLimit.reserve(min(available, wanted + reserve))
        if wanted > available - reserve {
            log.warning("connection_limit_lowered", [.count(available - reserve)])
            return available - reserve
        }
        return wanted
    }

    /// Opens the configured store, and waits for a database that is starting at the same time.
    static func openStore(
        _ configuration: Configuration, loop: EventLoop, log: Log, time: SystemTime
    ) async throws(CommandFailure) -> BrokerStore {
        let location: BrokerStore.Location
        switch configuration.store {
        case .files(let directory):
            location = .directory(
                directory, masterKeys: configuration.masterKeys, keysFile: configuration.masterKeysFile)
        case .postgres(let database):
            guard let keys = configuration.masterKeys,
                let keyring = try? Keyring(parsing: keys.revealedText)
            else { throw CommandFailure(text: "the configuration lacks keys") }
            location = .database(BrokerStore.Database(database, options(configuration)), keyring)
        }
        do throws(OpeningFailure) {
            return try await BrokerStore.open(location, on: loop, log: log, time: time)
        } catch {
            throw CommandFailure(error)
        }
    }

    private static func options(_ configuration: Configuration) -> BrokerStore.Database.Options {
        var options = configuration.database
        options.patience = patience
        return options
    }

    private static func openResources(
        _ store: BrokerStore, for settings: CredentialsBroker.Settings, _ configuration: Configuration, loop: EventLoop,
        log: Log, time: SystemTime
    ) async throws(CommandFailure) -> BrokerResources {
        var options = configuration.resources
        options.timePatience = patience
        do throws(OpeningFailure) {
            return try await BrokerResources.open(store, for: settings, options, on: loop, log: log, time: time)
        } catch {
            throw CommandFailure(error)
        }
    }

    /// The configured admin keys, else those of the embedded store. Closes the store if it cannot return them.
    private static func adminKeys(
        _ configuration: Configuration, _ store: BrokerStore, _ log: Log
    ) async throws(CommandFailure) -> AdminKeys {
        do {
            guard let files = store.files else {
                guard let keys = configuration.broker.adminKeys else {
                    throw CommandFailure(text: "the configuration lacks keys")
                }
                return keys
            }
            let keys = try await adminKeys(configuration, files)
            try await warnOfExposedSecrets(in: files, configuration: configuration, log: log)
            return keys
        } catch let failure as CommandFailure {
            await store.vault.close()
            throw failure
        } catch {
            await store.vault.close()
            throw CommandFailure(
                text: CommandFailure.text(of: error, isDamage: (error as? FileStoreError)?.isDamage ?? false))
        }
    }

    private static func adminKeys(
        _ configuration: Configuration, _ store: FileRecordStore
    ) async throws -> AdminKeys {
        if let keys = configuration.broker.adminKeys { return keys }
        if let key = try await store.secret(.adminKey) {
            do throws(AdminKeys.Fault) {
                return try AdminKeys(parsing: SecretBytes(utf8: key))
            } catch {
                throw CommandFailure(
                    text: "the file \(StoreSecret.adminKey.rawValue) in TOKEN_BROKER_DATA_DIR \(error)")
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
        if configuration.leavesMasterKeysToStore {
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

extension CommandFailure {
    /// What the operator is told, with the variable to look at.
    init(_ failure: OpeningFailure) {
        let text = Self.text(of: failure, isDamage: failure.isDamageOfFiles)
        switch failure {
        case .system(let error): self.text = "the system refuses threads or descriptors: \(error)"
        case .database(.damaged(let what), _): self.text = "TOKEN_BROKER_DATABASE_URL: \(what)"
        case .database(_, let reason):
            self.text =
                "TOKEN_BROKER_DATABASE_URL: PostgreSQL cannot be reached or refuses the connection"
                + (reason.map { " (\($0))" } ?? "")
        case .cancelled: self.text = "stopped before PostgreSQL answered"
        case .journalFiles, .journalKeys: self.text = "TOKEN_BROKER_JOURNAL_DIR: \(text)"
        case .client: self.text = "TOKEN_BROKER_TRUSTED_CA_FILE: \(text)"
        case .files(.store(.alreadyOpen(let directory))):
            let broker = try? LocalBroker.serving(directory)
            self.text = text + "; stop that process first" + (broker.map { ": the broker at \($0.url)" } ?? "")
        case .files, .keys, .value, .time: self.text = text
        }
    }

    /// Why files cannot be used. For damaged files, also which command helps.
    fileprivate static func text(of error: any Error, isDamage: Bool) -> String {
        isDamage ? "\(error); run token-broker doctor store to see what can be saved" : "\(error)"
    }
}

extension FileStoreError {
    fileprivate var isDamage: Bool {
        if case .damaged = self { return true }
        return false
    }
}
