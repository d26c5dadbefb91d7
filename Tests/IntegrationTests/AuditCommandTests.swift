import BrokerTesting
import FoundationEssentials
import HTTPCodec
import JSON
import Postgres
import Reactor
import Testing

/// `token-broker audit`, with the logs of running, stopped and killed services.
@Suite(.timeLimit(.minutes(3)))
struct `The audit of the program` {
    private let directory = StoreFixtureDirectory()
    private let variables = ["AUDIT_CHANGES": "true", "AUDIT_READS": "all", "MASTER_KEYS": BrokerHarness.masterKeys]

    private func run(
        _ arguments: [String], _ variables: [String: String]
    ) async throws -> (status: Int32, output: String) {
        try await BrokerProcess.run(["audit"] + arguments, variables)
    }

    /// Makes a tenant and reads from it, by a running service.
    private func use(_ port: UInt16, tenant: String) async throws {
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.put, "/tenants/\(tenant)", body: #"{"client_id": "c1"}"#).status == 201)
        let body = #"{"credentials": {"client_id": "c1", "token": "secret-token", "expires_in": 3600, "user_id": "7"}}"#
        let put = try await broker.call(.put, "/credentials", tenant: tenant, body: body)
        #expect(put.status == 200, "\(put.text)")
        #expect(try await broker.call(.get, "/credentials", tenant: tenant).status == 200)
    }

    @Test func `of the file store is verified and exported while the service runs, after its end and after a kill`()
        async throws
    {
        let port = try PostgresServer.freePort()
        let store = variables.merging(["DATA_DIR": directory.path]) { given, _ in given }
        let keys = ["DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys]
        var process = try await BrokerProcess.start(port: port, store)
        try await use(port, tenant: "t1")
        let running = try await run(["verify"], keys)
        #expect(running.status == 0, "\(running.output)")
        #expect(
            running.output
                == "1 chains with 5 entries: 0 faults; 3 entries are not signed yet; 0 entries are signed only by another "
                + "process than the one that wrote them; 1 chains have no end, because their process runs or was killed"
        )
        #expect(await process.terminate() == 0)
        let ended = try await run(["verify"], keys)
        #expect(ended.output.hasPrefix("1 chains with 6 entries: 0 faults; 0 entries are not signed yet; 0 entries"))
        #expect(ended.output.contains("; 0 chains have no end"))

        process = try await BrokerProcess.start(port: port, store)
        try await use(port, tenant: "t2")
        await process.kill()
        let killed = try await run(["verify"], keys)
        #expect(killed.output.hasPrefix("2 chains with 11 entries: 0 faults; 3 entries"), "\(killed.output)")
        process = try await BrokerProcess.start(port: port, store)
        #expect(await process.terminate() == 0)
        let whole = try await run(["verify"], keys)
        #expect(whole.output.hasPrefix("3 chains with 14 entries: 0 faults; 0 entries are"), "\(whole.output)")
        // The process that was killed had not signed three entries; the next one has.
        #expect(whole.output.contains("; 3 entries are signed only by another process"), "\(whole.output)")
        let json = try await run(["verify", "--json"], keys)
        #expect(
            json.output == #"{"chains":3,"entries":14,"faults":0,"unsigned":0,"witnessed":3,"open":1}"#,
            "\(json.output)")

