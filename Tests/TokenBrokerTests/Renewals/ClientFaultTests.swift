import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// A provider that does not accept the tenant's client, as after its secret has expired: no fault of any user.
@Suite struct `A client that its provider refuses` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#
    private static let refusal = ScriptedTransport.Step.json(401, #"{"error": "invalid_client"}"#)
    private static let users = (1...5).map { "user\($0)" }

    /// Users whose tokens are over, at a provider that refuses their client.
    private static func make(
        _ tenant: String = tenant, users: [String] = users, lifetime: Duration = .zero,
        store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        for user in users { await broker.set("a-\(user)", refresh: "r-\(user)", lifetime: lifetime, storageKey: user) }
        broker.transport.always(refusal)
        return broker
    }

    private static func get(_ broker: BrokerHarness, _ user: String, _ query: String = "") async -> BrokerHarness.Answer
    {
        await broker.get("storage_key=\(user)\(query)")
    }

    private static func notices(_ broker: BrokerHarness) async throws -> [JSONValue] {
        try await broker.events().filter { $0.kind == .providerDegraded }.map(\.data)
    }

    // MARK: Sessions

    @Test func `ends no session, is asked for once, and is told of once`() async throws {
        let broker = try await Self.make()
        for _ in 0..<3 {
            for user in Self.users {
                let answer = await Self.get(broker, user)
                #expect((answer.status, answer.code) == (424, "illegal_configuration"))
                #expect(answer.json["error_code"] == .string("invalid_client"))
                #expect(answer.retryAfter == 30)
                #expect(answer.json["detail"]?.text?.contains("client_secret") == true)
            }
        }
        #expect(broker.transport.seen.count == 1)
        for user in Self.users {
            #expect(await broker.status(storageKey: user).isLoggedIn == true)
            #expect(try await broker.quarantined(storageKey: user) == nil)
        }
        #expect(try await broker.causes() == Array(repeating: "set", count: 5))
        let notice = try #require(try await Self.notices(broker).first)
        #expect(try await Self.notices(broker).count == 1)
        #expect(
            notice.object?.mapValues { $0.text } == [
                "tenant": "t1", "cause": "client_refused", "error": "illegal_configuration",
                "error_code": "invalid_client", "retry_at": "2026-11-21T09:00:30Z", "time": "2026-11-21T09:00:00Z",
            ])
        #expect(broker.log.filter { $0.contains(#""event":"client_refused""#) }.count == 1)
    }

    @Test(
        arguments: [
            (400, "invalid_client", 424), (401, "invalid_client", 424), (403, "invalid_client", 424),
            (400, "unauthorized_client", 424), (401, "unauthorized_client", 424),
            (400, "unsupported_grant_type", 424), (408, "invalid_client", 503), (429, "invalid_client", 503),
            (500, "invalid_client", 503), (400, "invalid_request", 502), (401, "access_denied", 502),
            (400, "invalid_scope", 502), (401, "", 502), (400, "invalid_grant", 200), (401, "invalid_grant", 200),
        ] as [(Int, String, Int)])
    func `is told apart from a grant that is dead`(status: Int, error: String, answered: Int) async throws {
        let broker = try await Self.make(users: ["default"])
        let body = error.isEmpty ? "" : #"{"error": "\#(error)"}"#
        broker.transport.always(
            .decide { seen in
                seen.form["grant_type"] == "refresh_token"
                    ? .json(status, body) : .json(200, BrokerHarness.token("client-1"))
            })
        #expect(await broker.get().status == answered)
        #expect(await broker.status().isLoggedIn == (answered != 200))
        #expect(try await Self.notices(broker).count == (answered == 424 ? 1 : 0))
    }

    @Test func `ends sessions where the tenant says that it does`() async throws {
        let broker = try await Self.make(
            "{" + BrokerHarness.oidc
                + #""client_id": "c1", "session_ending_answers": [{"status": 401, "error": "invalid_client"}]}"#)
        #expect(await Self.get(broker, "user1").level == "basic")
        #expect(try await Self.notices(broker).isEmpty)
    }

    // MARK: Many at once

    /// As many calls as there are places at a provider are under way before the first answer is there; no further one is made.
    @Test func `is sent no more of a burst than is under way when its first answer comes`() async throws {
        let users = (1...20).map { "user\($0)" }
        let broker = try await Self.make(users: users)
        let places = ProviderBudget.Limits().places
        let gate = Gate()
        broker.transport.always(.after(gate, Self.refusal))
        // The others have no user, and ask for client credentials.
        let keys = users + (1...10).map { "nobody\($0)" }
        let statuses = await withTaskGroup(of: Int.self) { group in
            for key in keys { group.addTask { await Self.get(broker, key).status } }
            await gate.arrivals(places)
            gate.open()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(statuses == Array(repeating: 424, count: 30))
        #expect(broker.transport.seen.count == places && places == 16)
        #expect(broker.log.filter { $0.contains(#""event":"client_refused""#) }.count == 1)
        #expect(try await Self.notices(broker).count == 1)
        for key in keys { #expect(await Self.get(broker, key).status == 424) }
        #expect(broker.transport.seen.count == places)
    }

    // MARK: Refreshes and client credentials

    @Test(arguments: [true, false])
    func `is one fault of refreshes and of client credentials`(isRefreshFirst: Bool) async throws {
        let broker = try await Self.make(users: ["user1"])
        let keys = isRefreshFirst ? ["user1", "nobody"] : ["nobody", "user1"]
        for _ in 0..<2 {
            for key in keys {
                let answer = await Self.get(broker, key)
                #expect((answer.status, answer.code, answer.retryAfter) == (424, "illegal_configuration", 30))
                #expect(answer.json["error_code"] == .string("invalid_client"))
            }
        }
        #expect(broker.transport.seen.count == 1)
        #expect(try await Self.notices(broker).count == 1)
        broker.time.advance(by: .seconds(30))
        broker.transport.always(.json(200, BrokerHarness.token("new")))
        for key in keys { #expect(await Self.get(broker, key).token == "new") }
        #expect(broker.log.filter { $0.contains("client_accepted") }.count == 1)
    }

    @Test(
        arguments: [
            ("unauthorized_client", true), ("unauthorized_client", false), ("unsupported_grant_type", true),
            ("unsupported_grant_type", false), ("invalid_scope", false),
        ] as [(String, Bool)])
    func `is told apart from a grant that the client may not use`(error: String, isRefresh: Bool) async throws {
        let broker = try await Self.make(users: ["user1"])
        broker.transport.always(
            .decide { seen in
                (seen.form["grant_type"] == "refresh_token") == isRefresh
                    ? .json(400, #"{"error": "\#(error)"}"#) : .json(200, BrokerHarness.token("new"))
            })
        #expect(await Self.get(broker, isRefresh ? "user1" : "nobody").status == 424)
        #expect(await Self.get(broker, isRefresh ? "nobody" : "user1").token == "new")
        #expect(await Self.get(broker, isRefresh ? "user1" : "nobody").status == 424)
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `is no fault of refreshes where the provider ends sessions by it`() async throws {
        let broker = try await Self.make(#"{"client_id": "c1", "client_secret": "s1"}"#, users: ["user1"])
        #expect(await Self.get(broker, "nobody").status == 424)
        broker.transport.always(.json(200, BrokerHarness.token("new")))
        #expect(await Self.get(broker, "user1").token == "new")
        #expect(await Self.get(broker, "nobody").status == 424)
        #expect(try await Self.notices(broker).isEmpty)
    }

    @Test func `is one fault over all replicas, whatever they ask for`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        await one.set("a", refresh: "r", lifetime: .zero, storageKey: "user1")
        for broker in [one, two] { broker.transport.always(Self.refusal) }
        #expect(await Self.get(one, "nobody").status == 424)
        #expect(await Self.get(two, "user1").status == 424)
        #expect(try await Self.notices(one).count == 1)
        one.time.advance(by: .seconds(30))
        for (broker, key) in [(one, "nobody"), (two, "user1"), (two, "nobody2"), (one, "user1")] {
            #expect(await Self.get(broker, key).status == 424)
        }
        #expect(one.transport.seen.count + two.transport.seen.count == 3)
    }

    @Test func `is counted each time that its provider says so, from nought on`() async throws {
        let broker = try await Self.make()
        func counts() async -> [String] {
            await broker.call(.get, "/metrics").text.split(separator: "\n").map(String.init)
                .filter { $0.hasPrefix("token_broker_client_refused_total{") }
        }
        #expect(await counts().contains(#"token_broker_client_refused_total{provider="oidc"} 0"#))
        for _ in 0..<3 { #expect(await Self.get(broker, "user1").status == 424) }
        #expect(await counts().contains(#"token_broker_client_refused_total{provider="oidc"} 1"#))
        broker.time.advance(by: .seconds(30))
        #expect(await Self.get(broker, "user2").status == 424)
        #expect(await counts().contains(#"token_broker_client_refused_total{provider="oidc"} 2"#))
    }

    // MARK: Trying again

    @Test func `is asked for by one user each half minute`() async throws {
        let broker = try await Self.make()
        for round in 1...4 {
            for user in Self.users { #expect(await Self.get(broker, user).code == "illegal_configuration") }
            #expect(broker.transport.seen.count == round)
            broker.time.advance(by: .milliseconds(29_999))
            for user in Self.users { #expect(await Self.get(broker, user).retryAfter == 1) }
            #expect(broker.transport.seen.count == round)
            broker.time.advance(by: .milliseconds(1))
        }
        #expect(try await Self.notices(broker).count == 1)
    }

    /// One replica makes one call for both, which the record of the fault lets it make.
    @Test func `is asked for again after it was refused whatever it asks for, and then its grant`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        await one.set("a", refresh: "r", lifetime: .zero, storageKey: "user1")
        for step in [Self.refusal, .json(400, #"{"error": "unauthorized_client"}"#)] {
            one.transport.enqueue(step)
            #expect(await Self.get(one, "user1").status == 424)
            #expect(await Self.get(one, "user1").retryAfter == 30)
            one.time.advance(by: .seconds(30))
        }
        one.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await Self.get(one, "user1").token == "new")
        #expect((one.transport.seen.count, two.transport.seen.count) == (3, 0))
    }

    @Test func `that is accepted again is that for all users`() async throws {
        let broker = try await Self.make()
        for user in Self.users { #expect(await Self.get(broker, user).status == 424) }
        broker.time.advance(by: .seconds(30))
        broker.transport.always(
            .decide { .json(200, BrokerHarness.token("new-\($0.form["refresh_token"] ?? "")")) })
        for user in Self.users { #expect(await Self.get(broker, user).token == "new-r-\(user)") }
        #expect(broker.transport.seen.count == 6)
        // The next fault is a new one.
        broker.transport.always(Self.refusal)
        #expect(await Self.get(broker, "user1", "&policy=local_force_refresh").status == 424)
        #expect(try await Self.notices(broker).count == 2)
    }

    @Test func `is asked for at once when the tenant is put again`() async throws {
        let broker = try await Self.make()
        #expect(await Self.get(broker, "user1").status == 424)
        await broker.makeTenant("t1", Self.tenant)
        #expect(await Self.get(broker, "user2").status == 424)
        #expect(broker.transport.seen.count == 2)
        await broker.makeTenant("t1", Self.tenant.replacing("s1", with: "s2"))
        broker.transport.always(.json(200, BrokerHarness.token("new")))
        #expect(await Self.get(broker, "user3").token == "new")
        #expect(await Self.get(broker, "user1").token == "new")
        #expect(broker.transport.seen.count == 4)
    }

    /// A replica that has not heard of the new secret yet shows the old one.
    @Test func `is none where the tenant was put with another secret meanwhile`() async throws {
        let broker = try await Self.make()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.refusal))
        async let answer = Self.get(broker, "user1")
        await gate.arrivals()
        await broker.makeTenant("t1", Self.tenant.replacing("s1", with: "s2"))
        broker.transport.always(.json(200, BrokerHarness.token("new")))
        gate.open()
        #expect(await answer.token == "new")
        #expect(try await Self.notices(broker).isEmpty)
        #expect(await Self.get(broker, "user2").token == "new")
    }

    @Test func `keeps no caller from a token that lives`() async throws {
        let broker = try await Self.make(users: ["default"], lifetime: .seconds(40))
        let answer = await broker.get()
        #expect((answer.status, answer.token) == (200, "a-default"))
        #expect(answer.json["degraded"]?["code"] == .string("illegal_configuration"))
        #expect(answer.json["degraded"]?["retry_at"] == .string("2026-11-21T09:00:30Z"))
        broker.time.advance(by: .seconds(40))
        #expect(await broker.get().code == "illegal_configuration")
    }

    /// A caller that is told of a known fault has begun no renewal.
    @Test func `fails one renewal each half minute, however often callers ask`() async throws {
        let broker = try await Self.make()
        for _ in 0..<4 { for user in Self.users { #expect(await Self.get(broker, user).status == 424) } }
        #expect(broker.log.filter { $0.contains("renewal_failed") }.count == 1)
        broker.time.advance(by: .seconds(30))
        for user in Self.users { #expect(await Self.get(broker, user).status == 424) }
        #expect(broker.log.filter { $0.contains("renewal_failed") }.count == 2)
    }

    @Test func `fails one renewal each half minute where it has no user`() async throws {
        let broker = try await Self.make(users: [])
        for _ in 0..<5 { #expect(await broker.get().status == 424) }
        #expect(broker.transport.seen.count == 1)
        #expect(broker.log.filter { $0.contains("renewal_failed") }.count == 1)
    }

    @Test func `is accepted where the provider grants another user's token`() async throws {
        let broker = try await Self.make(users: ["user1"])
        broker.transport.always(.json(200, BrokerHarness.token("first", refresh: "r2", userID: 7)))
        #expect(await Self.get(broker, "user1").status == 200)
        broker.time.advance(by: .seconds(3600))
        broker.transport.always(Self.refusal)
        #expect(await Self.get(broker, "user1").status == 424)
        broker.time.advance(by: .seconds(30))
        broker.transport.always(
            .decide { seen in
                seen.form["grant_type"] == "refresh_token"
                    ? .json(200, BrokerHarness.token("other", userID: 8)) : Self.refusal
            })
        _ = await Self.get(broker, "user1")
        #expect(broker.log.contains { $0.contains("subject_changed") })
        #expect(broker.log.filter { $0.contains("client_accepted") }.count == 1)
    }

    @Test func `is one of its tenant and no other`() async throws {
        let broker = try await Self.make()
        #expect(await Self.get(broker, "user1").status == 424)
        await broker.makeTenant("t2", Self.tenant.replacing("s1", with: "s2"))
        await broker.set("b1", refresh: "r", lifetime: .zero, tenant: "t2")
        broker.transport.always(.json(200, BrokerHarness.token("b2")))
        #expect(await broker.get(tenant: "t2").token == "b2")
        #expect(await Self.get(broker, "user2").status == 424)
    }

    // MARK: Replicas

    @Test func `is asked for by one replica each half minute, and told of by one`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        for user in Self.users { await one.set("a", refresh: "r-\(user)", lifetime: .zero, storageKey: user) }
        for broker in [one, two] { broker.transport.always(Self.refusal) }
        func calls() -> Int { one.transport.seen.count + two.transport.seen.count }
        func readAll() async {
            for (index, user) in Self.users.enumerated() {
                #expect(await Self.get(index % 2 == 0 ? one : two, user).status == 424)
            }
        }
        await readAll()
        // Each finds out for itself first.
        #expect(calls() == 2)
        for round in 1...3 {
            one.time.advance(by: .seconds(30))
            await readAll()
            #expect(calls() == 2 + round)
        }
        #expect(try await Self.notices(one).count == 1)
        one.time.advance(by: .seconds(30))
        for broker in [one, two] { broker.transport.always(.json(200, BrokerHarness.token("new"))) }
        #expect(await Self.get(two, "user1").token == "new")
        #expect(await Self.get(one, "user2").token == "new")
    }

    @Test func `is told of again in its second outage by a replica that did not hear of the first one's end`()
        async throws
    {
        for isFirst in [true, false] {
            let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
            await one.makeTenant("t1", Self.tenant)
            for user in Self.users { await one.set("a", refresh: "r-\(user)", lifetime: .zero, storageKey: user) }
            for broker in [one, two] { broker.transport.always(Self.refusal) }
            #expect(await Self.get(one, "user1").status == 424)
            #expect(await Self.get(two, "user2").status == 424)
            one.time.advance(by: .seconds(30))
            one.transport.always(.json(200, BrokerHarness.token("new")))
            #expect(await Self.get(one, "user1").token == "new")
            one.transport.always(Self.refusal)
            for broker in isFirst ? [one, two] : [two, one] {
                #expect(await Self.get(broker, "user3").status == 424)
            }
            #expect(try await Self.notices(one).count == 2)
            // The other one is told by the record, or by the lease, and does not ask.
            let first = isFirst ? one : two
            #expect(first.log.filter { $0.contains(#""event":"client_refused""#) }.count == 2)
            #expect(first.log.filter { $0.contains("client_accepted") }.count == 1)
        }
    }

    @Test func `is one fault for ten minutes after its last refusal`() async throws {
        for (pause, isNew) in [(629_999, false), (630_000, true)] {
            let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
            await one.makeTenant("t1", Self.tenant)
            await one.set("a", refresh: "r", lifetime: .zero, storageKey: "user1")
            for broker in [one, two] {
                broker.transport.always(Self.refusal)
                #expect(await Self.get(broker, "user1").status == 424)
            }
            one.time.advance(by: .milliseconds(pause))
            for broker in [one, two] { #expect(await Self.get(broker, "user1").status == 424) }
            #expect(try await Self.notices(one).count == (isNew ? 2 : 1))
            #expect(one.log.filter { $0.contains(#""event":"client_refused""#) }.count == (isNew ? 2 : 1))
        }
    }

    @Test func `is asked for after half a minute though the clock has gone back an hour`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.tenant)
        await one.set("a", refresh: "r", lifetime: .zero, storageKey: "user1")
        one.transport.always(Self.refusal)
        two.transport.always(Self.refusal)
        #expect(await Self.get(one, "user1").status == 424)
        one.time.moveClock(by: .seconds(-3600))
        one.time.advance(by: .seconds(30))
        let answer = await Self.get(one, "user1", "&policy=local_force_refresh")
        #expect((answer.status, answer.retryAfter) == (424, 30))
        #expect(one.transport.seen.count == 2)
        #expect(try await Self.notices(one).count == 1)
    }

    @Test func `is told of once though the store fails`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.make(store: store)
        store.disturb([.loseAnswer]) { $0.writes(.trouble) && $0.isInsertOfTenantTrouble }
        for user in Self.users { #expect(await Self.get(broker, user).status == 424) }
        #expect(store.remainingFaults == 0)
        broker.time.advance(by: .seconds(30))
        #expect(await Self.get(broker, "user1").status == 424)
        #expect(try await Self.notices(broker).count == 1)
    }

    // MARK: Listeners

    @Test func `is told to listeners of the whole tenant only`() async throws {
        let broker = try await Self.make()
        let whole = await broker.makeKey()
        let narrow = await broker.makeKey(
            "t1", #"{"name": "n", "permissions": ["events"], "storage_keys": ["user1"]}"#)
        let (one, other) = (await broker.listen(key: whole), await broker.listen(key: narrow))
        #expect(await Self.get(broker, "user1").status == 424)
        // Its notice comes before the failure of the renewal that met it.
        let kinds = ["refresh.started", "refresh.refreshing_access_token", "provider.degraded", "refresh.failed"]
        #expect(await one.events(4).map(\.name) == kinds)
        #expect(await other.events(3).map(\.name) == kinds.filter { $0 != "provider.degraded" })
        await one.close()
        await other.close()
    }
}

extension RecordChange {
    fileprivate var isInsertOfTenantTrouble: Bool {
        if case .insert(let record) = self { record.id.key.isEmpty } else { false }
    }
}
