import BrokerTesting
import CredentialStore
import Cryptography
import FoundationEssentials
import HTTPCodec
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing

/// The change of a master key, by the commands of Deploy/OPERATIONS.md.
@Suite(.timeLimit(.minutes(3)))
struct `Changing the master key` {
    private static let old = BrokerHarness.masterKeys
    private static let alpha = TenantName("alpha")!

    private func newKey() async throws -> String {
        let made = try await BrokerProcess.run(["keys", "generate", "k2"])
        #expect(made.status == 0)
        #expect(made.output.hasPrefix("k2:"))
        return made.output
    }

    private func vault(_ uri: String, keys: String) async throws -> Vault {
        let store = try await PostgresRecordStore.open(
            try PostgresServer.configuration(uri), on: PostgresServer.loop, resolver: PostgresServer.resolver)
        return Vault(store: store, keyring: try Keyring(parsing: keys))
    }

    private static func record(_ index: Int) -> OpenRecord {
        OpenRecord(
            id: RecordID(.trouble, alpha, key: "r\(index)"), version: 1, content: SecretBytes(utf8: "content \(index)"))
    }

    private func fill(_ vault: Vault, records: Int, events: Int) async throws {
        for first in stride(from: 0, to: records, by: 100) {
            try await vault.commit((first..<min(first + 100, records)).map { .insert(Self.record($0)) })
        }
        for first in stride(from: 0, to: events, by: 100) {
            try await vault.commit(
                (first..<min(first + 100, events)).map { index in
                    .append(
                        OpenLogEntry(
                            tenant: Self.alpha, key: "e\(index)", version: 1, time: .latest,
                            content: SecretBytes(utf8: "event \(index)")))
                })
        }
    }

    // H050
    @Test func `a reseal is killed three times and goes on, every read succeeds, and the old key goes`() async throws {
        let (records, events) = (2000, 300)
        let server = try PostgresServer.shared.get()
        let uri = server.uri(database: try await server.makeDatabase())
        let added = try await newKey()
        let both = "\(added),\(Self.old)"
        let earlier = try await vault(uri, keys: Self.old)
        try await earlier.unlock()
        try await fill(earlier, records: records, events: events)
        await earlier.close()
        let port = try PostgresServer.freePort()
        let replica = try await BrokerProcess.start(port: port, ["DATABASE_URL": uri, "MASTER_KEYS": Self.old])
        let client = try BrokerClient(port: port)
        #expect(try await client.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        #expect(await replica.terminate() == 0)

        let variables = ["DATABASE_URL": uri, "MASTER_KEYS": both]
        let before = try await BrokerProcess.run(["keys", "status"], variables)
        let early = try await BrokerProcess.run(["keys", "retire", "k1"], variables)
        #expect(early.status == 1)
        let line = try #require(before.output.split(separator: "\n").first { $0.hasPrefix("k1 (") })
        let counts = try #require(line.split(separator: "): ").last)
        #expect(early.output.contains("\(counts) are encrypted with it; run token-broker keys reseal"), "\(early)")

        var serving = try await BrokerProcess.start(port: port, variables)
        let reader = try await vault(uri, keys: both)
        let isResealed = Mutex(false)
        async let read: Int = {
            var count = 0
            while !isResealed.withLock({ $0 }) {
                for record in try await reader.list(.trouble, tenant: nil, limit: records) {
                    #expect(record == Self.record(Int(record.id.key.dropFirst())!))
                    count += 1
                }
                #expect(try await reader.entries(after: 0, limit: 1000).allSatisfy { $0.content != nil })
                #expect(try await client.call(.get, "/tenants/t1").status == 200)
            }
            return count
        }()
        for _ in 0..<3 {
            let resealing = try await BrokerProcess.start(command: ["keys", "reseal", "--rate", "200"], variables)
            _ = try await resealing.line { $0.contains(" encrypted with k2") }
            await resealing.kill()
        }
        let left = try await BrokerProcess.run(["keys", "status"], variables)
        #expect(left.status == 0)
        #expect(left.output.contains("k1 ("), "\(left.output)")
        #expect(!left.output.contains("): 0 records and 0 events"), "some are done and some are left: \(left.output)")
        let done = try await BrokerProcess.run(["keys", "reseal", "--rate", "100000"], variables)
        #expect(done.status == 0, "\(done.output)")
        #expect(done.output.contains("done: "), "\(done.output)")
        isResealed.withLock { $0 = true }
        #expect(try await read >= records)
        let status = try await BrokerProcess.run(["keys", "status"], variables)
        let retired = try await BrokerProcess.run(["keys", "retire", "k1"], variables)
        #expect(retired.status == 0, "\(status.output)\n\(retired.output)")
        #expect(await serving.terminate() == 0)

        serving = try await BrokerProcess.start(port: port, ["DATABASE_URL": uri, "MASTER_KEYS": added])
        #expect(try await client.call(.get, "/tenants/t1").status == 200)
        #expect(await serving.terminate() == 0)
        let last = try await vault(uri, keys: added)
        #expect(try await last.list(.trouble, tenant: nil, limit: records + 1).count == records)
        #expect(try await last.entries(after: 0, limit: 1000).allSatisfy { $0.content != nil })
        for vault in [reader, last] { await vault.close() }
        let without = try await BrokerProcess.run(
            ["serve"], ["DATABASE_URL": uri, "MASTER_KEYS": Self.old, "ADMIN_KEY": BrokerHarness.adminKey])
        #expect(without.status == 1)
        #expect(without.output.contains("k2"), "\(without.output)")
    }

