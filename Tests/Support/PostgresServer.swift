import Glibc
package import Postgres
package import Reactor
import Synchronization

/// A PostgreSQL of the tests' own: a fresh data directory, an address of loopback and a Unix-domain socket, TLS with a certificate
/// for `localhost`. It goes when it is let go of, and at the latest when the test process ends, however that ends: a
/// watchdog waits for that on a socket.
///
/// Calls that run programs wait for them on threads of their own, as `DialogueProcess.blocking` does.
package final class PostgresServer: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    package enum Shutdown: String {
        /// Sessions are told (57P01) and ended.
        case fast
        /// As in a crash: sessions are cut off.
        case immediate
    }

    /// `[A-Za-z0-9]` only: stands in URIs as it is.
    package static let password = "correcthorsebatterystaple"

    /// A name that the server's certificate bears beside `localhost`, for tests that reach it as another host.
    package static let certifiedName = "database.example.test"

    /// The one that tests share which do not disturb it.
    package static let shared = Task<PostgresServer, any Error>.detached { try await PostgresServer() }

    /// A loop and a resolver for the clients of tests.
    package static let loop = required { () throws(SystemError) in try EventLoop(name: "postgres-test") }
    package static let resolver = required { () throws(SystemError) in try NameResolver() }

    package let address: String
    package let port: UInt16
    package let socketDirectory: String
    /// PEM: the authority that signed the server's certificate, and one that did not.
    package let authority: String
    package let otherAuthority: String

    private let data: String
    private let watchdog: Watchdog
    private let lastName = Atomic<Int>(0)
    /// The processes that `pause` stopped.
    private let paused = Mutex<[pid_t]>([])
    /// One connection: many databases made at the same time take longer than one after the other.
    private let administration: PostgresPool

    private static let programs = "/usr/lib/postgresql/15/bin"

    /// - Parameter settings: lines of its postgresql.conf.
    package convenience init(settings: [String] = []) async throws {
        try await self.init(settings: settings, primary: nil)
    }

    /// A standby that follows another server's changes, with its data and its settings, on the same port of 127.0.0.2, or
    /// of 127.0.0.1 where the other one has that of 127.0.0.2.
    package convenience init(replicaOf primary: PostgresServer) async throws {
        try await self.init(settings: [], primary: primary)
    }

    private init(settings: [String], primary: PostgresServer?) async throws {
        address = primary?.address == "127.0.0.1" ? "127.0.0.2" : "127.0.0.1"
        for program in ["initdb", "pg_ctl", "postgres"] where unsafe access("\(Self.programs)/\(program)", X_OK) != 0 {
            throw Failure(
                description: "\(Self.programs)/\(program) is missing: the tests need PostgreSQL 15, which "
                    + "Deploy/test installs (Debian: postgresql-15)")
        }
        guard let directory = Self.makeDirectory() else {
            throw Failure(description: "no temporary directory: \(SystemError.last("mkdtemp"))")
        }
        data = "\(directory)/data"
        socketDirectory = directory
        authority = primary?.authority ?? "\(directory)/authority.crt"
        otherAuthority = primary?.otherAuthority ?? "\(directory)/other.crt"
        watchdog = try Watchdog(
            whenOver:
                // A server that was paused hears nothing before it goes on.
                "kill -CONT $(head -n 1 \(data)/postmaster.pid); \(Self.asServerUser("\(Self.programs)/pg_ctl -D \(data) -m immediate -w stop")); rm -rf \(directory) || rm -rf \(directory)"
        )
        let setup = primary.map { Self.copy(of: $0, to: directory) } ?? Self.setup(directory, settings)
        try await Self.run(Self.asServerUser("sh -e -c '\(setup)'"), log: "\(directory)/setup.log")
        // As late as possible: another program may be given the same port meanwhile.
        if let primary { port = primary.port } else { port = try Self.freePort() }
        do throws(PostgresError) {
            var configuration = try Self.configuration(
                "host=\(directory) port=\(port) user=postgres dbname=postgres target_session_attrs=any")
            configuration.maximumConnections = 1
            configuration.maximumWaiters = 10_000
            configuration.waitTimeout = .seconds(300)
            administration = Self.pool(configuration)
        } catch {
            throw Failure(description: "\(error)")
        }
        try await start()
    }

    // MARK: Running it

    package func start() async throws {
        let options = "-p \(port) -h \(address) -k \(socketDirectory)"
        let log = "\(socketDirectory)/server.log"
        try await Self.run(
            Self.asServerUser("\(Self.programs)/pg_ctl -D \(data) -w -t 60 -l \(log) -o '\(options)' start"),
            log: "\(socketDirectory)/control.log")
    }

    package func stop(_ shutdown: Shutdown) async throws {
        try await Self.run(
            Self.asServerUser("\(Self.programs)/pg_ctl -D \(data) -w -m \(shutdown.rawValue) stop"),
            log: "\(socketDirectory)/control.log")
    }

    /// Takes the server away as the loss of its machine would: no session is told.
    package func kill() async throws {
        let process = try mainProcess()
        let processes = [process] + Self.children(of: process)
        for child in processes { _ = Glibc.kill(child, SIGKILL) }
        try await DialogueProcess.blocking {
            while processes.contains(where: { PostgresServer.isRunning($0) }) { usleep(1000) }
        }
        // If no process reaps orphans, the dead process would be taken for one that still serves the data.
        for name in ["data/postmaster.pid", ".s.PGSQL.\(port).lock"] { _ = unsafe unlink("\(socketDirectory)/\(name)") }
    }

    /// Stops all processes of the server (SIGSTOP): connections stand, and nothing is answered until `resume`.
    package func pause() throws(Failure) {
        let process = try mainProcess()
        // From here on it starts no more children.
        _ = Glibc.kill(process, SIGSTOP)
        let children = Self.children(of: process)
        for child in children { _ = Glibc.kill(child, SIGSTOP) }
        paused.withLock { $0 = [process] + children }
    }

    /// Lets a paused server go on; does nothing otherwise.
    package func resume() {
        let processes = paused.withLock { paused in
            defer { paused = [] }
            return paused
        }
        for process in processes.reversed() { _ = Glibc.kill(process, SIGCONT) }
    }

    private func mainProcess() throws(Failure) -> pid_t {
        let text = Self.text(of: "\(data)/postmaster.pid").split(separator: "\n").first ?? ""
        guard let process = pid_t(text) else { throw Failure(description: "the server does not run") }
        return process
    }

    private static func children(of process: pid_t) -> [pid_t] {
        text(of: "/proc/\(process)/task/\(process)/children").split(separator: " ").compactMap { pid_t($0) }
    }

    private static func isRunning(_ process: pid_t) -> Bool {
        let state = text(of: "/proc/\(process)/stat").split(separator: ")").last?.split(separator: " ").first
        return state.map { $0 != "Z" && $0 != "X" } ?? false
    }

    /// Makes a standby take writes.
    package func promote() async throws {
        try await Self.run(
            Self.asServerUser("\(Self.programs)/pg_ctl -D \(data) -w promote"), log: "\(socketDirectory)/control.log")
    }

    /// Waits until a standby has everything that the primary has committed by now.
    package func catchUp(with primary: PostgresServer) async throws {
        guard let end = try await primary.run("SELECT pg_current_wal_flush_lsn()::text").first?.text(0) else {
            throw Failure(description: "the primary does not say how far it is")
        }
        try await wait(for: "pg_last_wal_replay_lsn() >= '\(end)'::pg_lsn", "the standby does not catch up")
    }

    /// Has a standby receive nothing any more: from now on it lags behind.
    package func cutOff() async throws {
        _ = try await run("ALTER SYSTEM SET primary_conninfo = ''")
        _ = try await run("SELECT pg_reload_conf()")
        try await wait(for: "NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)", "the standby receives on")
    }

    private func wait(for condition: String, _ failure: String) async throws {
        let end = MonotonicInstant.after(.seconds(30))
        while try await run("SELECT \(condition)").first?.boolean(0) != true {
            guard MonotonicInstant.now < end else { throw Failure(description: failure) }
            await Task.yield()
        }
    }

    /// Makes every session of clients read-only, or lets them write again.
    package func setReadOnly(_ isReadOnly: Bool) async throws {
        let statement = isReadOnly ? "SET default_transaction_read_only = on" : "RESET default_transaction_read_only"
        _ = try await run("ALTER SYSTEM \(statement)")
        _ = try await run("SELECT pg_reload_conf()")
    }

    /// Ends one session as a crash would. The server then ends the others, too, and recovers.
    package func crash(session: Int64) {
        _ = Glibc.kill(pid_t(session), SIGKILL)
    }

    /// How many errors the server has logged for the database.
    package func errorCount(database: String) throws(Failure) -> Int {
        Self.text(of: "\(socketDirectory)/server.log").split(separator: "\n")
            .count { $0.contains("[\(database)] ERROR:") || $0.contains("[\(database)] WARNING:") }
    }

    // MARK: Using it

    /// Over TCP, with a password and without TLS.
    package func uri(
        database: String, user: String = "postgres", password: String = password, port: UInt16? = nil,
        parameters: String = "sslmode=disable"
    ) -> String {
        "postgresql://\(user):\(password)@\(address):\(port ?? self.port)/\(database)?\(parameters)"
    }

    /// Makes a new, empty database, and returns its name.
    package func makeDatabase() async throws -> String {
        try await make("DATABASE")
    }

    /// Makes a new, empty schema in the database `postgres`, which takes a hundredth of the time, and returns the
    /// connection string of clients that use it: over the Unix-domain socket, without a password.
    /// - Parameter settings: more of the session, as ` -cname=value`.
    package func connectionToNewSchema(settings: String = "") async throws -> String {
        let name = try await make("SCHEMA")
        return "host=\(socketDirectory) port=\(port) user=postgres dbname=postgres "
            + "options='-csearch_path=\(name)\(settings)'"
    }

    /// Runs one statement as the server's owner.
    package func run(_ statement: String) async throws -> PostgresResult {
        try await administration.execute(PostgresStatement(trusted: statement), until: .after(.seconds(60)))
    }

    private func make(_ kind: String) async throws -> String {
        let number = lastName.add(1, ordering: .relaxed).newValue
        _ = try await administration.execute(
            PostgresStatement(trusted: "CREATE \(kind) test_\(number)"), until: .after(.seconds(300)))
        return "test_\(number)"
    }

    /// A configuration that is patient, because all tests connect at the same time, on a machine that may be busy, and
    /// each exchange of passwords takes its milliseconds.
    package static func configuration(_ uri: String) throws(PostgresError) -> PostgresConfiguration {
        var configuration = try PostgresConfiguration(uri)
        configuration.connectTimeout = .seconds(30)
        configuration.waitTimeout = .seconds(30)
        configuration.statementTimeout = .seconds(30)
        return configuration
    }

    package static func connect(_ configuration: PostgresConfiguration) async throws -> PostgresConnection {
        try await PostgresConnection.open(
            configuration, on: loop, resolver: resolver)
    }

    package static func pool(_ configuration: PostgresConfiguration) -> PostgresPool {
        PostgresPool(configuration, on: loop, resolver: resolver)
    }

    /// A port of 127.0.0.1 on which nothing listens, another one each time.
    ///
    /// None that the kernel gives to clients (ip(7), ip_local_port_range: from 32768): a server cannot have a port that is
    /// some connection's own at its client, and one that starts again on its port may come after such a connection.
    package static func freePort() throws(Failure) -> UInt16 {
        var failure: SystemError?
        for _ in ports {
            do throws(SystemError) {
                guard let address = SocketAddress(numericHost: "127.0.0.1", port: nextPort()) else {
                    throw SystemError("inet_pton", number: EINVAL)
                }
                try Socket.probe(address)
                return address.port
            } catch {
                failure = error
            }
        }
        throw Failure(description: "no free port: \(failure.map { "\($0)" } ?? "none tried")")
    }

    private static let ports: Range<UInt16> = 20_000..<32_000
    /// Begins anywhere, for test processes that run side by side.
    private static let lastPort = Mutex(ports.randomElement() ?? ports.lowerBound)

    private static func nextPort() -> UInt16 {
        lastPort.withLock { last in
            last = last + 1 < ports.upperBound ? last + 1 : ports.lowerBound
            return last
        }
    }

    // MARK: Programs

    /// PostgreSQL refuses to run as root.
    private static func asServerUser(_ command: String) -> String {
        getuid() == 0 ? "setpriv --reuid=postgres --regid=postgres --clear-groups -- \(command)" : command
    }

    private static func makeDirectory() -> String? {
        var template = "/tmp/token-broker-postgres-XXXXXX".utf8.map { CChar(bitPattern: $0) } + [0]
        guard unsafe mkdtemp(&template) != nil else { return nil }
        let path = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
        if getuid() == 0, let user = unsafe getpwnam("postgres") {
            _ = unsafe chown(path, user.pointee.pw_uid, user.pointee.pw_gid)
        }
        _ = unsafe chmod(path, 0o755)
        return path
    }

    /// A data directory with its settings, and certificates. Runs inside single quotes.
    private static func setup(_ directory: String, _ settings: [String]) -> String {
        let request = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        return """
            cd \(directory)
            umask 077
            echo \(password) > password
            \(programs)/initdb -D data -U postgres -N -E UTF8 --locale=C -A scram-sha-256 --pwfile=password
            umask 022
            for name in authority other; do
                \(request) -x509 -days 30 -subj /CN=$name -keyout $name.key -out $name.crt
            done
            echo subjectAltName=DNS:localhost,DNS:\(certifiedName) > extensions
            \(request) -subj /CN=localhost -keyout data/server.key -out server.csr
            openssl x509 -req -in server.csr -CA authority.crt -CAkey authority.key -CAcreateserial -days 30 \
            -extfile extensions -out data/server.crt
            chmod 600 data/server.key
            {
                echo local all all trust
                echo local replication all trust
                echo host all all 127.0.0.0/8 scram-sha-256
            } > data/pg_hba.conf
            {
                echo ssl = on
                echo fsync = off
                echo max_connections = 500
                echo max_prepared_transactions = 4
                printf "log_line_prefix = \\047%%m [%%p] [%%d] \\047\\n"
                \(settings.map { "echo \"\($0)\"" }.joined(separator: "\n"))
            } >> data/postgresql.conf
            """
    }

    private static func copy(of primary: PostgresServer, to directory: String) -> String {
        """
        cd \(directory)
        \(programs)/pg_basebackup -h \(primary.socketDirectory) -p \(primary.port) -U postgres -D data -R -N -c fast
        """
    }

    private static func run(_ command: String, log: String) async throws {
        try await DialogueProcess.blocking {
            let status = ChildProgram.exitStatus(of: try PostgresServer.shell(command, input: .nothing, log: log))
            if status != 0 {
                throw Failure(description: "status \(status) of: \(command)\n\(PostgresServer.text(of: log))")
            }
        }
    }

    /// Starts a shell command that writes to a log and not to the tests' own output: the reader of that output would
    /// wait for the server to close it.
    fileprivate static func shell(
        _ command: String, input: ChildProgram.Stream, log: String
    ) throws(Failure) -> pid_t {
        do throws(SystemError) {
            return try ChildProgram.start(
                ["/bin/sh", "-c", command],
                environment: ["PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"], input: input,
                output: .file(log), errors: .file(log), leadsGroup: true)
        } catch {
            throw Failure(description: "\(error)")
        }
    }

    private static func text(of file: String) -> String {
        guard let stream = unsafe fopen(file, "r") else { return "" }
        defer { unsafe fclose(stream) }
        var text: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while true {
            let count = unsafe fread(&buffer, 1, buffer.count, stream)
            if count == 0 { return String(decoding: text, as: UTF8.self) }
            text += buffer[..<count]
        }
    }
}

