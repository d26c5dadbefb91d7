import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Two replicas, and a store that loses the commits in which a login ended.
@Suite(.timeLimit(.minutes(1))) struct `Logins that end in commits that a store loses` {
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)

    private struct Setting {
        let time = ManualTime()
        let store: RewindingStore
        let faulty: FaultyStore
        let one: BrokerHarness
        let two: BrokerHarness

        init() async throws {
            let group = ReplicaStore.Group()
            store = RewindingStore(MemoryRecordStore { [time] in time.monotonic })
            let ways = [ReplicaStore(store, in: group), ReplicaStore(store, in: group)]
            faulty = FaultyStore(ways[0], revalidateAfter: .seconds(5))
            one = try await BrokerHarness(store: faulty, time: time)
            two = try await BrokerHarness(store: ways[1], time: time)
            for way in ways { way.follow() }
            for broker in [one, two] { try await broker.broker.core.takeUpJournal() }
            await one.makeTenant()
            await one.makeClient()
        }

        /// Loses what was committed since the store was noted. The replicas notice that, and store again what they have.
        func goBack() async {
            time.advance(by: .milliseconds(1))
            store.goBack()
            for broker in [one, two] { _ = await broker.broker.core.storeRecovery.check() }
        }
    }

    // B06
    @Test func `are ended again, so that no replica presents their codes twice`() async throws {
        let setting = try await Setting()
        let login = await setting.one.beginLogin()
        setting.store.note()
        setting.one.transport.enqueue(.json(200, Self.granted))
        let query = "code=c-1&state=\(login.state)"
        #expect(await setting.one.callback(query).status == 200)
        await setting.goBack()
        #expect(await setting.two.progress(login.id).json["status"]?.text == "completed")
        _ = await setting.two.callback(query)
        #expect(setting.two.transport.seen.isEmpty)
        #expect(await setting.two.token() == "access-1")
        #expect(setting.one.log.contains { $0.contains("logins_stored_again") })
    }

    // B06
    @Test func `are not changed where another replica has ended them since`() async throws {
        let setting = try await Setting()
        let login = await setting.one.beginLogin()
        setting.two.transport.enqueue(.json(200, Self.granted))
        #expect(await setting.two.callback("code=c-1&state=\(login.state)").status == 200)
        setting.store.note()
        await setting.goBack()
        #expect(await setting.two.progress(login.id).json["status"]?.text == "completed")
        #expect(!setting.one.log.contains { $0.contains("logins_stored_again") })
    }

    // B06
    @Test func `give an app its code again`() async throws {
        let setting = try await Setting()
        await setting.one.set("access-0", refresh: "refresh-0")
        setting.store.note()
        let code = await setting.one.appCode()
        setting.time.advance(by: .milliseconds(1))
        setting.store.goBack()
        // The other replica has noticed the loss, and the first one has not.
        _ = await setting.two.broker.core.vault.lineageOrNil()
        let early = await setting.two.exchange(code)
        #expect((early.status, early.json["error"]?.text) == (503, "temporarily_unavailable"))
        _ = await setting.one.broker.core.storeRecovery.check()
        #expect(await setting.two.exchange(code).status == 200)
    }

    /// The provider has granted when the store goes back to before the login's first commit.
    // B06
    @Test func `complete although their first commit is lost`() async throws {
        let setting = try await Setting()
        let login = await setting.one.beginLogin()
        setting.store.note()
        let gate = Gate()
        setting.faulty.onCommit(of: .credentials, .hold(gate))
        setting.one.transport.enqueue(.json(200, Self.granted))
        let answer = Task { await setting.one.callback("code=c-1&state=\(login.state)") }
        await gate.arrivals()
        await setting.goBack()
        gate.open()
        #expect(await answer.value.status == 200)
        #expect(await setting.two.token() == "access-1")
        #expect(await setting.two.progress(login.id).json["status"]?.text == "completed")
        // Nothing is left that presents the code again.
        #expect(try await setting.one.count(.revocation) == 0)
    }
}

extension Vault {
    /// Asks for the lineage, so that a loss of commits is noticed.
    fileprivate func lineageOrNil() async -> StoreLineage? { try? await lineage() }
}
