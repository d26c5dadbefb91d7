import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import FoundationEssentials
import HTTPCodec
import OAuth
import Reactor
import Testing
import TokenBroker

@Suite struct `The journal` {
    private static let row = RecordID(.credentials, TenantName("t1")!, key: "default")

    /// A replica of a shared store that can be away, with a journal in a directory. A user's token, "a1" with "r1",
    /// has expired.
    private struct Setting {
        let directory = StoreFixtureDirectory()
        let time = ManualTime(skipsSleeps: false)
        let base: MemoryRecordStore
        let store: BrokerFaultyStore
        let broker: BrokerHarness
        let journal: Journal
        /// What the journal is written to.
        let journalStore: BrokerFaultyStore

        /// - Parameter tenant: more members of the tenant's configuration.
        init(tenant members: String = "") async throws {
            let time = time
            base = MemoryRecordStore { time.monotonic }
            store = BrokerFaultyStore(base, revalidateAfter: .seconds(5))
            journalStore = BrokerFaultyStore(try await FileRecordStore(directory: directory.path))
            journal = try Journal(in: journalStore)
            broker = try await BrokerHarness(store: store, time: time, journal: journal)
            await broker.makeTenant("t1", #"{"client_id": "c1"\#(members)}"#)
            await broker.set("a1", refresh: "r1")
            time.advance(by: .seconds(3600))
        }

        /// Refreshes, and has the store go away before the grant is stored.
        func refreshWithoutStore() async -> BrokerHarness.Answer {
            let store = store
            broker.transport.enqueue(
                .decide { _ in
                    store.isAway = true
                    return .json(200, BrokerHarness.token("a2", refresh: "r2"))
                })
            return await broker.get()
        }

        /// Another replica of the same store, with the journal if it is given.
        func another(_ journal: Journal? = nil) async throws -> BrokerHarness {
            try await BrokerHarness(
                store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), time: time, journal: journal)
        }

        func entries() async throws -> Int {
            try #require(await broker.metric("token_broker_journal_entries"))
        }

        /// Lets time pass while `body` runs.
        func passing<R: Sendable>(_ body: () async -> R) async -> R {
            let clock = Task { [time] in
                while !Task.isCancelled {
                    await time.sleeper()
                    time.advance(by: .milliseconds(250))
                }
            }
            let result = await body()
            clock.cancel()
            await clock.value
            return result
        }

        /// Waits until everything in the journal is stored.
        func untilStored(by broker: BrokerHarness? = nil) async {
            let credentials = (broker ?? self.broker).broker.credentials
            await passing { while credentials.countInJournal > 0 { await Task.yield() } }
        }
    }

    @Test func `what was granted while the store is away is served, and stored when it is back`() async throws {
        let setting = try await Setting()
        let answer = await setting.refreshWithoutStore()
        #expect(answer.token == "a2")
        #expect(try await setting.entries() == 1)
        // While it is away, and for longer than any cache entry is valid.
        setting.time.advance(by: .seconds(60))
        #expect(await setting.broker.get().token == "a2")
        // Another change may come first, so that no entity tag stands for it yet.
        #expect(answer.tag.isEmpty)
        #expect(await setting.broker.get().tag.isEmpty)
        let refused = await setting.passing { await setting.broker.get("policy=local_force_refresh") }
        #expect(refused.code == "storage_unavailable")
        #expect(setting.broker.transport.seen.count == 1)

        setting.store.isAway = false
        await setting.untilStored()
        let other = try await setting.another()
        #expect(await other.get().token == "a2")
        let tag = await other.get().tag
        #expect(!tag.isEmpty)
        #expect(await setting.broker.get().tag == tag)
        let kinds = try await other.events().map(\.kind)
        #expect(kinds.suffix(2) == [.credentialsUpdated, .refreshSucceeded])
        #expect(setting.broker.log.contains { $0.contains("credentials_published_from_journal") })
        await setting.broker.broker.core.finish()
        #expect(try await setting.another(setting.journal).broker.core.credentials.countInJournal == 0)
    }

