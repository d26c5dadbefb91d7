import BrokerCore
import BrokerTesting
import CredentialStore
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Revocations that are tried again` {
    private static let tenant =
        #"""
        {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://op.example/a",
         "token": "https://op.example/t", "revocation": "https://op.example/revoke"}}
        """#

    private static func make(
        store: (any RecordStore)? = nil, time: ManualTime = ManualTime()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1")
        broker.transport.always(.json(503, ""))
        return broker
    }

    private static func logOut(_ broker: BrokerHarness) async -> String? {
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(answer.status == 204)
        return answer.fields["Token-Revocation"]?.text
    }

    // H054
    @Test func `a revocation that fails is tried again until it succeeds`() async throws {
        let broker = try await Self.make()
        #expect(await Self.logOut(broker) == "failed")
        #expect(try await broker.count(.revocation) == 1)
        broker.time.advance(by: .milliseconds(5000))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.enqueue(.json(200, ""))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(broker.transport.seen.map(\.form["token"]) == ["r1", "r1"])
        #expect(try await broker.count(.revocation) == 0)
        #expect(try await broker.events().allSatisfy { $0.kind != .revocationFailed })
    }

    @Test func `the tries are at intervals that double to an hour, for a day, and the end is told`() async throws {
        let broker = try await Self.make()
        let start = broker.time.now
        #expect(await Self.logOut(broker) == "failed")
        var tries: [Int64] = []
        while try await broker.count(.revocation) == 1, tries.count < 60 {
            let next = try #require(try await broker.vault.nextDue(.revocation))
            broker.time.advance(by: broker.time.now.duration(to: next) + .milliseconds(1))
            let count = broker.transport.seen.count
            _ = await broker.broker.core.revocations.handleAllDue()
            #expect(broker.transport.seen.count == count + 1)
            tries.append(start.duration(to: broker.time.now).components.seconds)
        }
        #expect(tries.prefix(9) == [5, 15, 35, 75, 155, 315, 635, 1275, 2555])
        // A try is made a millisecond after its mark, which each pause doubles.
        #expect((5115...5116).contains(try #require(tries.dropFirst(9).first)))
        let pauses = zip(tries.dropFirst(10), tries.dropFirst(9)).map { $0 - $1 }
        #expect(pauses.allSatisfy { $0 == 3600 })
        #expect((82_800...86_400).contains(tries.last ?? 0))
        let end = try #require(try await broker.events().last)
        #expect(end.kind == .revocationFailed)
        #expect(end.data["storage_key"]?.text == "default")
        #expect(end.data["logged_out"]?.text == start.description)
        #expect(try await broker.count(.revocation) == 0)
    }

    @Test func `a revocation survives the end of the process, even one that ends during the first try`() async throws {
        let time = ManualTime()
        let base = MemoryRecordStore { time.monotonic }
        let first = try await Self.make(store: base, time: time)
        let gate = Gate()
        first.transport.enqueue(.after(gate, .failure(.cancelled)))
        async let logout = Self.logOut(first)
        await gate.arrivals()
        let second = try await BrokerHarness(store: base, time: time)
        second.transport.always(.json(200, ""))
        _ = await second.broker.core.revocations.handleAllDue()
        // The first process may still be at it.
        #expect(second.transport.seen.isEmpty)
        time.advance(by: .seconds(21))
        _ = await second.broker.core.revocations.handleAllDue()
        #expect(second.transport.seen.map(\.form["token"]) == ["r1"])
        #expect(try await second.count(.revocation) == 0)
        gate.open()
        #expect(await logout == "failed")
    }

    @Test func `the first pause begins when the first try has failed`() async throws {
        let broker = try await Self.make(time: ManualTime(skipsSleeps: false))
        broker.transport.enqueue(.hang(broker.time))
        async let logout = Self.logOut(broker)
        await broker.time.sleepers(of: .seconds(10))
        broker.time.advance(by: .seconds(10))
        #expect(await logout == "failed")
        let next = try #require(try await broker.vault.nextDue(.revocation))
        #expect(broker.time.now.duration(to: next) == .seconds(5))
    }

    @Test func `one of several replicas makes each try`() async throws {
        let time = ManualTime()
        let base = MemoryRecordStore { time.monotonic }
        let first = try await Self.make(store: base, time: time)
        #expect(await Self.logOut(first) == "failed")
        let others = try await [
            BrokerHarness(store: base, time: time), BrokerHarness(store: base, time: time),
        ]
        for broker in others { broker.transport.always(.json(503, "")) }
        time.advance(by: .milliseconds(5001))
        await withTaskGroup { tasks in
            for broker in [first] + others {
                tasks.addTask { _ = await broker.broker.core.revocations.handleAllDue() }
            }
        }
        #expect(([first] + others).map(\.transport.seen.count).reduce(0, +) == 2)
    }

    @Test func `a logout that is not stored revokes nothing`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store: store)
        store.setDown(true)
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: "t1")
        #expect(answer.code == "storage_unavailable")
        #expect(broker.transport.seen.isEmpty)
        store.setDown(false)
        #expect(try await broker.count(.revocation) == 0)
    }

    @Test func `the pending revocations of a tenant end with it`() async throws {
        let broker = try await Self.make()
        #expect(await Self.logOut(broker) == "failed")
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        #expect(try await broker.count(.revocation) == 0)
    }

    @Test func `where nothing can be revoked, or nothing is stored, there is nothing to try again`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        #expect(await Self.logOut(broker) == nil)
        await broker.set("a1", refresh: "r1")
        #expect(await Self.logOut(broker) == "unsupported")
        #expect(try await broker.count(.revocation) == 0)
    }

    @Test func `the running job makes the tries by itself`() async throws {
        let broker = try await Self.make(time: ManualTime(skipsSleeps: false))
        let job = Task { await broker.broker.core.revocations.run() }
        await broker.time.sleepers(of: .seconds(30))
        #expect(await Self.logOut(broker) == "failed")
        await broker.time.sleepers(of: .milliseconds(5001))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, "")))
        broker.time.advance(by: .milliseconds(5001))
        await gate.arrivals()
        gate.open()
        await broker.time.sleepers(of: .seconds(30))
        #expect(try await broker.count(.revocation) == 0)
        job.cancel()
        await job.value
    }

    // MARK: By access token

    @Test func `DuckDuckGo is logged out of with the access token`() async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        let token = try #require(await broker.get("policy=create_if_needed").token)
        #expect(await Self.logOut(broker) == "revoked")
        let request = try #require(broker.transport.seen.last)
        #expect(request.url == BrokerHarness.accountBase + "/api/auth/v2/logout")
        #expect(request.method == .post)
        #expect(request.fields["Authorization"]?.text == "Bearer \(token)")
        #expect(request.form.isEmpty)
        #expect(provider.introspect(accessToken: token) == nil)
        #expect(try await broker.count(.revocation) == 0)
    }

    @Test(
        arguments: [
            (200, #"{"status": "logged_in"}"#), (200, "{}"), (200, ""), (200, "logged_out"), (200, #"["logged_out"]"#),
            (204, #"{"status": "logged_out"}"#), (401, #"{"error": "invalid_token"}"#), (500, ""),
        ])
    func `any other answer than logged_out is a failure that is tried again`(status: Int, body: String) async throws {
        let (broker, provider) = try await BrokerHarness.accounts()
        _ = await broker.get("policy=create_if_needed")
        provider.script(Fault(.logout, status: Status(status), body: Array(body.utf8)))
        #expect(await Self.logOut(broker) == "failed")
        broker.time.advance(by: .milliseconds(5001))
        _ = await broker.broker.core.revocations.handleAllDue()
        #expect(provider.counters.requests(.logout) == 2)
        #expect(try await broker.count(.revocation) == 0)
    }
}
