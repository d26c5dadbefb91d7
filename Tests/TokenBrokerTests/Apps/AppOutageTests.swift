import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Apps whose requests were not answered because the store was away, or whose tokens a store has lost.
@Suite struct `Apps and a store that fails` {
    private static let tenant = TenantName("t1")!

    private static func error(_ answer: BrokerHarness.Answer) -> String? { answer.json["error"]?.text }

    private static func causes(_ broker: BrokerHarness) async throws -> [String] {
        try await broker.events(named: "session.ended", of: tenant).compactMap { $0["cause"]?.text }
    }

    private static func broker(_ store: any RecordStore) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.makeClient()
        return broker
    }

    private struct Replicas {
        let records: MemoryRecordStore
        let time = ManualTime()
        let stores: [FaultyStore]
        let brokers: [BrokerHarness]

        init() async throws {
            let (records, time) = (MemoryRecordStore { [time] in time.monotonic }, time)
            self.records = records
            let stores = (0..<2).map { _ in FaultyStore(records, revalidateAfter: .seconds(5)) }
            self.stores = stores
            var brokers: [BrokerHarness] = []
            for store in stores { brokers.append(try await BrokerHarness(store: store, time: time)) }
            self.brokers = brokers
            await brokers[0].makeTenant()
            await brokers[0].makeClient()
        }
    }

    // B02
    @Test(arguments: [true, false])
    func `an app that was told to come again is not late`(isToldAgain: Bool) async throws {
        let replicas = try await Replicas()
        let (one, two) = (replicas.brokers[0], replicas.brokers[1])
        let first = await one.appSession()
        // The app never gets this answer.
        let lost = await one.refresh(first)
        #expect(lost.status == 200)
        if isToldAgain {
            replicas.stores[1].setDown(true)
            for _ in 0..<3 {
                #expect(await two.refresh(first).status == 503)
                replicas.time.advance(by: .seconds(9))
            }
            replicas.stores[1].setDown(false)
        } else {
            replicas.time.advance(by: .seconds(27))
        }
        let again = await two.refresh(first)
        guard isToldAgain else {
            #expect(Self.error(again) == "invalid_grant")
            return #expect(try await Self.causes(one) == ["replay"])
        }
        #expect(again.status == 200, "\(again.text)")
        #expect(again.json["refresh_token"] == lost.json["refresh_token"])
        // Not the answer of then: its time has gone on.
        let (then, now) = (lost.json["expires_in"]?.integer ?? 0, again.json["expires_in"]?.integer ?? 0)
        #expect(then - now == 27)
        let next = try #require(again.json["refresh_token"]?.text)
        #expect(await two.refresh(next).status == 200)
        #expect(try await Self.causes(one).isEmpty)
    }

    // B02
    @Test func `a token that was answered is not kept open for others because it was once told to come again`()
        async throws
    {
        let replicas = try await Replicas()
        let broker = replicas.brokers[0]
        let first = await broker.appSession()
        replicas.stores[0].setDown(true)
        #expect(await broker.refresh(first).status == 503)
        replicas.stores[0].setDown(false)
        #expect(await broker.refresh(first).status == 200)
        replicas.time.advance(by: .seconds(11))
        #expect(Self.error(await broker.refresh(first)) == "invalid_grant")
        #expect(try await Self.causes(broker) == ["replay"])
    }

    @Test(arguments: [true, false])
    func `a store that takes a change and goes away without an answer logs no app out`(_ isRotation: Bool) async throws
    {
        let store = VanishingStore()
        let broker = try await Self.broker(store)
        let code = await broker.appCode()
        func ask(_ token: String) async -> BrokerHarness.Answer {
            isRotation ? await broker.refresh(token) : await broker.exchange(code)
        }
        var token = ""
        if isRotation { token = try #require(await broker.exchange(code).json["refresh_token"]?.text) }
        store.vanishAfterNextCommit(of: .session)
        let lost = await ask(token)
        #expect(lost.status == 503)
        #expect(Self.error(lost) == "temporarily_unavailable")
        store.comeBack()
        broker.time.advance(by: .seconds(60))
        let again = await ask(token)
        #expect(again.status == 200, "\(again.text)")
        let next = try #require(again.json["refresh_token"]?.text)
        #expect(await broker.refresh(next).status == 200)
        #expect(try await Self.causes(broker).isEmpty)
    }

    // B02
    @Test func `an answer that is repeated after a minute has an access token that is good`() async throws {
        let store = VanishingStore()
        let broker = try await Self.broker(store)
        let granted =
            #"{"access_token":"access-1","refresh_token":"refresh-1","token_type":"Bearer","expires_in":370,"user_id":42}"#
        let answer = await broker.exchange(await broker.appCode(token: granted))
        let token = try #require(answer.json["refresh_token"]?.text)
        store.vanishAfterNextCommit(of: .session)
        #expect(await broker.refresh(token).status == 503)
        store.comeBack()
        broker.time.advance(by: .seconds(80))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2", userID: 42)))
        let again = await broker.refresh(token)
        #expect(again.status == 200, "\(again.text)")
        #expect(again.json["access_token"]?.text == "access-2")
        let next = try #require(again.json["refresh_token"]?.text)
        #expect(await broker.refresh(next).status == 200)
        #expect(try await Self.causes(broker).isEmpty)
    }

    // MARK: Lost commits

    private static func rewinding() async throws -> (store: RewindingStore, one: BrokerHarness, two: BrokerHarness) {
        let time = ManualTime()
        let store = RewindingStore(MemoryRecordStore { time.monotonic })
        let one = try await BrokerHarness(store: store, time: time)
        let two = try await BrokerHarness(store: store, time: time)
        for broker in [one, two] { try await broker.broker.core.takeUpJournal() }
        await one.makeTenant()
        await one.makeClient()
        return (store, one, two)
    }

    /// The replicas notice that the store has lost commits, and store again what they have.
    private static func recover(_ brokers: BrokerHarness...) async {
        for broker in brokers { broker.broker.core.bus.announceRollback() }
        for broker in brokers { _ = await broker.broker.core.storeRecovery.check() }
    }

    // B03
    @Test(arguments: [false, true])
    func `a refresh token whose commit the store has lost is good`(isAtOther: Bool) async throws {
        let (store, one, two) = try await Self.rewinding()
        let first = await one.appSession()
        store.note()
        let second = try #require(await one.refresh(first).json["refresh_token"]?.text)
        store.goBack()
        let answer = await (isAtOther ? two : one).refresh(second)
        #expect(answer.status == 200, "\(answer.text)")
        let third = try #require(answer.json["refresh_token"]?.text)
        #expect(await one.refresh(third).status == 200)
        #expect(try await Self.causes(one).isEmpty)
        // An earlier one is what it always was.
        #expect(Self.error(await one.refresh(first)) == "invalid_grant")
        #expect(try await Self.causes(one) == ["replay"])
    }

    // B04
    @Test(arguments: [false, true])
    func `a session whose beginning the store has lost is stored again, and no replica refuses it before`(
        isEnded: Bool
    ) async throws {
        let (store, one, two) = try await Self.rewinding()
        await one.set("access-0", refresh: "refresh-0")
        // A login, and no session yet: that the login is lost, too, is another matter.
        let code = await one.appCode()
        store.note()
        let token = try #require(await one.exchange(code).json["refresh_token"]?.text)
        if isEnded {
            let revoked = await one.app("/oauth2/revoke", [("client_id", "app"), ("token", token)])
            #expect(revoked.status == 200)
        }
        store.goBack()
        await Self.recover(one, two)
        if isEnded {
            #expect(await one.sessions().isEmpty)
            one.time.advance(by: .seconds(11))
            return #expect(Self.error(await two.refresh(token)) == "invalid_grant")
        }
        let answer = await two.refresh(token)
        #expect(answer.status == 200, "\(answer.text)")
        #expect(await one.sessions().count == 1)
        #expect(try await Self.causes(one).isEmpty)
    }

    // B04
    @Test func `while a lost session may come back it is refused for now only`() async throws {
        let (store, one, two) = try await Self.rewinding()
        let code = await one.appCode()
        store.note()
        let token = try #require(await one.exchange(code).json["refresh_token"]?.text)
        store.goBack()
        two.broker.core.bus.announceRollback()
        let held = await two.refresh(token)
        #expect((held.status, Self.error(held)) == (503, "temporarily_unavailable"))
        #expect(held.fields["Retry-After"] != nil)
        // No broker has issued this token.
        let forged = String(token.dropLast(4)) + "AAAA"
        #expect(Self.error(await two.refresh(forged)) == "invalid_grant")
        one.time.advance(by: .milliseconds(119_999))
        #expect(await two.refresh(token).status == 503)
        one.time.advance(by: .milliseconds(1))
        #expect(Self.error(await two.refresh(token)) == "invalid_grant")
    }

    // B04
    @Test func `a session that has ended at another replica is not stored again`() async throws {
        let (store, one, two) = try await Self.rewinding()
        let token = await one.appSession()
        let id = try #require(await one.sessions().first?["session_id"]?.text)
        #expect(await two.call(.delete, "/tenants/t1/sessions/\(id)").status == 204)
        one.broker.core.bus.announce(RecordID(.session, Self.tenant, key: id), version: nil)
        store.note()
        store.goBack()
        await Self.recover(one, two)
        #expect(await one.sessions().isEmpty)
        one.time.advance(by: .seconds(11))
        #expect(Self.error(await one.refresh(token)) == "invalid_grant")
    }

    // B03
    @Test func `a thief who uses an earlier token after the loss shares the session with no app`() async throws {
        let (store, one, _) = try await Self.rewinding()
        let first = await one.appSession()
        store.note()
        let second = try #require(await one.refresh(first).json["refresh_token"]?.text)
        store.goBack()
        #expect(await one.refresh(first).status == 200)
        #expect(Self.error(await one.refresh(second)) == "invalid_grant")
        #expect(try await Self.causes(one) == ["replay"])
    }

    // B03
    @Test func `an earlier token with another generation was never issued and changes nothing`() async throws {
        let (_, one, _) = try await Self.rewinding()
        let first = await one.appSession()
        let second = try #require(await one.refresh(first).json["refresh_token"]?.text)
        let parts = first.split(separator: ".").map(String.init)
        var secret = try #require(Base64URL.decode(parts[1]))
        secret[3] = 9
        let forged = parts[0] + "." + Base64URL.encode(secret)
        #expect(Self.error(await one.refresh(forged)) == "invalid_grant")
        #expect(await one.refresh(second).status == 200)
        #expect(try await Self.causes(one).isEmpty)
    }
}
