import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// How soon a revocation is heeded that another replica was told of, or that no replica can ask for.
@Suite(.timeLimit(.minutes(2))) struct `A key that was revoked` {
    /// Two replicas on one store.
    private struct Pair {
        let one: BrokerHarness
        let two: BrokerHarness
        let store: FaultyStore
        let feed: ReplicaStore
        let time = ManualTime(skipsSleeps: false)

        init(follows: Bool = true, validity: Duration = .seconds(5)) async throws {
            let (base, group) = (MemoryRecordStore(), ReplicaStore.Group())
            let first = ReplicaStore(base, in: group, revalidateAfter: validity)
            feed = ReplicaStore(base, in: group, revalidateAfter: validity)
            store = FaultyStore(feed, revalidateAfter: validity)
            one = try await BrokerHarness(store: FaultyStore(first, revalidateAfter: validity), time: time)
            two = try await BrokerHarness(store: store, time: time)
            if follows {
                first.follow()
                feed.follow()
            } else {
                feed.setDelivery(.fails)
            }
            await one.makeTenant()
        }

        /// As many seconds go by, in which the feed is seen alive.
        func pass(_ seconds: Int) {
            for _ in 0..<seconds {
                time.advance(by: .seconds(1))
                feed.tell(.alive)
            }
        }

        func makeKey() async throws -> (secret: String, id: String) {
            let answer = await one.call(
                .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["events", "credentials:read"]}"#)
            return (
                try #require(answer.json["api_key"]?.text), try #require(answer.json["id"]?.text)
            )
        }
    }

    /// What ends the right to listen.
    enum Loss: String, CaseIterable {
        case keyDeleted
        case tenantDeleted

        func happen(to broker: BrokerHarness, key id: String) async {
            let path = self == .keyDeleted ? "/tenants/t1/api-keys/\(id)" : "/tenants/t1"
            #expect(await broker.call(.delete, path).status == 204)
        }
    }

    /// Rotates the key without an overlap, or leaves the secret before the rotation for an hour.
    private static func rotate(_ id: String, at broker: BrokerHarness, overlap: Int = 0) async {
        let answer = await broker.call(
            .post, "/tenants/t1/api-keys/\(id)/rotate", body: #"{"overlap": \#(overlap)}"#)
        #expect(answer.status == 201)
    }

    // MARK: Event streams

    // H026
    @Test(arguments: [true, false])
    func `by a rotation has the streams of that secret ended, and no others`(follows: Bool) async throws {
        let pair = try await Pair(follows: follows)
        let (key, others) = (try await pair.makeKey(), try await pair.makeKey())
        await Self.rotate(key.id, at: pair.one, overlap: 3600)
        let first = await pair.two.listen(key: key.secret)
        let bystander = await pair.two.listen(key: others.secret)
        #expect(first.answer.status == 200)
        await pair.time.sleepers(of: .seconds(1))
        await Self.rotate(key.id, at: pair.one, overlap: 3600)
        if !follows { pair.time.advance(by: .seconds(1)) }
        await first.end()
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 401)
        #expect(!bystander.isOver)
        await bystander.close()
    }

    @Test func `only for other secrets of the key leaves a stream open`() async throws {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        let stream = await pair.two.listen(key: key.secret)
        await Self.rotate(key.id, at: pair.one, overlap: 3600)
        await pair.one.set("a1")
        #expect(await stream.events(1).count == 1)
        #expect(!stream.isOver)
        // A deletion ends it, although another secret was the newest.
        #expect(await pair.one.call(.delete, "/tenants/t1/api-keys/\(key.id)").status == 204)
        await stream.end()
    }

    @Test func `by a rotation is accepted nowhere from then on, and the new secret is accepted everywhere`()
        async throws
    {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        for broker in [pair.one, pair.two] {
            #expect(await broker.call(.get, "/credentials", key: key.secret).status == 200)
        }
        let answer = await pair.one.call(
            .post, "/tenants/t1/api-keys/\(key.id)/rotate", body: #"{"overlap": 0}"#)
        let secret = try #require(answer.json["api_key"]?.text)
        for broker in [pair.one, pair.two] {
            #expect(await broker.call(.get, "/credentials", key: key.secret).status == 401)
            #expect(await broker.call(.get, "/credentials", key: secret).status == 200)
        }
    }

    // H026
    @Test(arguments: Loss.allCases)
    func `has its streams ended at once, on the replica where that is done and on others`(loss: Loss) async throws {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        let others = try await pair.makeKey()
        let streams = [await pair.one.listen(key: key.secret), await pair.two.listen(key: key.secret)]
        let bystander = await pair.two.listen(key: others.secret)
        let all = await pair.two.listen()
        await loss.happen(to: pair.one, key: key.id)
        // The clock stands still, so no wait is needed.
        for stream in streams { await stream.end() }
        if loss == .keyDeleted { #expect(!bystander.isOver) } else { await bystander.end() }
        #expect(!all.isOver)
        for stream in [bystander, all] { await stream.close() }
    }

    @Test(arguments: Loss.allCases)
    func `has its streams ended within two seconds where no feed tells of it`(loss: Loss) async throws {
        let pair = try await Pair(follows: false)
        let key = try await pair.makeKey()
        let others = try await pair.makeKey()
        let stream = await pair.two.listen(key: key.secret)
        let bystander = await pair.two.listen(key: others.secret)
        let admins = await pair.two.listen(tenant: "t1")
        await pair.time.sleepers(of: .seconds(1))
        await loss.happen(to: pair.one, key: key.id)
        #expect(!stream.isOver)
        pair.time.advance(by: .seconds(1))
        await stream.end()
        if loss == .tenantDeleted { for stream in [bystander, admins] { await stream.end() } }
        for stream in [bystander, admins] { await stream.close() }
    }

    @Test func `has its streams ended when the feed says that something has changed and not what`() async throws {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        let stream = await pair.two.listen(key: key.secret)
        pair.feed.setDelivery(.fails)
        await Loss.keyDeleted.happen(to: pair.one, key: key.id)
        pair.feed.tell(.unknown)
        await stream.end()
    }

    @Test func `leaves a stream open while the store cannot say`() async throws {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        let stream = await pair.two.listen(key: key.secret)
        pair.store.setDown(true)
        await Loss.keyDeleted.happen(to: pair.one, key: key.id)
        pair.feed.cut()
        await pair.time.sleepers(of: .seconds(1))
        pair.time.advance(by: .seconds(15))
        #expect(await stream.comments(1) == ["heartbeat"])
        pair.store.setDown(false)
        await pair.time.sleepers(of: .seconds(1))
        pair.time.advance(by: .seconds(1))
        await stream.end()
    }

    @Test func `ends its stream at the instant of its expiry`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "k", "permissions": ["events"], "expires_in": 3}"#)
        let stream = await broker.listen(key: key)
        await broker.time.sleepers(of: .seconds(1))
        broker.time.advance(by: .milliseconds(2999))
        await broker.set("a1")
        #expect(await stream.events(1).count == 1)
        await broker.time.sleepers(of: .seconds(1))
        // The waits of listeners are looked at once a second.
        broker.time.advance(by: .seconds(1))
        await stream.end()
    }

    // MARK: While the store is away

    /// After how long without the store a key is tried, and whether it is taken.
    // H026
    @Test(arguments: [(0, 200), (29_999, 200), (30_000, 503), (600_000, 503)])
    func `is used for half a minute without the store, counted from when the feed was last alive`(
        milliseconds: Int, status: Int
    ) async throws {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        await pair.one.set("a1", refresh: "r1")
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 200)
        // Vouched for by the feed, though it was read long ago.
        pair.pass(50)
        pair.store.setDown(true)
        pair.feed.cut()
        pair.time.advance(by: .milliseconds(milliseconds))
        let answer = await pair.two.call(.get, "/credentials", key: key.secret)
        #expect(answer.status == status)
        if status == 503 {
            #expect(answer.code == "storage_unavailable")
            #expect(answer.fields["Retry-After"] != nil)
        }
        // The operator's key is the process's own.
        #expect(await pair.two.call(.get, "/credentials", tenant: "t1").status == 200)
        pair.store.setDown(false)
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 200)
    }

    @Test(arguments: [(29_999, 200), (30_000, 503)])
    func `is used for half a minute however long other entries are valid`(milliseconds: Int, status: Int) async throws {
        let pair = try await Pair(follows: false, validity: .seconds(3600))
        let key = try await pair.makeKey()
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 200)
        pair.store.setDown(true)
        pair.time.advance(by: .milliseconds(milliseconds))
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == status)
    }

    @Test func `is used no longer where reads are answered without a look at the usual way`() async throws {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        await pair.one.set("a1", refresh: "r1")
        let loopback = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
        let server = try Server(
            configuration: ServerConfiguration(address: loopback, loopCount: 1), handler: pair.two.service)
        let client = try HTTPRawClient(server.address)
        func status() async throws -> Int {
            try await client.send(
                "GET /credentials HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(key.secret)\r\n\r\n")
            return try await client.response().status.code
        }
        do {
            // The third is answered by what the server remembers of the second.
            for _ in 0..<3 { #expect(try await status() == 200) }
            pair.pass(10)
            for _ in 0..<3 { #expect(try await status() == 200) }
            pair.store.setDown(true)
            pair.feed.cut()
            for _ in 0..<29 {
                pair.time.advance(by: .seconds(1))
                #expect(try await status() == 200)
            }
            pair.time.advance(by: .milliseconds(999))
            #expect(try await status() == 200)
            pair.time.advance(by: .milliseconds(1))
            #expect(try await status() == 503)
        } catch {
            Issue.record(error)
        }
        await client.close()
        await server.close()
    }

    @Test func `is not used for longer where the feed falls silent and other entries are valid for an hour`()
        async throws
    {
        let pair = try await Pair(validity: .seconds(3600))
        let key = try await pair.makeKey()
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 200)
        pair.pass(10)
        pair.store.setDown(true)
        pair.time.advance(by: .milliseconds(29_999))
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 200)
        pair.time.advance(by: .milliseconds(1))
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 503)
    }

    @Test func `is not used at all where the feed has told of it, store or not`() async throws {
        let pair = try await Pair()
        let key = try await pair.makeKey()
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 200)
        pair.store.setDown(true)
        await Loss.keyDeleted.happen(to: pair.one, key: key.id)
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 503)
        pair.store.setDown(false)
        #expect(await pair.two.call(.get, "/credentials", key: key.secret).status == 401)
    }

    @Test func `is used for ever by the one writer of a store`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let key = await broker.makeKey()
        broker.time.advance(by: .seconds(86_400))
        #expect(await broker.call(.get, "/credentials", key: key).status == 200)
    }
}
