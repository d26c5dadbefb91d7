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

/// The embedded store, on a machine whose clock is set wrongly for a moment.
@Suite(.timeLimit(.minutes(1))) struct `A clock that jumps ahead and back` {
    @Test func `ends no session, and removes no quarantined credentials and no login`() async throws {
        let manual = ManualTime()
        let machine = MachineTime(manual)
        let shared = SharedTime(machine)
        let broker = try await BrokerHarness(time: manual, brokerTime: shared)
        await broker.makeTenant()
        await broker.makeClient()
        await broker.set("a1", refresh: "r1")
        let token = await broker.appSession()
        let login = await broker.beginLogin()
        let core = broker.broker.core
        let year = Duration.seconds(365 * 86_400)
        let held = try #require(await broker.get("policy=local").token)

        machine.setWallClock(by: year)
        for _ in 0..<2 {
            await shared.adjust(by: core.vault, core.log)
            _ = await core.sessionEndings.handleAllDue()
            _ = try await core.vault.removeExpired(before: shared.now, limit: 1000)
            manual.advance(by: .seconds(5))
        }
        machine.setWallClock(by: .zero - year)
        await shared.adjust(by: core.vault, core.log)
        _ = await core.sessionEndings.handleAllDue()
        #expect(await broker.get("policy=local").token == held)
        #expect(await broker.refresh(token).status == 200)
        #expect(await broker.progress(login.id).json["status"]?.text == "pending")
    }
}