    // H077
    @Test func `a refresh token without anything to serve is in the journal for the next process`() async throws {
        let setting = try await Setting()
        let store = setting.store
        setting.broker.transport.enqueue(
            .decide { _ in
                store.isAway = true
                return .json(200, #"{"access_token": null, "token_type": "Bearer", "refresh_token": "r2"}"#)
            })
        #expect(await setting.broker.get().code == "token_response_error")
        #expect(try await setting.entries() == 1)
        await setting.journal.close()
        let journal = try await setting.directory.journal()
        let next = try await setting.another(journal)
        try await next.broker.core.takeUpJournal()
        await setting.untilStored(by: next)
        next.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await next.get().token == "a3")
        #expect(next.transport.seen.last?.form["refresh_token"] == "r2")
        #expect(try await next.causes() == ["set", "refresh"])
        await next.broker.core.finish()
    }

    // H077
    @Test func `the next process stores what the one before could not`() async throws {
        let setting = try await Setting()
        #expect(await setting.refreshWithoutStore().token == "a2")
        // As after a kill: no call was told of the end.
        let abandoned = setting.journal
        await abandoned.close()
        let journal = try await setting.directory.journal()
        let next = try await setting.another(journal)
        try await next.broker.core.takeUpJournal()
        setting.time.advance(by: .seconds(20))
        await setting.untilStored(by: next)
        #expect(await next.get().token == "a2")
        #expect(next.transport.seen.isEmpty)
        #expect(try await next.events().count { $0.kind == .credentialsUpdated } == 2)
        setting.time.advance(by: .seconds(3600))
        next.transport.enqueue(.json(200, BrokerHarness.token("a3")))
        #expect(await next.get().token == "a3")
        #expect(next.transport.seen.map { $0.form["refresh_token"] } == ["r2"])
        await next.broker.core.finish()
    }

