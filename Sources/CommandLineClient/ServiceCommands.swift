/// The service and its installation.
enum ServiceCommands {
    static let all =
        [up, serve, migrate, checkConfiguration, healthCheck, pins] + KeyCommands.all + [
            doctor, doctorStore, forgetJournal,
        ] + AuditCommands.all

    /// Of commands on what is stored.
    fileprivate static let whereData =
        "Where no variable names the store, it is the data directory of the service (/var/lib/token-broker) or that of token-broker "
        + "up, whichever there is, and it is told on standard error; where there are both, TOKEN_BROKER_DATA_DIR must name one."

    private static let up = CommandSpecification(
        "up", "run a broker for yourself on this machine",
        discussion:
            "Serves at 127.0.0.1:8080 until Control-C, keeps data and keys in a directory of yours (~/.local/share/token-broker, "
            + "or in XDG_DATA_HOME), and makes the keys where they are missing. Commands in another terminal find its address and its "
            + "admin key there by themselves, as long as it runs; another program at the address is not sent the key.\n\n"
            + "It is token-broker serve with TOKEN_BROKER_LISTEN, TOKEN_BROKER_DATA_DIR and TOKEN_BROKER_LOG_LEVEL (warning) set "
            + "where they are not; all other variables mean what they mean there. There is no database: with "
            + "TOKEN_BROKER_DATABASE_URL use token-broker serve.",
        options: [.init("port", "PORT", "the port on 127.0.0.1, 1 to 65535; in place of TOKEN_BROKER_LISTEN")],
        examples: [
            .init("token-broker up", "a broker at http://127.0.0.1:8080"),
            .init(
                "token-broker up --port 9080", "at another port, which the commands in another terminal find as well"),
        ])

    private static let serve = CommandSpecification(
        "serve", "run the service; what the program does without a command",
        discussion:
            "Serves as the environment's variables say (token-broker help variables), with the embedded store or a database. "
            + "SIGTERM and SIGINT end it after the requests that run; a second signal ends it at once. At SIGHUP it reads the "
            + "master keys again. Faults of the configuration are listed on standard error, with status 78.",
        examples: [
            .init("TOKEN_BROKER_DATA_DIR=/srv/broker token-broker serve", "with the embedded store in /srv/broker")
        ])

    private static let migrate = CommandSpecification(
        "migrate", "bring the database's schema up to date",
        discussion:
            "Requires TOKEN_BROKER_DATABASE_URL and no keys, so that the account that changes the schema need not be able to "
            + "decrypt anything. With TOKEN_BROKER_MIGRATE=false the service starts only after it.",
        examples: [.init("token-broker migrate", "before a new version is started")])

    private static let checkConfiguration = CommandSpecification(
        "config check", "check the configuration and print all of its faults",
        discussion:
            "Nothing is opened, bound or changed. A variable that begins with TOKEN_BROKER_ and is none of the program's is a "
            + "fault here, and a warning when the service starts. Status 78 says that there are faults.",
        examples: [.init("token-broker config check", "with the variables that the service will have")])

    private static let healthCheck = CommandSpecification(
        "healthcheck", "ask the service on this machine whether it lives",
        discussion:
            "Requests /livez, for the health check of a container; status 0 if it answers, and 1 if not. With "
            + "TOKEN_BROKER_TLS_CERTIFICATE it requires TOKEN_BROKER_OPERATIONS_LISTEN, which is served without TLS.",
        examples: [.init("token-broker healthcheck", "with the variables of the service")])

    private static let pins = CommandSpecification(
        "pins", "print the pins of a server's certificates",
        discussion:
            "Connects with the configured proxy and root certificates, verifies the server's certificates, and prints the pin of "
            + "each for a tenant's pinned_certificates, from the server's own to the root.",
        arguments: [.init("HOST[:PORT]", "the server; port 443 where none is named")],
        examples: [.init("token-broker pins auth.tidal.com", "the pins of a provider")])

    private static let doctor = CommandSpecification(
        "doctor", "check the installation with the service's variables",
        discussion:
            "Looks at TLS, insecure switches, files that others can read, pins, bindings, ages of API keys and client secrets, "
            + "master keys, and the log. With a database it can run beside the service; with the embedded store, stop the service "
            + "first. Nothing is changed.\n\n" + whereData + "\n\n"
            + "Status 0: nothing was found. Status 10: there are warnings, and no faults. Status 65: there are faults.",
        examples: [.init("token-broker doctor", "what an operator should change")])

