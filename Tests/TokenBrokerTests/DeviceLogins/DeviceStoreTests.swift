import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite(.timeLimit(.minutes(1))) struct `What a device login stores` {
    /// A login that is being polled: the answer waits for the gate.
    private struct Polled {
        let broker: BrokerHarness
        let script: DeviceScript
        let handle: String
        let gate = Gate()

        init(
            _ answer: ScriptedTransport.Step, store: any RecordStore = MemoryRecordStore(),
            tenant: String = BrokerHarness.deviceTenant
        ) async throws {
            (broker, script) = try await BrokerHarness.devices(store: store, tenant: tenant)
            handle = await broker.beginDevice()
            script.enqueue(.after(gate, answer))
            broker.time.advance(by: .seconds(5))
            await gate.arrivals()
        }
    }

    // T09
    @Test func `credentials, the login's end and what is told of it are one commit`() async throws {
        let store = RecordingStore()
        let login = try await Polled(DeviceScript.granted(), store: store)
        let before = store.commits.count
        login.gate.open()
        #expect(await login.broker.deviceEnd(login.handle) == #"{"status":"completed"}"#)
        #expect(store.commits.count == before + 1)
        let last = try #require(store.commits.last)
        #expect(last.contains { $0.writes(.credentials) })
        #expect(last.contains { $0.replaces(.device) })
        #expect(last.contains { if case .append = $0 { true } else { false } })
        let answer = await login.broker.get()
        #expect(answer.token == "access-1")
        #expect(answer.level == "user")
        #expect(answer.json["user_id"]?.string == "42")
        let entries = try await login.broker.vault.entries(after: 0, limit: 10)
        let told = try #require(entries.last?.content?.revealedText)
        #expect(told.contains("credentials.updated") && told.contains("login.completed"))
        #expect(!told.contains("access-1") && !told.contains("refresh-of"))
    }

    @Test func `credentials go over whatever is there`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        await broker.set("old", refresh: "old-refresh")
        let handle = await broker.beginDevice()
        script.enqueue(DeviceScript.granted("new"))
        broker.time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(await broker.token() == "new")
    }

    @Test func `the provider's code and the client's secret go when the login ends`() async throws {
        let tenant = BrokerHarness.deviceTenant.replacing(#""c1","#, with: #""c1", "client_secret": "hush-hush","#)
        for answer in [DeviceScript.granted(), .json(400, #"{"error": "access_denied"}"#)] {
            let login = try await Polled(answer, tenant: tenant)
            let pending = try #require(try await login.broker.vault.list(.device, tenant: nil, limit: 1).first)
            #expect(pending.content.revealedText.contains("the-provider's-code"))
            login.gate.open()
            _ = await login.broker.deviceEnd(login.handle)
            let ended = try #require(try await login.broker.vault.list(.device, tenant: nil, limit: 1).first)
            #expect(!ended.content.revealedText.contains("the-provider's-code"))
            #expect(!ended.content.revealedText.contains("hush-hush"))
        }
    }

    @Test func `nothing secret is logged`() async throws {
        let tenant = BrokerHarness.deviceTenant.replacing(#""c1","#, with: #""c1", "client_secret": "hush-hush","#)
        let login = try await Polled(DeviceScript.granted(), tenant: tenant)
        login.gate.open()
        _ = await login.broker.deviceEnd(login.handle)
        let secrets = ["the-provider's-code", "hush-hush", "access-1", "refresh-of", login.handle, "WDJB-MJHT"]
        for line in login.broker.log { #expect(!secrets.contains { line.contains($0) }, "\(line)") }
    }

    // MARK: Cancelling

    @Test func `nothing, when the login is deleted while a poll is under way; the token is revoked`() async throws {
        let login = try await Polled(DeviceScript.granted())
        let deleted = await login.broker.call(.delete, "/device/\(login.handle)", tenant: "t1")
        #expect(deleted.status == 204)
        #expect(deleted.body.isEmpty)
        login.gate.open()
        await login.broker.broker.deviceLogins.finish()
        #expect(await login.broker.token() == nil)
        #expect(login.script.revoked == ["refresh-of-access-1"])
        #expect(await login.broker.deviceProgress(login.handle).status == 404)
        #expect(await login.broker.call(.delete, "/device/\(login.handle)", tenant: "t1").status == 404)
    }

    @Test func `nothing, when another replica deletes the login while a poll is under way`() async throws {
        let base = MemoryRecordStore()
        let login = try await Polled(
            DeviceScript.granted(), store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)))
        let other = try await BrokerHarness.devices(
            store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), script: login.script, tenant: nil
        ).broker
        #expect(await other.call(.delete, "/device/\(login.handle)", tenant: "t1").status == 204)
        login.gate.open()
        await login.broker.broker.deviceLogins.finish()
        #expect(try await other.count(.credentials) == 0)
        #expect(login.script.revoked == ["refresh-of-access-1"])
    }

    @Test func `a deletion ends the polling and answers waiting callers`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        await broker.time.sleepers(of: .seconds(5))
        let waiter = Task { await broker.deviceProgress(handle, query: "?wait=60").status }
        await broker.time.sleepers(of: .seconds(5), .seconds(60))
        #expect(await broker.call(.delete, "/device/\(handle)", tenant: "t1").status == 204)
        #expect(await waiter.value == 404)
        broker.time.advance(by: .seconds(600))
        await broker.broker.deviceLogins.finish()
        #expect(script.polls.isEmpty)
        #expect(try await broker.count(.device) == 0)
    }

    @Test func `what has ended can be deleted too, and its credentials stay`() async throws {
        let login = try await Polled(DeviceScript.granted())
        login.gate.open()
        _ = await login.broker.deviceEnd(login.handle)
        #expect(await login.broker.call(.delete, "/device/\(login.handle)", tenant: "t1").status == 204)
        #expect(await login.broker.deviceProgress(login.handle).status == 404)
        #expect(await login.broker.token() == "access-1")
    }

    @Test(arguments: [false, true])
    func `nothing, when the tenant is removed while a poll is under way`(isMadeAnew: Bool) async throws {
        let login = try await Polled(DeviceScript.granted())
        #expect(await login.broker.call(.delete, "/tenants/t1").status == 204)
        if isMadeAnew { await login.broker.makeTenant("t1", BrokerHarness.deviceTenant) }
        login.gate.open()
        await login.broker.broker.deviceLogins.finish()
        #expect(try await login.broker.count(.credentials) == 0)
        #expect(try await login.broker.count(.device) == 0)
        #expect(login.script.revoked == ["refresh-of-access-1"])
    }

    @Test func `the configuration of the beginning polls`() async throws {
        let (broker, script) = try await BrokerHarness.devices()
        let handle = await broker.beginDevice()
        await broker.makeTenant("t1", BrokerHarness.deviceTenant.replacing(#""c1""#, with: #""c2""#))
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(script.pollForms.map { $0["client_id"] } == ["c1"])
    }

    // MARK: A store that fails

    @Test(arguments: [BrokerFaultyStore.Fault.refuse, .loseAnswer])
    func `what was granted, once the store is back`(fault: BrokerFaultyStore.Fault) async throws {
        let store = BrokerFaultyStore()
        let (broker, script) = try await BrokerHarness.devices(store: store)
        let handle = await broker.beginDevice()
        store.disturb([fault, .refuse]) { $0.writes(.credentials) }
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(5))
        // Only the task sleeps that lets the store come back. A caller that waited for the end would sleep, or would
        // not where an answer got lost: the end can be read then.
        await broker.time.sleepers(of: .milliseconds(200))
        broker.time.advance(by: .milliseconds(200))
        if case .refuse = fault {
            await broker.time.sleepers(of: .milliseconds(400))
            broker.time.advance(by: .milliseconds(400))
        }
        await broker.broker.deviceLogins.finish()
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(await broker.token() == "access-1")
        #expect(script.polls.count == 1)
        #expect(script.revoked.isEmpty)
    }

    @Test(arguments: [BrokerFaultyStore.Fault.refuse, .loseAnswer])
    func `how far a poll has come, once the store is back`(fault: BrokerFaultyStore.Fault) async throws {
        let store = BrokerFaultyStore()
        let (broker, script) = try await BrokerHarness.devices(store: store)
        _ = await broker.beginDevice()
        let gate = Gate()
        script.enqueue(.after(gate, DeviceScript.slowDown))
        broker.time.advance(by: .seconds(5))
        await gate.arrivals()
        store.disturb([fault]) { $0.writes(.device) }
        gate.open()
        // The store's pause before its next try, then the new interval.
        await broker.time.sleepers(of: .milliseconds(200))
        broker.time.advance(by: .milliseconds(200))
        await broker.time.sleepers(of: .seconds(10))
        broker.time.advance(by: .milliseconds(9999))
        await broker.time.sleepers(of: .seconds(10))
        #expect(script.polls.count == 1)
        broker.time.advance(by: .milliseconds(1))
        await broker.time.sleepers(of: .seconds(10))
        #expect(script.polls == [.seconds(5), .milliseconds(15_200)])
    }

    @Test(arguments: [BrokerFaultyStore.Fault.refuse, .loseAnswer])
    func `a failed login's end, once the store is back, and it is told once`(
        fault: BrokerFaultyStore.Fault
    ) async throws {
        let store = BrokerFaultyStore()
        let login = try await Polled(.json(400, #"{"error": "access_denied"}"#), store: store)
        store.disturb([fault]) { $0.writes(.device) }
        login.gate.open()
        await login.broker.time.sleepers(of: .milliseconds(200))
        login.broker.time.advance(by: .milliseconds(200))
        await login.broker.broker.deviceLogins.finish()
        let ended = await login.broker.deviceEnd(login.handle)
        #expect(ended.hasPrefix(#"{"status":"failed","error":"authorization_error","error_code":"access_denied","#))
        let entries = try await login.broker.vault.entries(after: 0, limit: 10)
        #expect(entries.count { $0.content?.revealedText.contains("login.failed") == true } == 1)
    }

    @Test(arguments: [BrokerFaultyStore.Fault.refuse, .loseAnswer])
    func `no poll without a turn that the store has granted`(fault: BrokerFaultyStore.Fault) async throws {
        let store = BrokerFaultyStore()
        let (broker, script) = try await BrokerHarness.devices(store: store)
        let handle = await broker.beginDevice()
        store.disturb([fault]) { $0.writes(.device) }
        broker.time.advance(by: .seconds(5))
        await broker.time.sleepers(of: .milliseconds(200))
        #expect(script.polls.isEmpty)
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .milliseconds(200))
        if case .loseAnswer = fault {
            await broker.time.sleepers(of: .seconds(5))
            #expect(script.polls.isEmpty)
            broker.time.advance(by: .seconds(5))
        }
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(script.polls.count == 1)
    }

    @Test func `a store that is away for minutes costs no login`() async throws {
        let store = BrokerFaultyStore()
        let (broker, script) = try await BrokerHarness.devices(store: store)
        let handle = await broker.beginDevice()
        await broker.time.sleepers(of: .seconds(5))
        store.isAway = true
        await broker.time.pass(.seconds(120))
        #expect(script.polls.isEmpty)
        store.isAway = false
        script.enqueue(DeviceScript.granted())
        broker.time.advance(by: .seconds(5))
        #expect(await broker.deviceEnd(handle) == #"{"status":"completed"}"#)
    }

    // MARK: Stopping

    @Test func `what is granted while the broker stops`() async throws {
        let login = try await Polled(DeviceScript.granted())
        login.broker.broker.beginDraining()
        async let finished: Void = login.broker.broker.core.finish()
        login.gate.open()
        await finished
        #expect(await login.broker.deviceProgress(login.handle).text == #"{"status":"completed"}"#)
        #expect(await login.broker.token() == "access-1")
    }

    @Test func `no poll begins once the broker has begun to stop`() async throws {
        let store = FaultyStore()
        let (broker, script) = try await BrokerHarness.devices(store: store)
        _ = await broker.beginDevice()
        await broker.time.sleepers(of: .seconds(5))
        let gate = Gate()
        store.holdNextRead(of: .device, gate)
        broker.time.advance(by: .seconds(5))
        await gate.arrivals()
        let before = store.commits
        broker.broker.beginDraining()
        async let finished: Void = broker.broker.core.finish()
        gate.open()
        await finished
        #expect(script.polls.isEmpty)
        #expect(store.commits == before)
    }

    @Test func `a poll whose answer does not come is cut short when the broker must stop`() async throws {
        let login = try await Polled(.failure(.cancelled))
        login.broker.broker.beginDraining()
        #expect(login.broker.broker.deviceLogins.cancelAll() == 1)
        login.gate.open()
        await login.broker.broker.deviceLogins.finish()
        #expect(await login.broker.deviceProgress(login.handle).text == #"{"status":"pending"}"#)
    }
}
