import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Several brokers on one store, each with clocks of its own. One whose time stands still is as good as dead.
@Suite(.timeLimit(.minutes(1))) struct `Replicas that see a device login through` {
    /// The brokers, in the order in which they share the work, and the provider that they share.
    private struct Replicas {
        let base = MemoryRecordStore()
        let script: DeviceScript
        let first: BrokerHarness
        let firstStore: BrokerFaultyStore

        /// - Parameter ahead: how far the first one's clock is ahead of the true time, the script's.
        init(codes: String = DeviceScript.codes(), trueTime: ManualTime? = nil, ahead: Duration = .zero) async throws {
            let time = ManualTime(skipsSleeps: false)
            time.advance(by: ahead)
            script = DeviceScript(trueTime ?? time)
            script.setCodes(codes)
            firstStore = BrokerFaultyStore(base, revalidateAfter: .seconds(5))
            first = try await BrokerHarness.devices(store: firstStore, script: script, time: time).broker
        }

        func another(ahead: Duration = .zero) async throws -> BrokerHarness {
            let time = ManualTime(skipsSleeps: false)
            time.advance(by: ahead)
            return try await BrokerHarness.devices(
                store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), script: script, time: time, tenant: nil
            ).broker
        }
    }

    /// Has a broker look for logins, and waits until it has found the one that there is.
    private func start(_ broker: BrokerHarness) async {
        broker.broker.core.start()
        await broker.time.sleepers(of: SleepLength.jobsOfReplica + [.loginTakeover])
    }

    /// The shortest time between two polls.
    private func closest(_ script: DeviceScript) -> Duration? {
        zip(script.polls, script.polls.dropFirst()).map { $1 - $0 }.min()
    }

    // MARK: Together

    // H044 H088
    @Test(arguments: [(0, 0), (0, 240), (240, 0), (0, 299), (299, 0)])
    func `poll no more often than one would, whatever their clocks say`(first: Int, second: Int) async throws {
        let true0 = ManualTime(skipsSleeps: false)
        let replicas = try await Replicas(trueTime: true0, ahead: .seconds(first))
        let handle = await replicas.first.beginDevice()
        let other = try await replicas.another(ahead: .seconds(second))
        await start(other)
        await ManualTime.pass(.seconds(60), on: true0, replicas.first.time, other.time)
        #expect(replicas.script.polls == (1...12).map { .seconds(5 * $0) })
        replicas.script.enqueue(DeviceScript.granted())
        for clock in [true0, replicas.first.time, other.time] { clock.advance(by: .seconds(5)) }
        #expect(await replicas.first.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(await replicas.first.token() == "access-1")
    }

    // T64
    @Test func `wait longer for good after slow_down, whichever replica hears it`() async throws {
        let replicas = try await Replicas(codes: DeviceScript.codes(interval: 5, expiresIn: 3600))
        _ = await replicas.first.beginDevice()
        replicas.script.enqueue(DeviceScript.slowDown)
        await replicas.first.time.pass(.seconds(16))
        #expect(replicas.script.polls == [.seconds(5), .seconds(15)])
        // The first is gone; the second has the interval from the record.
        let second = try await replicas.another(ahead: .seconds(16))
        let secondScript = DeviceScript(second.time)
        second.transport.always(secondScript.step)
        secondScript.enqueue(DeviceScript.slowDown)
        await start(second)
        await second.time.pass(.seconds(60))
        let polls = secondScript.polls
        let beginning = try #require(polls.first)
        #expect(beginning >= .seconds(25) && beginning <= .seconds(16 + 10 + 7 + 1))
        #expect(zip(polls, polls.dropFirst()).allSatisfy { $1 - $0 == .seconds(15) })
        #expect(polls.count >= 3)
        let third = try await replicas.another(ahead: .seconds(76))
        let thirdScript = DeviceScript(third.time)
        third.transport.always(thirdScript.step)
        await start(third)
        await third.time.pass(.seconds(60))
        #expect(closest(thirdScript) == .seconds(15))
    }

    // MARK: One after another

    @Test func `go on where one died between two polls`() async throws {
        let replicas = try await Replicas()
        let handle = await replicas.first.beginDevice()
        await replicas.first.time.pass(.seconds(5))
        #expect(replicas.script.polls.count == 1)
        let second = try await replicas.another(ahead: .seconds(5))
        await start(second)
        replicas.script.enqueue(DeviceScript.granted())
        await second.time.pass(.milliseconds(9500))
        #expect(replicas.script.polls.count == 1)
        second.time.advance(by: .seconds(3))
        #expect(await second.deviceEnd(handle) == #"{"status":"completed"}"#)
        #expect(await second.token() == "access-1")
        #expect(replicas.script.polls.count == 2)
    }

    @Test func `go on where one died in the middle of a poll, and its late answer changes nothing`() async throws {
        let replicas = try await Replicas()
        let handle = await replicas.first.beginDevice()
        let gate = Gate()
        replicas.script.enqueue(.after(gate, DeviceScript.granted("late")), DeviceScript.granted("in-time"))
        replicas.first.time.advance(by: .seconds(5))
        await gate.arrivals()
        let second = try await replicas.another(ahead: .seconds(5))
        await start(second)
        await second.time.pass(.milliseconds(29_500))
        #expect(replicas.script.polls.count == 1)
        second.time.advance(by: .seconds(3))
        #expect(await second.deviceEnd(handle) == #"{"status":"completed"}"#)
        gate.open()
        await replicas.first.broker.deviceLogins.finish()
        #expect(await second.token() == "in-time")
        #expect(replicas.script.revoked == ["refresh-of-late"])
    }

    @Test func `keep what one was granted and could not store at once, although another has taken over`() async throws {
        let replicas = try await Replicas()
        let handle = await replicas.first.beginDevice()
        replicas.firstStore.disturb([.refuse]) { $0.writes(.credentials) }
        replicas.script.enqueue(DeviceScript.granted())
        replicas.first.time.advance(by: .seconds(5))
        await replicas.first.time.sleepers(of: .milliseconds(200))
        let second = try await replicas.another(ahead: .seconds(5))
        await start(second)
        let gate = Gate()
        // The code is spent.
        replicas.script.enqueue(.after(gate, .json(400, #"{"error": "invalid_grant"}"#)))
        await second.time.pass(.milliseconds(29_500))
        second.time.advance(by: .seconds(3))
        await gate.arrivals()
        replicas.first.time.advance(by: .seconds(1))
        #expect(await replicas.first.deviceEnd(handle) == #"{"status":"completed"}"#)
        gate.open()
        await second.broker.deviceLogins.finish()
        #expect(await second.deviceProgress(handle).text == #"{"status":"completed"}"#)
        #expect(await replicas.first.token() == "access-1")
        #expect(replicas.script.revoked.isEmpty)
    }

    @Test func `do not poll with a turn that came too late`() async throws {
        let base = MemoryRecordStore()
        let slow = FaultyStore(base, revalidateAfter: .seconds(5))
        let (first, script) = try await BrokerHarness.devices(store: slow)
        let handle = await first.beginDevice()
        let gate = Gate()
        slow.onCommit(of: .device, .holdAnswer(gate))
        first.time.advance(by: .seconds(5))
        await gate.arrivals()
        // The claim stands in the store; the one who made it has yet to hear so.
        let second = try await BrokerHarness.devices(
            store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), script: script, tenant: nil
        ).broker
        second.time.advance(by: .seconds(5))
        await start(second)
        await second.time.pass(.seconds(33))
        #expect(script.polls.count == 1)
        first.time.advance(by: .seconds(33))
        gate.open()
        await first.time.sleepers(of: .loginTakeover)
        #expect(script.polls.count == 1)
        script.enqueue(DeviceScript.granted())
        second.time.advance(by: .seconds(5))
        #expect(await second.deviceEnd(handle) == #"{"status":"completed"}"#)
    }

    @Test func `do not end a login for one whose clock is ahead`() async throws {
        let replicas = try await Replicas()
        let handle = await replicas.first.beginDevice()
        let ahead = try await replicas.another(ahead: .seconds(301))
        await start(ahead)
        await ManualTime.pass(.seconds(30), on: replicas.first.time, ahead.time)
        #expect(await replicas.first.deviceProgress(handle).text == #"{"status":"pending"}"#)
        #expect(replicas.script.polls.count == 6)
    }

    @Test func `end a login that no client polls any more, a while after its time`() async throws {
        let replicas = try await Replicas(codes: DeviceScript.codes(interval: 600, expiresIn: 60))
        let handle = await replicas.first.beginDevice()
        let second = try await replicas.another()
        await start(second)
        second.time.advance(by: .seconds(60))
        #expect(await second.deviceProgress(handle).text == #"{"status":"expired"}"#)
        let gate = Gate()
        try #require(second.store as? BrokerFaultyStore).disturb([.hold(gate)]) { $0.writes(.device) }
        second.time.advance(by: .seconds(300))
        await gate.arrivals()
        gate.open()
        await second.broker.deviceLogins.finish()
        #expect(replicas.script.polls.isEmpty)
        let kept = try await second.vault.list(.device, tenant: nil, limit: 2)
        #expect(kept.map { $0.content.revealedText.contains(#""status":"expired""#) } == [true])
    }

    // MARK: Restarts

    /// A store that one broker writes to.
    @Test(arguments: [false, true])
    func `go on at once after a restart where no other can have been there`(diesInPoll: Bool) async throws {
        let store = MemoryRecordStore()
        let (first, script) = try await BrokerHarness.devices(store: store)
        let handle = await first.beginDevice()
        let gate = Gate()
        if diesInPoll {
            script.enqueue(.after(gate, DeviceScript.pending))
            first.time.advance(by: .seconds(5))
            await gate.arrivals()
        }
        let second = try await BrokerHarness.devices(store: store, script: script, tenant: nil).broker
        second.time.advance(by: .seconds(6))
        second.broker.core.start()
        // The login's own sleep is one of those of five seconds.
        await second.time.sleepers(of: .housekeeping, .expiryNotices, .seconds(5))
        script.enqueue(DeviceScript.granted())
        second.time.advance(by: .milliseconds(4999))
        #expect(script.polls.count == (diesInPoll ? 1 : 0))
        second.time.advance(by: .milliseconds(1))
        #expect(await second.deviceEnd(handle) == #"{"status":"completed"}"#)
        gate.open()
    }

    @Test(arguments: [nil, .seconds(5)] as [Duration?])
    func `find what is pending although the store was away at first`(revalidateAfter: Duration?) async throws {
        let base = MemoryRecordStore()
        let (first, script) = try await BrokerHarness.devices(store: base)
        let handle = await first.beginDevice()
        let store = BrokerFaultyStore(base, revalidateAfter: revalidateAfter)
        let second = try await BrokerHarness.devices(store: store, script: script, tenant: nil).broker
        store.isAway = true
        second.broker.core.start()
        await second.time.sleepers(
            of: revalidateAfter == nil
                ? [.housekeeping, .expiryNotices, .leaseSearchAlone, .loginSearch]
                : SleepLength.jobsOfReplicaWithoutStore)
        store.isAway = false
        script.enqueue(DeviceScript.granted())
        second.time.advance(by: .seconds(5))
        // The search has found the login.
        await second.time.sleepers(
            of: revalidateAfter == nil
                ? [.housekeeping, .expiryNotices, .seconds(5)] : SleepLength.jobsOfReplica + [.loginTakeover])
        second.time.advance(by: .seconds(12))
        #expect(await second.deviceEnd(handle) == #"{"status":"completed"}"#)
    }

    @Test func `find what is pending beside a login that cannot be opened`() async throws {
        let replicas = try await Replicas()
        let handle = await replicas.first.beginDevice()
        let sound = try #require(try await replicas.base.list(.device, tenant: nil, after: nil, limit: 1).first)
        // Before and after the sound one in the order of keys.
        for key in ["!", "~"] {
            var damaged = sound
            damaged.id = RecordID(.device, sound.id.tenant, key: key)
            damaged.lookup = Array(repeating: UInt8(key.utf8.first!), count: 32)
            try await replicas.base.commit([.insert(damaged)])
        }
        let second = try await replicas.another()
        await start(second)
        replicas.script.enqueue(DeviceScript.granted())
        second.time.advance(by: .seconds(12))
        #expect(await second.deviceEnd(handle) == #"{"status":"completed"}"#)
    }

    @Test func `tell each other's waiting callers within a second`() async throws {
        let replicas = try await Replicas()
        let handle = await replicas.first.beginDevice()
        let second = try await replicas.another()
        let waiter = Task { await second.deviceEnd(handle) }
        await second.time.sleepers(of: .seconds(1))
        replicas.script.enqueue(DeviceScript.granted())
        replicas.first.time.advance(by: .seconds(5))
        #expect(await replicas.first.deviceEnd(handle) == #"{"status":"completed"}"#)
        second.time.advance(by: .seconds(1))
        #expect(await waiter.value == #"{"status":"completed"}"#)
    }
}
