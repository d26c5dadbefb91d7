internal import Reactor

/// One setting of libpq. Its value may be a password.
struct PostgresOption: Sendable, Equatable, CustomStringConvertible {
    var keyword: String
    var value: String

    var description: String { keyword }
}

/// Where PostgreSQL is, and how long to wait for it.
package struct PostgresConfiguration: Sendable, CustomStringConvertible {
    /// The longest that making a connection may take, look-up, TLS and authentication included, over all hosts and
    /// addresses together. The connection string's `connect_timeout` if that is positive, else 5 s.
    package var connectTimeout: Duration = .seconds(5)

    /// The longest that one statement may run on the server, and that a transaction may lie idle there: an abandoned
    /// one must not hold its locks until TCP notices. Default 5 s. Sent as a session setting when connecting, hence
    /// not behind a pooler; give the role `statement_timeout` and `idle_in_transaction_session_timeout` there.
    package var statementTimeout: Duration = .seconds(5)

    /// How many connections a pool opens at most. Default 4.
    package var maximumConnections = 4

    /// How many borrowers may wait for a connection of a pool; one more is refused at once. Reads that share a pipeline
    /// are one. Default 256.
    package var maximumWaiters = 256

    /// How many reads share a pipeline at most; with 1 each has a round trip of its own. At least 1. Default 32.
    package var maximumPipelinedReads = 32

    /// How long a caller waits for a connection of a pool. Default 2 s.
    package var waitTimeout: Duration = .seconds(2)

    /// After how long a connection is replaced by a new one when it comes back to the pool, so that changes of names,
    /// certificates and roles arrive; nil for never. Default 1 h.
    package var maximumLifetime: Duration? = .seconds(3600)

    /// Whether a pooler in transaction mode (PgBouncer) stands before the server. Then no statement is prepared under
    /// a name and no session setting is sent: a session is another one in each transaction. Default false.
    package var usesPooler = false

    /// A place to try: what `host`, `hostaddr` and `port` are for one attempt.
    struct Target: Sendable, Equatable {
        /// A name, a numeric address, or the directory of a Unix-domain socket; empty for libpq's own default.
        var host: String
        /// A numeric address, which spares the look-up; empty when `host` needs none or must be looked up.
        var address: String
        var port: String

        /// Whether libpq would look `host` up.
        var needsLookup: Bool {
            // "@" begins an abstract socket; "%" a scoped IPv6 address, which no name can hold.
            address.isEmpty && !host.isEmpty && !host.hasPrefix("/") && !host.hasPrefix("@") && !host.contains("%")
                && SocketAddress(numericHost: host, port: 0) == nil
        }

        /// Whether what is said goes through no network: a Unix-domain socket, a loopback address, or `localhost`, which
        /// is then connected to at loopback addresses only.
        var isLocal: Bool {
            if let address = SocketAddress(numericHost: address.isEmpty ? host : address, port: 0) {
                return address.ip.isLoopback
            }
            if !address.isEmpty { return false }
            return host.isEmpty || host.hasPrefix("/") || host.hasPrefix("@")
                || host.utf8.map { $0 | 0x20 }.elementsEqual("localhost".utf8)
        }
    }

    let targets: [Target]
    private let options: [PostgresOption]
    private let protection: LinkProtection
    /// Whether the connection string leaves open what kind of server it is for.
    private let wantsAnySession: Bool

    /// Reads a connection URI (`postgresql://user@host/database?sslmode=verify-full`) or libpq's keywords. What it
    /// leaves open comes from libpq's environment variables and defaults, as in every program that uses libpq.
    ///
    /// What `sslmode` and its like come to, `LinkProtection` says.
    ///
    /// Set unless given: `application_name` token-broker; `target_session_attrs` read-write when there are several
    /// hosts, and primary when there is one that is no pooler: what a standby has is what was true a moment ago; `gssencmode` disable, because Kerberos would block the event loop; and for connections whose peer has gone
    /// without a word, `keepalives_idle` 10, `keepalives_interval` 5, `keepalives_count` 3 (seconds) and
    /// `tcp_user_timeout` 10000 (milliseconds). `client_encoding` is always UTF8.
    /// - Throws: `.misconfigured`. The text never quotes the string, which may hold a password.
    package init(_ connectionString: String) throws(PostgresError) {
        try PostgresLibrary.load()
        guard let given = PostgresHandle.parse(connectionString) else {
            throw .misconfigured("the connection string cannot be read")
        }
        var settings = Dictionary(given.map { ($0.keyword, $0.value) }) { _, last in last }
        if settings["service"] != nil {
            throw .misconfigured("a service file is not used: give the host in the connection string")
        }
        // An empty value means the same to libpq as none.
        settings = settings.filter { !$0.value.isEmpty }
        for option in PostgresHandle.defaults() where ["host", "hostaddr", "port"].contains(option.keyword) {
            // libpq's own precedence: a host that is given is not overridden by PGHOSTADDR.
            if option.keyword == "hostaddr", settings["host"] != nil { continue }
            if settings[option.keyword] == nil { settings[option.keyword] = option.value }
        }

        targets = try Self.targets(
            hosts: settings.removeValue(forKey: "host"), addresses: settings.removeValue(forKey: "hostaddr"),
            ports: settings.removeValue(forKey: "port"))
        if let seconds = settings.removeValue(forKey: "connect_timeout").flatMap({ Int64($0) }), seconds > 0 {
            connectTimeout = .seconds(min(seconds, 3600))
        }
        protection = try LinkProtection(&settings)
        settings["client_encoding"] = "UTF8"
        let defaults = [
            ("application_name", "token-broker"), ("gssencmode", "disable"),
            ("keepalives_idle", "10"), ("keepalives_interval", "5"), ("keepalives_count", "3"),
            ("tcp_user_timeout", "10000"),
        ]
        for (keyword, value) in defaults where settings[keyword] == nil { settings[keyword] = value }
        wantsAnySession = settings["target_session_attrs"] == nil
        options = settings.map { PostgresOption(keyword: $0.key, value: $0.value) }
    }

    /// How the way to the database is protected: of several hosts, the one with the weakest protection counts.
    package var link: PostgresLink { targets.map(protection.link).min() ?? .clear }

    /// One attempt to connect to a target: its settings, and whether requests for anything but SCRAM are to be kept from
    /// libpq.
    struct Attempt: Sendable {
        let options: [PostgresOption]
        let allowsSCRAMOnly: Bool
    }

    /// The attempts to make at `target`, in order: one, but for `sslmode` allow and prefer. They are protected as the
    /// target itself says, whatever address its name leads to.
    /// - Parameter address: one of the target's host; empty where it needs none.
    func attempts(at target: Target, address: String) -> [Attempt] {
        var place = target
        place.address = address
        let options = options(for: place)
        return protection.attempts(at: target).map { attempt in
            let overridden = options.filter { attempt.settings[$0.keyword] == nil }
            return Attempt(
                options: overridden + attempt.settings.map { PostgresOption(keyword: $0.key, value: $0.value) },
                allowsSCRAMOnly: attempt.allowsSCRAMOnly)
        }
    }

    private func options(for target: Target) -> [PostgresOption] {
        var options = options
        if !usesPooler {
            let milliseconds = max(1, statementTimeout.milliseconds)
            // Ours first: of two settings of the same name the last one counts, and that is the operator's.
            let ours =
                "-c statement_timeout=\(milliseconds) -c idle_in_transaction_session_timeout=\(milliseconds)"
            if let index = options.firstIndex(where: { $0.keyword == "options" }) {
                options[index].value = ours + " " + options[index].value
            } else {
                options.append(PostgresOption(keyword: "options", value: ours))
            }
        }
        if wantsAnySession {
            // A pooler answers for a server that it may have known before that was promoted or demoted.
            let kind = targets.count > 1 ? "read-write" : usesPooler ? "any" : "primary"
            options.append(PostgresOption(keyword: "target_session_attrs", value: kind))
        }
        options.append(PostgresOption(keyword: "host", value: target.host))
        options.append(PostgresOption(keyword: "hostaddr", value: target.address))
        options.append(PostgresOption(keyword: "port", value: target.port))
        return options
    }

    /// Splits libpq's comma-separated lists, which must be of the same length; one port may serve all hosts.
    private static func targets(
        hosts: String?, addresses: String?, ports: String?
    ) throws(PostgresError) -> [Target] {
        func split(_ list: String?) -> [String] {
            list.map { $0.split(separator: ",", omittingEmptySubsequences: false).map(String.init) } ?? []
        }
        let (hosts, addresses, ports) = (split(hosts), split(addresses), split(ports))
        let count = max(hosts.count, addresses.count, 1)
        guard hosts.isEmpty || hosts.count == count, addresses.isEmpty || addresses.count == count else {
            throw .misconfigured("the numbers of hosts and of addresses differ")
        }
        guard ports.count <= 1 || ports.count == count else {
            throw .misconfigured("the numbers of hosts and of ports differ")
        }
        guard ports.allSatisfy({ $0.isEmpty || UInt16($0).map { $0 > 0 } ?? false }) else {
            throw .misconfigured("a port is not a number from 1 to 65535")
        }
        return (0..<count).map { index in
            Target(
                host: hosts.isEmpty ? "" : hosts[index], address: addresses.isEmpty ? "" : addresses[index],
                port: ports.isEmpty ? "" : ports[ports.count == 1 ? 0 : index])
        }
    }

    /// Nothing of the connection string.
    package var description: String { "a PostgreSQL configuration" }
}
