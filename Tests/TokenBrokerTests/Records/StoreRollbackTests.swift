import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import HTTPSClient
import OAuth
import Reactor
import Testing
import TokenBroker

@testable import BrokerCore

@Suite(.timeLimit(.minutes(2))) struct `A store that goes back` {
    private static let force = "policy=local_force_refresh"

    /// Replicas of one store, which hear of each other's changes. A user has "a1" with "r1" when the store is noted.
    private struct Setting {
        let time: ManualTime
        let store: RewindingStore
        let group = ReplicaStore.Group()
        let ways: [ReplicaStore]
        let brokers: [BrokerHarness]
        var one: BrokerHarness { brokers[0] }
        var two: BrokerHarness { brokers[1] }

        init(
            replicas: Int = 2, skipsSleeps: Bool = true, journal: Journal? = nil, memory: Duration = .seconds(900)
        ) async throws {
            let time = ManualTime(skipsSleeps: skipsSleeps)
            self.time = time
            store = RewindingStore(MemoryRecordStore { time.monotonic })
            var ways: [ReplicaStore] = []
            var brokers: [BrokerHarness] = []
            for index in 0..<replicas {
                let way = ReplicaStore(store, in: group)
                ways.append(way)
                brokers.append(
                    try await BrokerHarness(store: way, time: time, journal: index == 0 ? journal : nil) {
                        $0.core.grantMemory = memory
                    })
                way.follow()
            }
            self.ways = ways
            self.brokers = brokers
            try await brokers[0].broker.core.takeUpJournal()
            await brokers[0].makeTenant()
            await brokers[0].set("a1", refresh: "r1")
            store.note()
        }

        /// Has a replica exchange "r1" for "r2", and return the answer.
        func refresh(_ broker: BrokerHarness, from token: Int = 1) async -> BrokerHarness.Answer {
            broker.transport.enqueue(.json(200, BrokerHarness.token("a\(token + 1)", refresh: "r\(token + 1)")))
            return await broker.get(force)
        }

        /// The store loses what was committed since it was noted, and the replicas hear of it.
        func goBack(telling told: [ReplicaStore]? = nil) {
            time.advance(by: .seconds(1))
            store.goBack()
            for way in told ?? ways { way.tell(.rolledBack) }
        }

        /// The refresh token that a replica presented last.
        func presented(_ broker: BrokerHarness) -> String? {
            broker.transport.seen.last?.form["refresh_token"]
        }
    }

    @Test func `has what this replica was granted stored again, as a later version, before it is asked for more`()
        async throws
    {
        let setting = try await Setting(replicas: 1)
        let granted = await setting.refresh(setting.one)
        #expect(granted.token == "a2")
        setting.goBack()
        let next = await setting.refresh(setting.one, from: 2)
        #expect(next.token == "a3" && next.version > granted.version)
        #expect(setting.presented(setting.one) == "r2")
        #expect(try await setting.one.causes() == ["set", "recovery", "refresh"])
        #expect(setting.one.log.contains { $0.contains("credentials_stored_again") })
    }

    // H051
    @Test func `is noticed by a version that is older than one that was read, without a word`() async throws {
        let setting = try await Setting(replicas: 1)
        let granted = await setting.refresh(setting.one)
        setting.store.goBack()
        // Its cache entry has expired, and is read again.
        setting.time.advance(by: .seconds(1))
        setting.ways[0].follow()
        let answer = await setting.one.get()
        #expect(answer.token == "a2" && answer.version > granted.version)
        #expect(setting.one.transport.seen.count == 1)
        #expect(try await setting.one.causes() == ["set", "recovery"])
    }

    @Test func `keeps a replica that has no newer one from presenting what may be spent, until all had their turn`()
        async throws
    {
        let setting = try await Setting(skipsSleeps: false)
        // The word of it is lost with the database.
        setting.ways[1].setDelivery(.fails)
        let granted = await setting.refresh(setting.one)
        #expect(granted.token == "a2")
        setting.goBack()
        async let renewed = setting.two.get(Self.force)
        await setting.time.sleepers(of: .seconds(3))
        #expect(setting.two.transport.seen.isEmpty)
        setting.ways[1].setDelivery(.passes)
        async let looked = setting.one.broker.core.storeRecovery.check()
        await setting.time.sleepers(of: .milliseconds(500), .seconds(3))
        setting.time.advance(by: StoreRollback.hold)
        _ = await looked
        let answer = await renewed
        #expect(answer.token == "a2" && answer.version > granted.version)
        #expect(setting.two.transport.seen.isEmpty)
        let line = try #require(setting.one.log.first { $0.contains("store_went_back") })
        #expect(line.contains(#""restored":1"#) && line.contains(#""lost":0"#))
    }

    @Test func `is read again by a replica that waits for what another one puts back, and does not hear of it`()
        async throws
    {
        let setting = try await Setting(skipsSleeps: false)
        // The second one has heard of the version, and has not read it.
        let granted = await setting.refresh(setting.one)
        setting.goBack()
        // From now on it hears nothing, as while its feed is being connected again.
        setting.ways[1].setDelivery(.fails)
        let start = setting.time.monotonic
        async let renewed = setting.two.get(Self.force)
        await setting.time.sleepers(of: .seconds(3))
        async let looked = setting.one.broker.core.storeRecovery.check()
        await setting.time.sleepers(of: .seconds(3), .milliseconds(500))
        let clock = Task { [time = setting.time] in
            while !Task.isCancelled {
                await time.sleeper()
                time.advance(by: .milliseconds(250))
            }
        }
        let answer = await renewed
        let took = start.duration(to: setting.time.monotonic)
        _ = await looked
        clock.cancel()
        await clock.value
        #expect(answer.token == "a2" && answer.version > granted.version)
        #expect(setting.two.transport.seen.isEmpty)
        #expect(took < StoreRollback.longHold - .seconds(3), "\(took)")
    }

    @Test func `has no replica serve an older version than it has heard of, while another one stores that again`()
        async throws
    {
        let setting = try await Setting(skipsSleeps: false)
        let granted = await setting.refresh(setting.one)
        setting.goBack()
        async let read = setting.two.get()
        await setting.time.sleepers(of: .milliseconds(250))
        let looking = Task { await setting.one.broker.core.storeRecovery.check() }
        let answer = await read
        #expect(answer.token == "a2" && answer.version > granted.version)
        #expect(setting.two.transport.seen.isEmpty)
        looking.cancel()
        _ = await looking.value
    }

    @Test func `serves what is left when no replica has stored the newer version again by the end of the hold`()
        async throws
    {
        let setting = try await Setting(skipsSleeps: false)
        _ = await setting.refresh(setting.one)
        setting.goBack(telling: [setting.ways[1]])
        async let read = setting.two.get()
        let start = setting.time.monotonic
        let clock = Task { [time = setting.time] in
            while !Task.isCancelled {
                await time.sleeper()
                time.advance(by: .milliseconds(250))
            }
        }
        let answer = await read
        let took = start.duration(to: setting.time.monotonic)
        clock.cancel()
        // The clock may wait for a sleeper.
        async let last: Void = { try? await setting.time.sleep(for: .milliseconds(1)) }()
        await clock.value
        setting.time.advance(by: .seconds(1))
        await last
        #expect(answer.token == "a1")
        #expect(took >= .seconds(2) && took <= StoreRollback.hold + .milliseconds(250), "\(took)")
    }

    @Test func `loses no logout, at whichever replica it was and whichever replica read of it`() async throws {
        for reader in [0, 1] {
            let setting = try await Setting()
            #expect(await setting.one.logOut().status == 204)
            _ = await setting.two.get("policy=local_valid")
            setting.goBack()
            _ = await setting.brokers[reader].broker.core.storeRecovery.check()
            #expect(await setting.two.status().isLoggedIn == false)
            #expect(await setting.one.get(Self.force).level != "user")
            #expect(setting.one.transport.seen.isEmpty && setting.two.transport.seen.isEmpty)
            #expect(try await setting.one.causes() == ["set", "logout"])
        }
    }

    @Test func `is read once more by a replica that comes second to store a logout again`() async throws {
        let setting = try await Setting()
        #expect(await setting.one.logOut().status == 204)
        #expect(await setting.two.status().isLoggedIn == false)
        setting.goBack()
        setting.store.beforeNextReplacement { _ = await setting.two.broker.core.storeRecovery.check() }
        // Its cache entries have expired.
        setting.time.advance(by: .seconds(1))
        setting.ways[0].follow()
        #expect(await setting.one.get("policy=local_valid").level == "basic")
        #expect(await setting.one.status().isLoggedIn == false)
        let causes = try await setting.one.causes()
        #expect(causes == ["set", "logout"], "\(causes)")
    }

    @Test func `has a logout stored again over a session that another replica has put back`() async throws {
        let setting = try await Setting()
        _ = await setting.refresh(setting.one)
        // It does not hear of the logout, and takes its own grant for the newest.
        setting.ways[0].setDelivery(.fails)
        #expect(await setting.two.logOut().status == 204)
        setting.ways[0].setDelivery(.passes)
        setting.goBack()
        _ = await setting.one.broker.core.storeRecovery.check()
        #expect(try await setting.one.causes() == ["set", "recovery"])
        setting.ways[1].tell(.rolledBack)
        _ = await setting.two.broker.core.storeRecovery.check()
        #expect(await setting.one.status().isLoggedIn == false)
        #expect(try await setting.one.causes() == ["set", "recovery", "logout"])
    }

    @Test func `has the newest grant stored again over an older one that another replica has put back`() async throws {
        let setting = try await Setting()
        _ = await setting.refresh(setting.one)
        setting.ways[0].setDelivery(.fails)
        _ = await setting.refresh(setting.two, from: 2)
        setting.ways[0].setDelivery(.passes)
        setting.goBack()
        _ = await setting.one.broker.core.storeRecovery.check()
        _ = await setting.two.broker.core.storeRecovery.check()
        #expect(await setting.refresh(setting.one, from: 3).token == "a4")
        #expect(setting.presented(setting.one) == "r3")
    }

    @Test func `is mended by a replica that has only read what it has lost`() async throws {
        let setting = try await Setting()
        let granted = await setting.refresh(setting.one)
        #expect(await setting.two.get().token == "a2")
        // The replica that was granted it is gone.
        setting.goBack(telling: [setting.ways[1]])
        let next = await setting.refresh(setting.two, from: 2)
        #expect(next.token == "a3" && next.version > granted.version)
        #expect(setting.presented(setting.two) == "r2")
    }

    @Test func `overwrites no login that came after it`() async throws {
        let setting = try await Setting()
        setting.ways[0].setDelivery(.fails)
        _ = await setting.refresh(setting.one)
        setting.store.goBack()
        setting.ways[1].tell(.rolledBack)
        setting.time.advance(by: .seconds(1))
        await setting.two.set("b1", refresh: "s1")
        setting.ways[0].setDelivery(.passes)
        setting.ways[0].tell(.rolledBack)
        _ = await setting.one.broker.core.storeRecovery.check()
        #expect(await setting.two.get().token == "b1")
        setting.ways[0].follow()
        #expect(await setting.one.get().token == "b1")
    }

    // H051
    @Test func `is reported as a loss where no replica has what it lacks`() async throws {
        let setting = try await Setting()
        _ = await setting.refresh(setting.one)
        // The other one has heard of the version, and has not read it.
        setting.goBack(telling: [setting.ways[1]])
        _ = await setting.two.broker.core.storeRecovery.check()
        let line = try #require(setting.two.log.first { $0.contains("store_went_back") })
        #expect(line.contains(#""lost":1"#) && line.contains(#""level":"error""#))
        setting.two.transport.enqueue(.json(400, #"{"error":"invalid_grant"}"#))
        _ = await setting.two.get(Self.force)
        #expect(setting.two.log.contains { $0.contains("session_lost") })
        let ended = try #require(try await setting.two.events().last { $0.kind == .credentialsDeauthorized })
        #expect(ended.data["reason"]?.text == "outcome_unknown")
    }

    @Test func `has nothing stored again under a tenant that was deleted, and nothing without the memory`() async throws
    {
        let setting = try await Setting()
        _ = await setting.refresh(setting.one)
        #expect(await setting.one.call(.delete, "/tenants/t1").status == 204)
        setting.goBack()
        _ = await setting.one.broker.core.storeRecovery.check()
        // The deletion is carried out again.
        #expect(await setting.one.call(.get, "/tenants/t1").status == 404)
        #expect(try await setting.one.causes() == [])

        let without = try await Setting(replicas: 1, memory: .zero)
        _ = await without.refresh(without.one)
        without.goBack()
        _ = await without.refresh(without.one, from: 2)
        #expect(without.presented(without.one) == "r1")
    }

    // MARK: Renewals that are under way

    /// Has a replica exchange "r1" for "r2", and the answer wait for the gate.
    private static func begin(_ setting: Setting, _ gate: Gate) -> Task<BrokerHarness.Answer, Never> {
        setting.one.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        return Task { await setting.one.get(Self.force) }
    }

    @Test(arguments: [false, true], [false, true])
    func `has a logout or a login stored again over what a renewal brought that was under way at another replica`(
        isLogin: Bool, isLate: Bool
    ) async throws {
        let setting = try await Setting()
        let gate = Gate()
        let renewed = Self.begin(setting, gate)
        await gate.arrivals()
        // The word of it is lost with the database.
        setting.ways[0].setDelivery(.fails)
        if isLogin {
            await setting.two.set("b1", refresh: "s1")
        } else {
            #expect(await setting.two.logOut().status == 204)
        }
        setting.ways[0].setDelivery(.passes)
        setting.goBack()
        // Before the other one has looked, and as late as it may hear of it.
        if isLate { setting.time.advance(by: StoreRollback.hold) }
        gate.open()
        #expect(await renewed.value.status == 200)
        _ = await setting.two.broker.core.storeRecovery.check()
        for broker in setting.brokers {
            #expect(await broker.get("policy=local_valid").token == (isLogin ? "b1" : nil))
            #expect(await broker.status().isLoggedIn == isLogin)
        }
        #expect(
            try await setting.one.causes()
                == (isLogin ? ["set", "refresh", "recovery"] : ["set", "refresh", "logout"]))
    }

    @Test func `has a login stored again over a session that a renewal has found ended at another replica`()
        async throws
    {
        let setting = try await Setting()
        let gate = Gate()
        setting.one.transport.enqueue(.after(gate, .json(400, #"{"error":"invalid_grant"}"#)))
        let renewed = Task { await setting.one.get(Self.force) }
        await gate.arrivals()
        setting.ways[0].setDelivery(.fails)
        await setting.two.set("b1", refresh: "s1")
        setting.ways[0].setDelivery(.passes)
        setting.goBack()
        gate.open()
        _ = await renewed.value
        _ = await setting.two.broker.core.storeRecovery.check()
        for broker in setting.brokers { #expect(await broker.get("policy=local_valid").token == "b1") }
        #expect(try await setting.one.causes() == ["set", "revoked", "recovery"])
    }

    @Test(arguments: [true, false])
    func `has a logout stored again before what this replica was granted is stored`(isRead: Bool) async throws {
        let setting = try await Setting()
        let gate = Gate()
        let renewed = Self.begin(setting, gate)
        await gate.arrivals()
        #expect(await setting.brokers[isRead ? 1 : 0].logOut().status == 204)
        // It knows of a logout that it has read as well as of its own.
        if isRead { #expect(await setting.one.status().isLoggedIn == false) }
        setting.goBack(telling: [setting.ways[0]])
        gate.open()
        _ = await renewed.value
        #expect(await setting.one.status().isLoggedIn == false)
        #expect(try await setting.one.causes() == ["set", "logout"])
    }

    @Test func `has what was granted stored at once although its row shows another's lease`() async throws {
        let setting = try await Setting()
        let gate = Gate()
        let renewed = Self.begin(setting, gate)
        await gate.arrivals()
        setting.goBack()
        // Another replica has claimed the record, and found that it is not to ask yet; and it could not say so.
        let id = try #require(
            StorageKey("default").map { CredentialsID(tenant: TenantName("t1")!, storageKey: $0) })
        let standing = try await setting.two.broker.core.credentials.records.reread(id)
        try await setting.ways[1].commit([
            .claim(
                CredentialsRecords.recordID(id), version: standing.version,
                LeaseClaim(holder: "other.1", replacing: nil, for: .seconds(5), marksUse: true))
        ])
        let start = setting.time.monotonic
        gate.open()
        #expect(await renewed.value.token == "a2")
        #expect(start.duration(to: setting.time.monotonic) == .zero)
        #expect(
            try await setting.two.broker.core.credentials.records.reread(id).record.held?.accessToken
                == SecretBytes(utf8: "a2"))
    }

    // MARK: The hold

    @Test(
        arguments: [(0, 3000), (2999, 3000), (3000, 3000), (3999, 3000), (4000, nil), (60_000, nil)] as [(Int, Int?)])
    func `lets no token be presented until it has answered for all of the hold`(failure: Int, rest: Int?) {
        let time = ManualTime()
        let rollback = StoreRollback(span: .seconds(900), time: time)
        rollback.storeFailed()
        #expect(rollback.remainingHold == nil)
        rollback.note()
        #expect(rollback.remainingHold == StoreRollback.hold)
        time.advance(by: .milliseconds(failure))
        rollback.storeFailed()
        #expect(rollback.remainingHold == rest.map { .milliseconds($0) })
        guard rest != nil else { return }
        #expect(rollback.remainingLongHold == StoreRollback.longHold)
        #expect(rollback.takeSweep())
        time.advance(by: .milliseconds(2999))
        #expect(rollback.remainingHold == .milliseconds(1))
        time.advance(by: .milliseconds(1))
        #expect(rollback.remainingHold == nil)
    }

    @Test func `is stored to again after it was away during the hold, before any replica presents a token`()
        async throws
    {
        let setting = try await Setting(skipsSleeps: false)
        setting.ways[1].setDelivery(.fails)
        #expect(await setting.refresh(setting.one).token == "a2")
        setting.goBack()
        setting.store.setAway(true)
        // Neither replica reaches it, for longer than the hold.
        let looks = setting.brokers.map(\.broker.core.storeRecovery)
        for _ in 0..<8 {
            for look in looks { #expect(await look.check() == .milliseconds(250)) }
            setting.time.advance(by: .milliseconds(500))
        }
        setting.store.setAway(false)
        setting.ways[1].setDelivery(.passes)
        // The one that knows less is the first to come.
        async let renewed = setting.two.get(Self.force)
        await setting.time.sleepers(of: .milliseconds(2500))
        setting.time.advance(by: .seconds(1))
        #expect(setting.two.transport.seen.isEmpty)
        async let looked = setting.one.broker.core.storeRecovery.check()
        // No time passes while it stores what it has.
        while try await !setting.one.causes().contains("recovery") { await Task.yield() }
        let clock = Task { [time = setting.time] in
            while !Task.isCancelled {
                await time.sleeper()
                time.advance(by: .milliseconds(250))
            }
        }
        let answer = await renewed
        _ = await looked
        clock.cancel()
        await clock.value
        #expect(answer.token == "a2")
        #expect(setting.two.transport.seen.isEmpty)
    }

    @Test func `is looked at once more when another one tells of it within a second`() {
        let rollback = StoreRollback(span: .seconds(900), time: ManualTime())
        rollback.note()
        #expect(rollback.takeSweep() && !rollback.takeSweep())
        rollback.note()
        #expect(rollback.takeSweep())
    }

    @Test func `has what it lacks stored again by a replica that is about to end`() async throws {
        let setting = try await Setting(skipsSleeps: false)
        #expect(await setting.refresh(setting.one).token == "a2")
        let recovery = setting.one.broker.core.storeRecovery
        setting.store.setAway(true)
        let job = Task { await recovery.run() }
        setting.goBack()
        // It waits to try again.
        await setting.time.sleepers(of: .milliseconds(250))
        setting.store.setAway(false)
        job.cancel()
        await job.value
        await recovery.finish()
        #expect(try await setting.one.causes() == ["set", "recovery"])
    }

    // MARK: The journal

    private static func journal(_ directory: StoreFixtureDirectory) async throws -> Journal {
        Journal(
            vault: Vault(
                store: try await FileRecordStore(directory: directory.path),
                keyring: try Keyring(parsing: BrokerHarness.masterKeys)))
    }

    @Test(arguments: [(899, true), (900, false)])
    func `is mended by the next process from its journal, as long as that keeps it`(
        age: Int, isKept: Bool
    ) async throws {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(replicas: 1, journal: try await Self.journal(directory))
        _ = await setting.refresh(setting.one)
        setting.store.goBack()
        setting.time.advance(by: .seconds(age))
        // As after a kill.
        await setting.one.broker.core.renewer.publisher.journal?.close()
        let journal = try await Self.journal(directory)
        let next = try await BrokerHarness(
            store: ReplicaStore(setting.store, in: setting.group), time: setting.time, journal: journal)
        try await next.broker.core.takeUpJournal()
        #expect(try await journal.recent().count == 1)
        _ = await next.broker.core.storeRecovery.check()
        await next.broker.core.credentials.records.memory.expire()
        #expect(try await journal.recent().count == (isKept ? 1 : 0))
        next.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await next.get(Self.force).token == "a3")
        #expect(setting.presented(next) == (isKept ? "r2" : "r1"))
        // The store says itself that it has gone back.
        #expect(next.log.contains { $0.contains("store_went_back") })
        await journal.close()
    }
}
