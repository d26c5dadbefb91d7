import BrokerCore
import CommandLineClient
import HTTPSClient
import HTTPServer
import TokenBroker

extension Variable {
    /// All variables, in the order of `token-broker help variables`.
    static let all = ofService + ofCommands

    @VariableRows private static var ofListeners: [Variable] {
        Variable(
            "TOKEN_BROKER_LISTEN", .address(suchAs: "127.0.0.1:8080 or [::]:8080"), \.server.address,
            "address and port to listen on")
        Variable(
            "TOKEN_BROKER_OPERATIONS_LISTEN", .address(suchAs: "0.0.0.0:8081"), \.operationsListen,
            "address and port for /livez, /readyz, /healthz and /metrics, which a separate thread then serves at this address only",
            "without it, TOKEN_BROKER_LISTEN serves them")
        Variable(
            "TOKEN_BROKER_TLS_CERTIFICATE", .text, \.given.certificate,
            "PEM file with the certificate of TOKEN_BROKER_LISTEN and the certificates that lead to its root: the listener then "
                + "accepts TLS 1.2 and 1.3 only. The file is read again when it changes; without it, plain HTTP")
        Variable(
            "TOKEN_BROKER_TLS_KEY", .text, \.given.certificateKey,
            "PEM file with the private key of that certificate, without a passphrase",
            "other users must not be able to write to it")
        Variable(
            "TOKEN_BROKER_TLS_CLIENT_CA", .text, \.given.clientAuthorities,
            "PEM file with the authorities whose certificates clients of that listener may show in place of an API key's secret, "
                + "read again when it changes")
        Variable(
            "TOKEN_BROKER_WORKLOAD_ISSUERS", .document, \.given.workloadIssuers,
            "issuers of JWTs that workloads may send in place of an API key's secret, as "
                + #"[{"issuer": URL, "audience": name, "jwks_uri": URL, optional}]"#)
        Variable(
            "TOKEN_BROKER_PUBLIC_BASE_URL", .text, \.given.publicBaseURL,
            "the URL at which browsers reach the broker; default TOKEN_BROKER_LISTEN with http://, or https:// with "
                + "TOKEN_BROKER_TLS_CERTIFICATE; required if that is 0.0.0.0 or [::]")
    }

    @VariableRows private static var ofStore: [Variable] {
        Variable(
            "TOKEN_BROKER_DATABASE_URL", .secret, \.given.databaseURL,
            "PostgreSQL 13 or later, as a libpq URI; without it, the embedded file store is used. Without sslmode in the URI, every "
                + "host that is not local is connected over TLS with verify-full")
        Variable(
            "TOKEN_BROKER_DATABASE_CONNECTIONS", .count(1...64), \.given.connections, "connections to PostgreSQL"
        ).withDatabaseOnly
        Variable(
            "TOKEN_BROKER_DATABASE_POOLER", .bool, \.given.usesPooler,
            "true if DATABASE_URL points to PgBouncer in transaction mode"
        ).withDatabaseOnly
        Variable(
            "TOKEN_BROKER_DATABASE_LISTEN_URL", .secret, \.given.listenURL,
            "a libpq URI without a pooler, for notifications of other replicas' changes; default DATABASE_URL unless that points to "
                + "a pooler. With off (for servers without LISTEN; set it for all replicas) and without a usable URI, the broker "
                + "polls every few seconds"
        ).withDatabaseOnly
        Variable(
            "TOKEN_BROKER_MIGRATE", .bool, \.database.migrates,
            "false: serve does not change the database's schema, and starts only after token-broker migrate has updated it"
        )
        Variable(
            "TOKEN_BROKER_DATA_DIR", .text, \.given.directory,
            "directory of the embedded store, which no other process may use; default \(UserDirectories.dataOfService); for "
                + "commands on the store the directory of token-broker up, if only that exists; they say which one they use"
        )
        Variable(
            "TOKEN_BROKER_JOURNAL_DIR", .text, \.resources.journalDirectory,
            "with DATABASE_URL: a directory that only this replica uses for new credentials that the database cannot accept",
            "without it, they are kept in memory")
        Variable(
            "TOKEN_BROKER_CACHE_SECONDS", .seconds(0...3600), \.database.cacheValidity,
            "lifetime of cache entries from PostgreSQL while no notifications of changes arrive",
            "0 reads the database each time")
    }

    /// The master keys, which are read again at SIGHUP.
    @VariableRows static var ofMasterKeys: [Variable] {
        Variable(
            "TOKEN_BROKER_MASTER_KEYS", .source, \.given.masterKeys,
            "id:base64 of 32 random bytes, comma-separated; the first key encrypts, all keys decrypt. The embedded store generates "
                + "a key: in the file of TOKEN_BROKER_MASTER_KEYS_FILE if that does not exist yet, otherwise in the data directory "
                + "(master.keys); a backup of the directory then contains the key that decrypts it. At SIGHUP the service reads "
                + "the file again")
        Variable(
            "TOKEN_BROKER_MASTER_KEYS_COMMAND", .text, \.given.masterKeysCommand,
            "a program and its arguments, separated by spaces: it prints the keys, at each start and at SIGHUP, in place of "
                + "MASTER_KEYS")
        Variable(
            "TOKEN_BROKER_MASTER_KEYS_VAULT", .source, \.given.masterKeysVault,
            "a transit key of Vault or OpenBao that decrypts MASTER_KEYS, as "
                + #"{"decrypt_url": URL, "token_file": path}; others in operations/keys.md"#)
    }

    @VariableRows private static var ofCallers: [Variable] {
        Variable(
            "TOKEN_BROKER_ADMIN_KEY", .adminKeys, \.broker.adminKeys,
            "the operator's API key, 32 to 512 random characters; or several as name:key or name/role:key, comma-separated, with a "
                + "role of admin (the default), operator and auditor; the embedded store generates one (admin.key)")
        Variable(
            "TOKEN_BROKER_API_KEY_DAYS", .lifetime, \.broker.apiKeyLifetime,
            "days that a new API key is valid whose creator names no expires_in", "0 is without end")
        Variable(
            "TOKEN_BROKER_API_KEY_MAX_DAYS", .lifetime, \.broker.apiKeyLongestLifetime,
            "days that a new API key, or the new secret of one, may be valid at most",
            "a longer expires_in is refused, and a key whose creator names none gets this if API_KEY_DAYS is 0; 0 is no limit"
        )
    }

    @VariableRows private static var ofProviders: [Variable] {
        Variable(
            "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS", .bool, \.given.allowsInsecureProviders,
            "true allows http:// providers and private addresses except link-local ones; for development only")
        Variable(
            "TOKEN_BROKER_ALLOW_HTTP_PROVIDERS", .bool, \.broker.core.providerTargets.allowsHTTP,
            "true allows http:// providers at public addresses and in PROVIDER_NETWORKS")
        Variable(
            "TOKEN_BROKER_PROVIDER_NETWORKS", .networks, \.broker.core.providerTargets.networks,
            "private networks in which providers may be, comma-separated, such as 10.20.0.0/16,fd12::/16; only over https:// unless "
                + "ALLOW_HTTP_PROVIDERS is true; a network that contains 169.254.169.254 is refused")
        Variable(
            "TOKEN_BROKER_CLIENT_FILE_DIRECTORIES", .directories, \.broker.core.clientFileDirectories,
            "the only directories of files that tenants name (client_secret_file, client_assertion_file), comma-separated, such as "
                + "/run/secrets,/var/run/secrets; default any directory")
        Variable(
            "TOKEN_BROKER_PROVIDER_TIMEOUT", .seconds(1...20), \.broker.core.providerTimeout,
            "seconds that one call to a provider may take")
        Variable(
            "TOKEN_BROKER_PROVIDER_CONCURRENCY", .count(1...1024), \.broker.core.providerBudget.places,
            "concurrent renewals at one provider")
        Variable(
            "TOKEN_BROKER_RENEWAL_PATIENCE", .seconds(0...60), \.broker.core.renewalPatience,
            "seconds that a caller waits for a renewal while the stored token is valid",
            "then the stored token is returned, and the renewal goes on")
    }

    /// How other servers are reached: providers, and the one that decrypts the master keys.
    @VariableRows static var ofOutbound: [Variable] {
        Variable(
            "TOKEN_BROKER_TRUSTED_CA_FILE", .text, \.resources.trustedCAFile,
            "PEM file with additional root certificates for calls to providers")
        Variable(
            "HTTPS_PROXY", .common, \.given.proxy,
            "the HTTP proxy through which providers are reached over https, such as http://proxy.example:3128 or "
                + "http://user:password@proxy.example:3128; https_proxy is read if HTTPS_PROXY is not set")
        Variable(
            "NO_PROXY", .common, \.given.proxyExceptions,
            "hosts that are reached without the proxy, comma-separated: names with all names below them, .domains, addresses, CIDR "
                + "ranges, or *; no_proxy is read if NO_PROXY is not set")
    }

    @VariableRows private static var ofReports: [Variable] {
        Variable("TOKEN_BROKER_LOG_LEVEL", .choice, \.logLevel, "debug, info, warning or error")
        Variable(
            "TOKEN_BROKER_LOG_READS", .bool, \.broker.logsReads,
            "true: log successful requests of GET /credentials as well; false only counts them in /metrics")
        Variable(
            "TOKEN_BROKER_AUDIT_CHANGES", .bool, \.broker.core.audit.changes,
            "true: the audit log tells of each change, in the commit of the change")
        Variable(
            "TOKEN_BROKER_AUDIT_READS", .auditReads, \.broker.core.audit.reads,
            "which reads of tokens the audit log tells of, each before its answer: none, all, or a number from 2 to 1000000 for one "
                + "read in so many, chosen at random")
        Variable(
            "TOKEN_BROKER_AUDIT_SIGNATURE_SECONDS", .seconds(1...3600), \.broker.core.audit.signatureInterval,
            "seconds between signatures of the audit log while it grows")
    }

    @VariableRows private static var ofServer: [Variable] {
        Variable(
            "TOKEN_BROKER_EVENT_LOOPS", .count(1...256), \.server.loopCount, "event loops of the server",
            "default one per core")
        Variable(
            "TOKEN_BROKER_MAX_CONNECTIONS", .count(1...1_000_000), \.server.maximumConnections, "concurrent connections"
        )
        Variable(
            "TOKEN_BROKER_MAX_CONNECTIONS_PER_SOURCE", .count(1...1_000_000),
            \.server.maximumConnectionsPerSource,
            "concurrent connections from one IPv4 address or IPv6 /64 prefix, except from trusted proxies",
            "without it, when MAX_CONNECTIONS is reached, connections of a source that has more than a tenth of them are closed in "
                + "favour of other sources")
        Variable(
            "TOKEN_BROKER_TRUSTED_PROXIES", .trustedProxies, \.server.trustedProxies,
            "addresses and CIDR ranges, comma-separated, of the proxies that are trusted to name the client in Forwarded or "
                + "X-Forwarded-For; default none")
        Variable(
            "TOKEN_BROKER_SHUTDOWN_GRACE", .seconds(1...3600), \.shutdownGrace,
            "seconds after SIGTERM for running requests to complete")
        Variable(
            "TOKEN_BROKER_LOCK_MEMORY", .bool, \.locksMemory,
            "true: no memory of the service is swapped to a disk, which takes CAP_IPC_LOCK or an unlimited RLIMIT_MEMLOCK"
        )
    }

    @VariableRows private static var ofBroker: [Variable] {
        Variable(
            "TOKEN_BROKER_CACHE_MEGABYTES", .megabytes(1...1_048_576), \.broker.core.cacheBytes,
            "memory of the credentials cache")
        Variable(
            "TOKEN_BROKER_QUARANTINE_DAYS", .days(0...3650), \.broker.core.quarantine,
            "days that credentials of sessions which a provider ended are kept in quarantine")
        Variable(
            "TOKEN_BROKER_EXPIRY_NOTICE", .seconds(0...86_400), \.broker.core.expiryNotice,
            "seconds before a token's expiry at which an event announces it")
        Variable(
            "TOKEN_BROKER_EVENT_DAYS", .days(1...365), \.broker.core.eventRetention, "days that events are kept")
        Variable(
            "TOKEN_BROKER_EVENT_LIMIT", .count(1000...1_000_000_000), \.broker.core.eventLimit,
            "the most commits whose events are kept, of all tenants together",
            "beyond it the tenant with the most loses its oldest")
        Variable(
            "TOKEN_BROKER_GRANT_MEMORY", .seconds(0...86_400), \.broker.core.grantMemory,
            "seconds that credentials which were stored in PostgreSQL are kept in memory, to be stored again if it loses its last "
                + "commits", "0 keeps none")
        Variable(
            "TOKEN_BROKER_JOURNAL_WAIT", .seconds(0...3600), \.broker.core.journalWait,
            "seconds that, after PostgreSQL has lost its last commits, no refresh token is used while a replica with a journal has "
                + "not started again", "0 does not wait")
    }

    @VariableRows private static var ofLimits: [Variable] {
        Variable(
            "TOKEN_BROKER_LOGIN_RATE", .rate, \.broker.rates.logins,
            "logins that one API key may begin per second, with a burst of four seconds' worth", "0 is no limit")
        Variable(
            "TOKEN_BROKER_DEVICE_LOGIN_RATE", .rate, \.broker.rates.deviceLogins, "the same for device logins")
        Variable(
            "TOKEN_BROKER_WRITE_RATE", .rate, \.broker.rates.writes,
            "credentials that one API key may set, remove or force to refresh per second, with such a burst",
            "0 is no limit")
        Variable(
            "TOKEN_BROKER_REQUEST_RATE", .rate, \.broker.rates.requests,
            "requests of one API key per second, with such a burst, except reads that the cache answers while LOG_READS is off and "
                + "AUDIT_READS is none", "0 is no limit")
        Variable(
            "TOKEN_BROKER_TENANT_REQUEST_RATE", .rate, \.broker.rates.requestsOfTenant,
            "the same requests of all API keys of one tenant")
        Variable(
            "TOKEN_BROKER_ADDRESS_REQUEST_RATE", .rate, \.broker.rates.requestsFromAddress,
            "the same requests from one IPv4 address or IPv6 /64 prefix")
        Variable(
            "TOKEN_BROKER_AUTHENTICATION_FAILURE_RATE", .evenRate, \.broker.rates.authenticationFailures,
            "requests without a valid key from one address per second that are answered without a delay",
            "0 delays none")
        Variable(
            "TOKEN_BROKER_PENDING_LOGINS", .limit, \.broker.core.pendingLogins,
            "pending logins of one tenant on all replicas", "0 is no limit")
        Variable(
            "TOKEN_BROKER_PENDING_DEVICE_LOGINS", .limit, \.broker.core.pendingDeviceLogins,
            "the same for device logins")
        Variable(
            "TOKEN_BROKER_PENDING_APP_LOGINS", .limit, \.broker.core.pendingAppLogins,
            "logins of one tenant's apps that come back to this replica within ten minutes and do not succeed",
            "one address may have a tenth")
        Variable(
            "TOKEN_BROKER_EVENT_STREAMS_PER_KEY", .limit, \.broker.core.listenersPerKey,
            "event streams of one API key on this replica", "0 is no limit")
        Variable(
            "TOKEN_BROKER_EVENT_STREAMS_PER_TENANT", .limit, \.broker.core.listenersPerTenant,
            "the same for one tenant")
        Variable(
            "TOKEN_BROKER_APP_REQUESTS_PER_ADDRESS", .limit, \.broker.core.appRequests.perAddress,
            "requests from one address per minute on all replicas, to each of /oauth2/authorize, token, revoke and challenge",
            "0 is no limit")
        Variable(
            "TOKEN_BROKER_APP_REQUESTS_PER_USER", .limit, \.broker.core.appRequests.perUser,
            "requests to /oauth2/token for one user per minute")
    }

    static let ofService =
        ofListeners + ofStore + ofMasterKeys + ofCallers + ofProviders + ofOutbound + ofReports + ofServer + ofBroker
        + ofLimits

    @VariableRows private static var rowsOfCommands: [Variable] {
        Variable(
            ofCommands: "TOKEN_BROKER_URL",
            "the broker's address, in place of the current context; default that of the context, else of the broker that serves "
                + "from TOKEN_BROKER_DATA_DIR, the directory of token-broker up, or \(UserDirectories.dataOfService)")
        Variable(
            ofCommands: "TOKEN_BROKER_API_KEY", hasFileForm: true,
            "the key to call it with, in place of the current context's; default that of the context; else, at the address of a "
                + "broker that serves from one of these directories, and nowhere else, the admin.key there")
        Variable(
            ofCommands: "TOKEN_BROKER_TENANT", "the tenant that commands are about if --tenant does not name one")
        Variable(ofCommands: "TOKEN_BROKER_CONTEXT", "the context to use if --context does not name one")
        Variable(
            ofCommands: "TOKEN_BROKER_CONTEXTS",
            "the file of token-broker context; default ~/.config/token-broker/contexts.json, or in XDG_CONFIG_HOME")
        Variable(
            ofCommands: "TOKEN_BROKER_CA_FILE",
            "PEM file with additional root certificates for calls to the broker")
    }

    static let ofCommands = rowsOfCommands
}
