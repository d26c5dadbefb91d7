import BrokerCore
import CommandLineClient
import CredentialStore
import Cryptography
import HTTPSClient
import HTTPServer
import OAuth
import Postgres
import Reactor
import TLS
import TokenBroker

/// The configuration from the environment, as the parts of the service take it. `Variable.all` says which variable goes where; a
/// property has its default until then. All variables are checked, and all faults are reported together, before anything is
/// opened or bound.
struct Configuration: Sendable {
    enum Store: Sendable {
        /// A directory. Keys that are not configured are generated there at the first start.
        case files(directory: String)
        case postgres(PostgresConfiguration)
    }

    /// All faults of a configuration, one line each, with the variable's name and without its value.
    struct Faults: Error {
        let lines: [String]
    }

    /// The settings of the broker and of its API. Without admin keys, the embedded store has one.
    var broker = Broker.Settings()
    var resources = BrokerResources.Options()
    /// The listener.
    var server = ServerConfiguration(address: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 8080))
    /// The address for probes and metrics; nil means that the listener also serves them.
    var operationsListen: SocketAddress?
    /// The certificate with which the listener accepts connections by TLS; nil for plain HTTP.
    var certificate: ListenerCertificate.Files?
    var store = Store.files(directory: UserDirectories.dataOfService)
    /// How a database is used.
    var database = BrokerStore.Database.Options()
    var masterKeys: SecretBytes?
    var masterKeySource = MasterKeySource.store
    /// The file from which `masterKeys` was read or, without keys, the file in which the embedded store saves new ones.
    var masterKeysFile: String? { if case .file(let path) = masterKeySource { path } else { nil } }
    /// Whether the keys are to be in the directory of the embedded store.
    var leavesMasterKeysToStore: Bool { masterKeySource == .store }
    var logLevel = LogLevel.info
    /// Whether the memory of the service is kept out of swap.
    var locksMemory = false
    var shutdownGrace: Duration = .seconds(25)
    /// The variables that name a file which other users can read.
    var exposedFiles: [FileVariable] = []
    /// Unknown variables with the prefix TOKEN_BROKER_. A start only warns about them, because refusing to start would
    /// be worse than ignoring them. `config check` reports them as faults.
    var unknownVariables: [UnknownVariable] = []
    /// How many variables of Kubernetes' service links are ignored.
    var serviceLinkCount = 0
    /// What several variables together make a setting of. Empty once the configuration has been read.
    var given = Given()

    /// What variables say that is understood together with what others say.
    struct Given: Sendable {
        var publicBaseURL: String?
        /// Paths of PEM files.
        var certificate, certificateKey, clientAuthorities: String?
        /// JSON.
        var workloadIssuers: String?
        var databaseURL: String?
        var connections = PostgresConfiguration.usualConnections
        var usesPooler = false
        /// A libpq URI, or `off`.
        var listenURL: String?
        /// Of the embedded store.
        var directory: String?
        var masterKeys, masterKeysVault: TextSource?
        var masterKeysCommand: String?
        var allowsInsecureProviders = false
        var proxy, proxyExceptions: CommonVariable?
    }

    /// All defaults.
    init() {}

    /// - Parameter command: decides what is required. `migrate` requires a database and no keys, so that the account
    ///   that changes the schema need not be able to decrypt records. `examineStore` requires no admin key and, with a
    ///   database, a journal.
    init(environment: [String: String], for command: Command) throws(Faults) {
        var reader = EnvironmentReader(environment)
        for variable in Variable.ofService where !variable.needsDatabase || given.databaseURL != nil {
            variable.read?(&reader, &self)
        }
        checkAddresses(&reader, for: command)
        readStore(&reader, for: command)
        readProviderTargets(&reader)
        readWorkloadIssuers(&reader)
        if let longest = broker.apiKeyLongestLifetime, let usual = broker.apiKeyLifetime, usual > longest {
            reader.fault("TOKEN_BROKER_API_KEY_DAYS must not be more than TOKEN_BROKER_API_KEY_MAX_DAYS")
        }
        let outbound = outbound(&reader)
        // Without a database, the embedded store creates a missing file.
        (masterKeySource, masterKeys) = reader.masterKeys(
            given, mayBeMissing: given.databaseURL == nil, for: command, over: outbound)
        if given.databaseURL != nil { requireKeys(&reader, for: command) }

        exposedFiles = reader.exposedFiles
        unknownVariables = reader.unknownVariables
        serviceLinkCount = reader.serviceLinkCount
        if command == .checkConfiguration {
            for variable in unknownVariables { reader.fault(variable.text) }
        }
        if !reader.faults.isEmpty { throw Faults(lines: reader.faults) }
        given = Given()
    }

    /// The addresses of the listeners, and that at which browsers reach the broker.
    private mutating func checkAddresses(_ reader: inout EnvironmentReader, for command: Command) {
        if operationsListen == server.address {
            reader.fault("TOKEN_BROKER_OPERATIONS_LISTEN must differ from TOKEN_BROKER_LISTEN")
        }
        readCertificate(&reader, for: command)
        let base = given.publicBaseURL
        if let base, let port = URLTarget.refusedPort(of: base) {
            reader.fault(
                "TOKEN_BROKER_PUBLIC_BASE_URL must not have the port \(port): of the ports below 1024 only 80 and 443 are allowed"
            )
        } else if let base, Self.isBaseURL(base) == false {
            reader.fault("TOKEN_BROKER_PUBLIC_BASE_URL must be an http or https URL without query and fragment")
        }
        let address = server.address
        if base == nil, address.ip.isUnspecified, command.concernsService {
            reader.fault(
                "TOKEN_BROKER_PUBLIC_BASE_URL is required when TOKEN_BROKER_LISTEN is \(address), which means all addresses of "
                    + "this machine and is no address for a browser: set the URL at which browsers reach the broker, such as "
                    + "https://broker.example.com")
        }
        broker.core.publicBaseURL = (base ?? "\(certificate == nil ? "http" : "https")://\(address)").trimmingSlash
    }

    private static func isBaseURL(_ text: String) -> Bool {
        guard let url = URLTarget(text) else { return false }
        return !url.pathAndQuery.contains("?")
    }

    /// The files of the listener's certificate, which `serve` and `config check` also read.
    private mutating func readCertificate(_ reader: inout EnvironmentReader, for command: Command) {
        guard let path = given.certificate, let key = given.certificateKey else {
            if given.clientAuthorities != nil, given.certificate == nil {
                reader.fault(
                    "TOKEN_BROKER_TLS_CLIENT_CA requires TOKEN_BROKER_TLS_CERTIFICATE: only a listener with TLS can ask for "
                        + "certificates")
            }
            if given.certificate != nil {
                reader.fault("TOKEN_BROKER_TLS_KEY is required with TOKEN_BROKER_TLS_CERTIFICATE")
            }
            if given.certificateKey != nil {
                reader.fault("TOKEN_BROKER_TLS_CERTIFICATE is required with TOKEN_BROKER_TLS_KEY")
            }
            return
        }
        let files = ListenerCertificate.Files(
            certificate: path, key: key, clientAuthorities: given.clientAuthorities)
        certificate = files
        guard command.concernsService else { return }
        do throws(TLSServerError) {
            _ = try files.read()
        } catch {
            let fault =
                switch error {
                case .certificateFile, .name:
                    "TOKEN_BROKER_TLS_CERTIFICATE names a file without a certificate that can be used"
                case .keyFile:
                    "TOKEN_BROKER_TLS_KEY names a file without a private key that can be read without a passphrase"
                case .otherKey: "TOKEN_BROKER_TLS_KEY names a key that does not belong to the certificate"
                case .clientAuthorities:
                    "TOKEN_BROKER_TLS_CLIENT_CA names a file without certificates of certification authorities, or with "
                        + "others, or with more than \(TLSClientAuthorities.most)"
                case .unavailable:
                    "TOKEN_BROKER_TLS_CERTIFICATE cannot be used, because OpenSSL cannot set up TLS"
                }
            return reader.fault(fault)
        }
        reader.checkAccess(toSecretFile: key, named: "TOKEN_BROKER_TLS_KEY")
    }

    private mutating func readStore(_ reader: inout EnvironmentReader, for command: Command) {
        guard let url = given.databaseURL else {
            if let directory = given.directory { store = .files(directory: directory) }
            if resources.journalDirectory != nil {
                reader.fault(
                    "TOKEN_BROKER_JOURNAL_DIR requires TOKEN_BROKER_DATABASE_URL; the embedded store has no journal")
            }
            if command == .migrate {
                reader.fault("TOKEN_BROKER_DATABASE_URL is required to migrate; the embedded store has no schema")
            }
            return
        }
        switch given.listenURL {
        case nil: break
        case "off": database.listening = .off
        case let url?:
            do throws(PostgresError) {
                database.listening = .through(try PostgresConfiguration(url))
            } catch {
                reader.fault("TOKEN_BROKER_DATABASE_LISTEN_URL \(error)")
            }
        }
        do throws(PostgresError) {
            var configuration = try PostgresConfiguration(url)
            configuration.maximumConnections = given.connections
            configuration.usesPooler = given.usesPooler
            store = .postgres(configuration)
        } catch {
            reader.fault("TOKEN_BROKER_DATABASE_URL \(error)")
        }
        if given.directory != nil {
            reader.fault("TOKEN_BROKER_DATA_DIR is not used together with TOKEN_BROKER_DATABASE_URL")
        }
    }

    /// Notes which keys a database lacks, and which journal. The embedded store makes its own.
    private func requireKeys(_ reader: inout EnvironmentReader, for command: Command) {
        if leavesMasterKeysToStore, command.needsMasterKeys {
            reader.fault(
                "TOKEN_BROKER_MASTER_KEYS is required with TOKEN_BROKER_DATABASE_URL; token-broker keys generate prints one"
            )
        }
        if case .examineStore = command {
            if resources.journalDirectory == nil {
                reader.fault(
                    "TOKEN_BROKER_JOURNAL_DIR is required with TOKEN_BROKER_DATABASE_URL, because only the journal can be "
                        + "examined")
            }
        } else if broker.adminKeys == nil, command.needsAdminKey {
            reader.fault("TOKEN_BROKER_ADMIN_KEY is required with TOKEN_BROKER_DATABASE_URL")
        }
    }

    private mutating func readProviderTargets(_ reader: inout EnvironmentReader) {
        let networks = broker.core.providerTargets.networks
        if given.allowsInsecureProviders {
            broker.core.providerTargets = .development
            broker.core.providerTargets.networks = networks
            if !networks.allSatisfy(\.isLinkLocalOrMetadataService) {
                reader.fault(
                    "TOKEN_BROKER_PROVIDER_NETWORKS has no effect with TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true, except for "
                        + "link-local addresses and the metadata services of clouds")
            }
        }
        if networks.contains(where: { !$0.isSingleAddress && $0.contains(NetworkAddress(Self.metadataService)) }) {
            reader.fault(
                "TOKEN_BROKER_PROVIDER_NETWORKS must not contain a network with 169.254.169.254, at which clouds provide "
                    + "credentials; list single addresses instead")
        }
    }

    private static let metadataService = SocketAddress.IP.v4([169, 254, 169, 254])

    private mutating func readWorkloadIssuers(_ reader: inout EnvironmentReader) {
        guard let text = given.workloadIssuers else { return }
        do throws(WorkloadIssuers.Fault) {
            broker.core.workloadIssuers = try WorkloadIssuers.read(
                Array(text.utf8), allowsHTTP: broker.core.providerTargets.allowsHTTP)
        } catch {
            reader.fault("TOKEN_BROKER_WORKLOAD_ISSUERS \(error.description)")
        }
    }
}

