import BrokerCore
import CommandLineClient
import CredentialStore
import Cryptography
import HTTPSClient
import HTTPServer
import OAuth
import Postgres
import Reactor
import Synchronization
import TLS
import TokenBroker

/// Checks an installation before it goes into service, and from time to time: its configuration, and what is in its store.
func examineInstallation() -> Never {
    let configuration = loadConfiguration(for: .examineInstallation)
    runCommand { () async throws(CommandFailure) in
        var doctor = Doctor(configuration)
        await doctor.run()
        return doctor.report().rawValue
    }
}

/// The checks of `token-broker doctor`, and what they have found.
private struct Doctor {
    /// How much a finding matters, in the order of the exit status.
    enum Level: Int, Comparable {
        case good
        /// It may be as it should be.
        case note
        case warning
        case fault

        static func < (left: Level, right: Level) -> Bool { left.rawValue < right.rawValue }

        /// Eight characters, so that the texts behind it stand below each other.
        var word: String {
            switch self {
            case .good: "good    "
            case .note: "note    "
            case .warning: "warning "
            case .fault: "fault   "
            }
        }
    }

    /// Client secrets are replaced at least this often.
    private static let longestUseOfSecrets: Duration = .seconds(92 * 86_400)
    /// API keys without an end are replaced at least this often.
    private static let longestUseOfKeys: Duration = .seconds(366 * 86_400)
    /// For so long before their end API keys are named.
    private static let noticeOfKeys: Duration = .seconds(14 * 86_400)

    private let configuration: Configuration
    private let now = SystemTime().now
    private var findings: [(level: Level, text: String)] = []

    init(_ configuration: Configuration) {
        self.configuration = configuration
    }

    mutating func run() async {
        checkProviders()
        checkListener()
        checkFiles()
        checkKeys()
        checkLog()
        checkDatabase()
        await checkStore()
    }

    /// Prints the findings, the gravest last.
    /// - Returns: the exit status.
    func report() -> ExitStatus {
        for level in [Level.good, .note, .warning, .fault] {
            for finding in findings where finding.level == level { Console.print(level.word + finding.text) }
        }
        let counts = [Level.fault, .warning, .note].map { level in findings.count { $0.level == level } }
        let words = zip(counts, ["fault", "warning", "note"]).map { "\($0) \($1)\($0 == 1 ? "" : "s")" }
        Console.print(words.joined(separator: ", "))
        switch findings.map({ $0.level }).max() {
        case .fault?: return .damaged
        case .warning?: return .configuration
        default: return .done
        }
    }

    private mutating func add(_ level: Level, _ text: String) { findings.append((level, text)) }

    // MARK: The configuration

    private mutating func checkProviders() {
        let targets = configuration.broker.core.providerTargets
        if targets.unlisted != .none {
            add(.fault, "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS is true: it is for development only")
        } else if targets.allowsHTTP {
            add(.fault, "TOKEN_BROKER_ALLOW_HTTP_PROVIDERS is true: tokens and secrets cross the network unencrypted")
        } else {
            add(.good, "providers are called over https only")
        }
        if !targets.networks.isEmpty {
            add(
                .note, "providers may be in \(targets.networks.count) private networks (TOKEN_BROKER_PROVIDER_NETWORKS)"
            )
        }
    }