    @Test(arguments: [("c1", "refresh"), ("c2", "upgrade")])
    func `the next process tells what the credentials came from`(clientID: String, cause: String) async throws {
        let setting = try await Setting()
        await setting.broker.makeTenant("t1", #"{"client_id": "\#(clientID)"}"#)
        #expect(await setting.refreshWithoutStore().token == "a2")
        await setting.journal.close()
        let next = try await setting.another(try await setting.directory.journal())
        try await next.broker.core.takeUpJournal()
        setting.time.advance(by: .seconds(20))
        await setting.untilStored(by: next)
        #expect(try await next.causes() == ["set", cause])
        await next.broker.core.finish()
    }

    /// Another replica presents the token within the grace, and what it is granted is the newer one. Later it is granted
    /// nothing.
    @Test(
        arguments: [
            (#", "reuse_grace": 0"#, 0...1, 0), (#", "reuse_grace": 5"#, 4...5, 0),
            (#", "rotation": "always""#, 9...10, 0),
            (#", "reuse_grace": 60"#, 20...21, 0), (#", "reuse_grace": 60"#, 0...1, 59),
        ] as [(String, ClosedRange<Int64>, Int64)])
    func `the next process waits for another replica's lease by the tenant's grace`(
        members: String, wait: ClosedRange<Int64>, age: Int64
    ) async throws {
        let setting = try await Setting(tenant: members)
        #expect(await setting.refreshWithoutStore().token == "a2")
        await setting.broker.broker.core.finish()
        await setting.journal.close()
        setting.time.advance(by: .seconds(age))
        let version = try #require(try await setting.base.read(Self.row)).version
        let holder = try #require(try await setting.base.read(Self.row)?.lease?.holder)
        try await setting.base.commit([
            .claim(
                Self.row, version: version,
                LeaseClaim(
                    holder: "other", replacing: holder, replacesStanding: true, for: .seconds(20), marksUse: true))
        ])
        let journal = try await setting.directory.journal()
        let next = try await setting.another(journal)
        let start = setting.time.monotonic
        try await next.broker.core.takeUpJournal()
        await setting.untilStored(by: next)
        let took = start.duration(to: setting.time.monotonic)
        #expect(wait.contains(took.components.seconds), "\(took)")
        #expect(await next.get().token == "a2")
        await next.broker.core.finish()
    }

    @Test(arguments: ["logout", "login", "refusal", "restore"])
    func `what has come between decides`(event: String) async throws {
        let setting = try await Setting()
        #expect(await setting.refreshWithoutStore().token == "a2")
        let other = try await setting.another()
        switch event {
        case "logout": #expect(await other.logOut().status == 204)
        case "login": await other.set("b1", refresh: "r9")
        default:
            // Another replica takes over when the lease has run out, and is refused what is spent.
            setting.time.advance(by: .seconds(40))
            other.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
            #expect(await other.get().level == "basic")
            // What an operator then brings back is the refresh token that was exchanged for the one in the journal.
            if event == "restore" { #expect(await other.restore().status == 200) }
        }
        setting.store.isAway = false
        await setting.untilStored()
        setting.time.advance(by: .seconds(6))
        for broker in [setting.broker, other] {
            let answer = await broker.get("policy=local")
            switch event {
            case "logout": #expect(answer.code == "missing_token_container")
            case "login": #expect(answer.token == "b1")
            default: #expect(answer.token == "a2")
            }
        }
        if event == "refusal" || event == "restore" {
            #expect(try await other.quarantined() == nil)
            other.transport.enqueue(.json(200, BrokerHarness.token("a3")))
            #expect(await other.get("policy=local_force_refresh").token == "a3")
            #expect(other.transport.seen.last?.form["refresh_token"] == "r2")
        }
        await setting.broker.broker.core.finish()
    }

    @Test func `a next process serves no credentials that have ended since`() async throws {
        let setting = try await Setting()
        #expect(await setting.refreshWithoutStore().token == "a2")
        let other = try await setting.another()
        #expect(await other.logOut().status == 204)
        await setting.journal.close()
        let next = try await setting.another(try await setting.directory.journal())
        try await next.broker.core.takeUpJournal()
        #expect(await next.get("policy=local").code == "missing_token_container")
        #expect(next.broker.core.credentials.countInJournal == 0)
        await next.broker.core.finish()
    }

    /// The process was killed when the logout was stored, before it had emptied its journal.
    @Test(arguments: [false, true])
    func `a next process that the store does not answer serves no grant that a kept logout has put away`(
        isLoggedOut: Bool
    ) async throws {
        let setting = try await Setting()
        #expect(await setting.refreshWithoutStore().token == "a2")
        let grants = try await setting.journalStore.list(.unpublished, tenant: nil, after: nil, limit: 10)
        let grant = try #require(grants.first)
        #expect(grants.count == 1)
        if isLoggedOut {
            setting.store.isAway = false
            #expect(await setting.broker.logOut().status == 204)
            await setting.untilStored()
        }
        await setting.journal.close()
        let disk = try await FileRecordStore(directory: setting.directory.path)
        if isLoggedOut, try await disk.read(grant.id) == nil { try await disk.commit([.insert(grant)]) }
        let store = BrokerFaultyStore(setting.base, revalidateAfter: .seconds(5))
        let journal = try Journal(in: disk)
        let next = try await BrokerHarness(store: store, time: setting.time, journal: journal)
        _ = try await next.broker.core.tenants.tenant(TenantName("t1")!)
        store.isAway = true
        try await next.broker.core.takeUpJournal()
        let answer = await next.get("policy=local")
        if isLoggedOut { #expect(answer.code == "storage_unavailable") } else { #expect(answer.token == "a2") }
        store.isAway = false
        await setting.untilStored(by: next)
        let last = await next.get("policy=local")
        if isLoggedOut { #expect(last.code == "missing_token_container") } else { #expect(last.token == "a2") }
        await next.broker.core.finish()
    }

    @Test func `a lease that ran out while the store was away is left to its holder at first`() async throws {
        let setting = try await Setting()
        let store = BrokerFaultyStore(setting.base, revalidateAfter: .seconds(5))
        let other = try await BrokerHarness(store: store, time: setting.time)
        _ = try await other.broker.core.tenants.tenant(TenantName("t1")!)
        #expect(await setting.refreshWithoutStore().token == "a2")
        store.isAway = true
        await setting.time.sleepers(of: .milliseconds(200))
        setting.time.advance(by: .seconds(13))
        await setting.time.sleepers(of: .milliseconds(400))
        #expect(await other.get().code == "storage_unavailable")
        (setting.store.isAway, store.isAway) = (false, false)
        async let answer = other.get()
        // The journal's pause and the other's wait.
        await setting.time.sleepers(of: .milliseconds(400), .seconds(1))
        setting.time.advance(by: .milliseconds(900))
        while try await setting.entries() > 0 { await Task.yield() }
        setting.time.advance(by: .seconds(1))
        #expect(await answer.token == "a2")
        #expect(other.transport.seen.isEmpty)
        await setting.broker.broker.core.finish()
    }

    @Test func `what is put into the journal stays there when what was there before it is over`() async throws {
        let setting = try await Setting()
        #expect(await setting.refreshWithoutStore().token == "a2")
        setting.store.isAway = false
        await setting.broker.set("b1", refresh: "r9")
        #expect(try await setting.entries() == 0)
        let store = setting.store
        let version = try #require(try await setting.base.read(Self.row)).version
        setting.broker.transport.enqueue(
            .decide { _ in
                store.isAway = true
                return .json(200, BrokerHarness.token("b2", refresh: "r10"))
            })
        #expect(await setting.broker.get("policy=local_force_refresh").token == "b2")
        // No try is under way that would be the refused one before the time is moved.
        await setting.time.sleepers(of: .milliseconds(200))
        store.disturb([.refuse]) { change in
            if case .replace(let record, version, _) = change { record.id == Self.row } else { false }
        }
        store.isAway = false
        repeat {
            await setting.time.sleepers(of: .milliseconds(200))
            setting.time.advance(by: .milliseconds(500))
            // Not further than to the pause after the try that was refused.
            await setting.time.sleepers(of: .milliseconds(400))
        } while store.remainingFaults > 0
        #expect(try await setting.entries() == 1)
        await setting.untilStored()
        let other = try await setting.another()
        #expect(await other.get().token == "b2")
        await setting.broker.broker.core.finish()
    }

    @Test func `a stop does not wait for the store where the journal has what was granted`() async throws {
        let setting = try await Setting()
        #expect(await setting.refreshWithoutStore().token == "a2")
        await setting.broker.broker.core.finish()
        #expect(try await setting.entries() == 1)
        #expect(!setting.broker.log.contains { $0.contains("work_cut_short") })
    }

    @Test func `a journal that fails leaves the grant waiting in memory`() async throws {
        let setting = try await Setting()
        await setting.journal.close()
        let granted = Task { await setting.refreshWithoutStore() }
        await setting.time.sleepers(of: .milliseconds(200))
        setting.store.isAway = false
        #expect(await setting.passing { await granted.value }.token == "a2")
        #expect(setting.broker.log.contains { $0.contains("journal_failed") })
        #expect(try await setting.entries() == 0)
    }

    @Test func `a journal that is well again gets what it did not take at first`() async throws {
        let setting = try await Setting()
        setting.journalStore.disturb([.refuse]) { _ in true }
        let granted = Task { await setting.refreshWithoutStore() }
        #expect(await setting.passing { await granted.value }.token == "a2")
        #expect(setting.store.isAway)
        #expect(try await setting.entries() == 1)
        setting.store.isAway = false
        await setting.untilStored()
        #expect(try await setting.another().get().token == "a2")
        await setting.broker.broker.core.finish()
    }

    @Test func `what is cut short goes into a journal that is well again`() async throws {
        let setting = try await Setting()
        setting.journalStore.disturb([.refuse]) { _ in true }
        async let granted = setting.refreshWithoutStore()
        await setting.time.sleepers(of: .milliseconds(200))
        #expect(setting.broker.broker.core.renewer.cancelAll() == 1)
        #expect(await granted.token == "a2")
        #expect(try await setting.entries() == 1)
        await setting.broker.broker.core.finish()
    }

    @Test func `what a damaged store does not take stays in the journal until an operator has looked`() async throws {
        let setting = try await Setting()
        setting.store.disturb([.damage, .damage]) { $0.replaces(.credentials) }
        setting.broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await setting.broker.get().token == "a2")
        #expect(try await setting.entries() == 1)
        await setting.untilStored()
        #expect(setting.store.remainingFaults == 0)
        #expect(try await setting.another().get().token == "a2")
        await setting.broker.broker.core.finish()
    }

    // H046
    @Test func `nothing readable stands in the journal's files`() async throws {
        let setting = try await Setting()
        #expect(await setting.refreshWithoutStore().token == "a2")
        let path = setting.directory.path
        let names = try FileManager.default.subpathsOfDirectory(atPath: path)
        #expect(names.contains { $0.hasSuffix("/=default") })
        for name in names {
            guard let bytes = FileManager.default.contents(atPath: path + "/" + name) else { continue }
            #expect(
                !String(decoding: bytes, as: UTF8.self).contains(
                    """
                    "r2"
                    """))
        }
        await setting.broker.broker.core.finish()
    }
}
