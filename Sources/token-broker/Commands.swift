internal import CommandLineClient
internal import HTTPSClient

/// A command of the command line.
enum Command: Equatable {
    case serve
    /// Brings the database's schema up to date and exits.
    case migrate
    /// Prints what the environment's variables mean.
    case variables
    case version(isJSON: Bool)
    case checkConfiguration
    case generateKey(id: String)
    /// Prints how much is sealed under each key.
    case keyStatus
    /// Seals everything under the first key.
    case reseal(perSecond: Int)
    /// Has the store open without a key.
    case retireKey(id: String)
    /// Requests /livez from the broker on this machine, for the health check of a container.
    case healthCheck
    /// Connects to a server and prints the pins of its certificates.
    case pins(URLTarget.Origin)
    /// Examines the files of a data directory or a journal directory.
    /// - Parameter repair: the directory to which the intact records are written; nil only reports.
    case examineStore(repair: String?)
    /// Checks the configuration and what is in the store.
    case examineInstallation
    /// Has replicas wait no longer for the journal of a replica that will not come back.
    case forgetJournal(id: String)
    case audit(AuditCommand)

    /// Reads what the words of a command line ask for.
    /// - Throws: `usage`, and says which value is wrong.
    init(_ command: ServiceCommand, _ invocation: Invocation) throws(CommandError) {
        switch command {
        case .serve, .up: self = .serve
        case .migrate: self = .migrate
        case .checkConfiguration: self = .checkConfiguration
        case .generateKey: self = .generateKey(id: invocation.arguments.first ?? "k1")
        case .keyStatus: self = .keyStatus
        case .reseal:
            self = .reseal(perSecond: try invocation.integer("rate", in: Self.resealRates) ?? Self.usualResealRate)
        case .retireKey: self = .retireKey(id: invocation.arguments[0])
        case .healthCheck: self = .healthCheck
        case .pins: self = .pins(try Self.origin(invocation))
        case .examineInstallation: self = .examineInstallation
        case .examineStore:
            if invocation["repair"] == "" { throw invocation.wrong("--repair needs the name of a directory") }
            self = .examineStore(repair: invocation["repair"])
        case .forgetJournal:
            if invocation.arguments[0].isEmpty { throw invocation.wrong("ID is empty") }
            self = .forgetJournal(id: invocation.arguments[0])
        case .verifyAudit: self = .audit(.verify(isJSON: invocation.has("json")))
        case .exportAudit: self = .audit(try .export(invocation))
        case .removeAudit: self = .audit(try .remove(invocation))
        case .variables: self = .variables
        case .version: self = .version(isJSON: invocation.has("json"))
        }
    }

    private static func origin(_ invocation: Invocation) throws(CommandError) -> URLTarget.Origin {
        // A host, or a host and a port: what else a URL may have makes the path another one.
        guard let url = URLTarget("https://\(invocation.arguments[0])/"), url.pathAndQuery == "/" else {
            throw invocation.wrong("\(invocation.arguments[0]) is no host, and no host with a port")
        }
        return url.origin
    }

    /// How many records and events are sealed again in a second.
    private static let resealRates = 1...100_000
    private static let usualResealRate = 500

    /// Whether it is about the whole configuration of the service.
    var concernsService: Bool { [.serve, .checkConfiguration, .examineInstallation].contains(self) }

    /// Whether it needs the master keys of a database.
    var needsMasterKeys: Bool {
        switch self {
        case .migrate, .audit(.export), .pins: false
        default: true
        }
    }

    /// Whether it needs the operator's key for a service with a database.
    var needsAdminKey: Bool {
        switch self {
        case .migrate, .audit, .keyStatus, .reseal, .retireKey, .forgetJournal, .pins: false
        default: true
        }
    }

    /// Whether it works on what is stored, beside the service or in its place.
    var usesStore: Bool {
        switch self {
        case .keyStatus, .reseal, .retireKey, .examineInstallation, .examineStore, .audit: true
        default: false
        }
    }

    static let versionText = "0.2.0"