    private mutating func checkListener() {
        if let files = configuration.certificate {
            do throws(TLSServerError) {
                let context = try files.read()
                let days = (context.expirySeconds - now.seconds) / 86_400
                add(
                    days < 7 ? .fault : days < 30 ? .warning : .good,
                    "the certificate of TOKEN_BROKER_TLS_CERTIFICATE expires in \(days) days")
                if let authorities = context.clientAuthorities { check(authorities) }
            } catch {
                add(.fault, "the files of TOKEN_BROKER_TLS_CERTIFICATE and TOKEN_BROKER_TLS_KEY were just changed")
            }
        } else if configuration.server.address.ip.isLoopback {
            add(.good, "TOKEN_BROKER_LISTEN has no TLS, and is reached from this machine only")
        } else {
            add(
                .warning,
                "TOKEN_BROKER_LISTEN has no TLS: set TOKEN_BROKER_TLS_CERTIFICATE, or let nothing but a TLS proxy reach it"
            )
        }
        if !configuration.broker.core.workloadIssuers.isEmpty {
            let names = configuration.broker.core.workloadIssuers.map { "\($0.issuer) for \($0.audience)" }
            add(
                .good,
                "workloads may send tokens (TOKEN_BROKER_WORKLOAD_ISSUERS) of " + names.joined(separator: ", "))
        }
        guard let url = URLTarget(configuration.broker.core.publicBaseURL) else { return }
        if url.scheme == .https {
            add(.good, "browsers use https")
        } else {
            add(
                LocalNames.isLoopback(url.host) ? .note : .fault,
                "TOKEN_BROKER_PUBLIC_BASE_URL is http: codes of logins cross the network unencrypted")
        }
        if configuration.broker.rates.authenticationFailures == nil {
            add(.warning, "TOKEN_BROKER_AUTHENTICATION_FAILURE_RATE is 0: guesses of API keys are not delayed")
        }
    }

    private mutating func check(_ authorities: TLSClientAuthorities) {
        let days = (authorities.firstExpirySeconds - now.seconds) / 86_400
        add(
            days < 30 ? .warning : .good,
            "clients may show certificates of \(authorities.count) authorities (TOKEN_BROKER_TLS_CLIENT_CA), the first of which "
                + "expires in \(days) days")
    }

    private mutating func checkFiles() {
        for variable in configuration.exposedFiles {
            add(.warning, "\(variable) names a file that other users can read (chmod 600)")
        }
        for variable in configuration.unknownVariables { add(.warning, variable.text) }
        if configuration.serviceLinkCount > 0 {
            add(
                .note,
                "\(configuration.serviceLinkCount) variables that Kubernetes sets for services whose names begin with "
                    + "token-broker are ignored; enableServiceLinks: false in the pod's spec leaves them out")
        }
    }

    private mutating func checkKeys() {
        if case .files = configuration.store, configuration.leavesMasterKeysToStore {
            add(
                .warning,
                "the master keys are in TOKEN_BROKER_DATA_DIR beside the records: use TOKEN_BROKER_MASTER_KEYS_FILE")
        }
        if let keys = configuration.broker.adminKeys {
            let texts = keys.described.map { "\($0.name) (\($0.role.rawValue))" }
            add(.good, "the operators' keys and their roles are " + texts.joined(separator: ", "))
        }
        if configuration.broker.apiKeyLifetime == nil, configuration.broker.apiKeyLongestLifetime == nil {
            add(.note, "TOKEN_BROKER_API_KEY_DAYS is 0: API keys whose creator names no expires_in have no end")
        }
    }

    private mutating func checkLog() {
        if configuration.logLevel == .debug { add(.warning, "TOKEN_BROKER_LOG_LEVEL is debug") }
        if configuration.broker.core.audit.changes {
            add(.good, "the audit log tells of changes")
        } else {
            add(.note, "TOKEN_BROKER_AUDIT_CHANGES is false: there is no audit log of changes")
        }
        if case .none = configuration.broker.core.audit.reads { add(.note, "TOKEN_BROKER_AUDIT_READS is none") }
        checkCanary()
    }

    /// Has a secret go the ways on which secrets could get into the log.
    private mutating func checkCanary() {
        guard let random = try? SecureRandom.bytes(32) else {
            return add(.fault, "the system has no random numbers")
        }
        // Digits and letters in one word: what may be a token is always withheld then, and not only almost always.
        let canary = Hex.encode(random)
        let lines = Mutex<[UInt8]>([])
        let log = Log(threshold: .debug, time: SystemTime()) { line in lines.withLock { $0 += line } }
        log.error("doctor_canary", [.endpoint("https://provider.example/token?code=\(canary)")])
        log.error("doctor_canary", [.endpoint(canary)] + LogField.unknownVariable(canary, meant: nil))
        let answers = [
            ErrorText.shown(canary, answering: .none),
            "\(SecretBytes(utf8: canary))",
        ]
        let printed = lines.withLock { $0 } + answers.joined(separator: " ").utf8
        let length = canary.utf8.count
        let isPrinted = (0...max(0, printed.count - length)).contains { start in
            printed[start...].prefix(length).elementsEqual(canary.utf8)
        }
        let isLogged = !lines.withLock { $0.isEmpty }
        add(
            isLogged && !isPrinted ? .good : .fault,
            isPrinted ? "a secret was logged" : isLogged ? "a secret was kept out of the log" : "nothing was logged")
    }

