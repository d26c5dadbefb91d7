import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Credentials and their store` {
    private static func make(
        _ store: FaultyStore, tenant: String = #"{"client_id": "c1"}"#
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", tenant)
        return broker
    }

    // MARK: Stored before served

    // H077
    @Test func `nothing is served before it is stored`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1")
        let gate = Gate()
        store.onCommit(of: .credentials, .hold(gate))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        async let renewed = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        #expect(await broker.get().token == "a1")
        gate.open()
        #expect(await renewed.token == "a2")
    }

    @Test(arguments: [1, 2, 6, 9])
    func `a grant is stored as soon as the store is back`(failures: Int) async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        for _ in 0..<failures { store.onCommit(of: .credentials, .refuse(.unavailable)) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
        let waits: [Duration] = [200, 400, 800, 1000, 1000, 1000, 1000, 1000, 1000].map { .milliseconds($0) }
        #expect(broker.time.slept == Array(waits.prefix(failures)))
        // No replica uses the consumed refresh token.
        let other = try await BrokerHarness(store: store, time: broker.time)
        other.transport.enqueue(.json(200, BrokerHarness.token("a3")))
        #expect(await other.get("policy=local_force_refresh").token == "a3")
        #expect(other.transport.seen[0].form["refresh_token"] == "r2")
    }

    @Test func `a commit that arrived without an answer counts`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        store.onCommit(of: .credentials, .loseAnswer)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        let answer = await broker.get()
        #expect((answer.status, answer.token) == (200, "a2"))
        #expect(broker.transport.seen.count == 1)
        let other = try await BrokerHarness(store: store, time: broker.time)
        #expect(await other.get().tag == answer.tag)
    }

    @Test func `a commit that arrived and was overtaken since gives way`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        broker.time.holdSleeps()
        store.onCommit(of: .credentials, .loseAnswer)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        async let renewed = broker.get()
        await broker.time.sleepers(of: .milliseconds(200))
        let tag = await sibling.set("set-1", refresh: "r3")
        broker.time.advance(by: .milliseconds(200))
        let answer = await renewed
        #expect((answer.token, answer.tag) == ("set-1", tag))
    }

    @Test func `callers lose their patience and the grant is stored all the same`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.time.holdSleeps()
        store.onCommit(of: .credentials, .refuse(.unavailable))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        async let impatient = broker.get(fields: ["Prefer": "wait=0"])
        await broker.time.sleepers(of: .milliseconds(200))
        #expect(await impatient.status == 503)
        async let patient = broker.get()
        broker.time.advance(by: .milliseconds(200))
        #expect(await patient.token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    // H077
    @Test(arguments: [StoreError.damaged("canary-place"), .conflict, .unavailable])
    func `a grant that the store does not take is kept, whatever the store says`(error: StoreError) async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        for _ in 0..<40 { store.onCommit(of: .credentials, .refuse(error)) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        var answer = await broker.get()
        // A store that only knows of other changes is asked again at once.
        #expect(answer.status == (error == .conflict ? 200 : 503))
        while answer.status == 503 {
            #expect(answer.code == "storage_unavailable" && answer.retryAfter != nil)
            #expect(!answer.text.contains("canary-place"))
            answer = await broker.get()
        }
        #expect(answer.token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    // H077
    @Test(arguments: [StoreError.damaged("canary-place"), .conflict, .unavailable])
    func `a login's grant that the store does not take is kept, whatever the store says`(error: StoreError) async throws
    {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let login = await broker.beginLogin()
        for _ in 0..<40 { store.onCommit(of: .credentials, .refuse(error)) }
        broker.transport.enqueue(.json(200, BrokerHarness.token("a1", refresh: "r1")))
        let waits = await broker.callback("code=c&state=\(login.state)", accept: "application/json")
        if error != .conflict { #expect((waits.status, waits.code) == (503, "storage_unavailable"), "\(waits.text)") }
        while await broker.progress(login.id).json["status"]?.text == "pending" { await Task.yield() }
        #expect(await broker.progress(login.id).json["status"]?.text == "completed")
        #expect(await broker.get().token == "a1")
    }

    // MARK: A store that is away

    @Test func `what is in memory and valid is served while the store is away`() async throws {
        let store = FaultyStore(revalidateAfter: .seconds(1))
        let broker = try await Self.make(store)
        let key = await broker.makeKey()
        await broker.set("a1", refresh: "r1")
        #expect(await broker.call(.get, "/credentials", key: key).token == "a1")
        store.setDown(true)
        broker.time.advance(by: .seconds(29))
        #expect(await broker.call(.get, "/credentials", key: key).token == "a1")
        // An API key that may have been revoked meanwhile is not taken for valid; the operator's is.
        broker.time.advance(by: .seconds(71))
        #expect(await broker.call(.get, "/credentials", key: key).code == "storage_unavailable")
        #expect(await broker.get().token == "a1")
        // Renewing what could not be stored would lose a refresh token.
        broker.time.advance(by: .seconds(3600))
        let expired = await broker.get()
        #expect((expired.status, expired.code) == (503, "storage_unavailable"))
        #expect((expired.retryAfter ?? 0) >= 1)
        #expect(broker.transport.seen.isEmpty)
        store.setDown(false)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.call(.get, "/credentials", key: key).token == "a2")
    }

    // H083
    @Test func `what is not in memory is storage_unavailable while the store is away`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1")
        store.setDown(true)
        for (method, path, body) in [
            (.get, "/credentials?storage_key=other", nil), (.get, "/credentials/status?storage_key=other", nil),
            (.put, "/credentials", #"{"credentials": {"client_id": "c1", "token": "x"}}"#),
            (.delete, "/credentials", nil),
        ] as [(Method, String, String?)] {
            let answer = await broker.call(method, path, tenant: "t1", body: body)
            #expect((answer.status, answer.code) == (503, "storage_unavailable"), "\(method) \(path)")
            #expect(answer.retryAfter != nil)
        }
        for (method, path, body) in [
            (.get, "/tenants", nil), (.get, "/tenants/t9", nil), (.put, "/tenants/t9", #"{"client_id": "c"}"#),
            (.delete, "/tenants/t1", nil), (.get, "/tenants/t1/api-keys", nil),
            (.post, "/tenants/t1/api-keys", #"{"name": "n", "permissions": ["login"]}"#),
            (.get, "/tenants/t1/api-keys/000000000000000000000000", nil),
            (.delete, "/tenants/t1/api-keys/000000000000000000000000", nil),
        ] as [(Method, String, String?)] {
            let answer = await broker.call(method, path, body: body)
            #expect((answer.status, answer.code) == (503, "storage_unavailable"), "\(method) \(path)")
        }
        let stranger = await broker.call(.get, "/credentials", key: "unknown-key")
        #expect((stranger.status, stranger.code) == (503, "storage_unavailable"))
    }

    @Test func `a deletion whose answer was lost is seen at once`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1")
        store.onCommit(of: .credentials, .loseAnswer)
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").code == "storage_unavailable")
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        #expect(await broker.get().level == "basic")
    }

    @Test func `credentials set without an answer are seen at once`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1")
        store.onCommit(of: .credentials, .loseAnswer)
        let body = #"{"credentials": {"level": "user", "client_id": "c1", "token": "a2"}}"#
        #expect(await broker.call(.put, "/credentials", tenant: "t1", body: body).code == "storage_unavailable")
        #expect(await broker.get().token == "a2")
    }

    @Test func `a login whose commit arrived without an answer is seen at once`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        #expect(await broker.get().level == "basic")
        let login = await broker.beginLogin()
        store.onCommit(of: .credentials, .loseAnswer)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a1", refresh: "r1")))
        #expect(await broker.call(.get, "/login/callback?code=c&state=\(login.state)", key: nil).status == 200)
        #expect(await broker.get().token == "a1")
    }

    @Test func `a renewal whose outcome cannot be read yet hides nothing that a sibling has stored`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1")
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let renewed = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        await sibling.set("set-1")
        let read = Gate()
        store.holdNextRead(of: .credentials, read)
        gate.open()
        await read.arrivals()
        // The read that explains the conflict was answered; the one for the tenant is not.
        broker.time.holdSleeps()
        store.setDown(true)
        read.open()
        await broker.time.sleepers(of: .milliseconds(200))
        #expect(await broker.get().token == "set-1")
        store.setDown(false)
        broker.time.advance(by: .milliseconds(200))
        #expect(await renewed.token == "set-1")
        #expect(await broker.get().token == "set-1")
    }

    // MARK: Late writers and readers

    @Test func `a read that began before a logout does not bring the user back`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        // What is in memory is not what is stored any more, but is to be renewed as well.
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        await sibling.set("a2", refresh: "r2", lifetime: .zero)
        let gate = Gate()
        store.holdNextRead(of: .credentials, gate)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3")))
        // The renewal reads the record, and the logout comes before it goes on.
        async let renewed = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        gate.open()
        #expect(await renewed.level == "basic")
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `a renewal of what is in memory reads nothing`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1")
        let (reads, commits) = (store.reads, store.commits)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        // The lease, and what was granted.
        #expect((store.reads, store.commits) == (reads, commits + 2))
    }

    @Test func `a replica that the provider wants to be left alone by serves what another one has stored`() async throws
    {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(429, "{}", fields: ["Retry-After": "60"]))
        #expect(await broker.get().status == 503)
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        await sibling.set("a2", refresh: "r2")
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a lease that the store does not take is the store's failure alone`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1")
        let reads = store.reads
        store.setDown(true)
        let answer = await broker.get("policy=local_force_refresh")
        #expect((answer.status, answer.code) == (503, "storage_unavailable"))
        #expect(store.reads == reads)
        store.setDown(false)
        let counts = await broker.call(.get, "/metrics").text.split(separator: "\n")
            .filter { $0.hasPrefix("token_broker_refresh_total{") }
        #expect(!counts.isEmpty && counts.allSatisfy { $0.hasSuffix(" 0") })
        #expect(!broker.log.contains { $0.contains("renewal_failed") })
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
    }

    /// The same one each time: a login of another user, or of an unknown one, looks for sessions of apps, which it ends.
    private static let user = #""level": "user", "user_id": "42", "#

    @Test func `a login over what is in memory looks for its state alone`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", members: Self.user)
        let login = await broker.beginLogin(body: #"{"storage_key": "default"}"#)
        let (reads, commits) = (store.reads, store.commits)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2", userID: 42)))
        #expect(
            await broker.call(
                .post, "/login/finalize", tenant: "t1",
                body: #"{"login_response_query": "code=c-1&state=\#(login.state)"}"#
            ).status == 200)
        // The state is used, and the credentials are stored.
        #expect((store.reads, store.commits) == (reads + 1, commits + 2))
        #expect(await broker.get().token == "a2")
    }

    @Test func `credentials are stored over what is in memory without a look`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", members: Self.user)
        let (reads, commits) = (store.reads, store.commits)
        await broker.set("a2", refresh: "r2", members: Self.user)
        #expect((store.reads, store.commits) == (reads, commits + 1))
        // And over what is not in memory.
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        await sibling.set("a3", refresh: "r3")
        await broker.set("a4", refresh: "r4")
        #expect(await broker.get().token == "a4")
        let third = try await BrokerHarness(store: store, time: broker.time)
        #expect(await third.get().token == "a4")
    }

    @Test func `what is in memory and not stored any more is not shown to the provider`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        await sibling.set("a2", refresh: "r2", lifetime: .zero)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r2"])
        // The first attempt has come to nothing at all.
        #expect(!broker.log.contains { $0.contains("renewal_overtaken") })
        let kinds = try await broker.events().map(\.kind)
        #expect(kinds.count { $0 == .refreshStarted } == 1 && kinds.count { $0 == .refreshFailed } == 0)
    }

    @Test func `a read that needs no renewal after all does not bring the user back`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        // A sibling has refreshed: this replica's renewal will find that it has nothing to do.
        let sibling = try await BrokerHarness(store: store, time: broker.time)
        await sibling.set("a2", refresh: "r2")
        let gate = Gate()
        store.holdNextRead(of: .credentials, gate)
        async let overtaken = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        gate.open()
        #expect(await overtaken.level == "basic")
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `of two writers the later one is what is served`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let gate = Gate()
        store.onCommit(of: .credentials, .holdAnswer(gate))
        async let first = broker.set("a1")
        await gate.arrivals()
        let second = await broker.set("a2")
        gate.open()
        #expect(await first != second)
        let answer = await broker.get()
        #expect((answer.token, answer.tag) == ("a2", second))
    }

    @Test func `credentials whose commit is answered after the tenant was deleted are gone`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store)
        let gate = Gate()
        store.onCommit(of: .credentials, .holdAnswer(gate))
        async let late = broker.set("a1", refresh: "r1")
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        _ = await late
        await broker.makeTenant()
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    // MARK: Replicas

    // H026
    @Test func `a change on one replica is seen on the other within the bound`() async throws {
        let time = ManualTime()
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(2), time: time)
        await one.makeTenant()
        let key = await one.makeKey()
        await one.set("a1", refresh: "r1")
        #expect(await two.call(.get, "/credentials", key: key).token == "a1")

        await one.set("a2", refresh: "r2")
        time.advance(by: .milliseconds(1999))
        #expect(await two.call(.get, "/credentials", key: key).token == "a1")
        time.advance(by: .milliseconds(1))
        #expect(await two.call(.get, "/credentials", key: key).token == "a2")

        #expect(await one.call(.delete, "/credentials", tenant: "t1").status == 204)
        time.advance(by: .seconds(2))
        #expect(await two.call(.get, "/credentials", key: key).level == "basic")

        await one.makeTenant("t1", #"{"client_id": "c2"}"#)
        time.advance(by: .seconds(2))
        #expect(await two.call(.get, "/credentials", key: key).json["client_id"] == .string("c2"))

        let id = await one.call(.get, "/tenants/t1/api-keys").json["api_keys"]?.array?[0]["id"]?.text ?? ""
        #expect(await one.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        #expect(await one.call(.get, "/credentials", key: key).status == 401)
        time.advance(by: .seconds(2))
        #expect(await two.call(.get, "/credentials", key: key).status == 401)

        #expect(await one.call(.delete, "/tenants/t1").status == 204)
        time.advance(by: .seconds(2))
        #expect(await two.get().status == 404)
    }

    @Test func `a replica with an old reading does not refresh what a sibling has refreshed`() async throws {
        let time = ManualTime()
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(3600), time: time)
        await one.makeTenant()
        await one.set("a1", refresh: "r1", lifetime: .seconds(100))
        let held = await two.get()
        time.advance(by: .seconds(90))
        one.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await one.get().token == "a2")
        #expect(await two.get().token == "a2")
        #expect(two.transport.seen.isEmpty)
        let reported = await two.get("api_error_sub_status=11003", fields: ["If-None-Match": held.tag])
        #expect(reported.token == "a2")
        #expect(two.transport.seen.isEmpty)
    }

    @Test func `a report about a version that a sibling has replaced costs no refresh`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(3600))
        await one.makeTenant()
        let tag = await one.set("a1", refresh: "r1")
        #expect(await two.get().token == "a1")
        one.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await one.get("api_error_sub_status=11003", fields: ["If-None-Match": tag]).token == "a2")
        #expect(await two.get("api_error_sub_status=11003", fields: ["If-None-Match": tag]).token == "a2")
        #expect(two.transport.seen.isEmpty)
    }

    @Test func `credentials outlive a restart`() async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant("t1", #"{"client_id": "c1", "scopes": ["r_usr"]}"#)
        let key = await broker.makeKey()
        await broker.logIn()
        let before = await broker.call(.get, "/credentials", key: key)
        let restarted = try await BrokerHarness(store: store)
        let after = await restarted.call(.get, "/credentials", key: key)
        #expect(after.text == before.text)
        #expect(after.tag == before.tag)
    }
}