extension Configuration {
    /// How servers are reached that the operator has named, at any address.
    var outbound: HTTPSClientConfiguration {
        var settings = HTTPSClientConfiguration()
        settings.trustedCAFile = resources.trustedCAFile
        settings.proxy = resources.proxy
        settings.targets = .everything
        return settings
    }

    /// Reads the proxy, and looks at the authorities.
    /// - Returns: nil if one of them cannot be used: a server would then be asked in another way than the operator wants.
    private mutating func outbound(_ reader: inout EnvironmentReader) -> HTTPSClientConfiguration? {
        let before = reader.faults.count
        if let path = resources.trustedCAFile, !SmallFile.isReadable(path) {
            reader.fault("TOKEN_BROKER_TRUSTED_CA_FILE cannot be read")
        }
        if let proxy = given.proxy { readProxy(proxy, except: given.proxyExceptions, &reader) }
        return reader.faults.count == before ? outbound : nil
    }

    private mutating func readProxy(
        _ proxy: CommonVariable, except exceptions: CommonVariable?, _ reader: inout EnvironmentReader
    ) {
        do throws(OutboundProxy.Fault) {
            resources.proxy = try OutboundProxy(parsing: proxy.value, exceptions: exceptions?.value ?? "")
        } catch {
            switch error {
            case .address:
                reader.fault("\(proxy.name) must be the URL of an HTTP proxy, such as http://proxy.example:3128")
            case .exception(let index):
                reader.fault(
                    "\(exceptions?.name ?? "") must be * or a comma-separated list of hosts, domains, addresses and CIDR ranges; its "
                        + "entry \(index + 1) is none")
            }
        }
    }

    /// Reads the master keys again. Blocks.
    /// - Returns: nil if the embedded store has them in its directory.
    static func masterKeys(environment: [String: String]) throws(Faults) -> Keyring? {
        var reader = EnvironmentReader(environment)
        var configuration = Configuration()
        for variable in Variable.ofMasterKeys + Variable.ofOutbound { variable.read?(&reader, &configuration) }
        let outbound = configuration.outbound(&reader)
        let (_, keys) = reader.masterKeys(configuration.given, mayBeMissing: false, for: .serve, over: outbound)
        guard reader.faults.isEmpty else { throw Faults(lines: reader.faults) }
        return keys.flatMap { try? Keyring(parsing: $0.revealedText) }
    }
}