        let export = try await run(["export", "--tenant", "t2"], ["DATA_DIR": directory.path])
        #expect(export.status == 0)
        let lines = try export.output.split(separator: "\n").map { try JSONValue(parsing: Array($0.utf8)) }
        #expect(
            lines.compactMap { $0["action"]?.text } == ["tenant.created", "credentials.stored", "credentials.read"])
        #expect(lines.allSatisfy { $0["address"]?.text == "127.0.0.1" && $0["caller"]?.text == "admin:admin" })
        #expect(!export.output.contains("secret-token"))
        let none = try await run(["export", "--to", "2001-01-01T00:00:00Z"], ["DATA_DIR": directory.path])
        #expect(none.status == 0 && none.output == "")
        let full = try await TestProcess.start(
            ["bash", "-c", #"exec "$0" audit export 2>&1 >/dev/full"#, BrokerProcess.program("token-broker")],
            environment: ["TOKEN_BROKER_DATA_DIR": directory.path])
        #expect(await full.exitStatus() == 1)
        #expect(full.lines == ["token-broker: standard output cannot be written: write: No space left on device"])
        let doctor = try await TestProcess.start(
            [BrokerProcess.program("token-broker"), "doctor", "store"],
            environment: Dictionary(uniqueKeysWithValues: keys.map { ("TOKEN_BROKER_" + $0.key, $0.value) }))
        #expect(await doctor.exitStatus() == 0)

        // One file less, then one with an end that is cut off.
        let names = try FileManager.default.contentsOfDirectory(atPath: directory.path + "/audit")
        for name in names {
            let path = "\(directory.path)/audit/\(name)"
            let bytes = try #require(FileManager.default.contents(atPath: path))
            try FileManager.default.removeItem(atPath: path)
            let missing = try await run(["verify"], keys)
            if bytes.count > 2000 {
                let isTold = missing.output.contains("chain \(name) is missing")
                #expect(missing.status == 65 && isTold, "\(missing.output)")
            }
            try bytes.write(to: URL(filePath: path))
        }
        let path = "\(directory.path)/audit/\(names[0])"
        try Data(try #require(FileManager.default.contents(atPath: path)).dropLast(1)).write(to: URL(filePath: path))
        let cut = try await run(["verify"], keys)
        #expect(cut.status == 65 && cut.output.contains("fault  \(path) is damaged behind "), "\(cut.output)")
        #expect(cut.output.contains("\n3 chains with "), "\(cut.output)")
        let faults = try await run(["verify", "--json"], keys)
        #expect(faults.status == 65 && faults.output.hasPrefix(#"{"fault":""#), "\(faults.output)")
        let rest = try await run(["export"], ["DATA_DIR": directory.path])
        #expect(rest.status == 65 && rest.output.contains("and 1 chains are damaged"), "\(rest.output)")
        // The service starts, names the chain, and goes on.
        process = try await BrokerProcess.start(port: port, store)
        #expect(process.lines.contains { $0.contains("audit_chain_damaged") && $0.contains(path) })
        try await use(port, tenant: "t3")
        #expect(await process.terminate() == 0)
    }

    @Test func `of a database shows what the owner of the tables did`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let uri = server.uri(database: database)
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port, variables.merging(["DATABASE_URL": uri]) { given, _ in given })
        try await use(port, tenant: "t1")
        #expect(await process.terminate() == 0)
        let keys = ["DATABASE_URL": uri, "MASTER_KEYS": BrokerHarness.masterKeys]
        let whole = try await run(["verify"], keys)
        #expect(whole.status == 0, "\(whole.output)")
        let export = try await run(["export"], ["DATABASE_URL": uri])
        #expect(export.status == 0 && export.output.contains(#""action":"credentials.read""#), "\(export.output)")
        #expect(!export.output.contains("secret-token"))
        let early = try await run(["remove", "--before", "2999-01-01T00:00:00Z"], keys)
        #expect(early.status == 1 && early.output.contains("a week ago or more"), "\(early.output)")
        let removed = try await run(["remove", "--before", "2001-01-01T00:00:00Z"], keys)
        #expect(removed.status == 0 && removed.output == "0 chains were removed", "\(removed.output)")

        let pool = PostgresServer.pool(try PostgresServer.configuration(uri))
        for statement in [
            "ALTER TABLE token_broker_audit DISABLE TRIGGER ALL",
            "UPDATE token_broker_audit SET body = replace(body, 'credentials.read', 'credentials.rest')",
        ] {
            _ = try await pool.execute(PostgresStatement(trusted: statement), until: .after(.seconds(30)))
        }
        await pool.close()
        let changed = try await run(["verify"], keys)
        #expect(changed.status == 65 && changed.output.contains("was changed"), "\(changed.output)")
    }

    @Test func `a service whose log cannot be written does not start`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let uri = server.uri(database: database)
        let process = try await BrokerProcess.start(
            port: try PostgresServer.freePort(), ["DATABASE_URL": uri, "MASTER_KEYS": BrokerHarness.masterKeys])
        #expect(await process.terminate() == 0)
        let pool = PostgresServer.pool(try PostgresServer.configuration(uri))
        _ = try await pool.execute(
            PostgresStatement("ALTER TABLE token_broker_audit RENAME TO elsewhere"), until: .after(.seconds(30)))
        await pool.close()
        let needed = ["DATABASE_URL": uri, "ADMIN_KEY": BrokerHarness.adminKey]
        let refused = try await BrokerProcess.start(command: [], variables.merging(needed) { _, needed in needed })
        #expect(await refused.exitStatus() == 1)
        // The log and standard error have no order between them.
        #expect(refused.lines.contains { $0.contains("the audit log cannot be written") }, "\(refused.lines)")
    }

    @Test(arguments: [
        [], ["verify", "--tenant", "t"], ["verify", "--json", "--json"], ["export", "--json"], ["export", "--from"],
        ["export", "--from", "yesterday"],
        ["export", "--tenant", "T 1"], ["export", "--before", "2001-01-01T00:00:00Z"], ["remove"], ["look"],
    ])
    func `wrong arguments are refused`(arguments: [String]) async throws {
        #expect(try await run(arguments, ["DATA_DIR": directory.path]).status == 64)
    }
}
