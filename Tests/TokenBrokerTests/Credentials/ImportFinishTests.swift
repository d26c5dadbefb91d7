import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Imports that present refresh tokens while the process ends.
@Suite struct `An import whose process ends` {
    private static let line = #"{"storage_key": "alice", "refresh_token": "r1"}"#

    /// A broker whose store goes away while the provider exchanges the line's refresh token.
    private struct Setting {
        let base = MemoryRecordStore()
        let store: BrokerFaultyStore
        let broker: BrokerHarness

        init(
            _ journal: Journal? = nil, tenant members: String = "",
            answer: String = BrokerHarness.token("a2", refresh: "r2")
        ) async throws {
            let store = BrokerFaultyStore(base)
            self.store = store
            broker = try await BrokerHarness(store: store, journal: journal)
            await broker.makeTenant("t1", #"{"client_id": "c1"\#(members)}"#)
            broker.time.holdSleeps()
            broker.transport.enqueue(
                .decide { _ in
                    store.isAway = true
                    return .json(200, answer)
                })
        }

        /// Begins an import, and ends the process while that waits for the store.
        /// - Parameter meanwhile: what happens after the beginning of the end.
        func importing(_ meanwhile: () async -> Void) async -> LinesAnswer {
            async let answer = broker.importing(line, query: "verify=true")
            await broker.time.sleepers(of: .milliseconds(200))
            async let finished: Void = broker.broker.core.finish(within: .seconds(25))
            await broker.time.sleepers(of: .milliseconds(200), .seconds(25))
            await meanwhile()
            await finished
            return await answer
        }
    }

    @Test func `is waited for until the store has taken what was granted`() async throws {
        let setting = try await Setting()
        let answer = await setting.importing {
            setting.store.isAway = false
            setting.broker.time.advance(by: .milliseconds(200))
        }
        #expect(answer.outcomes == ["1 alice imported"])
        #expect(await setting.broker.get("storage_key=alice").token == "a2")
        #expect(!setting.broker.log.joined().contains("work_cut_short"))
    }

    @Test func `is cut short when time is up`() async throws {
        let setting = try await Setting()
        let answer = await setting.importing { setting.broker.time.advance(by: .seconds(25)) }
        #expect(answer.outcomes == ["1 alice storage_unavailable"])
        #expect(setting.broker.log.contains { $0.contains(#""event":"work_cut_short","count":1"#) })
    }

    @Test(arguments: [false, true])
    func `leaves what the store did not take in the journal, for the next process`(isKnown: Bool) async throws {
        let directory = StoreFixtureDirectory()
        let journal = try await directory.journal()
        let setting = try await Setting(journal)
        if isKnown {
            // A logout has left an empty record.
            await setting.broker.set("a0", refresh: "r0", storageKey: "alice")
            #expect(await setting.broker.logOut(storageKey: "alice").status == 204)
        }
        let answer = await setting.importing { setting.broker.time.advance(by: .seconds(25)) }
        #expect(answer.outcomes == ["1 alice storage_unavailable"])
        await journal.close()
        let next = try await BrokerHarness(
            store: BrokerFaultyStore(setting.base), time: setting.broker.time, journal: try await directory.journal())
        try await next.broker.core.takeUpJournal()
        #expect(await next.get("storage_key=alice").token == "a2")
        #expect(await next.importing(Self.line, query: "verify=true").outcomes == ["1 alice unchanged"])
        #expect(next.transport.seen.isEmpty)
        #expect(try await next.causes().last == "set")
        await next.broker.core.finish()
    }

    @Test func `leaves a set in the journal that the next process keeps from ending unused`() async throws {
        let directory = StoreFixtureDirectory()
        let journal = try await directory.journal()
        let setting = try await Setting(
            journal, tenant: #", "idle_expiry": 864000, "default_lifetime": "never""#,
            answer: #"{"access_token": "a2", "token_type": "Bearer", "refresh_token": "r2"}"#)
        _ = await setting.importing { setting.broker.time.advance(by: .seconds(25)) }
        await journal.close()
        let next = try await BrokerHarness(
            store: BrokerFaultyStore(setting.base), time: setting.broker.time, journal: try await directory.journal())
        // The process has not read the tenant yet, whose configuration says when.
        try await next.broker.core.takeUpJournal()
        let row = RecordID(.credentials, try #require(TenantName("t1")), key: "alice")
        let first = try #require(try await next.vault.read(row)?.due)
        next.time.advance(by: next.time.now.duration(to: first) + .milliseconds(1))
        _ = await next.broker.core.expiryJob.handleAllDue()
        let mark = try #require(try await next.vault.read(row)?.due)
        #expect(next.time.now.duration(to: mark) > .seconds(7 * 86_400))
        await next.broker.core.finish()
    }

    @Test func `keeps nothing in the journal that the store has taken in the end`() async throws {
        let directory = StoreFixtureDirectory()
        let setting = try await Setting(try await directory.journal())
        async let answer = setting.broker.importing(Self.line, query: "verify=true")
        await setting.broker.time.sleepers(of: .milliseconds(200))
        #expect(await setting.broker.metric("token_broker_journal_entries") == 1)
        setting.store.isAway = false
        setting.broker.time.advance(by: .milliseconds(200))
        #expect(await answer.outcomes == ["1 alice imported"])
        #expect(await setting.broker.metric("token_broker_journal_entries") == 0)
        #expect(await setting.broker.get("storage_key=alice").token == "a2")
        await setting.broker.broker.core.finish()
    }

    @Test func `begins no further presentation once the broker drains, and stores what needs none`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1"}"#)
        broker.broker.core.beginDraining()
        #expect(await broker.importing(Self.line, query: "verify=true").outcomes == ["1 alice retryable_error"])
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.importing(Self.line).outcomes == ["1 alice imported"])
    }
}