    private mutating func checkDatabase() {
        guard case .postgres(let database) = configuration.store else { return }
        var links = [("TOKEN_BROKER_DATABASE_URL", database.link)]
        if case .through(let listener) = configuration.database.listening {
            links.append(("TOKEN_BROKER_DATABASE_LISTEN_URL", listener.link))
        }
        for (variable, link) in links {
            add(
                link.isAuthenticated ? .good : .fault,
                "\(variable): the connection is \(link.description)"
                    + (link.isAuthenticated ? "" : ": use sslmode=verify-full"))
        }
        if configuration.resources.journalDirectory == nil {
            add(
                .note,
                "without TOKEN_BROKER_JOURNAL_DIR, tokens are lost that a provider grants to a replica which dies while the "
                    + "database is away")
        }
    }

    // MARK: The store

    private mutating func checkStore() async {
        if case .files(let directory) = configuration.store {
            guard SmallFile.exists(directory) else {
                return add(.note, "\(directory) does not exist yet, so there are no tenants and keys to check")
            }
            // Opening a directory would make a store of it.
            do throws(FileStoreError) {
                _ = try StoreExamination(directory)
            } catch .alreadyOpen {
                return add(.note, "the service uses the store, so tenants and keys were not checked; stop it first")
            } catch .notAStore {
                return add(.note, "\(directory) has no store yet, so there are no tenants and keys to check")
            } catch {
                return add(.fault, "the store cannot be opened: \(error)")
            }
        }
        let opened: CommandStore
        do throws(CommandFailure) {
            opened = try await CommandStore(configuration)
        } catch {
            return add(.fault, "the store cannot be opened: \(error.text)")
        }
        do {
            do throws(StoreError) {
                try await opened.store.vault.check()
            } catch {
                add(
                    .fault,
                    "the store cannot be used: " + (opened.store.reports.lastReason ?? "see the log of the service"))
            }
            if let other = try await BaseURLWatch.other(
                than: configuration.broker.core.publicBaseURL, in: opened.store.vault)
            {
                add(
                    .warning,
                    "a replica of this store has another public base URL (\(other)): set TOKEN_BROKER_PUBLIC_BASE_URL to the "
                        + "same at all of them")
            }
            if let database = opened.store.database { try await checkDurability(database) }
            try await checkMasterKeys(opened.store)
            try await checkTenants(opened.store, opened.tombstones)
        } catch {
            add(
                .fault,
                "the store cannot be read: " + ((error as? StoreError).map { CommandFailure($0).text } ?? "\(error)"))
        }
        if let files = opened.store.files {
            for secret in StoreSecret.allCases where (try? await files.isReadableByOthers(secret)) == true {
                add(.warning, "other users can read \(secret.rawValue) in TOKEN_BROKER_DATA_DIR (chmod 600)")
            }
        }
        await opened.close()
    }

    /// What a crash of the server or of its machine would take from the database.
    private mutating func checkDurability(_ database: PostgresRecordStore) async throws {
        let flaws = try await database.durabilityFlaws()
        for flaw in flaws {
            switch flaw {
            case .synchronousCommit:
                add(
                    .note,
                    "the database has \(flaw.text) for the service's role: the service sets it on for its own commits")
            case .fullPageWrites:
                add(
                    .warning,
                    "the database has \(flaw.text): a crash of its machine can damage it, unless its file system writes pages as "
                        + "a whole")
            case .fsync: add(.fault, "the database has \(flaw.text): a crash of its machine can destroy it")
            case .unlogged:
                add(.fault, "the table \(flaw.text): a crash of the server empties it; use ALTER TABLE … SET LOGGED")
            }
        }
        if flaws.isEmpty { add(.good, "what the database has committed outlives a crash of it") }
    }

