import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Rows of ended records that are put back into the database.
@Suite(.timeLimit(.minutes(2))) struct `Records that were put back` {
    private static let tenant = TenantName("t1")!
    private static let credentials = RecordID(.credentials, tenant, key: "default")
    private static let mark = RecordID(.tombstoneMark, tenant)

    /// Two replicas of one store, whose caches are valid for five seconds.
    private struct Setting {
        let time = ManualTime()
        let records: MemoryRecordStore
        let one: BrokerHarness
        let two: BrokerHarness

        init() async throws {
            let time = time
            let records = MemoryRecordStore { time.monotonic }
            self.records = records
            one = try await BrokerHarness(
                store: FaultyStore(records, revalidateAfter: .seconds(5)), time: time)
            two = try await BrokerHarness(
                store: FaultyStore(records, revalidateAfter: .seconds(5)), time: time)
            await one.makeTenant()
        }

        func row(_ id: RecordID) async throws -> StoredRecord { try #require(try await records.read(id)) }

        /// Writes rows over what the store has of them, as an attacker who has kept them.
        func putBack(_ rows: StoredRecord...) async throws {
            for row in rows {
                let present = try await records.read(row.id)
                try await records.commit([present.map { .replace(row, version: $0.version) } ?? .insert(row)])
            }
            // No cache entry is valid any more.
            time.advance(by: .seconds(6))
        }

        func key(_ broker: BrokerHarness) async throws -> (id: String, secret: String) {
            let answer = await broker.call(
                .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["credentials:read"]}"#)
            return (try #require(answer.json["id"]?.text), try #require(answer.json["api_key"]?.text))
        }

        /// The page of the record's tombstone.
        func page(of id: RecordID) -> RecordID { TombstonePage.ID(of: id).recordID }

        func status(_ broker: BrokerHarness, _ secret: String) async -> Int {
            await broker.call(.get, "/credentials", key: secret).status
        }
    }

    private static func hasNothing(_ broker: BrokerHarness, _ storageKey: String = "default") async -> Bool {
        await broker.get("policy=local&storage_key=\(storageKey)").code == "missing_token_container"
    }

    private static func hasTold(_ broker: BrokerHarness, _ kind: String) -> Bool {
        broker.log.contains { $0.contains("record_put_back") && $0.contains(#""record":"\#(kind)""#) }
            && broker.broker.core.metrics.text().contains("token_broker_records_put_back_total ")
    }

    // MARK: API keys

    // H051
    @Test func `do not open anything where an API key was deleted, at no replica`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        let (deleted, other) = (try await setting.key(setting.one), try await setting.key(setting.one))
        #expect(await setting.status(setting.two, deleted.secret) == 200)
        let row = try await setting.row(.apiKey(deleted.id, of: Self.tenant))
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(deleted.id)").status == 204)
        try await setting.putBack(row)
        for broker in [setting.one, setting.two] {
            #expect(await setting.status(broker, deleted.secret) == 401)
            #expect(Self.hasTold(broker, "api-key"))
            #expect(await setting.status(broker, other.secret) == 200)
            #expect(await broker.call(.get, "/tenants/t1/api-keys/\(deleted.id)").status == 404)
            let list = await broker.call(.get, "/tenants/t1/api-keys")
            #expect(list.json["api_keys"]?.array?.compactMap { $0["id"]?.text } == [other.id])
            #expect(await broker.call(.post, "/tenants/t1/api-keys/\(deleted.id)/rotate").status == 404)
        }
    }

    @Test func `are not the newest secret of an API key that was rotated`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        let key = try await setting.key(setting.one)
        let row = try await setting.row(.apiKey(key.id, of: Self.tenant))
        let path = "/tenants/t1/api-keys/\(key.id)/rotate"
        let rotated = await setting.one.call(.post, path, body: #"{"overlap": 0}"#)
        let secret = try #require(rotated.json["api_key"]?.text)
        #expect(await setting.status(setting.two, secret) == 200)
        #expect(await setting.status(setting.two, key.secret) == 401)
        try await setting.putBack(row)
        for broker in [setting.one, setting.two] {
            #expect(await setting.status(broker, key.secret) == 401)
            #expect(Self.hasTold(broker, "api-key"))
        }
    }

    @Test func `are not what a key looks like that is rotated or deleted while it is being read`() async throws {
        let setting = try await Setting()
        let key = try await setting.key(setting.one)
        let record = try setting.two.vault.open(try await setting.row(.apiKey(key.id, of: Self.tenant)))
        let rotated = await setting.one.call(.post, "/tenants/t1/api-keys/\(key.id)/rotate")
        #expect(rotated.status == 201)
        // As the other replica has read it before the rotation.
        #expect(try await !setting.two.broker.core.tombstones.isPutBack(record))
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        #expect(try await !setting.two.broker.core.tombstones.isPutBack(record))
        #expect(!setting.two.log.contains { $0.contains("record_put_back") })
    }

    // MARK: Credentials

    // H051
    @Test func `log nobody in again who has logged out, and a login afterwards is served`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1", refresh: "r1")
        let row = try await setting.row(Self.credentials)
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        try await setting.putBack(row)
        #expect(await Self.hasNothing(setting.two))
        #expect(Self.hasTold(setting.two, "credentials"))
        #expect(await Self.hasNothing(setting.one))
        await setting.two.set("a2", refresh: "r2")
        setting.time.advance(by: .seconds(6))
        for broker in [setting.one, setting.two] { #expect(await broker.get().token == "a2") }
    }

    @Test func `are replaced by a logout and by a login, also where the tombstones were put back with them`()
        async throws
    {
        let setting = try await Setting()
        await setting.one.set("a1")
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        await setting.one.set("a2", refresh: "r2")
        let rows = [
            try await setting.row(Self.credentials), try await setting.row(setting.page(of: Self.credentials)),
        ]
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        try await setting.putBack(rows[0], rows[1])
        #expect(await setting.two.get().code == "internal_error")
        #expect(await setting.two.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(await Self.hasNothing(setting.two))
        await setting.two.set("a3")
        setting.time.advance(by: .milliseconds(1))
        #expect(await setting.two.get().token == "a3")
    }

    @Test func `do not count where a user's row was removed by hand: the next login is served`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        let version = try await setting.row(Self.credentials).version
        try await setting.records.commit([.remove(Self.credentials, version: version)])
        setting.time.advance(by: .seconds(6))
        #expect(await Self.hasNothing(setting.two))
        await setting.two.set("a2")
        setting.time.advance(by: .seconds(6))
        #expect(await setting.one.get().token == "a2")
        #expect(try await setting.row(Self.credentials).version > version)
    }

    // MARK: The tombstones themselves

    @Test func `are not honoured where the tombstones were put back with them, until an operator accepts that`()
        async throws
    {
        let setting = try await Setting()
        await setting.one.set("a1")
        // The page exists before the logout that is undone.
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        await setting.one.set("a2")
        let rows = [
            try await setting.row(Self.credentials), try await setting.row(setting.page(of: Self.credentials)),
        ]
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        try await setting.putBack(rows[0], rows[1])
        #expect(await setting.two.get().code == "internal_error")
        #expect(setting.two.log.contains { $0.contains("token-broker restored") })
        // Records on other pages are read, and a login of this user is newer than what is missing.
        await setting.one.set("b1", storageKey: "other")
        #expect(await setting.two.get("storage_key=other").token == "b1")
        let tombstones = setting.two.broker.core.tombstones
        #expect(try await tombstones.flaws(of: Self.tenant) == 1)
        #expect(try await tombstones.accept(Self.tenant) == 1)
        #expect(try await tombstones.flaws(of: Self.tenant) == 0)
        #expect(try await tombstones.accept(Self.tenant) == 0)
        setting.time.advance(by: .seconds(6))
        #expect(await setting.two.get().token == "a2")
    }

    @Test func `are not honoured where the mark of the tombstones is gone`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        let row = try await setting.row(Self.credentials)
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        let mark = try await setting.row(Self.mark)
        try await setting.records.commit([.remove(Self.mark, version: mark.version)])
        try await setting.putBack(row)
        #expect(await setting.two.get().code == "internal_error")
        #expect(try await setting.two.broker.core.tombstones.accept(Self.tenant) == 1)
        setting.time.advance(by: .seconds(6))
        #expect(await Self.hasNothing(setting.two))
        #expect(Self.hasTold(setting.two, "credentials"))
    }

    @Test func `leave no trace of a tenant that was removed`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(await setting.one.call(.delete, "/tenants/t1").status == 204)
        for id in [Self.mark, setting.page(of: Self.credentials)] {
            #expect(try await setting.records.read(id) == nil)
        }
        await setting.one.makeTenant()
        await setting.one.set("a2")
        setting.time.advance(by: .seconds(6))
        for broker in [setting.one, setting.two] { #expect(await broker.get().token == "a2") }
    }

    @Test func `show after many users have logged out at once, at two replicas`() async throws {
        let setting = try await Setting()
        let users = (0..<300).map { "u\($0)" }
        for user in users { await setting.one.set("a1", storageKey: user) }
        var rows: [StoredRecord] = []
        for user in users { rows.append(try await setting.row(RecordID(.credentials, Self.tenant, key: user))) }
        await withTaskGroup(of: Void.self) { group in
            for (index, user) in users.enumerated() {
                let broker = index.isMultiple(of: 2) ? setting.one : setting.two
                group.addTask {
                    let answer = await broker.call(.delete, "/credentials?storage_key=\(user)", tenant: "t1")
                    #expect(answer.status == 204, "\(answer.text)")
                }
            }
        }
        // The mark has the version of each page.
        let mark = try TombstoneMark(try setting.one.vault.open(try await setting.row(Self.mark)))
        for number in 0...UInt8.max {
            let page = try await setting.records.read(TombstonePage.ID(tenant: Self.tenant, number: number).recordID)
            #expect(mark.pages[Int(number)] == page?.version ?? 0)
        }
        for row in rows { try await setting.putBack(row) }
        for user in users { #expect(await Self.hasNothing(setting.two, user)) }
    }

    @Test func `leave a tenant whose tombstones cannot be read to an operator`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        let page = try await setting.row(setting.page(of: Self.credentials))
        let mark = try await setting.row(Self.mark)
        // Contents of one place in another one do not open.
        for (row, other) in [(page, mark), (mark, page)] {
            try await setting.records.commit([
                .replace(
                    StoredRecord(id: row.id, version: row.version + 1, content: other.content), version: row.version)
            ])
        }
        setting.time.advance(by: .seconds(6))
        await setting.two.set("a2")
        setting.time.advance(by: .seconds(6))
        #expect(await setting.one.get().code == "internal_error")
        let tombstones = setting.two.broker.core.tombstones
        // The page and the mark cannot be read, and without the mark nothing vouches for the page.
        #expect(try await tombstones.flaws(of: Self.tenant) == 3)
        #expect(try await tombstones.accept(Self.tenant) == 3)
        #expect(try await tombstones.flaws(of: Self.tenant) == 0)
        #expect(try await tombstones.accept(Self.tenant) == 0)
        setting.time.advance(by: .seconds(6))
        for broker in [setting.one, setting.two] { #expect(await broker.get().token == "a2") }
    }

    // MARK: A store that goes back as a whole

    /// The replica that has heard of the later login has it from its feed only; the one that stored it, stores it again.
    @Test func `are not seen in what a cache has of a logout that the store has lost`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1", refresh: "r1")
        let (key, before) = (try await setting.key(setting.one), setting.records.copy())
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        // All of it goes back, and the caches of the first replica are still valid.
        for kind in [RecordKind.credentials, .apiKey, .tombstones, .tombstoneMark] {
            for row in try await setting.records.list(kind, tenant: Self.tenant, after: nil, limit: 1000) {
                try await setting.records.commit([.remove(row.id, version: row.version)])
            }
            for row in try await before.list(kind, tenant: Self.tenant, after: nil, limit: 1000) {
                try await setting.records.commit([.insert(row)])
            }
        }
        let broker = setting.one.broker
        let record = try setting.one.vault.open(try await setting.row(Self.credentials))
        #expect(try await !broker.core.tombstones.isPutBack(record))
        let stored = try setting.one.vault.open(try await setting.row(.apiKey(key.id, of: Self.tenant)))
        #expect(try await !broker.core.tombstones.isPutBack(stored))
        #expect(await setting.status(setting.two, key.secret) == 200)
    }

    @Test func `are told from a store that has lost its last commits`() async throws {
        let time = ManualTime()
        let store = RewindingStore(MemoryRecordStore { time.monotonic })
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        await broker.set("b1", refresh: "s1", storageKey: "other")
        store.note()
        // What this replica has in its caches is newer than the store.
        for user in ["default", "other"] {
            #expect(await broker.call(.delete, "/credentials?storage_key=\(user)", tenant: "t1").status == 204)
        }
        store.goBack()
        time.advance(by: .seconds(6))
        // The replica stores its logouts again: no tombstone is missed.
        for user in ["default", "other"] { #expect(await Self.hasNothing(broker, user)) }
        await broker.set("a2", refresh: "r2")
        time.advance(by: .seconds(6))
        #expect(await broker.get().token == "a2")
    }
}
