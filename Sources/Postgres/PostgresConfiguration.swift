import Reactor

/// One setting of libpq. Its value may be a password.
struct PostgresOption: Sendable, Equatable, CustomStringConvertible {
    var keyword: String
    var value: String

    var description: String { keyword }
}

/// The address of PostgreSQL, and the time limits and sizes of its connections.
package struct PostgresConfiguration: Sendable, CustomStringConvertible {
    /// The time limit for making a connection, including look-up, TLS and authentication, over all hosts and addresses
    /// together. The connection string's `connect_timeout` if that is positive, else 5 s. A host behind which others follow
    /// gets an equal share of it, and no more than `hostTimeout`.
    package var connectTimeout: Duration = .seconds(5)

    /// The time limit for one host while others are left to be tried, so that a host that drops packets leaves a borrower of
    /// the pool time for the next one. Default 1.5 s, in which a lost packet is sent again.
    package var hostTimeout: Duration = .milliseconds(1500)

    /// The server's time limit for one statement, and for an idle transaction: an abandoned transaction must not hold
    /// its locks until TCP notices the lost connection. Default 5 s. Sent as a session setting when connecting, except
    /// behind a pooler: there the role needs `statement_timeout` and `idle_in_transaction_session_timeout`.
    package var statementTimeout: Duration = .seconds(5)

    /// How many connections a pool opens at most. Default 4.
    package var maximumConnections = usualConnections
    package static let usualConnections = 4

    /// How many borrowers may wait for a connection of a pool; a further one is refused at once. Reads that share a
    /// pipeline count as one. Default 256.
    package var maximumWaiters = 256

    /// How many reads share a pipeline at most. With 1 each read takes a round trip. At least 1. Default 32.
    package var maximumPipelinedReads = 32

    /// How long a caller waits for a connection of a pool. Default 2 s.
    package var waitTimeout: Duration = .seconds(2)

    /// The age at which a connection that returns to the pool is replaced, so that changes of names, certificates and
    /// roles take effect; nil for no limit. Default 1 h.
    package var maximumLifetime: Duration? = .seconds(3600)

    /// Whether connections lead to a pooler in transaction mode (PgBouncer). Then no statement is prepared under a name
    /// and no session setting is sent, because each transaction may run in another session of the server. Default
    /// false.
    package var usesPooler = false

    /// The `host`, `hostaddr` and `port` of one server.
    struct Target: Sendable, Equatable {
        /// A name, a numeric address, or the directory of a Unix-domain socket; empty for libpq's own default.
        var host: String
        /// A numeric address, with which `host` is not looked up; else empty.
        var address: String
        var port: String

        /// Whether libpq would look `host` up.
        var needsLookup: Bool {
            // "@" begins an abstract socket. "%" occurs in scoped IPv6 addresses and not in names.
            address.isEmpty && !host.isEmpty && !host.hasPrefix("/") && !host.hasPrefix("@") && !host.contains("%")
                && SocketAddress(numericHost: host, port: 0) == nil
        }

        /// Whether the connection stays on this host: a Unix-domain socket, a loopback address, or `localhost`, of
        /// which only loopback addresses are used.
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
    /// Shared by all copies of the configuration.
    let memory = HostMemory()
    private let options: [PostgresOption]
    private let protection: LinkProtection
    /// Whether the connection string has no `target_session_attrs`.
    private let wantsAnySession: Bool

    /// Reads a connection URI (`postgresql://user@host/database?sslmode=verify-full`) or libpq's keywords. Settings
    /// that the string omits come from libpq's environment variables and defaults, as in every program that uses libpq.
    ///
    /// `LinkProtection` describes the effect of `sslmode` and the settings around it.
    ///
    /// Settings that this module adds unless they are given: `application_name` token-broker; `target_session_attrs`
    /// read-write for several hosts, and primary for a single host that is no pooler, because a standby may be behind;
    /// `gssencmode` disable, because Kerberos would block the event loop; `keepalives_idle` 10, `keepalives_interval`
    /// 5, `keepalives_count` 3 (seconds) and `tcp_user_timeout` 10000 (milliseconds), so that a connection whose peer
    /// has disappeared is noticed. `client_encoding` is always UTF8.
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
        // To libpq an empty value means the same as an absent one.
        settings = settings.filter { !$0.value.isEmpty }
        for option in PostgresHandle.defaults() where ["host", "hostaddr", "port"].contains(option.keyword) {
            // As in libpq, PGHOSTADDR does not override a given host.
            if option.keyword == "hostaddr", settings["host"] != nil { continue }
            if settings[option.keyword] == nil { settings[option.keyword] = option.value }
        }

        targets = try Self.targets(
            hosts: settings.removeValue(forKey: "host"), addresses: settings.removeValue(forKey: "hostaddr"),
            ports: settings.removeValue(forKey: "port"))
        if let seconds = settings.removeValue(forKey: "connect_timeout").flatMap({ Int64($0) }), seconds > 0 {
            connectTimeout = .seconds(min(seconds, 3600))
        }
        protection = try LinkProtection(takenFrom: &settings)
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

    /// How the connection is protected. Of several hosts, the one with the weakest protection counts.
    package var link: PostgresLink { targets.map(protection.link).min() ?? .clear }

    /// One attempt to connect to a target: its settings, and whether authentication requests other than for SCRAM must
    /// not reach libpq.
    struct Attempt: Sendable {
        let options: [PostgresOption]
        let allowsSCRAMOnly: Bool
    }

    /// The attempts to make at `target`, in order: two with `sslmode` allow and prefer, else one. The protection
    /// follows from the target, and not from the address that its name has.
    /// - Parameter address: an address of the target's host; empty when it needs none.
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
            // In front of the operator's options: of two settings with the same name the last one counts.
            let defaults =
                "-c statement_timeout=\(milliseconds) -c idle_in_transaction_session_timeout=\(milliseconds)"
                // Rows that a policy hides would look like rows that were removed: an error is better.
                + " -c row_security=off"
            if let index = options.firstIndex(where: { $0.keyword == "options" }) {
                options[index].value = defaults + " " + options[index].value
            } else {
                options.append(PostgresOption(keyword: "options", value: defaults))
            }
        }
        if wantsAnySession {
            // A pooler reports the state of a server that may have been promoted or demoted since.
            let kind = targets.count > 1 ? "read-write" : usesPooler ? "any" : "primary"
            options.append(PostgresOption(keyword: "target_session_attrs", value: kind))
        }
        options.append(PostgresOption(keyword: "host", value: target.host))
        options.append(PostgresOption(keyword: "hostaddr", value: target.address))
        options.append(PostgresOption(keyword: "port", value: target.port))
        return options
    }

    /// Splits libpq's comma-separated lists, which must have the same length. A single port applies to all hosts.
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

    /// Contains nothing of the connection string, which may hold a password.
    package var description: String { "a PostgreSQL configuration" }
}
