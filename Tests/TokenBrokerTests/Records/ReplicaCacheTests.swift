import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@Suite struct `What several replicas keep in memory` {
    /// Two replicas on one store, both of which follow its feed.
    private struct Pair {
        let one: BrokerHarness
        let two: BrokerHarness
        /// Of the second replica: where readings and commits can be held up, and where news can.
        let store: FaultyStore
        let feed: ReplicaStore
        let time: ManualTime

        init(follows: Bool = true) async throws {
            time = ManualTime()
            let (base, group) = (MemoryRecordStore(), ReplicaStore.Group())
            let first = ReplicaStore(base, in: group)
            feed = ReplicaStore(base, in: group)
            store = FaultyStore(feed, revalidateAfter: .seconds(5))
            one = try await BrokerHarness(store: FaultyStore(first, revalidateAfter: .seconds(5)), time: time)
            two = try await BrokerHarness(store: store, time: time)
            if follows {
                first.follow()
                feed.follow()
            }
            await one.makeTenant("t1", #"{"client_id": "c1"}"#)
        }

        /// As many seconds go by, in which the feed is seen alive.
        func pass(_ seconds: Int) {
            for _ in 0..<seconds {
                time.advance(by: .seconds(1))
                feed.tell(.alive)
            }
        }

        func logOut() async {
            #expect(await one.call(.delete, "/credentials", tenant: "t1").status == 204)
        }
    }

    @Test func `is not asked for again while the feed is alive`() async throws {
        let pair = try await Pair()
        let key = await pair.one.makeKey()
        await pair.one.set("a1", refresh: "r1", lifetime: .seconds(86_400))
        #expect(await pair.two.call(.get, "/credentials", key: key).token == "a1")
        let reads = pair.store.reads
        pair.pass(59)
        #expect(await pair.two.call(.get, "/credentials", key: key).token == "a1")
        #expect(pair.store.reads == reads)
    }

    // H026 H054
    @Test func `is forgotten as soon as it changes elsewhere`() async throws {
        let pair = try await Pair()
        let key = await pair.one.makeKey()
        await pair.one.set("a1", refresh: "r1")
        #expect(await pair.two.call(.get, "/credentials", key: key).token == "a1")
        await pair.one.set("a2", refresh: "r2")
        #expect(await pair.two.call(.get, "/credentials", key: key).token == "a2")
        await pair.logOut()
        #expect(await pair.two.call(.get, "/credentials", key: key).level == "basic")
        await pair.one.makeTenant("t1", #"{"client_id": "c2"}"#)
        #expect(await pair.two.call(.get, "/credentials", key: key).json["client_id"] == .string("c2"))
        let id = await pair.one.call(.get, "/tenants/t1/api-keys").json["api_keys"]?.array?[0]["id"]?.text ?? ""
        #expect(await pair.one.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        #expect(await pair.two.call(.get, "/credentials", key: key).status == 401)
    }

    @Test func `goes with its tenant`() async throws {
        let pair = try await Pair()
        let key = await pair.one.makeKey()
        await pair.one.set("a1", refresh: "r1")
        #expect(await pair.two.call(.get, "/credentials", key: key).token == "a1")
        #expect(await pair.one.call(.delete, "/tenants/t1").status == 204)
        #expect(await pair.two.call(.get, "/credentials", key: key).status == 401)
        #expect(await pair.two.get().status == 404)
        // A tenant that is made anew has nothing of the old one's.
        await pair.one.makeTenant()
        #expect(await pair.two.get("policy=local").code == "missing_token_container")
    }

    @Test func `stays when it is told of what the replica itself has written`() async throws {
        let pair = try await Pair()
        for delivery in [ReplicaStore.Delivery.passes, .waits] {
            pair.feed.setDelivery(delivery)
            await pair.two.set("a1", refresh: "r1")
            let key = await pair.two.makeKey()
            pair.feed.release()
            let reads = pair.store.reads
            #expect(await pair.two.call(.get, "/credentials", key: key).token == "a1")
            #expect(pair.store.reads == reads)
        }
    }

    // The news of it comes before the answer to the commit.
    @Test func `stays when another's change came before its own and was overwritten`() async throws {
        let pair = try await Pair()
        await pair.one.set("a1", refresh: "r1")
        let gate = Gate()
        pair.store.onCommit(of: .credentials, .holdAnswer(gate))
        async let written = pair.two.set("a2", refresh: "r2")
        await gate.arrivals()
        gate.open()
        _ = await written
        let reads = pair.store.reads
        #expect(await pair.two.get().token == "a2")
        #expect(pair.store.reads == reads)
    }

    @Test func `is not what was read before a logout that is told of meanwhile`() async throws {
        let pair = try await Pair()
        await pair.one.set("a1", refresh: "r1")
        let gate = Gate()
        pair.store.holdNextRead(of: .credentials, gate)
        async let late = pair.two.get()
        await gate.arrivals()
        await pair.logOut()
        gate.open()
        _ = await late
        #expect(await pair.two.get().level == "basic")
    }

    // MARK: Without the feed

    // H087
    @Test(arguments: [(4999, "user"), (5000, "basic")])
    func `is used for the bound and no longer once the feed is lost`(milliseconds: Int, level: String) async throws {
        let pair = try await Pair()
        await pair.one.set("a1", refresh: "r1")
        pair.pass(60)
        #expect(await pair.two.get().token == "a1")
        pair.feed.cut()
        await pair.logOut()
        pair.time.advance(by: .milliseconds(milliseconds))
        #expect(await pair.two.get().level == level)
    }

    @Test(arguments: [(4999, "user"), (5000, "basic")])
    func `is used for the bound and no longer when the feed falls silent`(
        milliseconds: Int, level: String
    ) async throws {
        let pair = try await Pair()
        await pair.one.set("a1", refresh: "r1")
        #expect(await pair.two.get().token == "a1")
        pair.pass(50)
        pair.feed.setDelivery(.fails)
        await pair.logOut()
        pair.time.advance(by: .milliseconds(milliseconds))
        #expect(await pair.two.get().level == level)
    }

    // H087
    @Test func `is not used at all when the feed is back, however new it is`() async throws {
        let pair = try await Pair()
        await pair.one.set("a1", refresh: "r1")
        pair.feed.cut()
        #expect(await pair.two.get().token == "a1")
        await pair.logOut()
        pair.time.advance(by: .milliseconds(1))
        #expect(await pair.two.get().token == "a1")
        pair.feed.follow()
        #expect(await pair.two.get().level == "basic")
        let reads = pair.store.reads
        pair.pass(59)
        #expect(await pair.two.get().level == "basic")
        #expect(pair.store.reads == reads)
    }

    @Test func `is not used after a change that cannot be named`() async throws {
        let pair = try await Pair()
        await pair.one.set("a1", refresh: "r1")
        #expect(await pair.two.get().token == "a1")
        pair.feed.setDelivery(.fails)
        await pair.logOut()
        pair.time.advance(by: .milliseconds(1))
        pair.feed.tell(.unknown)
        #expect(await pair.two.get().level == "basic")
    }

    @Test func `is served to the operator while neither feed nor store are there`() async throws {
        let pair = try await Pair()
        await pair.one.set("a1", refresh: "r1")
        #expect(await pair.two.get().token == "a1")
        pair.feed.cut()
        pair.store.setDown(true)
        pair.time.advance(by: .seconds(600))
        #expect(await pair.two.get().token == "a1")
    }

    // MARK: Those who wait

    @Test func `ends a wait for another replica's login at once`() async throws {
        let pair = try await Pair()
        let login = await pair.one.beginLogin()
        pair.time.holdSleeps()
        let waiter = Task { await pair.two.progress(login.id, query: "?wait=60").text }
        await pair.time.sleepers(of: .seconds(5))
        pair.one.transport.enqueue(.json(200, BrokerHarness.token("access-1", refresh: "refresh-1", userID: 42)))
        #expect(await pair.one.callback("code=c-1&state=\(login.state)").status == 200)
        #expect(await waiter.value == #"{"status":"completed"}"#)
    }

    @Test(arguments: [true, false])
    func `is looked at now and then by who waits for a login, and more often without the feed`(
        follows: Bool
    ) async throws {
        let pair = try await Pair(follows: follows)
        let login = await pair.one.beginLogin()
        pair.time.forgetSleeps()
        #expect(await pair.two.progress(login.id, query: "?wait=12").text == #"{"status":"pending"}"#)
        // The feed falls silent meanwhile.
        let ones = [Duration](repeating: .seconds(1), count: follows ? 7 : 12)
        #expect(pair.time.slept == (follows ? [.seconds(5)] + ones : ones))
    }

    @Test func `brings another replica's events to listeners without looking for them`() async throws {
        let pair = try await Pair()
        pair.time.holdSleeps()
        let listener = await pair.two.listen(tenant: "t1")
        await pair.time.sleepers(of: .seconds(1))
        await pair.one.set("a1", storageKey: "k1")
        #expect(await listener.events(1).map(\.storageKey) == ["k1"])
        // What is committed while the feed is away is found when it is back.
        pair.feed.setDelivery(.fails)
        await pair.one.set("a2", storageKey: "k2")
        pair.feed.follow()
        #expect(await listener.events(2).map(\.storageKey) == ["k1", "k2"])
        pair.feed.setDelivery(.fails)
        await pair.one.set("a3", storageKey: "k3")
        pair.feed.tell(.unknown)
        #expect(await listener.events(3).map(\.storageKey) == ["k1", "k2", "k3"])
        await listener.close()
    }

    @Test func `has listeners' events looked for once a second when the feed is lost`() async throws {
        let pair = try await Pair()
        pair.time.holdSleeps()
        let listener = await pair.two.listen(tenant: "t1")
        await pair.time.sleepers(of: .seconds(1))
        pair.feed.cut()
        await pair.one.set("a1", storageKey: "k1")
        pair.time.advance(by: .seconds(1))
        #expect(await listener.events(1).map(\.storageKey) == ["k1"])
        await listener.close()
    }

    @Test func `tells the operator how it stands`() async throws {
        let pair = try await Pair()
        func metrics() async -> [String] {
            await pair.two.call(.get, "/metrics", key: nil).text.split(separator: "\n").map(String.init)
        }
        await pair.one.set("a1", refresh: "r1")
        _ = await pair.two.get()
        var lines = await metrics()
        for name in ["credentials", "tenants"] {
            #expect(lines.contains(#"token_broker_cache_entries{cache="\#(name)"} 1"#))
            #expect(lines.contains(#"token_broker_cache_evictions_total{cache="\#(name)"} 0"#))
            #expect(lines.contains(#"token_broker_cache_renewals_total{cache="\#(name)"} 0"#))
        }
        #expect(lines.contains(#"token_broker_cache_entries{cache="api_keys"} 0"#))
        #expect(lines.contains(#"token_broker_cache_bytes{cache="api_keys"} 0"#))
        #expect(lines.contains("token_broker_change_feed_following 1"))
        #expect(lines.contains("token_broker_changes_missed_total 0"))
        pair.feed.cut()
        lines = await metrics()
        #expect(lines.contains("token_broker_change_feed_following 0"))
        #expect(pair.two.log.count { $0.contains(#""change_feed_lost""#) } == 1)
        #expect(pair.two.log.count { $0.contains(#""change_feed_following""#) } == 1)
    }

    @Test func `a renewal whose answer from the store comes late gives its callers what came after it`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let store = FaultyStore(records, revalidateAfter: .zero)
        let one = try await BrokerHarness(store: store, time: time)
        let two = try await BrokerHarness(store: FaultyStore(records, revalidateAfter: .zero), time: time)
        await one.makeTenant()
        await one.logIn(token: BrokerHarness.token("a1", refresh: "r1"))
        time.advance(by: .seconds(3600))
        let gate = Gate()
        store.onCommit(of: .credentials, .holdAnswer(gate))
        one.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        async let late = one.get()
        // The store has `a2`, and its answer is on the way.
        await gate.arrivals()
        two.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await two.get("policy=local_force_refresh").token == "a3")
        let read = await one.get("policy=local")
        #expect(read.token == "a3")
        gate.open()
        let answer = await late
        #expect((answer.token, answer.version) == ("a3", read.version))
    }
}
