import BrokerTesting
import Postgres
import Reactor
import Synchronization

/// The PostgreSQL of a run, and the standbys that take its place one after the other.
final class ChaosDatabase: Sendable {
    private struct State {
        var server: PostgresServer
        /// Follows `server`, and is to take its place next.
        var standby: PostgresServer?
    }

    /// Of the replicas' tables.
    let name: String
    private let state: Mutex<State>

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    init() async throws {
        let server = try await PostgresServer()
        name = try await server.makeDatabase()
        state = Mutex(State(server: server))
    }

    /// The server that takes writes, or did until it was killed.
    var server: PostgresServer { state.withLock { $0.server } }

    /// Makes a standby of the server and waits until it has everything.
    func makeStandby() async throws {
        let server = server
        let standby = try await PostgresServer(replicaOf: server)
        try await standby.catchUp(with: server)
        state.withLock { $0.standby = standby }
    }

    /// From now on the standby receives nothing of what the server commits.
    func cutOffStandby() async throws { try await standby().cutOff() }

    /// Kills the server, as the loss of its machine would, and has the standby take writes in its place.
    /// - Returns: when the server had ended.
    func failOver() async throws -> Moment {
        let (server, standby) = (server, try standby())
        try await server.kill()
        let ended = rightNow()
        try await standby.promote()
        state.withLock { $0 = State(server: standby) }
        return ended
    }

    private func standby() throws -> PostgresServer {
        guard let standby = state.withLock({ $0.standby }) else { throw Failure(description: "there is no standby") }
        return standby
    }

    /// The versions of the users' records and the last sequence of the log, as they stand now. To be asked while no replica
    /// reaches the server.
    func contents() async throws -> (versions: [Int: Int64], lastSequence: Int64) {
        let server = server
        let pool = PostgresServer.pool(try PostgresServer.configuration(server.uri(database: name)))
        let rows = try await pool.execute(
            PostgresStatement("SELECT key, version FROM token_broker_records WHERE kind = 'credentials'"),
            until: .after(.seconds(30)))
        var versions: [Int: Int64] = [:]
        for row in rows.rows {
            if let key = try row.text(0), let user = ChaosCluster.user(ofStorageKey: key) {
                versions[user] = try row.integer(1)
            }
        }
        let log = try await pool.execute(
            PostgresStatement("SELECT last FROM token_broker_log"), until: .after(.seconds(30)))
        await pool.close()
        guard let last = try log.first?.integer(0) else { throw Failure(description: "there is no log of events") }
        return (versions, last)
    }
}