/// Runs a command when the test process, or the owner of this object, is gone.
private final class Watchdog: Sendable {
    private let channel: OwnedDescriptor
    private let process: pid_t

    init(whenOver command: String) throws(PostgresServer.Failure) {
        let pair: ChildProgram.SocketPair
        do throws(SystemError) {
            pair = try ChildProgram.SocketPair()
        } catch {
            throw PostgresServer.Failure(description: "\(error)")
        }
        // Signals of the terminal are for the tests; the watchdog is what must outlive them.
        let script = "trap '' HUP INT TERM; cat > /dev/null; \(command)"
        process = try PostgresServer.shell(script, input: .descriptor(pair.theirs.rawValue), log: "/dev/null")
        channel = pair.takeOurs()
    }

    deinit {
        // The channel is closed after this, and the command runs. Its end is waited for, or the test library, which
        // waits for the children of exit tests, would find a dead one that it does not know, again and again.
        let process = process
        do throws(SystemError) {
            try Thread.start(name: "test-watchdog") { _ = ChildProgram.exitStatus(of: process) }.detach()
        } catch {
            preconditionFailure("the tests cannot run: \(error)")
        }
    }
}

private func required<Value, Failure: Error>(_ make: () throws(Failure) -> Value) -> Value {
    do {
        return try make()
    } catch {
        preconditionFailure("the tests cannot run: \(error)")
    }
}
