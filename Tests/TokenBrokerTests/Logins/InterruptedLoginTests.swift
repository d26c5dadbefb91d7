import BrokerTesting
import CredentialStore
import ExternalText
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@testable import BrokerCore

/// Logins whose process ends between the provider's grant and the commit that stores it: no grant is left that nothing uses.
@Suite struct `Logins that a process does not end` {
    private static let tenant = #"""
        {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://op.example/a",
         "token": "https://op.example/t", "revocation": "https://op.example/revoke"}}
        """#
    private static let granted = BrokerHarness.token("access-1", refresh: "refresh-1", scope: "r_usr", userID: 42)

    /// Two replicas; the first has an app.
    private struct Setting {
        let time = ManualTime()
        let store: FaultyStore
        let one: BrokerHarness
        let two: BrokerHarness

        init() async throws {
            let records = MemoryRecordStore { [time] in time.monotonic }
            store = FaultyStore(records, revalidateAfter: .seconds(5))
            one = try await BrokerHarness(store: store, time: time)
            two = try await BrokerHarness(store: FaultyStore(records, revalidateAfter: .seconds(5)), time: time)
            await one.makeTenant("t1", tenant)
            await one.makeClient()
        }

        /// What the other replica has presented to the token endpoint, and what it has revoked.
        var codes: [String?] { two.transport.seen.filter { $0.url.hasSuffix("/t") }.map { $0.form["code"] } }
        var revoked: [String?] { two.transport.seen.filter { $0.url.hasSuffix("/revoke") }.map { $0.form["token"] } }

        func settle() async { _ = await two.broker.core.revocations.handleAllDue() }
    }

    // B06
    @Test func `a login that ends leaves nothing to be settled`() async throws {
        let setting = try await Setting()
        #expect(await setting.one.appCode().isEmpty == false)
        #expect(try await setting.one.count(.revocation) == 0)
        setting.one.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        let (parameters, _) = await setting.one.logIn(app: BrokerHarness.authorization(), token: nil)
        #expect(parameters["error"] == "server_error")
        #expect(try await setting.one.count(.revocation) == 0)
    }

    // B06
    @Test(arguments: [true, false])
    func `another replica presents the code again, and what is granted for it is revoked`(isKnown: Bool) async throws {
        let setting = try await Setting()
        let gate = Gate()
        setting.store.onCommit(of: .credentials, .hold(gate))
        let login = Task { await setting.one.logIn(app: BrokerHarness.authorization(), token: Self.granted) }
        await gate.arrivals()
        // The login may still be under way.
        setting.time.advance(by: .seconds(90))
        await setting.settle()
        #expect(setting.codes.isEmpty)
        setting.time.advance(by: .milliseconds(1))
        if isKnown {
            setting.two.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
            await setting.settle()
        } else {
            setting.two.transport.enqueue(
                .json(200, BrokerHarness.token("access-2", refresh: "refresh-2", userID: 42)), .json(200, ""))
            await setting.settle()
            setting.time.advance(by: .milliseconds(1))
            await setting.settle()
        }
        #expect(setting.codes == ["c-1"])
        #expect(setting.revoked == (isKnown ? [] : ["refresh-2"]))
        #expect(try await setting.two.count(.revocation) == 0)
        // The first process was only slow: what it was granted is worth nothing any more.
        gate.open()
        let (parameters, answer) = await login.value
        #expect(parameters["error"] == "server_error", "\(answer.text)")
        #expect(try await setting.one.count(.credentials) == 0)
        #expect(try await setting.one.count(.code) == 0)
    }

    @Test func `a code that the provider does not answer is presented a few times, for an hour`() async throws {
        let setting = try await Setting()
        let gate = Gate()
        setting.store.onCommit(of: .credentials, .hold(gate))
        let login = Task { await setting.one.logIn(app: BrokerHarness.authorization(), token: Self.granted) }
        await gate.arrivals()
        setting.two.transport.always(.json(500, ""))
        var tries: [Int] = []
        for minute in 0..<180 {
            let before = setting.codes.count
            await setting.settle()
            if setting.codes.count > before { tries.append(minute) }
            setting.time.advance(by: .seconds(60))
        }
        #expect(tries == [2, 5, 11, 23, 47], "\(tries)")
        #expect(setting.codes.count == tries.count)
        #expect(try await setting.two.count(.revocation) == 0)
        gate.open()
        _ = await login.value
    }

    /// The database goes back to the moment between the two commits of a login, and the first replica stores the session again.
    // B06
    @Test(arguments: [true, false])
    func `a code whose login may have ended in lost commits is not presented`(isLost: Bool) async throws {
        let time = ManualTime()
        let store = RewindingStore(MemoryRecordStore { time.monotonic })
        let faulty = FaultyStore(store, revalidateAfter: .seconds(5))
        let one = try await BrokerHarness(store: faulty, time: time)
        let two = try await BrokerHarness(store: store, time: time)
        await one.makeTenant("t1", Self.tenant)
        await one.makeClient()
        func goBack() async {
            time.advance(by: .milliseconds(1))
            store.goBack()
            for broker in [one, two] { broker.broker.core.bus.announceRollback() }
            for broker in [one, two] { _ = await broker.broker.core.storeRecovery.check() }
        }
        if !isLost {
            store.note()
            await goBack()
            time.advance(by: .milliseconds(1))
        }
        let gate = Gate()
        faulty.onCommit(of: .credentials, .hold(gate))
        let login = Task { await one.logIn(app: BrokerHarness.authorization(), token: Self.granted) }
        await gate.arrivals()
        store.note()
        if isLost {
            gate.open()
            #expect(await login.value.0["code"] != nil)
            await goBack()
            #expect(try await two.count(.credentials) == 1)
        }
        #expect(try await two.count(.revocation) == 1)
        time.advance(by: .milliseconds(90_001))
        two.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        _ = await two.broker.core.revocations.handleAllDue()
        #expect(two.transport.seen.map { $0.form["code"] } == (isLost ? [] : ["c-1"]))
        #expect(two.log.contains { $0.contains("interrupted_login_in_doubt") } == isLost)
        #expect(try await two.count(.revocation) == 0)
        gate.open()
        _ = await login.value
    }

    // B06
    @Test func `a provider that does not answer is asked again later`() async throws {
        let setting = try await Setting()
        setting.one.transport.always(.failure(.connectionLost(requestSent: true)))
        let (parameters, _) = await setting.one.logIn(app: BrokerHarness.authorization(), token: nil)
        #expect(parameters["error"] == "temporarily_unavailable")
        #expect(try await setting.one.count(.revocation) == 1)
        setting.two.transport.always(.failure(.connectFailed))
        setting.time.advance(by: .seconds(91))
        await setting.settle()
        #expect(!setting.codes.isEmpty)
        #expect(try await setting.one.count(.revocation) == 1)
        setting.two.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        setting.time.advance(by: .seconds(300))
        await setting.settle()
        #expect(try await setting.one.count(.revocation) == 0)
    }

    // B06 H036
    @Test func `a code is sent to the provider that has issued it, and to no other one`() async throws {
        let setting = try await Setting()
        setting.one.transport.always(.failure(.connectionLost(requestSent: true)))
        _ = await setting.one.logIn(app: BrokerHarness.authorization(), token: nil)
        await setting.one.makeTenant("t1", Self.tenant.replacing("op.example/t", with: "other.example/t"))
        setting.time.advance(by: .seconds(91))
        await setting.settle()
        #expect(setting.two.transport.seen.isEmpty)
        #expect(try await setting.one.count(.revocation) == 0)
    }
}