    @Test func `the embedded store changes its key while no service runs`() async throws {
        let directory = StoreFixtureDirectory()
        let variables = ["DATA_DIR": directory.path]
        let port = try PostgresServer.freePort()
        let serving = try await BrokerProcess.start(port: port, variables)
        let client = try BrokerClient(port: port)
        #expect(try await client.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        let busy = try await BrokerProcess.run(["keys", "reseal"], variables)
        #expect(busy.status == 1)
        #expect(busy.output.contains("is in use by another process; stop that process first"), "\(busy.output)")
        #expect(await serving.terminate() == 0)

        let file = URL(filePath: directory.path + "/master.keys")
        let old = String(decoding: try Data(contentsOf: file), as: UTF8.self)
        let added = try await newKey()
        try Data("\(added),\(old)".utf8).write(to: file)
        let resealed = try await BrokerProcess.run(["keys", "reseal"], variables)
        #expect(resealed.status == 0, "\(resealed.output)")
        let retired = try await BrokerProcess.run(["keys", "retire", "k1"], variables)
        #expect(retired.status == 0, "\(retired.output)")
        try Data("\(added)\n".utf8).write(to: file)
        let again = try await BrokerProcess.start(port: port, variables)
        #expect(try await client.call(.get, "/tenants/t1").status == 200)
        #expect(await again.terminate() == 0)
    }

    @Test func `a journal gets the new key at a start, and the next start needs no other`() async throws {
        let server = try PostgresServer.shared.get()
        let uri = server.uri(database: try await server.makeDatabase())
        let directory = StoreFixtureDirectory()
        let added = try await newKey()
        let port = try PostgresServer.freePort()
        var variables = ["DATABASE_URL": uri, "JOURNAL_DIR": directory.path, "MASTER_KEYS": Self.old]
        let first = try await BrokerProcess.start(port: port, variables)
        #expect(await first.terminate() == 0)
        variables["MASTER_KEYS"] = "\(added),\(Self.old)"
        let changing = try await BrokerProcess.start(port: port, variables)
        #expect(changing.lines.contains { $0.contains(#""event":"journal_resealed""#) })
        #expect(await changing.terminate() == 0)
        var commands = variables
        commands["JOURNAL_DIR"] = nil
        #expect(try await BrokerProcess.run(["keys", "reseal"], commands).status == 0)
        #expect(try await BrokerProcess.run(["keys", "retire", "k1"], commands).status == 0)
        variables["MASTER_KEYS"] = added
        let last = try await BrokerProcess.start(port: port, variables)
        #expect(!last.lines.contains { $0.contains("journal_resealed") })
        #expect(await last.terminate() == 0)
    }

    @Test(arguments: [
        (["keys", "retire", "k1"], 1, "it is the first of the master keys"),
        (["keys", "retire", "k9"], 1, "the master keys have no key with this id"),
        (["keys", "reseal", "--rate", "1"], 0, "done: "), (["keys", "reseal", "--rate", "100000"], 0, "done: "),
        (["keys", "reseal", "--rate", "0"], 64, "unknown command"),
        (["keys", "reseal", "--rate", "100001"], 64, "unknown command"),
        (["keys", "reseal", "--rate"], 64, "unknown command"), (["keys", "retire"], 64, "unknown command"),
        (["keys"], 64, "unknown command"),
    ])
    func `tells what it refuses`(arguments: [String], status: Int32, text: String) async throws {
        let directory = StoreFixtureDirectory()
        let result = try await BrokerProcess.run(arguments, ["DATA_DIR": directory.path, "MASTER_KEYS": Self.old])
        #expect(result.status == status, "\(result.output)")
        #expect(result.output.contains(text), "\(result.output)")
    }
}
