/// What the command line asks for.
enum Command: Equatable {
    case serve
    /// Brings the database's schema up to date and ends.
    case migrate
    case help
    case version
    case checkConfiguration
    case generateKey(id: String)
    /// Asks the broker on this machine whether it lives: for a container's health check.
    case healthCheck
    /// Says what of a data directory, or of a journal's, is whole.
    /// - Parameter repair: where what is whole is to be written as a new one.
    case examineStore(repair: String?)

    /// Nil for anything that is not understood.
    init?(arguments: [String]) {
        switch arguments {
        case [], ["serve"]: self = .serve
        case ["migrate"]: self = .migrate
        case ["--help"], ["-h"], ["help"]: self = .help
        case ["--version"]: self = .version
        case ["config", "check"]: self = .checkConfiguration
        case ["keys", "generate"]: self = .generateKey(id: "k1")
        case ["healthcheck"]: self = .healthCheck
        case ["doctor", "store"]: self = .examineStore(repair: nil)
        default:
            if arguments.count == 4, arguments.prefix(3) == ["doctor", "store", "--repair"], !arguments[3].isEmpty {
                self = .examineStore(repair: arguments[3])
                return
            }
            guard arguments.count == 3, arguments.prefix(2) == ["keys", "generate"] else { return nil }
            self = .generateKey(id: arguments[2])
        }
    }

    static let versionText = "0.1.0"

