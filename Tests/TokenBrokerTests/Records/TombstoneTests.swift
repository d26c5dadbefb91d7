import BrokerTesting
import CredentialStore
import Cryptography
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

    /// Two replicas of one store, whose caches are valid for five seconds.
    private struct Setting {
        let time = ManualTime()
        let records: MemoryRecordStore
        let one: BrokerHarness
        let two: BrokerHarness

        init() async throws {
            let time = time
            records = MemoryRecordStore { time.monotonic }
            one = try await Self.replica(of: records, time)
            two = try await Self.replica(of: records, time)
            await one.makeTenant()
        }

        private static func replica(of records: MemoryRecordStore, _ time: ManualTime) async throws -> BrokerHarness {
            try await BrokerHarness(store: FaultyStore(records, revalidateAfter: .seconds(5)), time: time)
        }

        /// The replica that ends records, another one, and a process that was started just now.
        func all() async throws -> [BrokerHarness] { [one, two, try await Self.replica(of: records, time)] }

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

        /// Has the store lose the row.
        func remove(_ id: RecordID) async throws {
            try await records.commit([.remove(id, version: try await row(id).version)])
            time.advance(by: .seconds(6))
        }

        /// Gives the row a content that does not open: that of an earlier version.
        func damage(_ id: RecordID) async throws {
            let row = try await row(id)
            let other = StoredRecord(id: id, version: row.version + 1, sealed: row.sealed)
            try await records.commit([.replace(other, version: row.version)])
            time.advance(by: .seconds(6))
        }

        /// Writes what a build before this form wrote of records that ended, in place of the present tombstones.
        func writePage(of ended: [(id: RecordID, version: Int64)]) async throws {
            for (number, tombstones) in Dictionary(grouping: ended, by: { Self.digest($0.id)[15] }) {
                var content: [UInt8] = [1]
                for (id, version) in tombstones {
                    if let row = try await records.read(id.tombstone) {
                        try await records.commit([.remove(row.id, version: row.version)])
                    }
                    content += Self.digest(id)
                    for shift in stride(from: 56, through: 0, by: -8) {
                        content.append(UInt8(truncatingIfNeeded: version >> shift))
                    }
                }
                let page = OpenRecord(
                    id: RecordID(.tombstones, tenant, key: Hex.encode([number])),
                    version: time.now.milliseconds * 1000, content: SecretBytes(content))
                try await records.commit([.insert(try one.vault.seal(page))])
            }
        }

        private static func digest(_ id: RecordID) -> [UInt8] {
            Array(SHA256.digest(Array("\(id.kind.rawValue) \(id.key)".utf8)).prefix(16))
        }

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
        for broker in try await setting.all() {
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
        for broker in try await setting.all() {
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
        // The first replica knows of the logout, and stores that again.
        for broker in try await setting.all().reversed() {
            #expect(await Self.hasNothing(broker))
            if broker !== setting.one { #expect(Self.hasTold(broker, "credentials")) }
        }
        await setting.two.set("a2", refresh: "r2")
        setting.time.advance(by: .seconds(6))
        for broker in [setting.one, setting.two] { #expect(await broker.get().token == "a2") }
    }

    @Test func `are replaced by a logout and by a login`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        await setting.one.set("a2", refresh: "r2")
        let row = try await setting.row(Self.credentials)
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        try await setting.putBack(row)
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

    @Test func `leave no trace of a tenant that was removed`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(try await setting.records.read(Self.credentials.tombstone) != nil)
        #expect(await setting.one.call(.delete, "/tenants/t1").status == 204)
        #expect(try await setting.records.read(Self.credentials.tombstone) == nil)
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
        for row in rows { try await setting.putBack(row) }
        for user in users { #expect(await Self.hasNothing(setting.two, user)) }
    }

    @Test func `are told by tombstones for which no other logout waits`() async throws {
        let store = BrokerFaultyStore(MemoryRecordStore(), revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("a1")
        await broker.set("b1", storageKey: "other")
        let gate = Gate()
        store.disturb([.hold(gate)]) { $0.replaces(.credentials) }
        async let first = broker.call(.delete, "/credentials", tenant: "t1")
        await gate.arrivals()
        #expect(await broker.call(.delete, "/credentials?storage_key=other", tenant: "t1").status == 204)
        gate.open()
        #expect(await first.status == 204)
    }

    /// What may become of the tombstone of one record.
    enum Harm: CaseIterable {
        case damaged
        case missing
    }

    @Test(arguments: Harm.allCases)
    func `concern no other record where a tombstone is damaged or missing`(harm: Harm) async throws {
        let setting = try await Setting()
        for user in ["default", "other", "present"] { await setting.one.set("a1", storageKey: user) }
        let other = RecordID(.credentials, Self.tenant, key: "other")
        var keys: [(id: String, secret: String)] = []
        for _ in 0..<3 { keys.append(try await setting.key(setting.one)) }
        var rows: [StoredRecord] = []
        for id in [Self.credentials, other, .apiKey(keys[0].id, of: Self.tenant), .apiKey(keys[1].id, of: Self.tenant)]
        {
            rows.append(try await setting.row(id))
        }
        for user in ["default", "other"] {
            #expect(await setting.one.call(.delete, "/credentials?storage_key=\(user)", tenant: "t1").status == 204)
        }
        for id in [keys[0].id, keys[1].id] {
            #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        }
        for id in [Self.credentials, .apiKey(keys[0].id, of: Self.tenant)] {
            switch harm {
            // Of a key that has ended for good, the version is the highest that there is.
            case .damaged where id.kind == .apiKey: continue
            case .damaged: try await setting.damage(id.tombstone)
            case .missing: try await setting.remove(id.tombstone)
            }
        }
        for row in rows { try await setting.putBack(row) }
        for broker in try await setting.all() {
            #expect(await Self.hasNothing(broker, "other"))
            #expect(await setting.status(broker, keys[1].secret) == 401)
            #expect(await broker.get("storage_key=present").token == "a1")
            let answer = await broker.call(.get, "/credentials?storage_key=present", key: keys[2].secret)
            #expect(answer.token == "a1")
            // A tombstone is its version: no content of it has to be read.
            if harm == .damaged { #expect(await Self.hasNothing(broker)) }
        }
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        await setting.two.set("a2")
        setting.time.advance(by: .seconds(6))
        for broker in try await setting.all() { #expect(await broker.get().token == "a2") }
    }

    // MARK: Tombstones of earlier builds

    @Test func `show by the pages of an earlier build, and leave those as they are`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        await setting.one.set("b1", storageKey: "other")
        let key = try await setting.key(setting.one)
        let ids = [Self.credentials, .apiKey(key.id, of: Self.tenant)]
        let rows = [try await setting.row(ids[0]), try await setting.row(ids[1])]
        #expect(await setting.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        try await setting.writePage(of: [(ids[0], rows[0].version), (ids[1], .max)])
        let pages = try await setting.records.list(.tombstones, tenant: Self.tenant, after: nil, limit: 10)
        for row in rows { try await setting.putBack(row) }
        for broker in try await setting.all() {
            #expect(await Self.hasNothing(broker))
            #expect(await setting.status(broker, key.secret) == 401)
            #expect(await broker.get("storage_key=other").token == "b1")
        }
        // An earlier build at another replica finds its pages unchanged, and none beside them.
        #expect(await setting.one.call(.delete, "/credentials?storage_key=other", tenant: "t1").status == 204)
        #expect(try await setting.records.list(.tombstones, tenant: Self.tenant, after: nil, limit: 10) == pages)
        #expect(try await setting.records.read(RecordID(.tombstone, Self.tenant)) == nil)
        await setting.two.set("a2")
        setting.time.advance(by: .seconds(6))
        for broker in try await setting.all() { #expect(await broker.get().token == "a2") }
    }

    @Test func `cannot be told where such a page cannot be read, of its own records that are not newer`() async throws {
        let setting = try await Setting()
        await setting.one.set("a1")
        await setting.one.set("b1", storageKey: "other")
        // Of this user, of another one, of this key and of another one, each on a page of its own.
        var pages = Set(
            ["default", "other"].map { TombstonePage.ID(of: RecordID(.credentials, Self.tenant, key: $0)) })
        var keys: [(id: String, secret: String)] = []
        while pages.count < 4 {
            let key = try await setting.key(setting.one)
            if pages.insert(TombstonePage.ID(of: .apiKey(key.id, of: Self.tenant))).inserted { keys.append(key) }
        }
        let (key, other) = (keys[0], keys[1])
        try await setting.writePage(of: [(Self.credentials, 1), (.apiKey(key.id, of: Self.tenant), 0)])
        for page in try await setting.records.list(.tombstones, tenant: Self.tenant, after: nil, limit: 10) {
            try await setting.damage(page.id)
        }
        for broker in try await setting.all() {
            #expect(await broker.get().code == "internal_error")
            #expect(broker.log.contains { $0.contains("store_failed") && $0.contains("does not open") })
            #expect(await setting.status(broker, key.secret) == 500)
            let answer = await broker.call(.get, "/credentials?storage_key=other", key: other.secret)
            #expect(answer.token == "b1")
            let list = await broker.call(.get, "/tenants/t1/api-keys")
            let ids = Set(list.json["api_keys"]?.array?.compactMap { $0["id"]?.text } ?? [])
            #expect(ids.isSuperset(of: [key.id, other.id]))
        }
        #expect(await setting.two.call(.delete, "/credentials", tenant: "t1").status == 204)
        setting.time.advance(by: .seconds(3610))
        await setting.two.set("a2")
        setting.time.advance(by: .seconds(6))
        for broker in try await setting.all() { #expect(await broker.get().token == "a2") }
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        #expect(await setting.status(setting.two, key.secret) == 401)
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
        for kind in [RecordKind.credentials, .apiKey, .tombstone] {
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

    /// Whether the user has logged in before the moment to which the store goes back, and after that.
    @Test(arguments: [(true, false), (true, true), (false, true)])
    func `log nobody in after a logout that the store has lost, and that was stored again`(
        before: Bool, after: Bool
    ) async throws {
        let time = ManualTime()
        let store = RewindingStore(MemoryRecordStore { time.monotonic })
        let way = ReplicaStore(store, in: ReplicaStore.Group())
        let broker = try await BrokerHarness(store: way, time: time)
        way.follow()
        try await broker.broker.core.takeUpJournal()
        await broker.makeTenant()
        if before { await broker.set("a1", refresh: "r1") }
        store.note()
        if after { await broker.set("a2", refresh: "r2") }
        let row = try #require(try await store.read(Self.credentials))
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        time.advance(by: .seconds(2))
        store.goBack()
        _ = await broker.broker.core.storeRecovery.check()
        let present = try #require(try await store.read(Self.credentials))
        try await store.commit([.replace(row, version: present.version)])
        time.advance(by: .seconds(6))
        let next = try await BrokerHarness(store: store, time: time)
        #expect(await Self.hasNothing(next))
        #expect(Self.hasTold(next, "credentials"))
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
