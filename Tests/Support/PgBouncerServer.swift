import FoundationEssentials
import Glibc
package import Postgres
import Reactor

/// A PgBouncer of a test's own in transaction mode, before a PostgreSQL of the tests: a session of a client's is another
/// session of the server's in each transaction.
///
/// It knows the user `postgres`, and asks for no password.
package final class PgBouncerServer: Sendable {
    package let port: UInt16

    private let process: TestProcess
    private let directory: StoreFixtureDirectory

    /// - Parameters:
    ///   - port: of 127.0.0.1, by which it reaches the server; nil for the server's Unix-domain socket.
    ///   - poolSize: connections to the server for each database.
    ///   - clientLimit: connections of clients; more are refused.
    ///   - queryWait: how long a client waits for a connection to the server before it is refused, in seconds.
    package static func start(
        before server: PostgresServer, by port: UInt16? = nil, poolSize: Int = 20, clientLimit: Int = 1000,
        queryWait: Int = 60
    ) async throws -> PgBouncerServer {
        let target =
            port.map { "host=127.0.0.1 port=\($0) user=postgres password=\(PostgresServer.password)" }
            ?? "host=\(server.socketDirectory) port=\(server.port)"
        let port = try PostgresServer.freePort()
        let directory = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let configuration = """
            [databases]
            * = \(target)
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = \(port)
            unix_socket_dir =
            auth_type = trust
            auth_file = \(directory.path)/users
            pool_mode = transaction
            default_pool_size = \(poolSize)
            max_client_conn = \(clientLimit)
            query_wait_timeout = \(queryWait)
            server_login_retry = 1
            """
        try Data((configuration + "\n").utf8).write(to: URL(filePath: directory.path + "/pgbouncer.ini"))
        try Data("\"postgres\" \"\"\n".utf8).write(to: URL(filePath: directory.path + "/users"))
        let process = try await TestProcess.start(
            asUser + ["/bin/sh", "-c", #"exec /usr/sbin/pgbouncer "$0" 2>&1"#, directory.path + "/pgbouncer.ini"])
        _ = try await process.line { $0.contains("process up") }
        return PgBouncerServer(port: port, process: process, directory: directory)
    }

    private init(port: UInt16, process: TestProcess, directory: StoreFixtureDirectory) {
        self.port = port
        self.process = process
        self.directory = directory
    }

    package func uri(database: String) -> String {
        "postgresql://postgres@127.0.0.1:\(port)/\(database)?sslmode=disable"
    }

    /// For a client that knows of the pooler.
    package func configuration(database: String) throws(PostgresError) -> PostgresConfiguration {
        var configuration = try PostgresServer.configuration(uri(database: database))
        configuration.usesPooler = true
        return configuration
    }

    package func stop() async {
        await process.kill()
    }

    /// PgBouncer refuses to run as root. A change of users makes the kernel forget the death signal, which is therefore
    /// asked for again.
    private static var asUser: [String] {
        if getuid() != 0 { return [] }
        return [
            "/usr/bin/setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "KILL", "--",
        ]
    }
}
