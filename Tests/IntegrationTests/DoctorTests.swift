import BrokerTesting
import FoundationEssentials
import HTTPCodec
import Postgres
import Reactor
import Testing

/// What an operator does about a damaged data directory: `token-broker doctor store`.
@Suite(.timeLimit(.minutes(3)))
struct `The doctor of stores` {
    private let directory = StoreFixtureDirectory()
    private let target = StoreFixtureDirectory()

    private func run(
        _ arguments: [String], _ variables: [String: String] = [:]
    ) async throws -> (status: Int32, output: String) {
        let all = ["DATA_DIR": directory.path].merging(variables) { _, given in given }
        return try await BrokerProcess.run(arguments, all.filter { !$0.value.isEmpty })
    }

    /// Flips a bit in the middle of a file.
    private func damage(_ path: String) throws {
        var bytes = Array(try #require(FileManager.default.contents(atPath: path)))
        bytes[bytes.count / 2] ^= 1
        try Data(bytes).write(to: URL(filePath: path))
    }

    private func contents(_ directory: String) throws -> [String: Data] {
        var contents: [String: Data] = [:]
        for name in try FileManager.default.subpathsOfDirectory(atPath: directory) {
            contents[name] = FileManager.default.contents(atPath: directory + "/" + name)
        }
        return contents
    }

    @Test func `a service that damage keeps from starting serves the rest from what was repaired`() async throws {
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, ["DATA_DIR": directory.path])
        let broker = try BrokerClient(port: port)
        for tenant in ["t1", "t2"] {
            #expect(try await broker.call(.put, "/tenants/\(tenant)", body: #"{"client_id": "c1"}"#).status == 201)
        }
        let early = try await run(["doctor", "store"])
        #expect(early.status == 1)
        #expect(early.output.contains("is in use by another process; stop the service first"), "\(early.output)")
        #expect(await process.terminate() == 0)
        let good = try await run(["doctor", "store"])
        #expect(good.status == 0, "\(good.output)")
        #expect(good.output.contains("\nwhole    plain/tenant/t1/= (the tenant record of t1)\n"), "\(good.output)")

        let file = "plain/tenant/t1/="
        try damage("\(directory.path)/\(file)")
        let start = try await run(["serve"], ["LISTEN": "127.0.0.1:\(port)"])
        #expect(start.status == 1)
        #expect(
            start.output.contains(
                "\(directory.path)/\(file) is damaged: its checksum is wrong (the tenant record of t1); "
                    + "run token-broker doctor store to see what can be saved"), "\(start.output)")

        let before = try contents(directory.path)
        let found = try await run(["doctor", "store"])
        #expect(found.status == 65)
        #expect(
            found.output.contains(
                "damaged  \(file): its checksum is wrong (the tenant record of t1); "
                    + "lost: tenant t1 is unknown until its configuration is stored again"), "\(found.output)")
        let repair = try await run(["doctor", "store", "--repair", target.path])
        #expect(repair.status == 65)
        #expect(repair.output.contains("\(target.path): written"), "\(repair.output)")
        #expect(try contents(directory.path) == before)
        let again = try await run(["doctor", "store", "--repair", target.path])
        #expect(again.status == 1)
        #expect(again.output.contains("\(target.path) exists already"), "\(again.output)")

        let repaired = try await BrokerProcess.start(port: port, ["DATA_DIR": target.path])
        #expect(try await broker.call(.get, "/tenants/t2").status == 200)
        #expect(try await broker.call(.get, "/tenants/t1").status == 404)
        #expect(await repaired.terminate() == 0)
        #expect(try await run(["doctor", "store"], ["DATA_DIR": target.path]).status == 0)
    }

    @Test func `without the master keys nothing is repaired, and their loss is told of`() async throws {
        let process = try await BrokerProcess.start(
            port: try PostgresServer.freePort(), ["DATA_DIR": directory.path])
        #expect(await process.terminate() == 0)
        try FileManager.default.removeItem(atPath: directory.path + "/master.keys")
        let found = try await run(["doctor", "store", "--repair", target.path])
        #expect(found.status == 1)
        #expect(found.output.contains("damaged  master.keys: it is missing"), "\(found.output)")
        #expect(found.output.contains("nothing is repaired without the master keys"), "\(found.output)")
        #expect(!FileManager.default.fileExists(atPath: target.path))
        #expect(try await run(["doctor", "store"]).status == 65)
    }

    @Test func `a journal is checked at the start, examined and repaired in the same way`() async throws {
        let database = try await PostgresServer.shared.value
        let uri = database.uri(database: try await database.makeDatabase())
        let variables = [
            "DATABASE_URL": uri, "JOURNAL_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys, "DATA_DIR": "",
        ]
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, variables)
        #expect(await process.terminate() == 0)
        let parent = directory.path + "/plain/key-check/-"
        let name = try #require(try FileManager.default.contentsOfDirectory(atPath: parent).first)
        try damage("\(parent)/\(name)")
        let serving = variables.merging(["ADMIN_KEY": BrokerHarness.adminKey]) { $1 }
        let start = try await run(["serve"], serving)
        #expect(start.status == 1)
        #expect(start.output.contains("TOKEN_BROKER_JOURNAL_DIR: \(parent)/\(name) is damaged: "), "\(start.output)")
        #expect(start.output.contains("; run token-broker doctor store to see what can be saved"), "\(start.output)")
        let repair = try await run(["doctor", "store", "--repair", target.path], variables)
        #expect(repair.status == 65, "\(repair.output)")
        #expect(repair.output.contains("damaged  plain/key-check/-/\(name): "), "\(repair.output)")
        let again = try await BrokerProcess.start(
            port: port, variables.merging(["JOURNAL_DIR": target.path]) { $1 })
        #expect(await again.terminate() == 0)
    }

    @Test(arguments: [
        (["doctor", "x"], 64, "unknown command"), (["doctor", "store", "--repair"], 64, "needs a value"),
        (["doctor", "store", "--repair", ""], 64, "--repair needs"),
        (["doctor", "store", "x"], 64, "one word too many"),
        (["doctor", "store"], 1, "No such file or directory"),
    ])
    func `what cannot be done is said`(arguments: [String], status: Int32, text: String) async throws {
        let result = try await run(arguments)
        #expect(result.status == status)
        #expect(result.output.contains(text), "\(result.output)")
        #expect(!FileManager.default.fileExists(atPath: directory.path))
    }

    @Test func `a database is not examined, and needs a journal for it`() async throws {
        let result = try await run(
            ["doctor", "store"],
            ["DATABASE_URL": "postgresql:///x", "MASTER_KEYS": BrokerHarness.masterKeys, "DATA_DIR": ""])
        #expect(result.status == 78)
        #expect(result.output.contains("TOKEN_BROKER_JOURNAL_DIR is required"), "\(result.output)")
    }
}