    static let helpText = """
        environment of the service (each variable marked * can be given as NAME_FILE, the path of a file that contains the
        value; other users must not be able to write to that file)
          TOKEN_BROKER_LISTEN                    address and port to listen on; default 127.0.0.1:8080
          TOKEN_BROKER_OPERATIONS_LISTEN         address and port for /livez, /readyz, /healthz and /metrics, which a
                                                 separate thread then serves at this address only; without it,
                                                 TOKEN_BROKER_LISTEN serves them
          TOKEN_BROKER_TLS_CERTIFICATE           PEM file with the certificate of TOKEN_BROKER_LISTEN and the certificates
                                                 that lead to its root: the listener then accepts TLS 1.2 and 1.3 only.
                                                 The file is read again when it changes; without it, plain HTTP
          TOKEN_BROKER_TLS_KEY                   PEM file with the private key of that certificate, without a
                                                 passphrase; other users must not be able to write to it
          TOKEN_BROKER_TLS_CLIENT_CA             PEM file with the authorities whose certificates clients of that listener may
                                                 show in place of an API key's secret, read again when it changes
          TOKEN_BROKER_WORKLOAD_ISSUERS *        issuers of JWTs that workloads may send in place of an API key's secret, as
                                                 [{"issuer": URL, "audience": name, "jwks_uri": URL, optional}]
          TOKEN_BROKER_PUBLIC_BASE_URL           the URL at which browsers reach the broker; default TOKEN_BROKER_LISTEN
                                                 with http://, or https:// with TOKEN_BROKER_TLS_CERTIFICATE; required
                                                 if that is 0.0.0.0 or [::]
          TOKEN_BROKER_DATABASE_URL *            PostgreSQL 13 or later, as a libpq URI; without it, the embedded file
                                                 store is used. Without sslmode in the URI, every host that is not local
                                                 is connected over TLS with verify-full
          TOKEN_BROKER_DATABASE_CONNECTIONS      connections to PostgreSQL, 1 to 64; default 4
          TOKEN_BROKER_DATABASE_POOLER           true if DATABASE_URL points to PgBouncer in transaction mode; default
                                                 false
          TOKEN_BROKER_DATABASE_LISTEN_URL *     a libpq URI without a pooler, for notifications of other replicas'
                                                 changes; default DATABASE_URL unless that points to a pooler. With off
                                                 (for servers without LISTEN; set it for all replicas) and without a
                                                 usable URI, the broker polls every few seconds
          TOKEN_BROKER_MIGRATE                   false: serve does not change the database's schema, and starts only
                                                 after token-broker migrate has updated it; default true
          TOKEN_BROKER_DATA_DIR                  directory of the embedded store, which no other process may use;
                                                 default /var/lib/token-broker; for commands on the store the directory of
                                                 token-broker up, if only that exists; they say which one they use
          TOKEN_BROKER_JOURNAL_DIR               with DATABASE_URL: a directory that only this replica uses for new
                                                 credentials that the database cannot accept; without it, they are
                                                 kept in memory
          TOKEN_BROKER_MASTER_KEYS *             id:base64 of 32 random bytes, comma-separated; the first key encrypts,
                                                 all keys decrypt. The embedded store generates a key: in the file of
                                                 TOKEN_BROKER_MASTER_KEYS_FILE if that does not exist yet, otherwise in
                                                 the data directory (master.keys); a backup of the directory then
                                                 contains the key that decrypts it. At SIGHUP the service reads the file
                                                 again
          TOKEN_BROKER_MASTER_KEYS_COMMAND       a program and its arguments, separated by spaces: it prints the keys, at
                                                 each start and at SIGHUP, in place of MASTER_KEYS
          TOKEN_BROKER_MASTER_KEYS_VAULT *       a transit key of Vault or OpenBao that decrypts MASTER_KEYS, as {"decrypt_url":
                                                 URL, "token_file": path}; others in operations/keys.md
          TOKEN_BROKER_ADMIN_KEY *               the operator's API key, 32 to 512 random characters; or several as
                                                 name:key or name/role:key, comma-separated, with a role of admin (the
                                                 default), operator and auditor; the embedded store generates one
                                                 (admin.key)
          TOKEN_BROKER_TRUSTED_CA_FILE           PEM file with additional root certificates for calls to providers
          TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS  true allows http:// providers and private addresses except link-local
                                                 ones; for development only
          TOKEN_BROKER_ALLOW_HTTP_PROVIDERS      true allows http:// providers at public addresses and in
                                                 PROVIDER_NETWORKS; default false
          TOKEN_BROKER_PROVIDER_NETWORKS         private networks in which providers may be, comma-separated, such as
                                                 10.20.0.0/16,fd12::/16; only over https:// unless ALLOW_HTTP_PROVIDERS
                                                 is true; a network that contains 169.254.169.254 is refused
          TOKEN_BROKER_CLIENT_FILE_DIRECTORIES   the only directories of files that tenants name (client_secret_file,
                                                 client_assertion_file), comma-separated, such as
                                                 /run/secrets,/var/run/secrets; default any directory
          TOKEN_BROKER_LOG_LEVEL                 debug, info, warning or error; default info
          TOKEN_BROKER_LOG_READS                 true: log successful requests of GET /credentials as well; default
                                                 false, which only counts them in /metrics
          TOKEN_BROKER_LOCK_MEMORY               true: no memory of the service is swapped to a disk, which takes
                                                 CAP_IPC_LOCK or an unlimited RLIMIT_MEMLOCK; default false
          TOKEN_BROKER_AUDIT_CHANGES             true: the audit log tells of each change, in the commit of the change;
                                                 default false
          TOKEN_BROKER_AUDIT_READS               which reads of tokens the audit log tells of, each before its answer:
                                                 none, all, or a number from 2 to 1000000 for one read in so many,
                                                 chosen at random; default none
          TOKEN_BROKER_AUDIT_SIGNATURE_SECONDS   seconds between signatures of the audit log while it grows, 1 to 3600;
                                                 default 60
          TOKEN_BROKER_EVENT_LOOPS               event loops of the server, 1 to 256; default one per core
          TOKEN_BROKER_MAX_CONNECTIONS           concurrent connections, 1 to 1000000; default 10000
          TOKEN_BROKER_MAX_CONNECTIONS_PER_SOURCE
                                                 concurrent connections from one IPv4 address or IPv6 /64 prefix, 1 to
                                                 1000000, except from trusted proxies; without it, when MAX_CONNECTIONS
                                                 is reached, connections of a source that has more than a tenth of them
                                                 are closed in favour of other sources
          TOKEN_BROKER_TRUSTED_PROXIES           addresses and CIDR ranges, comma-separated, of the proxies that are
                                                 trusted to name the client in Forwarded or X-Forwarded-For; default
                                                 none
          TOKEN_BROKER_PROVIDER_TIMEOUT          seconds that one call to a provider may take, 1 to 20; default 10
          TOKEN_BROKER_RENEWAL_PATIENCE          seconds that a caller waits for a renewal while the stored token is
                                                 valid, 0 to 60; then the stored token is returned, and the renewal goes
                                                 on; default 2
          TOKEN_BROKER_PROVIDER_CONCURRENCY      concurrent renewals at one provider, 1 to 1024; default 16
          TOKEN_BROKER_QUARANTINE_DAYS           days that credentials of sessions which a provider ended are kept in
                                                 quarantine, 0 to 3650; default 7
          TOKEN_BROKER_EXPIRY_NOTICE             seconds before a token's expiry at which an event announces it, 0 to
                                                 86400; default 300
          TOKEN_BROKER_EVENT_DAYS                days that events are kept, 1 to 365; default 7
          TOKEN_BROKER_EVENT_LIMIT               the most commits whose events are kept, of all tenants together, 1000 to
                                                 1000000000; beyond it the tenant with the most loses its oldest; default
                                                 1000000
          TOKEN_BROKER_GRANT_MEMORY              seconds that credentials which were stored in PostgreSQL are kept in
                                                 memory, to be stored again if it loses its last commits, 0 to 86400;
                                                 0 keeps none; default 900
          TOKEN_BROKER_JOURNAL_WAIT              seconds that, after PostgreSQL has lost its last commits, no refresh token
                                                 is used while a replica with a journal has not started again, 0 to
                                                 3600; 0 does not wait; default 60
          TOKEN_BROKER_CACHE_MEGABYTES           memory of the credentials cache, 1 to 1048576; default 256
          TOKEN_BROKER_CACHE_SECONDS             lifetime of cache entries from PostgreSQL while no notifications of
                                                 changes arrive, 0 to 3600; 0 reads the database each time; default 5
          TOKEN_BROKER_LOGIN_RATE                logins that one API key may begin per second, with a burst of four
                                                 seconds' worth, 0 to 1000000; 0 is no limit; default 50
          TOKEN_BROKER_DEVICE_LOGIN_RATE         the same for device logins; default 20
          TOKEN_BROKER_WRITE_RATE                credentials that one API key may set, remove or force to refresh per
                                                 second, with such a burst, 0 to 1000000; 0 is no limit; default 200
          TOKEN_BROKER_REQUEST_RATE              requests of one API key per second, with such a burst, except reads
                                                 that the cache answers while LOG_READS is off and AUDIT_READS is none, 0
                                                 to 1000000; default 0, no limit
          TOKEN_BROKER_TENANT_REQUEST_RATE       the same requests of all API keys of one tenant; default 0, no limit
          TOKEN_BROKER_ADDRESS_REQUEST_RATE      the same requests from one IPv4 address or IPv6 /64 prefix; default 0,
                                                 no limit
          TOKEN_BROKER_AUTHENTICATION_FAILURE_RATE
                                                 requests without a valid key from one address per second that are
                                                 answered without a delay, 0 to 1000000; 0 delays none; default 20
          TOKEN_BROKER_API_KEY_DAYS              days that a new API key is valid whose creator names no expires_in, 0 to
                                                 3650; 0 is without end; default 0
          TOKEN_BROKER_API_KEY_MAX_DAYS          days that a new API key, or the new secret of one, may be valid at most,
                                                 0 to 3650; a longer expires_in is refused, and a key whose creator names
                                                 none gets this where API_KEY_DAYS is 0; 0 is no limit; default 0
          TOKEN_BROKER_PENDING_LOGINS            pending logins of one tenant on all replicas, 0 to 10000000; 0 is no
                                                 limit; default 10000
          TOKEN_BROKER_PENDING_DEVICE_LOGINS     the same for device logins; default 2000
          TOKEN_BROKER_PENDING_APP_LOGINS        logins of one tenant's apps that come back to this replica within ten
                                                 minutes and do not succeed; one address may have a tenth; default 10000
          TOKEN_BROKER_EVENT_STREAMS_PER_KEY     event streams of one API key on this replica, 0 to 10000000; 0 is no
                                                 limit; default 100
          TOKEN_BROKER_EVENT_STREAMS_PER_TENANT  the same for one tenant; default 2000
          TOKEN_BROKER_APP_REQUESTS_PER_ADDRESS  requests from one address per minute on all replicas, to each of
                                                 /oauth2/authorize, token, revoke and challenge, 0 to 10000000; 0 is no
                                                 limit; default 120
          TOKEN_BROKER_APP_REQUESTS_PER_USER     requests to /oauth2/token for one user per minute; default 60
          TOKEN_BROKER_SHUTDOWN_GRACE            seconds after SIGTERM for running requests to complete, 1 to 3600;
                                                 default 25
          HTTPS_PROXY                            the HTTP proxy through which providers are reached over https, such as
                                                 http://proxy.example:3128 or http://user:password@proxy.example:3128;
                                                 https_proxy is read where HTTPS_PROXY is not set
          NO_PROXY                               hosts that are reached without the proxy, comma-separated: names with
                                                 all names below them, .domains, addresses, CIDR ranges, or *; no_proxy
                                                 is read where NO_PROXY is not set

        environment of the commands that speak to a broker
          TOKEN_BROKER_URL                       the broker's address, in place of the current context; default that of the
                                                 context, else of the broker that serves from TOKEN_BROKER_DATA_DIR, the
                                                 directory of token-broker up, or /var/lib/token-broker
          TOKEN_BROKER_API_KEY *                 the key to call it with, in place of the current context's; default that of the
                                                 context; else, at the address of a broker that serves from one of these
                                                 directories, and nowhere else, the admin.key there
          TOKEN_BROKER_TENANT                    the tenant that commands are about where --tenant does not name one
          TOKEN_BROKER_CONTEXT                   the context to use where --context does not name one
          TOKEN_BROKER_CONTEXTS                  the file of token-broker context; default
                                                 ~/.config/token-broker/contexts.json, or in XDG_CONFIG_HOME
          TOKEN_BROKER_CA_FILE                   PEM file with additional root certificates for calls to the broker
        """
}
