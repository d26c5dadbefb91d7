import AuthTesting
import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// A provider that refuses the refresh tokens of many users at once.
@Suite(.timeLimit(.minutes(2))) struct `A wave of refusals` {
    typealias Step = ScriptedTransport.Step

    static let dead = Step.json(400, #"{"error": "invalid_grant"}"#)
    static let alive = Step.json(200, BrokerHarness.token("new", refresh: "new"))
    static func tenant(_ members: String = "") -> String {
        "{" + BrokerHarness.oidc + #""client_id": "c1"\#(members)}"#
    }

    static func key(_ index: Int) -> String { "u\(100 + index)" }

    /// Users whose tokens are over, and a provider that refuses all.
    static func make(
        _ users: Int, _ tenant: String = tenant(), store: (any RecordStore)? = nil, lifetime: Duration = .zero
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await fill(broker, users, tenant, lifetime: lifetime)
        return broker
    }

    static func fill(
        _ broker: BrokerHarness, _ users: Int, _ tenant: String = tenant(), lifetime: Duration = .zero
    ) async {
        await broker.makeTenant("t1", tenant)
        for index in 0..<users {
            await broker.set("a\(index)", refresh: "r\(index)", lifetime: lifetime, storageKey: key(index))
        }
        broker.transport.always(dead)
    }

    static func get(_ broker: BrokerHarness, _ index: Int, _ query: String = "") async -> BrokerHarness.Answer {
        await broker.get("storage_key=\(key(index))\(query)")
    }

    /// Has the broker do what is due, and what that makes due.
    static func work(_ broker: BrokerHarness) async {
        for _ in 0..<3 { await broker.broker.core.waveJob.handleAllDue() }
    }

    /// The storage keys of that state, of all pages.
    static func list(_ broker: BrokerHarness, _ state: String) async -> [String] {
        var (keys, cursor): ([String], String?) = ([], nil)
        repeat {
            let page = await broker.call(
                .get, "/credentials/list?state=\(state)" + (cursor.map { "&cursor=\($0)" } ?? ""), tenant: "t1")
            #expect(page.status == 200)
            keys += page.json["credentials"]?.array?.compactMap { $0["storage_key"]?.text } ?? []
            cursor = page.json["next_cursor"]?.text
        } while cursor != nil
        return keys
    }

    static func told(_ broker: BrokerHarness, _ kind: BrokerEvent.Kind) async throws -> [JSONValue] {
        try await broker.events().filter { $0.kind == kind }.map(\.data)
    }

    /// A wave of five users, noticed, with the sessions put back that had ended.
    static func wave(_ broker: BrokerHarness) async {
        for index in 0..<5 { _ = await get(broker, index) }
        await work(broker)
        #expect(await list(broker, "held").count == 5)
    }

    // MARK: The whole

    @Test(arguments: [tenant(), #"{"client_id": "c1"}"#])
    func `ends no session, and the first success frees all`(tenant: String) async throws {
        let broker = try await Self.make(200, tenant)
        for index in 0..<200 {
            let answer = await Self.get(broker, index)
            #expect(answer.status == (index < 4 ? 200 : 424))
            if index >= 4 { #expect((answer.code, answer.retryAfter) == ("illegal_configuration", 10)) }
        }
        #expect(broker.transport.seen.count == 200)
        await Self.work(broker)
        #expect(await Self.list(broker, "held") == (0..<200).map(Self.key))
        for state in ["active", "ended", "quarantined"] { #expect(await Self.list(broker, state) == []) }
        let begun = try await Self.told(broker, .providerDegraded)
        #expect(
            begun.map { $0.object?.mapValues { $0.text } } == [
                [
                    "tenant": "t1", "cause": "wave", "error": "illegal_configuration", "error_code": "invalid_grant",
                    "retry_at": "2026-11-21T09:00:10Z", "time": "2026-11-21T09:00:00Z",
                ]
            ])
        #expect(Set(try await Self.told(broker, .credentialsHeld).compactMap { $0["storage_key"]?.text }).count == 200)
        #expect(try await Self.told(broker, .credentialsHeld).count == 200)
        // Reads do not reach the provider.
        for index in 0..<200 { #expect(await Self.get(broker, index).status == 424) }
        #expect(broker.transport.seen.count == 200)
        #expect(await broker.metric("token_broker_waves") == 1)
        // A trial that is refused.
        broker.time.advance(by: .seconds(10))
        await Self.work(broker)
        #expect(broker.transport.seen.count == 201)
        #expect(await Self.list(broker, "held").count == 200)
        broker.transport.always(Self.alive)
        broker.time.advance(by: .seconds(10))
        await Self.work(broker)
        #expect(broker.transport.seen.count == 202)
        #expect(await Self.list(broker, "held") == [])
        #expect(await Self.list(broker, "active") == (0..<200).map(Self.key))
        #expect(
            try await Self.told(broker, .providerRecovered).map { $0.object?.mapValues { $0.text } } == [
                [
                    "tenant": "t1", "cause": "wave", "since": "2026-11-21T09:00:00Z", "time": "2026-11-21T09:00:20Z",
                ]
            ])
        let freed = try await Self.told(broker, .credentialsRecovered).compactMap { $0["storage_key"]?.text }
        #expect(freed == (0..<200).map(Self.key))
        for index in 0..<200 { #expect(await Self.get(broker, index).token == "new") }
        #expect(try await (broker.count(.held), broker.count(.quarantine)) == (0, 0))
        #expect(await broker.metric("token_broker_waves") == 0)
        #expect(try await Self.told(broker, .providerDegraded).count == 1)
    }

    @Test func `is noticed among refusals of one moment`() async throws {
        let broker = try await Self.make(50)
        let statuses = await withTaskGroup(of: Int.self) { group in
            for index in 0..<50 { group.addTask { await Self.get(broker, index).status } }
            var statuses: [Int] = []
            for await status in group { statuses.append(status) }
            return statuses
        }
        #expect(statuses.count { $0 == 424 } == 46)
        #expect(statuses.count { $0 == 200 } == 4)
        await Self.work(broker)
        #expect(await Self.list(broker, "held").count == 50)
        #expect(try await Self.told(broker, .providerDegraded).count == 1)
    }

    @Test func `is told by the list, the status, the metrics and the log`() async throws {
        let broker = try await Self.make(6)
        await Self.wave(broker)
        #expect(await Self.list(broker, "held") == (0..<5).map(Self.key))
        #expect(await Self.list(broker, "active") == [Self.key(5)])
        for index in 0..<6 {
            let status = await broker.status(storageKey: Self.key(index))
            #expect(status.json["state"]?.text == (index < 5 ? "held" : "active"))
            #expect(status.isLoggedIn == true)
        }
        let listed = await broker.call(.get, "/credentials/list?limit=1", tenant: "t1").json["credentials"]?.array?
            .first
        #expect(listed?["state"]?.text == "held")
        #expect(listed?["last_error"]?["code"]?.text == "illegal_configuration")
        #expect(listed?["last_error"]?["error_code"]?.text == "invalid_grant")
        #expect(await broker.metric(#"token_broker_credentials_held_total{provider="oidc"}"#) == 5)
        #expect(broker.log.count { $0.contains("wave_begun") } == 1)
        let narrowed = await broker.makeKey(
            "t1", #"{"name": "n", "permissions": ["credentials:read"], "storage_keys": ["\#(Self.key(3))"]}"#)
        let own = await broker.call(.get, "/credentials/list", key: narrowed).json["credentials"]?.array
        #expect(own?.map { $0["state"]?.text } == ["held"])
    }

    // MARK: What is no wave

    @Test func `is not one user, nor four, whose sessions end at once`() async throws {
        let broker = try await Self.make(4)
        for index in 0..<4 {
            #expect(await Self.get(broker, index).level == "basic")
            #expect(await broker.status(storageKey: Self.key(index)).isLoggedIn == false)
        }
        await Self.work(broker)
        #expect(await Self.list(broker, "quarantined") == (0..<4).map(Self.key))
        #expect(try await Self.told(broker, .providerDegraded).isEmpty)
    }

    @Test(arguments: [(5, true), (6, false)])
    func `is half of the refreshes at least`(renewed: Int, isWave: Bool) async throws {
        let broker = try await Self.make(11)
        broker.transport.always(Self.alive)
        for index in 5..<(5 + renewed) { #expect(await Self.get(broker, index).token == "new") }
        broker.transport.always(Self.dead)
        for index in 0..<5 { _ = await Self.get(broker, index) }
        #expect(try await Self.told(broker, .providerDegraded).count == (isWave ? 1 : 0))
    }

    @Test func `is not asked what succeeded before the window, and not what was refused before it`() async throws {
        let broker = try await Self.make(16)
        broker.transport.always(Self.alive)
        for index in 10..<16 { #expect(await Self.get(broker, index).token == "new") }
        broker.transport.always(Self.dead)
        for index in 0..<4 { _ = await Self.get(broker, index) }
        broker.time.advance(by: .seconds(64))
        for index in 4..<8 { _ = await Self.get(broker, index) }
        #expect(try await Self.told(broker, .providerDegraded).isEmpty)
        _ = await Self.get(broker, 8)
        #expect(try await Self.told(broker, .providerDegraded).count == 1)
        await Self.work(broker)
        // Those that ended before the window stay as they are.
        #expect(await Self.list(broker, "held") == (4..<9).map(Self.key))
        #expect(await Self.list(broker, "quarantined") == (0..<4).map(Self.key))
    }

    @Test func `is none for a tenant that does not want it`() async throws {
        let broker = try await Self.make(8, Self.tenant(#", "wave": {"users": 0}"#))
        for index in 0..<8 { #expect(await Self.get(broker, index).level == "basic") }
        #expect(await Self.list(broker, "quarantined").count == 8)
    }

    @Test func `ends before its next trial when its tenant does not want it any more`() async throws {
        let broker = try await Self.make(5, Self.tenant(#", "wave": {"trial": 600}"#))
        await Self.wave(broker)
        broker.time.advance(by: .seconds(11))
        await Self.work(broker)
        #expect(await Self.list(broker, "held").count == 5)
        await broker.makeTenant("t1", Self.tenant(#", "wave": {"users": 0}"#))
        await Self.work(broker)
        #expect(await Self.list(broker, "active").count == 5)
        #expect(await Self.get(broker, 0).level == "basic")
    }

    // MARK: Callers meanwhile

    @Test func `leaves live tokens to their callers`() async throws {
        let broker = try await Self.make(6, lifetime: .seconds(30))
        for index in 0..<5 { _ = await Self.get(broker, index) }
        await Self.work(broker)
        for index in 0..<6 {
            let answer = await Self.get(broker, index)
            #expect((answer.status, answer.token) == (200, "a\(index)"))
            #expect(answer.json["degraded"]?["code"]?.text == "illegal_configuration")
        }
        broker.time.advance(by: .seconds(31))
        #expect(await Self.get(broker, 5).status == 424)
    }

    @Test func `keeps the sessions of apps, which are told to come again`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.makeClient()
        let token = await broker.appSession()
        broker.time.advance(by: .seconds(3600))
        await Self.fill(broker, 5, #"{"client_id": "c1"}"#)
        for index in 0..<5 { _ = await Self.get(broker, index) }
        let answer = await broker.refresh(token)
        #expect((answer.status, answer.json["error"]?.text) == (503, "temporarily_unavailable"))
        await Self.work(broker)
        #expect(await Self.list(broker, "held") == ["default"] + (0..<5).map(Self.key))
        broker.transport.always(Self.alive)
        broker.time.advance(by: .seconds(10))
        await Self.work(broker)
        #expect(await broker.refresh(token).status == 200)
        #expect(await broker.sessions().count == 1)
    }

    @Test func `does not concern other users, who are refreshed as ever`() async throws {
        let broker = try await Self.make(6)
        await Self.wave(broker)
        broker.transport.enqueue(Self.alive)
        #expect(await Self.get(broker, 5).token == "new")
        #expect(await Self.list(broker, "held").count == 5)
        // And those of other tenants end.
        await broker.makeTenant("t2", Self.tenant())
        await broker.set("b", refresh: "s", lifetime: .zero, tenant: "t2")
        #expect(await broker.get(tenant: "t2").level == "basic")
    }

    // MARK: Trials

    @Test func `tries one after the other, so that one who has really left keeps none waiting`() async throws {
        let broker = try await Self.make(5)
        await Self.wave(broker)
        let dead = Self.dead
        let alive = Self.alive
        broker.transport.always(.decide { seen in seen.form["refresh_token"] == "r0" ? dead : alive })
        let calls = broker.transport.seen.count
        broker.time.advance(by: .seconds(9))
        await Self.work(broker)
        #expect(broker.transport.seen.count == calls)
        broker.time.advance(by: .seconds(1))
        await Self.work(broker)
        #expect(broker.transport.seen.dropFirst(calls).map { $0.form["refresh_token"] } == ["r0"])
        #expect(await Self.list(broker, "held").count == 5)
        broker.time.advance(by: .seconds(10))
        await Self.work(broker)
        #expect(broker.transport.seen.dropFirst(calls).map { $0.form["refresh_token"] } == ["r0", "r1"])
        #expect(await Self.list(broker, "held") == [])
        // The session of the one who has left ends now.
        #expect(await Self.get(broker, 0).level == "basic")
        for index in 1..<5 { #expect(await Self.get(broker, index).token == "new") }
    }

    @Test func `goes on while trials get no answer`() async throws {
        let broker = try await Self.make(5)
        await Self.wave(broker)
        broker.transport.always(.json(503, ""))
        for _ in 0..<3 {
            broker.time.advance(by: .seconds(30))
            await Self.work(broker)
        }
        #expect(await Self.list(broker, "held").count == 5)
        broker.time.advance(by: .seconds(60))
        broker.transport.always(Self.alive)
        await Self.work(broker)
        #expect(await Self.list(broker, "held") == [])
    }

    // MARK: Operators

    @Test func `lets an operator free a session, and end one`() async throws {
        let broker = try await Self.make(5)
        await Self.wave(broker)
        let calls = broker.transport.seen.count
        #expect(await broker.restore(storageKey: Self.key(3)).status == 200)
        #expect(try await Self.told(broker, .credentialsRecovered).map { $0["storage_key"]?.text } == [Self.key(3)])
        #expect(await broker.restore(storageKey: Self.key(3)).status == 409)
        broker.transport.enqueue(Self.alive)
        #expect(await Self.get(broker, 3).token == "new")
        #expect(broker.transport.seen.count == calls + 1)
        #expect(await broker.logOut(storageKey: Self.key(2)).status == 204)
        #expect(await broker.status(storageKey: Self.key(2)).isLoggedIn == false)
        #expect(await Self.list(broker, "held") == [0, 1, 4].map(Self.key))
        // Freed, and refused again.
        #expect(await broker.restore(storageKey: Self.key(4)).status == 200)
        #expect(await Self.get(broker, 4).status == 424)
        #expect(await Self.list(broker, "held") == [0, 1, 4].map(Self.key))
        for index in [0, 1, 4] { #expect(await broker.logOut(storageKey: Self.key(index)).status == 204) }
        broker.time.advance(by: .seconds(10))
        await Self.work(broker)
        #expect(try await Self.told(broker, .providerRecovered).count == 1)
        #expect(try await broker.count(.held) == 0)
    }

    @Test func `is over for a user who logs in again, or has logged out before it was noticed`() async throws {
        let broker = try await Self.make(5)
        for index in 0..<4 { _ = await Self.get(broker, index) }
        await broker.logOut(storageKey: Self.key(0))
        await broker.set("b1", refresh: "s1", storageKey: Self.key(1))
        #expect(await Self.get(broker, 4).status == 424)
        await Self.work(broker)
        #expect(await Self.list(broker, "held") == [2, 3, 4].map(Self.key))
        #expect(await Self.get(broker, 1).token == "b1")
        await broker.set("b2", refresh: "s2", storageKey: Self.key(2))
        #expect(await Self.get(broker, 2).token == "b2")
        #expect(await Self.list(broker, "held") == [3, 4].map(Self.key))
    }

    // MARK: Several replicas, and the next process

    @Test func `is counted, noticed and ended once by all replicas`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await Self.fill(one, 8)
        two.transport.always(Self.dead)
        for index in 0..<3 { #expect(await Self.get(one, index).level == "basic") }
        #expect(await Self.get(two, 3).level == "basic")
        #expect(await Self.get(two, 4).status == 424)
        #expect(await Self.get(one, 5).status == 424)
        for broker in [one, two] { await Self.work(broker) }
        for broker in [one, two] {
            #expect(await Self.list(broker, "held") == (0..<6).map(Self.key))
            for index in 0..<6 { #expect(await Self.get(broker, index).status == 424) }
        }
        #expect(try await Self.told(one, .providerDegraded).count == 1)
        #expect(try await Self.told(one, .credentialsHeld).count == 6)
        let calls = one.transport.seen.count + two.transport.seen.count
        for broker in [one, two] { broker.transport.always(Self.alive) }
        one.time.advance(by: .seconds(10))
        for broker in [two, one, two] { await Self.work(broker) }
        #expect(one.transport.seen.count + two.transport.seen.count == calls + 1)
        #expect(try await Self.told(one, .providerRecovered).count == 1)
        #expect(try await Self.told(one, .credentialsRecovered).count == 6)
        for index in 0..<6 { #expect(await Self.get(index < 3 ? one : two, index).token == "new") }
    }

    @Test func `goes on in the next process, which puts back what the one before has not`() async throws {
        let one = try await Self.make(6)
        for index in 0..<5 { _ = await Self.get(one, index) }
        // It ends before its job has begun.
        let next = try await BrokerHarness(store: one.store, time: one.time)
        await Self.work(next)
        #expect(await Self.list(next, "held") == (0..<5).map(Self.key))
        for index in 0..<5 { #expect(await Self.get(next, index).status == 424) }
        #expect(next.transport.seen.isEmpty)
        next.transport.always(Self.alive)
        next.time.advance(by: .seconds(10))
        // It ends after the wave, before it has told of each user.
        await next.broker.core.waveJob.handleAllDue()
        #expect(try await Self.told(next, .providerRecovered).count == 1)
        let last = try await BrokerHarness(store: one.store, time: one.time)
        last.transport.always(Self.alive)
        #expect(await Self.get(last, 4).token == "new")
        await Self.work(last)
        #expect(try await Self.told(last, .credentialsRecovered).count == 5)
        #expect(try await (last.count(.held), last.count(.wave)) == (0, 1))
    }

    @Test func `survives a store that does not take a commit, or loses its answer`() async throws {
        for fault in [BrokerFaultyStore.Fault.refuse, .loseAnswer] {
            let store = BrokerFaultyStore()
            let broker = try await Self.make(6, store: store)
            for index in 0..<4 { _ = await Self.get(broker, index) }
            store.disturb([fault]) { $0.writes(.wave) }
            #expect(await Self.get(broker, 4).status == 424)
            store.disturb([fault]) { $0.writes(.held) }
            #expect(await Self.get(broker, 5).status == 424)
            for _ in 0..<2 {
                store.disturb([fault]) { $0.writes(.wave) }
                await Self.work(broker)
                broker.time.advance(by: .seconds(31))
            }
            await Self.work(broker)
            #expect(await Self.list(broker, "held") == (0..<6).map(Self.key))
            #expect(try await Self.told(broker, .providerDegraded).count == 1)
            #expect(try await Self.told(broker, .credentialsHeld).count == 6)
        }
    }
}
