import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@testable import BrokerCore

/// Sessions of apps, at replicas that hear of each other's changes, and a store that loses its last commits.
@Suite(.timeLimit(.minutes(1))) struct `Sessions that a store has lost` {
    private static let tenant = TenantName("t1")!

    private struct Setting {
        let time: ManualTime
        let store: RewindingStore
        let group = ReplicaStore.Group()
        let ways: [ReplicaStore]
        /// Between the brokers and what tells of their commits.
        let faults: [FaultyStore]
        let brokers: [BrokerHarness]
        var one: BrokerHarness { brokers[0] }
        var two: BrokerHarness { brokers[1] }

        init(skipsSleeps: Bool = true, journal: Journal? = nil) async throws {
            let time = ManualTime(skipsSleeps: skipsSleeps)
            self.time = time
            store = RewindingStore(MemoryRecordStore { time.monotonic })
            var (ways, faults, brokers): ([ReplicaStore], [FaultyStore], [BrokerHarness]) = ([], [], [])
            for index in 0..<2 {
                let way = ReplicaStore(store, in: group)
                let faulty = FaultyStore(way, revalidateAfter: .seconds(5))
                brokers.append(try await BrokerHarness(store: faulty, time: time, journal: index == 0 ? journal : nil))
                way.follow()
                ways.append(way)
                faults.append(faulty)
            }
            (self.ways, self.faults, self.brokers) = (ways, faults, brokers)
            for broker in brokers { try await broker.broker.core.takeUpJournal() }
            await brokers[0].makeTenant()
            await brokers[0].makeClient()
        }

        /// A session that `one` begins after the store was noted.
        func begin() async throws -> String {
            let code = await one.appCode()
            store.note()
            return try #require(await one.exchange(code).json["refresh_token"]?.text)
        }

        /// Loses what was committed since the store was noted.
        func goBack() {
            time.advance(by: .seconds(1))
            store.goBack()
        }

        func sessions() async -> Int { await two.sessions().count }
    }

    /// The replica notices that the store has lost commits, and stores again what it has.
    private static func recover(_ broker: BrokerHarness) async { _ = await broker.broker.core.storeRecovery.check() }

    @Test func `are stored again by the replica that began them where the one that had them last has died`()
        async throws
    {
        let setting = try await Setting()
        let first = try await setting.begin()
        let second = try #require(await setting.two.refresh(first).json["refresh_token"]?.text)
        setting.goBack()
        await Self.recover(setting.one)
        let answer = await setting.one.refresh(second)
        #expect(answer.status == 200, "\(answer.text)")
        let third = try #require(answer.json["refresh_token"]?.text)
        #expect(await setting.one.refresh(third).status == 200)
    }

    @Test func `are stored again as the replica has them that had them last`() async throws {
        let setting = try await Setting(skipsSleeps: false)
        let first = try await setting.begin()
        let answer = await setting.two.refresh(first)
        setting.goBack()
        // Half of the hold is over for one when the other one notices.
        async let recovered: Void = Self.recover(setting.one)
        await setting.time.sleepers(of: .milliseconds(500))
        #expect(await setting.sessions() == 0)
        async let other: Void = Self.recover(setting.two)
        await setting.time.sleepers(of: .milliseconds(500), .milliseconds(500))
        #expect(await setting.sessions() == 1)
        setting.time.advance(by: StoreRollback.hold)
        _ = await (recovered, other)
        // An answer that may have been lost is repeated, which only that replica has.
        #expect(await setting.one.refresh(first).json["refresh_token"] == answer.json["refresh_token"])
    }

    @Test func `are not taken for ended where a cache finds them missing before the loss is known`() async throws {
        let setting = try await Setting(skipsSleeps: false)
        let token = try await setting.begin()
        setting.goBack()
        let core = setting.one.broker.core
        let revalidation = CacheRevalidation(
            vault: core.vault, validity: core.bus.cacheValidity,
            instruments: Instruments(time: setting.time, log: core.log, metrics: Metrics())
        ) { core.bus.announce(missedBy: $0, stored: $1) }
        revalidation.include(core.apps.sessions.revalidatedCache)
        let run = Task { await revalidation.run() }
        await setting.time.sleepers(of: .milliseconds(250))
        for _ in 0..<60 {
            await setting.time.pass(.seconds(1))
            setting.ways[0].tell(.alive)
        }
        run.cancel()
        await run.value
        #expect(revalidation.missedChangeCount == 1)
        #expect(core.credentials.records.memory.known([.session]).count == 1)
        async let recovered: Void = Self.recover(setting.one)
        await setting.time.sleepers(of: .milliseconds(500))
        setting.time.advance(by: StoreRollback.hold)
        await recovered
        #expect(await setting.sessions() == 1)
        #expect(await setting.two.refresh(token).status == 200)
    }

    @Test func `are stored again also where the answer about their beginning was lost`() async throws {
        let setting = try await Setting()
        let code = await setting.one.appCode()
        setting.store.note()
        setting.faults[0].onCommit(of: .session, .loseAnswer)
        let token = try #require(await setting.one.exchange(code).json["refresh_token"]?.text)
        setting.goBack()
        await Self.recover(setting.one)
        #expect(await setting.two.refresh(token).status == 200)
    }

    @Test func `are not stored again where another replica has ended them, although the word of it was lost`()
        async throws
    {
        let setting = try await Setting()
        let token = try await setting.begin()
        setting.ways[0].setDelivery(.fails)
        let id = try #require(await setting.two.sessions().first?["session_id"]?.text)
        #expect(await setting.two.call(.delete, "/tenants/t1/sessions/\(id)").status == 204)
        // Nothing of that is lost.
        setting.store.note()
        setting.goBack()
        await Self.recover(setting.one)
        #expect(await setting.sessions() == 0)
        setting.time.advance(by: .seconds(11))
        #expect(await setting.two.refresh(token).status == 400)
    }

    @Test func `end once more where both their beginning and their end are lost, whatever was stored again meanwhile`()
        async throws
    {
        let setting = try await Setting()
        let token = try await setting.begin()
        setting.ways[0].setDelivery(.fails)
        #expect(await setting.two.app("/oauth2/revoke", [("client_id", "app"), ("token", token)]).status == 200)
        setting.goBack()
        await Self.recover(setting.one)
        #expect(await setting.sessions() == 1)
        await Self.recover(setting.two)
        #expect(await setting.sessions() == 0)
    }

    @Test func `are stored again by the replica that began them also where the first look takes longer than the hold`()
        async throws
    {
        let setting = try await Setting()
        let first = try await setting.begin()
        let second = try #require(await setting.two.refresh(first).json["refresh_token"]?.text)
        setting.one.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2", userID: 42)))
        _ = await setting.one.get("policy=local_force_refresh")
        setting.goBack()
        setting.store.beforeNextReplacement { setting.time.advance(by: StoreRollback.hold * 2) }
        await Self.recover(setting.one)
        #expect(await setting.two.refresh(second).status == 200)
    }

    @Test(arguments: [true, false])
    func `stay ended where the app revokes its token before they are stored again`(isOperator: Bool) async throws {
        let setting = try await Setting()
        let token = try await setting.begin()
        let id = try #require(await setting.one.sessions().first?["session_id"]?.text)
        setting.goBack()
        setting.two.broker.core.bus.announceRollback()
        if isOperator {
            #expect(await setting.two.call(.delete, "/tenants/t1/sessions/\(id)").status == 404)
        } else {
            #expect(await setting.two.app("/oauth2/revoke", [("client_id", "app"), ("token", token)]).status == 200)
        }
        await Self.recover(setting.one)
        #expect(await setting.sessions() == 0)
        #expect(await setting.two.refresh(token).status == 400)
    }

    @Test func `stay ended where the replica that has ended them looks first`() async throws {
        let setting = try await Setting()
        let token = try await setting.begin()
        setting.ways[0].setDelivery(.fails)
        #expect(await setting.two.app("/oauth2/revoke", [("client_id", "app"), ("token", token)]).status == 200)
        setting.goBack()
        await Self.recover(setting.two)
        await Self.recover(setting.one)
        #expect(await setting.sessions() == 0)
        #expect(await setting.two.refresh(token).status == 400)
    }

    @Test func `end with their user's logout also where that was lost`() async throws {
        let setting = try await Setting()
        let token = try await setting.begin()
        setting.store.note()
        #expect(await setting.one.logOut().status == 204)
        setting.goBack()
        await Self.recover(setting.one)
        #expect(try await setting.one.count(.sessionEnding) == 1)
        _ = await setting.two.broker.core.sessionEndings.handleAllDue()
        #expect(await setting.sessions() == 0)
        #expect(await setting.two.refresh(token).status == 400)
    }

    /// What the journal has of sessions.
    private static func sessions(_ journal: Journal) async throws -> [RecentCommit] {
        try await journal.recent().map(\.commit).filter { $0.id.kind == .session }
    }

    private static func journal(_ directory: StoreFixtureDirectory) async throws -> Journal {
        Journal(
            vault: Vault(
                store: try await FileRecordStore(directory: directory.path),
                keyring: try Keyring(parsing: BrokerHarness.masterKeys)))
    }

    @Test(arguments: [(899, false, 1), (900, false, 0), (899, true, 0), (900, true, 1)])
    func
        `are mended by the next process of a replica that was killed, as long as its journal keeps them`(
            age: Int, isEnded: Bool, count: Int
        ) async throws
    {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(journal: try await Self.journal(directory))
        let token = try await setting.begin()
        if isEnded {
            setting.store.note()
            #expect(await setting.one.app("/oauth2/revoke", [("client_id", "app"), ("token", token)]).status == 200)
        }
        setting.store.goBack()
        setting.time.advance(by: .seconds(age))
        // As after a kill.
        await setting.one.broker.core.renewer.publisher.journal?.close()
        let journal = try await Self.journal(directory)
        let next = try await BrokerHarness(
            store: ReplicaStore(setting.store, in: setting.group), time: setting.time, journal: journal)
        try await next.broker.core.takeUpJournal()
        let memory = next.broker.core.credentials.records.memory
        await memory.expire()
        #expect(try await Self.sessions(journal).isEmpty == (age == 900))
        await Self.recover(next)
        #expect(await setting.sessions() == count)
        if count == 1, !isEnded { #expect(await next.refresh(token).status == 200) }
        setting.time.advance(by: .seconds(900))
        await memory.expire()
        #expect(try await Self.sessions(journal).isEmpty)
        await journal.close()
    }
}
