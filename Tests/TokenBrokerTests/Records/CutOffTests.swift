import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// What a replica answers that cannot reach the store, while others can and change what is stored.
@Suite struct `A replica that is cut off from the store` {
    /// What the replica has in memory when it is cut off.
    enum Memory: String, CaseIterable {
        case neverRead, nothingStored, loggedOut, client, expiredClient, user, userWithoutRefreshToken, dueEarly
        case ofAnotherClient, expiredUser, expiredUserWithoutRefreshToken

        /// Whether it is a user's token that is good.
        var isGood: Bool { [.user, .userWithoutRefreshToken, .dueEarly, .ofAnotherClient].contains(self) }

        fileprivate func prepare(_ pair: Pair) async {
            let one = pair.one
            switch self {
            case .neverRead: await one.set("old", refresh: "r1")
            case .nothingStored: break
            case .loggedOut:
                await one.set("old", refresh: "r1")
                #expect(await one.call(.delete, "/credentials", tenant: "t1").status == 204)
            case .client: await one.set("old", members: #""level": "client", "#)
            case .expiredClient: await one.set("old", lifetime: .seconds(9), members: #""level": "client", "#)
            case .user: await one.set("old", refresh: "r1")
            case .userWithoutRefreshToken: await one.set("old")
            case .dueEarly:
                await one.makeTenant("t1", Pair.tenant(#""refresh_lead_time": 7200, "client_id": "c1""#))
                await one.set("old", refresh: "r1")
            case .ofAnotherClient:
                await one.set("old", refresh: "r1")
                await one.makeTenant("t1", Pair.tenant(#""client_id": "c2""#))
            case .expiredUser: await one.set("old", refresh: "r1", lifetime: .seconds(9))
            case .expiredUserWithoutRefreshToken: await one.set("old", lifetime: .seconds(9))
            }
        }
    }

    /// Two replicas on one store, neither of which hears of the other's changes.
    fileprivate struct Pair {
        let one: BrokerHarness
        let two: BrokerHarness
        /// The second one's way to the store.
        let store: FaultyStore
        let time = ManualTime()

        static let cacheValidity: Duration = .seconds(5)

        init() async throws {
            let time = time
            let records = MemoryRecordStore { time.monotonic }
            store = FaultyStore(records, revalidateAfter: Self.cacheValidity)
            one = try await BrokerHarness(store: FaultyStore(records, revalidateAfter: Self.cacheValidity), time: time)
            two = try await BrokerHarness(store: store, time: time)
            await one.makeTenant("t1", Self.tenant(#""client_id": "c1""#))
        }

        static func tenant(_ members: String) -> String { #"{"client_secret": "s1", \#(members)}"# }

        /// Has the second one read what there is, and cuts it off when its cache entries have expired.
        func cutOff(with memory: Memory) async {
            await memory.prepare(self)
            if memory == .neverRead {
                _ = await two.get("policy=local&storage_key=other")
            } else {
                _ = await two.get("policy=local")
            }
            time.advance(by: .seconds(10))
            store.setDown(true)
        }

        func status() async -> BrokerHarness.Answer {
            await two.call(.get, "/credentials/status", tenant: "t1")
        }
    }

    private static let served = [
        "", "policy=local", "policy=local_valid", "policy=create_if_needed", "level=user", "min_ttl=0", "min_ttl=3590",
        "api_error_sub_status=1", "policy=local&min_ttl=3590",
    ]
    private static let unserved = [
        "policy=local_force_refresh", "api_error_sub_status=11003", "min_ttl=3591", "policy=local&min_ttl=3591",
        "policy=local&min_ttl=86400", "level=user&min_ttl=86400",
    ]

    @Test(arguments: Memory.allCases)
    func `serves a user's token that is good, and says of everything else that the store is away`(
        memory: Memory
    ) async throws {
        let pair = try await Pair()
        await pair.cutOff(with: memory)
        // A login at the other replica, which this one cannot hear of.
        await pair.one.set("new", refresh: "r2", clientID: memory == .ofAnotherClient ? "c2" : "c1")
        for query in Self.served + Self.unserved {
            let answer = await pair.two.get(query)
            // What is to be carried over to another client first is served as it is stored only.
            let isServed =
                memory.isGood && Self.served.contains(query)
                && (memory != .ofAnotherClient || query.hasPrefix("policy=local&") || query == "policy=local")
            if isServed {
                #expect((answer.status, answer.token, answer.level) == (200, "old", "user"), "\(query)")
            } else {
                #expect((answer.status, answer.code) == (503, "storage_unavailable"), "\(query)")
                #expect((answer.retryAfter ?? 0) >= 1, "\(query)")
            }
        }
        let status = await pair.status()
        if memory.isGood {
            #expect(status.json["logged_in"] == .bool(true))
            #expect(status.level == "user")
        } else {
            #expect((status.status, status.code) == (503, "storage_unavailable"))
        }
        // The provider was asked for nothing.
        #expect(pair.two.transport.seen.isEmpty)

        pair.store.setDown(false)
        #expect(await pair.two.get().token == "new")
        #expect(await pair.status().json["logged_in"] == .bool(true))
    }

    /// What is left of the token, and what it is asked for.
    @Test(arguments: [
        ("", 60_000, true), ("", 59_999, false), ("min_ttl=0", 1, true), ("min_ttl=0", 0, false),
        ("min_ttl=100", 100_000, true), ("min_ttl=100", 99_999, false), ("policy=local", 60_000, true),
        ("policy=local", 59_999, false), ("policy=local&min_ttl=0", 1, true), ("policy=local&min_ttl=0", 0, false),
        ("status", 1, true), ("status", 0, false), ("status", -3_600_000, false),
    ])
    func `serves a token for as long as it is good for what was asked`(
        query: String, left: Int, isServed: Bool
    ) async throws {
        for refreshToken in ["r1", nil] {
            let pair = try await Pair()
            await pair.one.set("old", refresh: refreshToken)
            _ = await pair.two.get("policy=local")
            pair.time.advance(by: .seconds(3600) - .milliseconds(left))
            pair.store.setDown(true)
            let answer = query == "status" ? await pair.status() : await pair.two.get(query)
            #expect(answer.status == (isServed ? 200 : 503))
            if !isServed { #expect(answer.code == "storage_unavailable") }
            #expect(pair.two.transport.seen.isEmpty)
        }
    }

    @Test func `serves a token that is newer than what was complained about`() async throws {
        let pair = try await Pair()
        let first = await pair.one.set("first", refresh: "r1")
        let tag = await pair.one.set("old", refresh: "r2")
        _ = await pair.two.get("policy=local")
        pair.time.advance(by: .seconds(10))
        pair.store.setDown(true)
        let query = "api_error_sub_status=11003"
        #expect(await pair.two.get(query, fields: ["If-None-Match": first]).token == "old")
        #expect(await pair.two.get(query, fields: ["If-None-Match": tag]).code == "storage_unavailable")
        #expect(await pair.two.get(fields: ["If-None-Match": tag]).status == 304)
    }

    @Test func `tells listeners of nothing that it read before`() async throws {
        let pair = try await Pair()
        await pair.cutOff(with: .user)
        let id = CredentialsID(tenant: try #require(TenantName("t1")), storageKey: .default)
        let provider = pair.two.broker.credentials
        #expect(try await provider.lastKnown(id).record.held?.level == .user)
        await #expect { try await provider.stored(id) } throws: { ($0 as? BrokerError)?.code == .storageUnavailable }
    }

    @Test func `looks for the store once where a token is to be renewed early`() async throws {
        var reads: [Int] = []
        for memory in [Memory.user, .dueEarly] {
            let pair = try await Pair()
            await pair.cutOff(with: memory)
            let before = pair.store.reads
            #expect(await pair.two.get().token == "old")
            reads.append(pair.store.reads - before)
        }
        #expect(reads[0] == reads[1])
    }

    @Test(arguments: Memory.allCases)
    func `goes by everything that it read a moment ago`(memory: Memory) async throws {
        let pair = try await Pair()
        await memory.prepare(pair)
        _ = await pair.two.get("policy=local")
        let (answer, status) = (await pair.two.get("policy=local"), await pair.status())
        pair.store.setDown(true)
        pair.time.advance(by: Pair.cacheValidity - .milliseconds(1))
        let cutOff = await pair.two.get("policy=local")
        #expect((cutOff.status, cutOff.code, cutOff.tag) == (answer.status, answer.code, answer.tag))
        #expect(await pair.status().text == status.text)
        pair.time.advance(by: .milliseconds(1))
        #expect(await pair.two.get("policy=local").status == (memory.isGood || memory == .neverRead ? 200 : 503))
    }
}
