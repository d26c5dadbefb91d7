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

/// The change of a master key, by the commands of Deploy/operations/keys.md.
@Suite(.timeLimit(.minutes(3)))
struct `Changing the master key` {
    private static let old = BrokerHarness.masterKeys
    private static let alpha = TenantName("alpha")!

    private func newKey(_ id: String = "k2") async throws -> String {
        let made = try await BrokerProcess.run(["keys", "generate", id])
        #expect(made.status == 0)
        #expect(made.output.hasPrefix("\(id):"))
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

    /// A long run has more: RESEAL_RECORDS=100000 RESEAL_KILLS=10.
    private static func count(_ name: String, usual: Int) -> Int {
        ProcessInfo.processInfo.environment[name].flatMap { Int($0) } ?? usual
    }

    // H050
    @Test(.timeLimit(.minutes(30)))
    func `a reseal is killed several times and goes on, every read succeeds, and the old key goes`() async throws {
        let (records, events) = (Self.count("RESEAL_RECORDS", usual: 2000), 300)
        let server = try await PostgresServer.shared.value
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
            var last: RecordID?
            while !isResealed.withLock({ $0 }) || count < records {
                let page = try await reader.list(.trouble, tenant: nil, after: last, limit: 2000)
                last = page.count == 2000 ? page.last?.id : nil
                for record in page {
                    #expect(record == Self.record(Int(record.id.key.dropFirst())!))
                    count += 1
                }
                #expect(try await reader.entries(after: 0, limit: 1000).allSatisfy { $0.content != nil })
                #expect(try await client.call(.get, "/tenants/t1").status == 200)
            }
            return count
        }()
        for _ in 0..<Self.count("RESEAL_KILLS", usual: 3) {
            let resealing = try await BrokerProcess.start(command: ["keys", "reseal", "--rate", "50"], variables)
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
        print("after the last kill: \(left.output)\nthen: \(done.output)")
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

    /// What the operators' guide says, without a restart of the service.
    @Test(arguments: [true, false])
    func `a running service reads its keys again at SIGHUP, from a file or by a command`(isFile: Bool) async throws {
        let server = try await PostgresServer.shared.value
        let uri = server.uri(database: try await server.makeDatabase())
        let directory = StoreFixtureDirectory()
        let journal = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let path = directory.path + "/keys"
        func write(_ keys: String) throws {
            SmallFile.remove(path)
            try SmallFile.create(path, Array(keys.utf8))
        }
        try write(Self.old)
        let source = isFile ? ["MASTER_KEYS_FILE": path] : ["MASTER_KEYS_COMMAND": "/bin/cat \(path)"]
        let variables = source.merging(["DATABASE_URL": uri]) { $1 }
        let port = try PostgresServer.freePort()
        let serving = try await BrokerProcess.start(
            port: port, variables.merging(["JOURNAL_DIR": journal.path]) { $1 })
        let client = try BrokerClient(port: port)
        #expect(try await client.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        func reload(_ event: String, _ detail: String) async throws {
            let before = serving.lines.count
            serving.hangUp()
            _ = try await serving.line { $0.contains(#""event":"\#(event)""#) && $0.contains(detail) }
            #expect(serving.lines.count > before)
        }

        try await reload("master_keys_unchanged", #""master_key":"k1""#)
        let added = try await newKey()
        try write("\(added),k1:AAAA")
        try await reload("master_keys_not_replaced", "MASTER_KEYS")
        try write(added)
        try await reload("master_keys_not_replaced", "records are sealed under the key 'k1'")
        #expect(try await client.call(.put, "/tenants/t2", body: #"{"client_id": "c1"}"#).status == 201)
        try write("\(added),\(Self.old)")
        try await reload("master_keys_replaced", #""master_key":"k2""#)
        #expect(try await client.call(.put, "/tenants/t3", body: #"{"client_id": "c1"}"#).status == 201)
        let status = try await BrokerProcess.run(["keys", "status"], variables)
        #expect(!status.output.contains("): 0 records and 0 events"), "\(status.output)")
        for command in [["keys", "reseal"], ["keys", "retire", "k1"]] {
            let result = try await BrokerProcess.run(command, variables)
            #expect(result.status == 0, "\(result.output)")
        }
        // The key before is not needed any more, by the journal either.
        try write("\(try await newKey("k3")),\(added)")
        try await reload("master_keys_replaced", #""master_key":"k3""#)
        for tenant in ["t1", "t2", "t3"] { #expect(try await client.call(.get, "/tenants/\(tenant)").status == 200) }
        #expect(await serving.terminate() == 0)
        let again = try await BrokerProcess.start(
            port: port, variables.merging(["JOURNAL_DIR": journal.path]) { $1 })
        #expect(try await client.call(.get, "/tenants/t1").status == 200)
        #expect(await again.terminate() == 0)
    }

    @Test(arguments: [
        (["MASTER_KEYS_COMMAND": "/bin/false"], "MASTER_KEYS_COMMAND names a program that ended with status 1"),
        (["MASTER_KEYS_COMMAND": "/nowhere/keys"], "MASTER_KEYS_COMMAND names a program that cannot be started"),
        (["MASTER_KEYS_COMMAND": "/bin/true"], "MASTER_KEYS_COMMAND names a program that prints no text"),
        (["MASTER_KEYS_COMMAND": "/bin/echo k1:AAAA"], "MASTER_KEYS_COMMAND names a program whose keys cannot be used"),
        (["MASTER_KEYS_COMMAND": "/usr/bin/env"], "MASTER_KEYS_COMMAND names a program whose keys cannot be used"),
        (["MASTER_KEYS_COMMAND": " "], "MASTER_KEYS_COMMAND names no program"),
        (["MASTER_KEYS_COMMAND": "/bin/true", "MASTER_KEYS": old], "MASTER_KEYS_COMMAND and another source"),
        (["MASTER_KEYS_COMMAND": "/bin/true", "MASTER_KEYS_FILE": "/x"], "MASTER_KEYS_COMMAND and another source"),
    ])
    func `a command that prints no keys is told`(variables: [String: String], text: String) async throws {
        let directory = StoreFixtureDirectory()
        let result = try await BrokerProcess.run(
            ["config", "check"], variables.merging(["DATA_DIR": directory.path]) { $1 })
        #expect(result.status == 78, "\(result.output)")
        #expect(result.output.contains("TOKEN_BROKER_" + text), "\(result.output)")
        #expect(!result.output.contains("AAAA"))
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
        let server = try await PostgresServer.shared.value
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
        (["keys", "reseal", "--rate", "0"], 64, "--rate must be a number"),
        (["keys", "reseal", "--rate", "100001"], 64, "--rate must be a number"),
        (["keys", "reseal", "--rate"], 64, "--rate needs a value"), (["keys", "retire"], 64, "ID is missing"),
    ])
    func `tells what it refuses`(arguments: [String], status: Int32, text: String) async throws {
        let directory = StoreFixtureDirectory()
        let result = try await BrokerProcess.run(arguments, ["DATA_DIR": directory.path, "MASTER_KEYS": Self.old])
        #expect(result.status == status, "\(result.output)")
        #expect(result.output.contains(text), "\(result.output)")
    }
}
