import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

@Suite struct `Leases on renewals` {
    private static let row = RecordID(.credentials, TenantName("t1")!, key: "default")

    /// A provider whose refresh tokens are spent by their use.
    private static let rotating = #"{"client_id": "c1", "rotation": "always"}"#

    /// A third of the grace that is assumed of a provider.
    private static let span: Duration = .seconds(10) / 3

    /// Two replicas of one store and one clock. A user's token, "a1" with "r1", has expired.
    private static func expired(
        skipsSleeps: Bool = true
    ) async throws -> (time: ManualTime, one: BrokerHarness, two: BrokerHarness) {
        let time = ManualTime()
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(5), time: time)
        await one.makeTenant("t1", rotating)
        _ = await one.set("a1", refresh: "r1")
        time.advance(by: .seconds(3600))
        if !skipsSleeps { time.holdSleeps() }
        return (time, one, two)
    }

    private static func lease(_ broker: BrokerHarness) async throws -> Lease? {
        try await broker.vault.read(row)?.lease
    }

    /// Has a replica that died in the middle of its call leave its lease behind.
    private static func abandon(_ broker: BrokerHarness, after age: Duration = .seconds(4)) async throws {
        let version = try #require(try await broker.vault.read(row)).version
        try await broker.vault.commit([
            .claim(row, version: version, LeaseClaim(holder: "dead", for: span, marksUse: true))
        ])
        broker.time.advance(by: age)
    }

    private static func renewals(_ broker: BrokerHarness, _ outcome: String) async -> String? {
        let text = await broker.call(.get, "/metrics").text
        return text.split(separator: "\n").first {
            $0.hasPrefix("token_broker_refresh_total{") && $0.contains(#"outcome="\#(outcome)""#) && !$0.hasSuffix(" 0")
        }.map { String($0.split(separator: " ").last ?? "") }
    }

    // H076
    @Test func `of two replicas one refreshes and the other has what it brought`() async throws {
        let (time, one, two) = try await Self.expired(skipsSleeps: false)
        let gate = Gate()
        one.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let first = one.get()
        await gate.arrivals()
        let lease = try #require(try await Self.lease(two))
        #expect(lease.remaining > .seconds(3) && lease.remaining <= .seconds(4) && !lease.hasRunOut)
        async let second = two.get()
        await time.sleepers(of: .seconds(1))
        // It looks again each second, and goes on waiting.
        time.advance(by: .seconds(1))
        await time.sleepers(of: .seconds(1))
        gate.open()
        #expect(await first.token == "a2")
        time.advance(by: .seconds(1))
        let answer = await second
        #expect(answer.token == "a2")
        #expect(await one.get().tag == answer.tag)
        #expect(one.transport.seen.count == 1 && two.transport.seen.isEmpty)
        #expect(try await Self.lease(one) == nil)
        #expect(await two.call(.get, "/metrics").text.contains("token_broker_refresh_lease_wait_seconds_count 1\n"))
    }

    @Test func `a caller's patience ends the wait for another replica, and says that it may be asked again`()
        async throws
    {
        let (time, one, two) = try await Self.expired(skipsSleeps: false)
        let gate = Gate()
        one.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let first = one.get()
        await gate.arrivals()
        async let second = two.get(fields: ["Prefer": "wait=2"])
        await time.sleepers(of: .seconds(2), .seconds(1))
        time.advance(by: .seconds(1))
        await time.sleepers(of: .seconds(2), .seconds(1))
        time.advance(by: .seconds(1))
        let answer = await second
        #expect(answer.code == "retryable_error" && answer.retryAfter == 1)
        gate.open()
        #expect(await first.token == "a2")
        time.advance(by: .seconds(1))
    }

    @Test func `a store that is away is another answer than a lease that another has`() async throws {
        let store = FaultyStore(revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", Self.rotating)
        _ = await broker.set("a1", refresh: "r1")
        broker.time.advance(by: .seconds(3600))
        store.setDown(true)
        let answer = await broker.get()
        #expect(answer.status == 503 && answer.code == "storage_unavailable" && answer.retryAfter != nil)
        #expect(broker.transport.seen.isEmpty)
    }

    /// Beyond the grace, the holder may have a successor and is waited for for 30 s.
    // H086
    @Test(arguments: [(3, 1), (4, 0), (9, 0), (10, 24), (33, 1), (34, 0), (60, 0)])
    func `a replica that finds a lease that has run out tries the refresh token at once`(age: Int, waits: Int)
        async throws
    {
        let (time, _, two) = try await Self.expired()
        try await Self.abandon(two, after: .seconds(age))
        time.forgetSleeps()
        two.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await two.get().token == "a2")
        #expect(time.slept.count == waits)
        #expect(two.transport.seen.map { $0.form["refresh_token"] } == ["r1"])
        #expect(two.log.count { $0.contains("refresh_outcome_unknown") } == 1)
        #expect(await two.call(.get, "/metrics").text.contains(#"refresh_outcome_unknown_total{provider="tidal"} 1"#))
        #expect(try await two.events().last?.kind == .refreshSucceeded)
        #expect(try await Self.lease(two) == nil)
    }

    // Q28
    @Test func `a refusal after an unknown outcome is told apart from a revocation`() async throws {
        let (_, _, two) = try await Self.expired()
        try await Self.abandon(two)
        two.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await two.get().level == "basic")
        let told = try await two.events().filter { $0.kind == .credentialsDeauthorized }
        #expect(told.map { $0.data["cause"]?.text } == ["revoked"])
        #expect(told.map { $0.data["reason"]?.text } == ["outcome_unknown"])
        #expect(try await two.quarantined()?.credentials.refreshToken?.revealedText == "r1")
        #expect(await Self.renewals(two, "session_lost") == "1")
        #expect(await Self.renewals(two, "session_ended") == nil)
        #expect(await two.restore().status == 200)
    }

    @Test func `a refusal out of the blue is a revocation`() async throws {
        let (_, one, _) = try await Self.expired()
        one.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await one.get().level == "basic")
        let told = try await one.events().filter { $0.kind == .credentialsDeauthorized }
        #expect(told.map { $0.data["reason"]?.text } == [nil])
        #expect(await Self.renewals(one, "session_ended") == "1")
    }

    @Test(arguments: [
        (ScriptedTransport.Step.failure(.connectionLost(requestSent: true)), true),
        (.failure(.timedOut(.firstByte, requestSent: true)), true), (.json(503, "{}"), true), (.json(500, ""), true),
        (.failure(.connectFailed), false), (.failure(.connectionLost(requestSent: false)), false),
    ])
    func `a refusal after an answer that was lost in the same renewal is told apart, too`(
        first: ScriptedTransport.Step, isUncertain: Bool
    ) async throws {
        let (_, one, _) = try await Self.expired()
        one.transport.enqueue(first, .json(400, #"{"error": "invalid_grant"}"#))
        #expect(await one.get().level == "basic")
        #expect(one.transport.seen.count == 2)
        let told = try await one.events().filter { $0.kind == .credentialsDeauthorized }
        #expect(told.map { $0.data["reason"]?.text } == [isUncertain ? "outcome_unknown" : nil])
        #expect(one.log.count { $0.contains("refresh_outcome_unknown") } == (isUncertain ? 1 : 0))
    }

    @Test(arguments: [
        (ScriptedTransport.Step.json(503, "{}"), 6, true), (.failure(.connectionLost(requestSent: true)), 6, true),
        (.json(200, "{}"), 6, true), (.failure(.malformedResponse), 6, true),
        (.failure(.connectFailed), 6, false), (.json(400, #"{"error": "invalid_scope"}"#), 1, false),
        (.json(429, "{}"), 1, false),
    ])
    func `a renewal that failed leaves a mark where it is not known what became of the refresh token`(
        step: ScriptedTransport.Step, calls: Int, isUncertain: Bool
    ) async throws {
        let (time, one, two) = try await Self.expired()
        one.transport.always(step)
        #expect(await one.get().status >= 500)
        #expect(one.transport.seen.count == calls)
        let lease = try await Self.lease(one)
        #expect(lease.map(\.wasGivenUp) == true && lease?.isSettled == !isUncertain)
        #expect(lease?.failure != nil)
        #expect(try await one.events().last?.kind == .refreshFailed)
        // The holder has not died, so the lease is taken over only when a caller asks.
        #expect(try await one.vault.lapsed(.credentials, limit: 9).isEmpty)
        time.advance(by: .seconds(60))
        two.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await two.get().level == "basic")
        let told = try await two.events().filter { $0.kind == .credentialsDeauthorized }
        #expect(told.map { $0.data["reason"]?.text } == [isUncertain ? "outcome_unknown" : nil])
    }

    @Test func `the lease is extended before each further call and outlasts the waits between`() async throws {
        let (time, one, two) = try await Self.expired()
        for _ in 0..<5 { one.transport.enqueue(.json(503, "{}")) }
        let gate = Gate()
        one.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let first = one.get()
        await gate.arrivals()
        #expect(time.slept.reduce(.zero, +) == .milliseconds(6555))
        let lease = try #require(try await Self.lease(two))
        #expect(lease.remaining > .seconds(3) && lease.remaining <= Self.span)
        gate.open()
        #expect(await first.token == "a2")
    }

    // H086
    @Test func `a holder that was held up and has lost its lease calls no provider`() async throws {
        let (time, one, two) = try await Self.expired()
        let gate = Gate()
        one.transport.enqueue(.after(gate, .json(503, "{}")), .json(200, BrokerHarness.token("late")))
        async let first = one.get()
        await gate.arrivals()
        time.holdTicks()
        time.advance(by: .seconds(4))
        two.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await two.get().token == "a2")
        gate.open()
        #expect(await first.token == "a2")
        #expect(one.transport.seen.count == 1)
        // Listeners are told how each renewal ended.
        let kinds = try await two.events().map(\.kind)
        #expect(kinds.count { $0 == .refreshStarted } == 2)
        #expect(kinds.count { $0 == .refreshFailed } == 1 && kinds.count { $0 == .refreshSucceeded } == 1)
    }

    /// A broker on a store that other replicas write to as well. A user's token, "a1" with "r1", has expired; the provider
    /// takes that long and answers nothing, and meanwhile the store goes away.
    private static func leftAlone(
        after duration: Duration, _ failure: TransportError = .timedOut(.firstByte, requestSent: true),
        time: ManualTime = ManualTime()
    ) async throws -> (store: BrokerFaultyStore, broker: BrokerHarness) {
        let store = BrokerFaultyStore(MemoryRecordStore { time.monotonic }, revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", Self.rotating)
        await broker.set("a1", refresh: "r1")
        time.advance(by: .seconds(3600))
        broker.transport.enqueue(
            .decide { _ in
                store.isAway = true
                time.advance(by: duration)
                return .failure(failure)
            })
        return (store, broker)
    }

    /// The second call comes half a second after the first, and has to begin before the lease ends, which lasts a third of the
    /// grace of 10 seconds.
    @Test(arguments: [
        (2832, TransportError.timedOut(.firstByte, requestSent: true), 2),
        (2833, .timedOut(.firstByte, requestSent: true), 2),
        (2834, .timedOut(.firstByte, requestSent: true), 1), (2833, .connectFailed, 1),
    ])
    func `what may have been spent is asked for once more without the store, as long as the lease stands`(
        milliseconds: Int, failure: TransportError, calls: Int
    ) async throws {
        let (store, broker) = try await Self.leftAlone(after: .milliseconds(milliseconds), failure)
        broker.transport.enqueue(
            .decide { _ in
                store.isAway = false
                return .json(200, BrokerHarness.token("a2", refresh: "r2"))
            })
        let answer = await broker.get()
        #expect(broker.transport.seen.count == calls)
        if calls == 2 { #expect(answer.token == "a2") } else { #expect(answer.code == "storage_unavailable") }
    }

    @Test func `a lease that its own process could not give back is waited for by others only`() async throws {
        let (store, broker) = try await Self.leftAlone(after: .seconds(12))
        #expect(await broker.get().code == "storage_unavailable")
        #expect(broker.log.contains { $0.contains("event_not_stored") })
        store.isAway = false
        broker.time.forgetSleeps()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.time.slept.isEmpty)
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1", "r1"])
    }

    @Test func `its own process renews as soon as the store is back, without a request`() async throws {
        let time = ManualTime()
        let (store, broker) = try await Self.leftAlone(after: .seconds(12), time: time)
        #expect(await broker.get().code == "storage_unavailable")
        time.holdSleeps()
        store.isAway = false
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        broker.broker.core.start()
        await gate.arrivals()
        gate.open()
        broker.broker.beginDraining()
        await broker.broker.core.finish()
        #expect(await broker.get("policy=local").token == "a2")
    }

    @Test func `a grant is stored where the lease that stood in its way ends while that is looked at`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let broker = try await BrokerHarness(
            store: SurroundedStore(records) { changes, inner throws(StoreError) in
                do throws(StoreError) {
                    try await inner.commit(changes)
                } catch {
                    if let standing = try await inner.read(Self.row), let lease = standing.lease {
                        try await inner.commit([
                            .release(Self.row, version: standing.version, holder: lease.holder, isSettled: true)
                        ])
                    }
                    throw error
                }
            }, time: time)
        try await Self.overtakeLease(of: broker, in: records, for: .seconds(12))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a grant waits for another replica's calls as long as the provider may grant them something`()
        async throws
    {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let refusals = Atomic(0)
        let broker = try await BrokerHarness(
            store: SurroundedStore(records) { changes, inner throws(StoreError) in
                do throws(StoreError) {
                    try await inner.commit(changes)
                } catch {
                    refusals.add(1, ordering: .relaxed)
                    throw error
                }
            }, time: time)
        try await Self.overtakeLease(of: broker, in: records, for: .seconds(100))
        // Later than the grace the other one is granted nothing.
        #expect(broker.transport.seen.count == 1 && (5...7).contains(refusals.load(ordering: .relaxed)))
    }

    /// Has a refresh, whose answer comes when its lease has run out and another one has taken it, succeed.
    private static func overtakeLease(
        of broker: BrokerHarness, in records: MemoryRecordStore, for duration: Duration
    ) async throws {
        await broker.makeTenant("t1", Self.rotating)
        _ = await broker.set("a1", refresh: "r1")
        broker.time.advance(by: .seconds(3600))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let answer = broker.get()
        await gate.arrivals()
        broker.time.holdTicks()
        broker.time.advance(by: .seconds(4))
        let standing = try #require(try await records.read(row))
        try await records.commit([
            .claim(
                row, version: standing.version,
                LeaseClaim(holder: "other", replacing: standing.lease?.holder, for: duration, marksUse: true))
        ])
        gate.open()
        #expect(await answer.token == "a2")
    }

    @Test func `the provider is not called while the store is slower than the lease is long`() async throws {
        let time = ManualTime()
        let broker = try await BrokerHarness(
            store: SurroundedStore(MemoryRecordStore { time.monotonic }) { changes, inner throws(StoreError) in
                try await inner.commit(changes)
                let isClaim = changes.contains { change in
                    if case .claim = change { true } else { false }
                }
                if isClaim { time.advance(by: .seconds(4)) }
            }, time: time)
        await broker.makeTenant("t1", Self.rotating)
        _ = await broker.set("a1", refresh: "r1")
        time.advance(by: .seconds(3600))
        #expect(await broker.get().code == "storage_unavailable")
        #expect(broker.transport.seen.isEmpty)
        #expect(try await Self.lease(broker)?.isSettled == true)
    }

    @Test(arguments: [true, false])
    func `a renewal that a stop cuts short is repeated at once by others where its outcome is not known`(
        isUncertain: Bool
    ) async throws {
        let (_, one, two) = try await Self.expired()
        let gate = Gate()
        one.transport.enqueue(.after(gate, .failure(isUncertain ? .cancelled : .connectFailed)))
        async let first = one.get()
        await gate.arrivals()
        #expect(one.broker.core.renewer.cancelAll() == 1)
        gate.open()
        #expect(await first.status >= 500)
        #expect(try await two.vault.lapsed(.credentials, limit: 9).count == (isUncertain ? 1 : 0))
        #expect(try await Self.lease(two)?.hasRunOut == (isUncertain ? true : nil))
    }

    // H086
    @Test(arguments: [true, false])
    func `a grant that comes late waits for the replica that has taken over, and yields to a newer grant`(
        succeeds: Bool
    ) async throws {
        let (time, one, two) = try await Self.expired(skipsSleeps: false)
        let (late, taken) = (Gate(), Gate())
        one.transport.enqueue(.after(late, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let first = one.get()
        await late.arrivals()
        time.holdTicks()
        time.advance(by: .seconds(4))
        two.transport.enqueue(
            .after(
                taken,
                succeeds
                    ? .json(200, BrokerHarness.token("a3", refresh: "r3"))
                    : .json(400, #"{"error": "invalid_grant"}"#)))
        async let second = two.get()
        await taken.arrivals()
        late.open()
        await time.sleepers(of: .seconds(1))
        taken.open()
        let answer = await second
        #expect(succeeds ? answer.token == "a3" : answer.level == "basic")
        time.advance(by: .seconds(1))
        #expect(await first.token == (succeeds ? "a3" : "a2"))
        time.advance(by: .seconds(5))
        #expect(await two.get().token == (succeeds ? "a3" : "a2"))
    }

    @Test func `a grant that comes late takes the place of one that left the spent refresh token where it was`()
        async throws
    {
        let (time, one, two) = try await Self.expired(skipsSleeps: false)
        let late = Gate()
        one.transport.enqueue(.after(late, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let first = one.get()
        await late.arrivals()
        time.holdTicks()
        time.advance(by: .seconds(4))
        two.transport.enqueue(.json(200, BrokerHarness.token("a3")))
        #expect(await two.get().token == "a3")
        late.open()
        #expect(await first.token == "a2")
        time.advance(by: .seconds(6))
        two.transport.enqueue(.json(200, BrokerHarness.token("a4", refresh: "r4")))
        #expect(await two.get("policy=local_force_refresh").token == "a4")
        #expect(two.transport.seen.map { $0.form["refresh_token"] } == ["r1", "r2"])
    }

    @Test func `a session stays while another client is configured, with what another replica is granted then`()
        async throws
    {
        let time = ManualTime(skipsSleeps: false)
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(5), time: time)
        await one.makeTenant("t1", "{\(BrokerHarness.oidc) \"client_id\": \"c1\"}")
        await one.set("a1", refresh: "r1", lifetime: .zero)
        let gate = Gate()
        one.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2", expiresIn: 1))))
        async let first = one.get()
        await gate.arrivals()
        await two.makeTenant("t1", "{\(BrokerHarness.oidc) \"client_id\": \"c2\"}")
        #expect(await two.get().level == "basic")
        gate.open()
        _ = await first
        time.advance(by: .seconds(1))
        #expect(await two.get().level == "basic")
        #expect(try await two.quarantined() == nil)
        await two.makeTenant("t1", "{\(BrokerHarness.oidc) \"client_id\": \"c1\"}")
        two.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await two.get().token == "a3")
        #expect(two.transport.seen.last?.form["refresh_token"] == "r2")
    }

    @Test func `a renewal that a dead replica left is finished without a request, although the token is good`()
        async throws
    {
        let time = ManualTime(skipsSleeps: false)
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(5), time: time)
        await one.makeTenant("t1", Self.rotating)
        _ = await one.set("a1", refresh: "r1")
        let gate = Gate()
        two.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        // The second replica has reached the store for long enough.
        time.advance(by: .seconds(5))
        try await Self.abandon(one)
        two.broker.core.start()
        await gate.arrivals()
        gate.open()
        two.broker.beginDraining()
        await two.broker.core.finish()
        // Longer than a cache entry is valid.
        time.advance(by: .seconds(5))
        #expect(await one.get("policy=local").token == "a2")
        #expect(try await one.vault.lapsed(.credentials, limit: 9).isEmpty)
        #expect(two.transport.seen.map { $0.form["refresh_token"] } == ["r1"])
    }

    // H099
    @Test(arguments: [
        (ScriptedTransport.Step.failure(.connectionLost(requestSent: true)), true), (.failure(.connectFailed), false),
    ])
    func `a broker that is about to stop leaves the tries that are left to others, at once`(
        step: ScriptedTransport.Step, isUncertain: Bool
    ) async throws {
        let (time, one, two) = try await Self.expired(skipsSleeps: false)
        one.transport.enqueue(step)
        async let first = one.get()
        await time.sleepers(of: .milliseconds(500))
        one.broker.beginDraining()
        #expect(await first.code == "retryable_error")
        #expect(one.transport.seen.count == 1)
        #expect(try await two.vault.lapsed(.credentials, limit: 9).count == (isUncertain ? 1 : 0))
        two.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await two.get().token == "a2")
        await one.broker.core.finish()
    }

    // Until it has stored them, its holder alone has the credentials that the provider granted, and a refresh token that
    // is presented again after the provider's grace period ends the session.
    @Test(arguments: [(1, 0), (2, 1), (3, 1)])
    func `a lease that ran out while the store was away is its holder's for a moment more`(
        after: Int, calls: Int
    ) async throws {
        let time = ManualTime()
        let base = MemoryRecordStore { time.monotonic }
        let store = BrokerFaultyStore(base, revalidateAfter: .seconds(5))
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", Self.rotating)
        _ = await broker.set("a1", refresh: "r1")
        time.advance(by: .seconds(3600))
        try await Self.abandon(broker)
        store.isAway = true
        #expect(await broker.get().code == "storage_unavailable")
        store.isAway = false
        time.advance(by: .seconds(after))
        time.holdSleeps()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        async let answer = broker.get()
        if calls == 0 {
            await time.sleepers(of: .milliseconds(500))
            #expect(broker.transport.seen.isEmpty)
            time.advance(by: .seconds(1))
        }
        #expect(await answer.token == "a2")
    }

    @Test func `a lease over what needs no refreshing is taken away`() async throws {
        let time = ManualTime()
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(5), time: time)
        await one.makeTenant("t1", Self.rotating)
        _ = await one.set("a1")
        try await Self.abandon(one)
        time.holdSleeps()
        two.broker.core.start()
        // Everything that the broker does by itself has been begun once.
        await time.sleepers(of: SleepLength.jobsOfReplica)
        while try await Self.lease(one) != nil { await Task.yield() }
        #expect(two.transport.seen.isEmpty)
        two.broker.beginDraining()
        await two.broker.core.finish()
    }
}

/// A store whose commits go through a closure.
private final class SurroundedStore: ForwardingStore {
    typealias Commit = @Sendable ([RecordChange], any RecordStore) async throws(StoreError) -> Void

    let inner: any RecordStore
    let revalidateAfter: Duration? = .seconds(5)
    private let commit: Commit

    init(_ inner: any RecordStore, _ commit: @escaping Commit) {
        self.inner = inner
        self.commit = commit
    }

    func admit() throws(StoreError) {}

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try await commit(changes, inner)
    }
}