    private static let doctorStore = CommandSpecification(
        "doctor store", "report which files of the store are damaged, and save what is intact",
        discussion:
            "Reports for each file in TOKEN_BROKER_DATA_DIR, or with a database in TOKEN_BROKER_JOURNAL_DIR, whether it is intact, "
            + "and what is lost if it is damaged. Stop the service first. The directory itself is not changed. Status 65 says "
            + "that a file is damaged, whether or not it was repaired.",
        options: [
            .init(
                "repair", "DIRECTORY",
                "write the intact records to this directory, which must not exist yet, as a new data directory or journal"
            )
        ],
        examples: [
            .init("token-broker doctor store", "report only"),
            .init("token-broker doctor store --repair /srv/broker-repaired", "and save what is intact"),
        ])

    private static let forgetJournal = CommandSpecification(
        "journal forget", "have replicas wait no longer for a journal that will not come back",
        discussion:
            "After the database has lost commits, replicas wait for the journals of all others, and log journal_awaited with the "
            + "journal's identifier. This ends the wait for one whose replica will not start again. Tokens that only it has are lost.",
        arguments: [.init("ID", "the journal's identifier, from the log")],
        examples: [.init("token-broker journal forget 5f0c6e2a", "with the identifier that the log names")])
}

/// The master keys of an installation.
private enum KeyCommands {
    static let all = [generate, status, reseal, retire]

    private static let generate = CommandSpecification(
        "keys generate", "print a new master key",
        discussion: "As an entry for TOKEN_BROKER_MASTER_KEYS. Nothing is kept of it.",
        arguments: [.init("ID", "how the key is called; k1 where it is left out", isRequired: false)],
        examples: [
            .init("token-broker keys generate", "for a new installation"),
            .init("token-broker keys generate 2026-11", "with a name that says when it was made"),
        ])

    private static let status = CommandSpecification(
        "keys status", "print how much is encrypted with each master key",
        discussion:
            "Counts records and events. Status 65 says that some are encrypted with a key that is not configured, or damaged. "
            + ServiceCommands.whereData,
        examples: [.init("token-broker keys status", "whether an old key is still used")])

    private static let reseal = CommandSpecification(
        "keys reseal", "encrypt everything with the first master key",
        discussion:
            "All records and events, while replicas run; with the embedded store, stop the service first. If the command is "
            + "stopped, run it again.",
        options: [.init("rate", "N", "the most records and events in a second, 1 to 100000; 500 where it is left out")],
        examples: [
            .init("token-broker keys reseal", "after a new key was put before the others"),
            .init("token-broker keys reseal --rate 5000", "with more load on the database"),
        ])

    private static let retire = CommandSpecification(
        "keys retire", "have the store open without a master key",
        discussion: "Refused while a record or an event is encrypted with it; token-broker keys reseal changes that.",
        arguments: [.init("ID", "one of token-broker keys status")],
        examples: [.init("token-broker keys retire k1", "before the key is taken out of TOKEN_BROKER_MASTER_KEYS")])
}

/// The audit log.
private enum AuditCommands {
    static let all = [verify, export, remove]

    private static let verify = CommandSpecification(
        "audit verify", "check the audit log and print every fault",
        discussion:
            "Checks the hashes, the numbers and the signatures. Status 65 says that entries were changed or are missing.",
        options: [.init("json", nil, "print lines of JSON")],
        examples: [
            .init("token-broker audit verify", "for a person"),
            .init("token-broker audit verify --json", "for a program"),
        ])

    private static let export = CommandSpecification(
        "audit export", "print the entries of the audit log as lines of JSON",
        discussion: "Status 65 says that entries cannot be read.",
        options: [
            .init("tenant", "NAME", "those of this tenant only"),
            .init(
                "from", "TIME", "those at this time and later: 2026-11-21T09:00:00Z, or so long ago: 90s, 30m, 2h, 7d"),
            .init("to", "TIME", "those before this time"),
        ],
        examples: [
            .init(
                "token-broker audit export --tenant music --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z",
                "a month of a tenant")
        ])

    private static let remove = CommandSpecification(
        "audit remove", "remove old chains of the audit log",
        discussion:
            "Those whose last entry is older than --before. With a database, run it as the owner of its tables; without one, stop "
            + "the service first.",
        options: [.init("before", "TIME", "a week ago or more, such as 2026-11-01T00:00:00Z or 30d")],
        examples: [.init("token-broker audit remove --before 2026-11-01T00:00:00Z", "keep what is newer")])
}
