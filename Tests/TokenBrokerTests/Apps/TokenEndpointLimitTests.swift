import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Postgres
import Reactor
import Testing
import TokenBroker

/// How many requests `/oauth2/token` takes in a minute.
@Suite(.timeLimit(.minutes(2))) struct `Limits of the token endpoint` {
    private static func source(_ address: String) -> NetworkSource {
        NetworkSource(NetworkAddress(parsing: Array(address.utf8)[...])!)
    }

    private static let here = source("192.0.2.1")
    private static let user = CredentialsID(tenant: TenantName("t1")!, storageKey: StorageKey("default")!)

    private static func broker(
        store: (any RecordStore)? = nil, time: ManualTime = ManualTime(),
        _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time, adjust)
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "biometric_enabled": true}"#)
        return broker
    }

    /// How many of `count` requests, one after the other, are admitted.
    private static func admitted(
        _ broker: BrokerHarness, _ count: Int, from source: NetworkSource = here
    ) async -> Int {
        var admitted = 0
        for _ in 0..<count where await isAdmitted(broker, from: source) { admitted += 1 }
        return admitted
    }

    private static func isAdmitted(_ broker: BrokerHarness, from source: NetworkSource = here) async -> Bool {
        do throws(AppError) {
            try await broker.broker.core.apps.limits.admit(source, for: .token)
            return true
        } catch {
            #expect(error.code == .rateLimited)
            return false
        }
    }

    private static func ask(_ broker: BrokerHarness, _ source: NetworkSource = here) async -> BrokerHarness.Answer {
        await broker.app("/oauth2/token", [("grant_type", "password"), ("client_id", "app")], source: source)
    }

    private static func refusals(_ broker: BrokerHarness, _ quota: String) async -> Int? {
        let prefix = #"token_broker_quota_refusals_total{quota="\#(quota)"} "#
        let lines = await broker.call(.get, "/metrics", key: nil).text.split(separator: "\n")
        return lines.first { $0.hasPrefix(prefix) }.flatMap { Int($0.dropFirst(prefix.count)) }
    }

    /// Milliseconds until the next minute begins.
    private static func rest(_ time: ManualTime) -> Int64 { 60_000 - time.now.milliseconds % 60_000 }

    // MARK: One replica

    // A08 P01
    @Test func `an address has a hundred and twenty requests a minute, whatever they ask for`() async throws {
        let broker = try await Self.broker()
        #expect(await Self.refusals(broker, "app_requests_per_address") == 0)
        for _ in 0..<119 { #expect(await Self.ask(broker).json["error"]?.text == "unsupported_grant_type") }
        // A request that cannot be read counts, too.
        #expect(await broker.app("/oauth2/token", [("a", "1"), ("a", "1")], source: Self.here).status == 400)
        let refused = await Self.ask(broker)
        #expect(refused.status == 429)
        #expect(
            refused.text
                == #"{"error":"x_rate_limited","error_description":"rate limit exceeded, please try again later."}"#)
        #expect(refused.fields["Cache-Control"] == "no-store")
        #expect(refused.fields["Pragma"] == "no-cache")
        let seconds = (Self.rest(broker.time) + 999) / 1000
        #expect(refused.fields["Retry-After"]?.text == "\(seconds)")
        // It comes before all other checks.
        let unknown = await broker.app("/oauth2/token", [("client_id", "unknown")], source: Self.here)
        #expect(unknown.status == 429)
        #expect(await Self.ask(broker, Self.source("192.0.2.2")).status == 400)
        #expect(
            await broker.app("/oauth2/revoke", [("client_id", "app"), ("token", "x")], source: Self.here).status == 200)
        #expect(await Self.refusals(broker, "app_requests_per_address") == 2)
    }

    @Test func `a new minute is a new count`() async throws {
        let broker = try await Self.broker()
        #expect(await Self.admitted(broker, 130) == 120)
        broker.time.advance(by: .milliseconds(Self.rest(broker.time) - 1))
        #expect(await Self.ask(broker).fields["Retry-After"]?.text == "1")
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.admitted(broker, 130) == 120)
    }

    @Test(
        arguments: [
            ("2001:db8::1", "2001:db8::ffff:1", true), ("2001:db8::1", "2001:db8:0:1::1", false),
            ("192.0.2.1", "192.0.2.2", false), ("192.0.2.1", "::ffff:192.0.2.1", true),
        ])
    func `an address of IPv6 counts by its prefix of 64 bits`(
        _ first: String, _ second: String, _ isOne: Bool
    ) async throws {
        let broker = try await Self.broker { $0.core.appRequests.perAddress = 1 }
        #expect(await Self.isAdmitted(broker, from: Self.source(first)))
        #expect(await Self.isAdmitted(broker, from: Self.source(second)) == !isOne)
    }

    @Test func `a request of no known address is not counted`() async throws {
        let broker = try await Self.broker { $0.core.appRequests.perAddress = 1 }
        #expect(await Self.admitted(broker, 3, from: .unknown) == 3)
    }

    // P13
    @Test func `a user has sixty requests a minute, by code and by refresh token, and the session stays`() async throws
    {
        let broker = try await Self.broker { $0.core.appRequests.perAddress = nil }
        let code = await broker.appCode()
        let begun = await broker.exchange(code)
        var token = try #require(begun.json["refresh_token"]?.text)
        // What is refused before the user is known does not count.
        for _ in 0..<60 { #expect(await broker.refresh("x").status == 400) }
        for _ in 0..<59 {
            let answer = await broker.refresh(token)
            #expect(answer.status == 200)
            token = answer.json["refresh_token"]?.text ?? ""
        }
        let refused = await broker.refresh(token)
        #expect(refused.status == 429)
        #expect(refused.json["error"]?.text == "x_rate_limited")
        #expect(await Self.refusals(broker, "app_requests_per_user") == 1)
        broker.time.advance(by: .milliseconds(Self.rest(broker.time)))
        #expect(await broker.refresh(token).status == 200)
        #expect(await broker.sessions().count == 1)
    }

    // P13 K38
    @Test func `a code whose user has too many requests stays usable, and other users have their own`() async throws {
        let broker = try await Self.broker { $0.core.appRequests.perUser = 1 }
        await broker.makeClient(
            "other", of: "t1", #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "other"}"#)
        let (code, other) = (await broker.appCode(), await broker.appCode(client: "other"))
        let token = await broker.exchange(code).json["refresh_token"]?.text ?? ""
        #expect(await broker.refresh(token).status == 429)
        let next = await broker.appCode()
        #expect(await broker.exchange(next).status == 429)
        #expect(await broker.exchange(other, client: "other").status == 200)
        broker.time.advance(by: .milliseconds(Self.rest(broker.time)))
        #expect(await broker.exchange(next).status == 200)
    }

    // P13
    @Test func `requests that let another app in count for the user, and a refusal costs no challenge`() async throws {
        let broker = try await BrokerHarness { $0.core.appRequests.perUser = 2 }
        await broker.makeTenant()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "x_app2app_enabled": true}"#)
        await broker.makeClient("other")
        let key = try AppKey()
        let session = try await broker.appSession(with: key)
        func proof() async throws -> String { try key.proof(await broker.challenge(), now: broker.time.now) }
        #expect(await broker.approve(session, try await proof()).status == 200)
        let late = try await proof()
        let refused = await broker.approve(session, late)
        #expect(refused.status == 429)
        #expect(refused.json["error"]?.text == "x_rate_limited")
        broker.time.advance(by: .milliseconds(Self.rest(broker.time)))
        #expect(await broker.approve(session, late).status == 200)
        // What is refused before the user is known does not count.
        #expect(await broker.approve("x", try await proof()).status == 400)
        #expect(await broker.refresh(session).status == 200)
        #expect(await broker.refresh(session).status == 429)
    }

    // P13
    @Test func `logins by a biometric key count for the user, and a refusal costs no challenge`() async throws {
        let broker = try await Self.broker { $0.core.appRequests.perUser = 2 }
        let key = try AppKey()
        let session = await broker.appSession()
        func proof(_ action: String) async throws -> String {
            try key.proof(
                await broker.challenge("biometric_request"), now: broker.time.now,
                type: "vnd.authgear.biometric-request", action: action)
        }
        #expect(await broker.biometric(try await proof("setup"), ["refresh_token": session]).status == 200)
        let late = try await proof("authenticate")
        #expect(await broker.biometric(late).status == 429)
        #expect(await broker.biometric(try await proof("setup"), ["refresh_token": session]).status == 429)
        broker.time.advance(by: .milliseconds(Self.rest(broker.time)))
        #expect(await broker.biometric(late).status == 200)
    }

    @Test func `no limit is no limit, and costs no access to the store`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store) {
            $0.core.appRequests.perAddress = nil
            $0.core.appRequests.perUser = nil
        }
        let calls = (store.reads, store.commits)
        #expect(await Self.admitted(broker, 1000) == 1000)
        for _ in 0..<100 { try await broker.broker.core.apps.limits.admit(Self.user) }
        #expect((store.reads, store.commits) == calls)
    }

    // MARK: The store

    @Test func `a quarter of a limit costs no access to the store, and what is refused costs none`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        let calls = (store.reads, store.commits)
        #expect(await Self.admitted(broker, 30) == 30)
        #expect((store.reads, store.commits) == calls)
        #expect(await Self.admitted(broker, 1) == 1)
        #expect((store.reads, store.commits) == (calls.0 + 1, calls.1 + 1))
        #expect(await Self.admitted(broker, 89) == 89)
        #expect((store.reads, store.commits) == (calls.0 + 90, calls.1 + 90))
        #expect(await Self.admitted(broker, 1000) == 0)
        #expect((store.reads, store.commits) == (calls.0 + 90, calls.1 + 90))
    }

    @Test func `what is counted in the store is gone a minute after its minute`() async throws {
        let broker = try await Self.broker()
        #expect(await Self.admitted(broker, 31) == 31)
        func counts() async throws -> Int {
            try await broker.vault.list(.requestCount, tenant: .broker, after: nil, limit: 10).count
        }
        let end = broker.time.now.advanced(by: .milliseconds(Self.rest(broker.time) + 60_000))
        _ = try await broker.vault.removeExpired(before: end.advanced(by: .milliseconds(-1)), limit: 100)
        #expect(try await counts() == 1)
        _ = try await broker.vault.removeExpired(before: end.advanced(by: .milliseconds(1)), limit: 100)
        #expect(try await counts() == 0)
    }

    @Test func `a store that is away refuses nothing, and is asked every five seconds`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        // Well before the minute's end.
        broker.time.advance(by: .milliseconds(Self.rest(broker.time)))
        store.setDown(true)
        let reads = store.reads
        #expect(await Self.admitted(broker, 100) == 100)
        #expect(store.reads == reads + 1)
        broker.time.advance(by: .seconds(5))
        #expect(await Self.admitted(broker, 10) == 10)
        #expect(store.reads == reads + 2)
        // What this replica has counted itself still counts.
        #expect(await Self.admitted(broker, 20) == 10)
        store.setDown(false)
        #expect(await Self.admitted(broker, 1) == 0)
    }

    @Test(arguments: [true, false])
    func `a write whose outcome is not known is not counted twice`(_ isCarriedOut: Bool) async throws {
        let base = MemoryRecordStore()
        let time = ManualTime()
        let store = FaultyStore(base)
        let broker = try await Self.broker(store: store, time: time)
        time.advance(by: .milliseconds(Self.rest(time)))
        store.onCommit(of: .requestCount, isCarriedOut ? .loseAnswer : .refuse(.unavailable))
        #expect(await Self.admitted(broker, 31) == 31)
        time.advance(by: .seconds(6))
        #expect(await Self.admitted(broker, 100) == 89)
    }

    @Test func `a record that cannot be read refuses nothing`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        store.onCommit(of: .requestCount, .refuse(.damaged("a record")))
        #expect(await Self.admitted(broker, 200) == 120)
    }

    @Test func `a flood of addresses takes no more memory than the table has`() async throws {
        let broker = try await Self.broker { $0.core.appRequests.perAddress = 4 }
        #expect(await Self.admitted(broker, 5) == 4)
        for number in 0..<TokenEndpointLimits.capacity {
            let address = "10.\(number >> 16).\(number >> 8 & 255).\(number & 255)"
            try await broker.broker.core.apps.limits.admit(Self.source(address), for: .token)
        }
        // Its count is forgotten here: the first request counts as one, and the next ones go by the sum.
        #expect(await Self.admitted(broker, 5) == 1)
    }

    // MARK: Several requests and replicas

    @Test func `requests that arrive together are held to the limit, and share a write`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        #expect(await Self.admitted(broker, 30) == 30)
        let gate = Gate()
        store.holdNextRead(of: .requestCount, gate)
        let commits = store.commits
        let calls = (0..<200).map { _ in
            // Each runs until it waits for the sum before the next one begins.
            Task.immediate { await Self.isAdmitted(broker) }
        }
        await gate.arrivals()
        gate.open()
        var admitted = 0
        for call in calls where await call.value { admitted += 1 }
        #expect(admitted == 90)
        #expect(store.commits - commits <= 2)
    }

    @Test func `replicas that take turns hold the limit together`() async throws {
        let base = MemoryRecordStore()
        let time = ManualTime()
        let (one, two) = (
            try await Self.broker(store: base, time: time), try await Self.broker(store: base, time: time)
        )
        var admitted = 0
        for _ in 0..<100 {
            admitted += await Self.admitted(one, 1)
            admitted += await Self.admitted(two, 1)
        }
        #expect(admitted == 120)
        let tries = 3
        #expect(await Self.admitted(one, tries) + Self.admitted(two, tries) == 0)
        time.advance(by: .milliseconds(Self.rest(time)))
        #expect(await Self.admitted(one, 1) + Self.admitted(two, 1) == 2)
    }

    @Test func `replicas on PostgreSQL hold the limit together`() async throws {
        let server = try await PostgresServer.shared.value
        let configuration = try PostgresConfiguration(server.uri(database: try await server.makeDatabase()))
        let time = ManualTime()
        var replicas: [BrokerHarness] = []
        for _ in 0..<2 {
            let store = try await PostgresRecordStore.open(
                configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
            replicas.append(try await BrokerHarness(store: store, time: time))
        }
        for replica in replicas { #expect(await Self.admitted(replica, 31) == 31) }
        let admitted = await withTaskGroup(of: Bool.self) { [replicas] group in
            for number in 0..<200 { group.addTask { await Self.isAdmitted(replicas[number % 2]) } }
            return await group.reduce(0) { $1 ? $0 + 1 : $0 }
        }
        // All are in the sum, so the rest is exact whatever meets whatever.
        #expect(admitted == 58)
        for replica in replicas { await replica.vault.close() }
    }

    @Test(arguments: [(30, 150), (31, 120)])
    func `a replica is in the sum from a quarter of the limit on`(_ first: Int, _ sum: Int) async throws {
        let base = MemoryRecordStore()
        let time = ManualTime()
        let (one, two) = (
            try await Self.broker(store: base, time: time), try await Self.broker(store: base, time: time)
        )
        #expect(await Self.admitted(one, first) == first)
        #expect(await Self.admitted(two, 200) == sum - first)
        #expect(await Self.admitted(one, 200) == 0)
    }

    @Test func `a replica that is overtaken counts on what the other one has written`() async throws {
        let base = MemoryRecordStore()
        let time = ManualTime()
        let store = FaultyStore(base)
        let (one, two) = (
            try await Self.broker(store: store, time: time), try await Self.broker(store: base, time: time)
        )
        #expect(await Self.admitted(one, 30) == 30)
        #expect(await Self.admitted(two, 30) == 30)
        let gate = Gate()
        store.onCommit(of: .requestCount, .hold(gate))
        let call = Task { await Self.isAdmitted(one) }
        await gate.arrivals()
        #expect(await Self.admitted(two, 59) == 59)
        gate.open()
        // 31 here and 89 there.
        #expect(await call.value)
        #expect(await Self.admitted(one, 1) + Self.admitted(two, 1) == 0)
    }

    @Test func `replicas that count at the same time exceed the limit by their quarters, at most`() async throws {
        let base = MemoryRecordStore()
        let time = ManualTime()
        var replicas: [BrokerHarness] = []
        for _ in 0..<3 { replicas.append(try await Self.broker(store: base, time: time)) }
        for replica in replicas { #expect(await Self.admitted(replica, 30) == 30) }
        let admitted = await withTaskGroup(of: Bool.self) { group in
            for number in 0..<300 {
                let replica = replicas[number % 3]
                group.addTask { await Self.isAdmitted(replica) }
            }
            return await group.reduce(0) { $1 ? $0 + 1 : $0 }
        }
        // Two of the three may not be in the sum with their first 30.
        #expect((30...90).contains(admitted), "\(admitted)")
        for replica in replicas { #expect(await Self.admitted(replica, 1) == 0) }
    }
}