    private mutating func checkMasterKeys(_ store: BrokerStore) async throws {
        for use in try await store.vault.keyUses() {
            let counts = use.counts
            switch (use.id, use.identity) {
            case (let id?, _) where use.isPrimary:
                add(.good, "\(counts) are encrypted with the first master key '\(id)'")
            case (let id?, _) where use.isUnused:
                add(.note, "the master key '\(id)' encrypts nothing; see token-broker keys retire")
            case (let id?, _):
                add(
                    .warning,
                    "\(counts) are encrypted with the earlier master key '\(id)'; run token-broker keys reseal")
            case (nil, let identity?):
                add(.fault, "\(counts) are encrypted with a master key that is not configured (\(identity))")
            case (nil, nil): add(.fault, "\(counts) are damaged: they name no master key")
            }
        }
    }

    private mutating func checkTenants(_ store: BrokerStore, _ tombstones: Tombstones) async throws {
        let bus = EventBus(cacheValidity: CacheValidity(lifetime: nil))
        let tenants = TenantDirectory(vault: store.vault, bus: bus, time: SystemTime())
        let keys = CallerKeyDirectory(
            vault: store.vault, tombstones: tombstones, bus: bus, time: SystemTime())
        var (last, count, unpinned) = (TenantName?.none, 0, 0)
        while true {
            let page = try await tenants.list(after: last, limit: 100)
            for tenant in page {
                count += 1
                if tenant.configuration.effectivePins.isEmpty { unpinned += 1 }
                check(tenant)
                try await check(keys, of: tenant.name)
            }
            guard page.count == 100, let name = page.last?.name else { break }
            last = name
        }
        add(
            unpinned == 0 ? .good : .note,
            "\(unpinned) of \(count) tenants pin no certificate of their provider; see token-broker pins")
    }

    private mutating func check(_ tenant: Tenant) {
        let (name, configuration) = (tenant.name, tenant.configuration)
        if configuration.effectivePins.isEmpty, !configuration.preset.pinnedCertificates.isEmpty {
            add(.warning, "tenant \(name): certificate_pinning is off, although the provider's pins are known")
        }
        if configuration.browserBinding == .off {
            add(.warning, "tenant \(name): browser_binding is off, so another browser can finish a login")
        }
        if configuration.appToApp?.bindsKeysLater == true {
            add(.warning, "tenant \(name): insecure_device_key_binding is true")
        }
        // Versions are times in microseconds.
        let changed = Timestamp(milliseconds: tenant.version / 1000)
        let days = changed.duration(to: now).components.seconds / 86_400
        if configuration.client.clientSecret != nil, changed.duration(to: now) > Self.longestUseOfSecrets {
            add(.warning, "tenant \(name): the client secret is \(days) days old or older; replace it at the provider")
        }
    }

    private mutating func check(_ keys: CallerKeyDirectory, of tenant: TenantName) async throws {
        var last: String?
        while true {
            let page = try await keys.list(tenant: tenant, after: last, limit: 100)
            for key in page where !key.hasExpired(at: now) { check(key) }
            guard page.count == 100, let id = page.last?.id else { return }
            last = id
        }
    }

    private mutating func check(_ key: CallerKey) {
        // A key of several tenants is told of once.
        if let first = key.tenants?.first, first != key.tenant { return }
        let start = "tenant \(key.tenant): the API key \(key.id) "
        let begun = key.secret.rotated ?? key.created
        func days(_ duration: Duration) -> Int64 { duration.components.seconds / 86_400 }
        if let longest = configuration.broker.apiKeyLongestLifetime,
            key.expires.map({ begun.duration(to: $0) > longest }) ?? true
        {
            let life = key.expires.map { "is valid for \(days(begun.duration(to: $0))) days" } ?? "has no end"
            let remedy = key.identity == nil ? "rotate it" : "create it anew"
            add(.warning, start + life + ", although TOKEN_BROKER_API_KEY_MAX_DAYS is \(days(longest)); \(remedy)")
        } else if key.identity == nil, key.expires == nil, begun.duration(to: now) > Self.longestUseOfKeys {
            add(.warning, start + "has had the same secret for \(days(begun.duration(to: now))) days, and has no end")
        }
        if let expires = key.expires, now.duration(to: expires) < Self.noticeOfKeys {
            add(.warning, start + "expires in \(days(now.duration(to: expires))) days")
        }
    }
}