    static let helpText = """
        token-broker: logs users in at an OAuth provider, keeps their credentials sealed, hands out valid access tokens

        usage: token-broker [command]

        commands
          serve               run the service (the default)
          migrate             bring the database's schema up to date and end; needs its URL and no keys
          config check        check the configuration, say everything that is wrong with it, and end
          keys generate [ID]  print a new entry for TOKEN_BROKER_MASTER_KEYS (ID: k1 unless given)
          healthcheck         ask the service on this machine for /livez; exit 0 when it answers
          doctor store [--repair DIRECTORY]
                              say of each file in TOKEN_BROKER_DATA_DIR, or with a database in TOKEN_BROKER_JOURNAL_DIR,
                              whether it is whole, and what it costs where it is damaged; changes nothing there, and
                              needs the service to be stopped. --repair writes what is whole to DIRECTORY, which must
                              not exist yet, as a new data directory or journal
          --help, --version

        exit status
          0    done
          1    it cannot be done now: a sentence on standard error says why
          64   there is no such command
          65   doctor store: something is damaged, repaired elsewhere or not
          71   the system refuses what every process may do
          78   the configuration is wrong: standard error says all that is
          130  ended by a signal before it was done

        environment (each variable marked * can be given as NAME_FILE, the path of a file that holds the value, which other
        users must not be able to write to)
          TOKEN_BROKER_LISTEN                    address and port to listen on; default 127.0.0.1:8080
          TOKEN_BROKER_OPERATIONS_LISTEN         address and port for /livez, /readyz, /healthz and /metrics, which are
                                                 then answered there alone, by a thread of their own; without it, they
                                                 are answered on TOKEN_BROKER_LISTEN
          TOKEN_BROKER_PUBLIC_BASE_URL           where browsers reach the broker; default http://<listen>; required where
                                                 that is 0.0.0.0 or [::]
          TOKEN_BROKER_DATABASE_URL *            PostgreSQL, as a libpq URI; without it, the embedded file store. Without
                                                 sslmode in it, TLS with verify-full to every host that is not local
          TOKEN_BROKER_DATABASE_CONNECTIONS      connections to PostgreSQL, 1 to 64; default 4
          TOKEN_BROKER_DATABASE_POOLER           true where DATABASE_URL leads to PgBouncer in transaction mode; default
                                                 false
          TOKEN_BROKER_DATABASE_LISTEN_URL *     where the broker hears of other replicas' changes, as a libpq URI that
                                                 no pooler is behind; default DATABASE_URL unless that leads to a
                                                 pooler; without one, and with off (for servers without LISTEN, the
                                                 same for all replicas), the broker looks every few seconds
          TOKEN_BROKER_MIGRATE                   false: serve does not change the database's schema, and does not start
                                                 before token-broker migrate has; default true
          TOKEN_BROKER_DATA_DIR                  directory of the embedded store; default /var/lib/token-broker
          TOKEN_BROKER_JOURNAL_DIR               with DATABASE_URL: a directory of this replica's own, in which it keeps
                                                 new credentials that the database cannot take; without it, in memory
          TOKEN_BROKER_MASTER_KEYS *             id:base64 of 32 random bytes, comma-separated; the first seals, all
                                                 open; the embedded store makes one for itself: in the file of
                                                 TOKEN_BROKER_MASTER_KEYS_FILE where that does not exist yet, else in
                                                 the data directory (master.keys), of which a backup then contains the
                                                 key that opens it
          TOKEN_BROKER_ADMIN_KEY *               the operator's API key, 32 to 512 random characters; or several as
                                                 name:key, comma-separated; the embedded store makes one (admin.key)
          TOKEN_BROKER_TRUSTED_CA_FILE           PEM file of more root certificates for calls to providers
          TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS  true allows http:// providers and private addresses, but
                                                 link-local ones: development only
          TOKEN_BROKER_ALLOW_HTTP_PROVIDERS      true allows http:// providers at public addresses and in
                                                 PROVIDER_NETWORKS; default false
          TOKEN_BROKER_PROVIDER_NETWORKS         private networks in which providers may be, comma-separated, such as
                                                 10.20.0.0/16,fd12::/16; over https:// unless ALLOW_HTTP_PROVIDERS says
                                                 more; a network with 169.254.169.254 in it is refused
          TOKEN_BROKER_LOG_LEVEL                 debug, info, warning or error; default info
          TOKEN_BROKER_LOG_READS                 true: a line for each GET /credentials that goes well, too;
                                                 default false, which only counts them in /metrics
          TOKEN_BROKER_EVENT_LOOPS               event loops of the server, 1 to 256; default one per core
          TOKEN_BROKER_MAX_CONNECTIONS           connections at once, 1 to 1000000; default 10000
          TOKEN_BROKER_MAX_CONNECTIONS_PER_SOURCE
                                                 connections at once from one IPv4 address or IPv6 /64 prefix, 1 to
                                                 1000000, except from trusted proxies; without it, a source with more
                                                 than a tenth of MAX_CONNECTIONS gives way to others once all are taken
          TOKEN_BROKER_TRUSTED_PROXIES           addresses and CIDR ranges, comma-separated, of the proxies whose
                                                 Forwarded or X-Forwarded-For names the client; default none
          TOKEN_BROKER_PROVIDER_TIMEOUT          seconds that one call to a provider may take, 1 to 20; default 10
          TOKEN_BROKER_RENEWAL_PATIENCE          seconds that a caller waits for a renewal while the token at hand lives,
                                                 0 to 60; then that token is given; default 2
          TOKEN_BROKER_PROVIDER_CONCURRENCY      renewals at one provider at once, 1 to 1024; default 16
          TOKEN_BROKER_QUARANTINE_DAYS           days that credentials ended by a provider are kept aside, 0 to 3650;
                                                 default 7
          TOKEN_BROKER_EXPIRY_NOTICE             seconds ahead of a token's expiry at which listeners are told of it,
                                                 0 to 86400; default 300
          TOKEN_BROKER_EVENT_DAYS                days that events are kept, 1 to 365; default 7
          TOKEN_BROKER_EVENT_LIMIT               commits whose events are kept at most, 1000 to 1000000000;
                                                 default 1000000
          TOKEN_BROKER_GRANT_MEMORY              seconds that what was stored in PostgreSQL is kept, to be stored again where
                                                 that loses its last commits, 0 to 86400; 0 keeps nothing; default 900
          TOKEN_BROKER_CACHE_MEGABYTES           memory for credentials that were read, 1 to 1048576; default 256
          TOKEN_BROKER_CACHE_SECONDS             how long what was read from PostgreSQL is believed while nobody tells
                                                 of changes, 0 to 3600; 0 asks every time; default 5
          TOKEN_BROKER_LOGIN_RATE                logins that one API key begins a second, with a burst of four seconds'
                                                 worth, 0 to 1000000; 0 is no limit; default 50
          TOKEN_BROKER_DEVICE_LOGIN_RATE         the same of device logins; default 20
          TOKEN_BROKER_WRITE_RATE                credentials that one API key sets, removes or has refreshed by force a
                                                 second, with such a burst, 0 to 1000000; 0 is no limit; default 200
          TOKEN_BROKER_REQUEST_RATE              requests of one API key a second, with such a burst, but for reads that
                                                 are answered from memory, 0 to 1000000; default 0, no limit
          TOKEN_BROKER_AUTHENTICATION_FAILURE_RATE
                                                 requests without a valid key from one address that are answered a
                                                 second without a delay, 0 to 1000000; 0 delays none; default 20
          TOKEN_BROKER_PENDING_LOGINS            pending logins of one tenant, over all replicas, 0 to 10000000; 0 is
                                                 no limit; default 10000
          TOKEN_BROKER_PENDING_DEVICE_LOGINS     the same of device logins; default 2000
          TOKEN_BROKER_EVENT_STREAMS_PER_KEY     event streams of one API key at this process, 0 to 10000000; 0 is no
                                                 limit; default 100
          TOKEN_BROKER_EVENT_STREAMS_PER_TENANT  the same of one tenant; default 2000
          TOKEN_BROKER_SHUTDOWN_GRACE            seconds that SIGTERM leaves for what is under way, 1 to 3600;
                                                 default 25
        """
}
