import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@testable import BrokerCore

/// Two replicas, and a store that loses commits of tenants, API keys and clients.
@Suite(.timeLimit(.minutes(1))) struct `Settings that a store loses with its last commits` {
    private struct Setting {
        let time = ManualTime()
        let store: RewindingStore
        let group = ReplicaStore.Group()
        let ways: [ReplicaStore]
        let one: BrokerHarness
        let two: BrokerHarness

        init(journal: Journal? = nil) async throws {
            store = RewindingStore(MemoryRecordStore { [time] in time.monotonic })
            ways = [ReplicaStore(store, in: group), ReplicaStore(store, in: group)]
            one = try await BrokerHarness(store: ways[0], time: time, journal: journal)
            two = try await BrokerHarness(store: ways[1], time: time)
            for way in ways { way.follow() }
            for broker in [one, two] { try await broker.broker.core.takeUpJournal() }
            await one.makeTenant()
            await one.set("a1")
        }

        /// Loses what was committed since the store was noted. The replicas notice that, the second one first.
        func goBack() async {
            time.advance(by: .seconds(2))
            store.goBack()
            await look()
            time.advance(by: .seconds(10))
        }

        func look() async {
            for broker in [two, one] { _ = await broker.broker.core.storeRecovery.check() }
        }

        /// Loses what was committed since the store was noted, and `one` is killed.
        /// - Returns: the process that is started with its journal.
        func restart(_ journal: StoreFixtureDirectory) async throws -> BrokerHarness {
            time.advance(by: .seconds(2))
            store.goBack()
            await one.broker.core.renewer.publisher.journal?.close()
            let next = try await BrokerHarness(
                store: ReplicaStore(store, in: group), time: time, journal: try await journal.journal())
            try await next.broker.core.takeUpJournal()
            _ = await next.broker.core.storeRecovery.check()
            time.advance(by: .seconds(10))
            return next
        }

        func key(_ broker: BrokerHarness) async throws -> (id: String, secret: String) {
            let answer = await broker.call(
                .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["credentials:read"]}"#)
            return (try #require(answer.json["id"]?.text), try #require(answer.json["api_key"]?.text))
        }

        func statuses(_ secret: String) async -> [Int] {
            var statuses: [Int] = []
            for broker in [one, two] { statuses.append(await broker.call(.get, "/credentials", key: secret).status) }
            return statuses
        }

        func clients() async -> [[String]] {
            var clients: [[String]] = []
            for broker in [one, two] {
                let list = await broker.call(.get, "/tenants/t1/clients")
                clients.append((list.json["clients"]?.array ?? []).compactMap { $0["client_id"]?.text })
            }
            return clients
        }
    }

    @Test func `have an API key deleted again, which no replica accepts, also where its row is put back`() async throws
    {
        let setting = try await Setting()
        let key = try await setting.key(setting.one)
        #expect(await setting.statuses(key.secret) == [200, 200])
        setting.store.note()
        let row = try #require(try await setting.store.read(.apiKey(key.id, of: TenantName("t1")!)))
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        await setting.goBack()
        #expect(await setting.statuses(key.secret) == [401, 401])
        #expect(await setting.two.call(.get, "/tenants/t1/api-keys/\(key.id)").status == 404)
        #expect(setting.one.log.contains { $0.contains("settings_stored_again") })
        try await setting.store.commit([.insert(row)])
        setting.time.advance(by: .seconds(60))
        #expect(await setting.statuses(key.secret) == [401, 401])
    }

    @Test(arguments: [0, 3600]) func `have an API key rotated again, with its newest secret`(overlap: Int) async throws
    {
        let setting = try await Setting()
        let key = try await setting.key(setting.one)
        setting.store.note()
        let rotated = await setting.one.call(
            .post, "/tenants/t1/api-keys/\(key.id)/rotate", body: #"{"overlap": \#(overlap)}"#)
        let secret = try #require(rotated.json["api_key"]?.text)
        await setting.goBack()
        #expect(await setting.statuses(secret) == [200, 200])
        #expect(await setting.statuses(key.secret) == (overlap == 0 ? [401, 401] : [200, 200]))
        // The key can be rotated on.
        let next = await setting.two.call(
            .post, "/tenants/t1/api-keys/\(key.id)/rotate", body: #"{"overlap": 0}"#)
        #expect(await setting.statuses(try #require(next.json["api_key"]?.text)) == [200, 200])
        #expect(await setting.statuses(secret) == [401, 401])
    }

    @Test func `have an API key deleted again that was made and rotated before that`() async throws {
        let setting = try await Setting()
        setting.store.note()
        let key = try await setting.key(setting.one)
        let rotated = await setting.two.call(
            .post, "/tenants/t1/api-keys/\(key.id)/rotate", body: #"{"overlap": 3600}"#)
        let secret = try #require(rotated.json["api_key"]?.text)
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        await setting.goBack()
        await setting.look()
        #expect(await setting.statuses(key.secret) == [401, 401])
        #expect(await setting.statuses(secret) == [401, 401])
    }

    @Test func `have an API key accepted again that was made`() async throws {
        let setting = try await Setting()
        setting.store.note()
        let key = try await setting.key(setting.one)
        await setting.goBack()
        #expect(await setting.statuses(key.secret) == [200, 200])
        // Deleted after that, it stays deleted, also where the replica that made it looks once more.
        #expect(await setting.two.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        setting.ways[0].tell(.rolledBack)
        await setting.look()
        #expect(await setting.statuses(key.secret) == [401, 401])
    }

    @Test func `have a client registered again, or removed again with its sessions`() async throws {
        let setting = try await Setting()
        await setting.one.makeClient("gone")
        await setting.two.makeClient("kept")
        let token = await setting.one.appSession(client: "gone")
        setting.store.note()
        #expect(await setting.one.call(.delete, "/tenants/t1/clients/gone").status == 204)
        await setting.two.makeClient("new")
        await setting.goBack()
        #expect(await setting.clients() == [["kept", "new"], ["kept", "new"]])
        #expect(try await setting.one.count(.sessionEnding) == 1)
        #expect(await setting.two.refresh(token, client: "gone").status != 200)
    }

    @Test func `have a tenant configured again, or made again with the users who logged in there`() async throws {
        let setting = try await Setting()
        setting.store.note()
        await setting.one.makeTenant("t1", #"{"client_id": "c2"}"#)
        await setting.two.makeTenant("t2", #"{"client_id": "c3"}"#)
        await setting.two.set("b1", tenant: "t2", clientID: "c3")
        await setting.goBack()
        for broker in [setting.one, setting.two] {
            #expect(await broker.call(.get, "/tenants/t1").json["client_id"]?.text == "c2")
            #expect(await broker.call(.get, "/tenants/t2").json["client_id"]?.text == "c3")
            #expect(await broker.get("policy=local", tenant: "t2").token == "b1")
        }
    }

    @Test func `have a provider's profile put again, or deleted again, with its tenants`() async throws {
        let setting = try await Setting()
        func profile(_ host: String) -> String {
            #"""
            {"documentation": "https://\#(host)", "as_of": "2026-11-29", "required": ["client_id"], "notes": [],
             "endpoints": {"authorization": "https://\#(host)/a", "token": "https://\#(host)/t"}}
            """#
        }
        _ = await setting.two.call(.put, "/providers/gone", body: profile("gone.example"))
        _ = await setting.one.call(.put, "/providers/changed", body: profile("before.example"))
        await setting.two.makeTenant("t2", #"{"provider": "changed", "client_id": "c1"}"#)
        setting.store.note()
        #expect(await setting.one.call(.delete, "/providers/gone").status == 204)
        #expect(await setting.one.call(.put, "/providers/new", body: profile("new.example")).status == 201)
        #expect(await setting.two.call(.put, "/providers/changed", body: profile("after.example")).status == 200)
        await setting.two.makeTenant("t3", #"{"provider": "new", "client_id": "c1"}"#)
        await setting.goBack()
        for broker in [setting.one, setting.two] {
            #expect(await broker.call(.get, "/providers/gone").status == 404)
            #expect(await broker.call(.get, "/providers/new").status == 200)
            #expect(await broker.call(.get, "/providers/changed").text.contains("after.example"))
            #expect(await broker.beginLogin(tenant: "t2").uri.hasPrefix("https://after.example/a?"))
            #expect(await broker.beginLogin(tenant: "t3").uri.hasPrefix("https://new.example/a?"))
        }
    }

    @Test func `have a tenant removed again with everything under it`() async throws {
        let setting = try await Setting()
        let key = try await setting.key(setting.two)
        setting.store.note()
        #expect(await setting.one.call(.delete, "/tenants/t1").status == 204)
        await setting.goBack()
        #expect(await setting.statuses(key.secret) == [401, 401])
        for broker in [setting.one, setting.two] { #expect(await broker.call(.get, "/tenants/t1").status == 404) }
        #expect(try await setting.one.count(.credentials) == 0)
    }

    @Test func `change nothing that was changed or made after the loss`() async throws {
        let setting = try await Setting()
        setting.store.note()
        await setting.one.makeTenant("t1", #"{"client_id": "lost"}"#)
        await setting.one.makeTenant("t2")
        #expect(await setting.one.call(.delete, "/tenants/t2").status == 204)
        setting.time.advance(by: .seconds(2))
        setting.store.goBack()
        await setting.two.makeTenant("t1", #"{"client_id": "later"}"#)
        await setting.two.makeTenant("t2", #"{"client_id": "again"}"#)
        await setting.look()
        #expect(await setting.one.call(.get, "/tenants/t1").json["client_id"]?.text == "later")
        #expect(await setting.one.call(.get, "/tenants/t2").json["client_id"]?.text == "again")
    }

    // MARK: The journal

    @Test func `have an API key deleted again by the next process of a replica that was killed`() async throws {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(journal: try await directory.journal())
        let key = try await setting.key(setting.one)
        setting.store.note()
        #expect(await setting.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        let next = try await setting.restart(directory)
        for broker in [next, setting.two] {
            #expect(await broker.call(.get, "/credentials", key: key.secret).status == 401)
        }
    }

    @Test func `have an API key rotated again by the next process, with both of its secrets`() async throws {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(journal: try await directory.journal())
        let key = try await setting.key(setting.one)
        setting.store.note()
        let rotated = await setting.one.call(
            .post, "/tenants/t1/api-keys/\(key.id)/rotate", body: #"{"overlap": 3600}"#)
        let secret = try #require(rotated.json["api_key"]?.text)
        let next = try await setting.restart(directory)
        for broker in [next, setting.two] {
            #expect(await broker.call(.get, "/credentials", key: secret).status == 200)
            #expect(await broker.call(.get, "/credentials", key: key.secret).status == 200)
        }
    }

    @Test func `have a client changed again and another one removed again by the next process`() async throws {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(journal: try await directory.journal())
        for client in ["changed", "gone"] { await setting.one.makeClient(client) }
        setting.store.note()
        let settings = #"{"redirect_uris": ["https://new.example/cb"], "storage_key": "default"}"#
        #expect(await setting.one.call(.put, "/tenants/t1/clients/changed", body: settings).status == 200)
        #expect(await setting.one.call(.delete, "/tenants/t1/clients/gone").status == 204)
        let next = try await setting.restart(directory)
        #expect(await next.call(.get, "/tenants/t1/clients/changed").text.contains("https://new.example/cb"))
        #expect(await next.call(.get, "/tenants/t1/clients/gone").status == 404)
    }

    // The replica was away when the other one removed them.
    @Test func `stay removed although the journal of a replica that was killed has them`() async throws {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(journal: try await directory.journal())
        await setting.one.makeClient("gone")
        let key = try await setting.key(setting.one)
        #expect(await setting.two.call(.delete, "/tenants/t1/clients/gone").status == 204)
        #expect(await setting.two.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        // Nothing of that is lost.
        setting.store.note()
        let next = try await setting.restart(directory)
        #expect(await next.call(.get, "/tenants/t1/clients/gone").status == 404)
        #expect(await next.call(.get, "/credentials", key: key.secret).status == 401)
    }

    // An operator restores the database to get the tenant back.
    @Test func `have no tenant removed again by a process that starts anew`() async throws {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(journal: try await directory.journal())
        setting.store.note()
        #expect(await setting.one.call(.delete, "/tenants/t1").status == 204)
        let next = try await setting.restart(directory)
        #expect(await next.call(.get, "/tenants/t1").status == 200)
    }
}
