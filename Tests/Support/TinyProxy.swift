import FoundationEssentials
import Glibc

/// Debian's tinyproxy, with one user.
package final class TinyProxy: Sendable {
    package let port: UInt16

    private let process: TestProcess
    private let directory: StoreFixtureDirectory

    /// - Parameter ports: those to which it opens tunnels.
    package init(user: String, password: String, allowing ports: [UInt16]) async throws {
        port = try Self.freePort()
        directory = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let configuration =
            "Port \(port)\nListen 127.0.0.1\nTimeout 60\nLogLevel Info\nBasicAuth \(user) \(password)\n"
            + ports.map { "ConnectPort \($0)\n" }.joined()
        try Data(configuration.utf8).write(to: URL(filePath: directory.path + "/tinyproxy.conf"))
        process = try await TestProcess.start([
            "/bin/sh", "-c", #"exec /usr/bin/tinyproxy -d -c "$0" 2>&1"#, directory.path + "/tinyproxy.conf",
        ])
        _ = try await process.line { $0.contains("Accepting connections") }
    }

    /// A port that nothing listens on at the moment.
    package static func freePort() throws -> UInt16 { try PostgresServer.freePort() }

    /// How many tunnels it has opened, as far as its log says so.
    package var tunnels: Int { process.lines.count { $0.contains("Established connection to host") } }

    package func stop() async { await process.kill() }
}
