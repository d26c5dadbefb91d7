import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Changes of credentials and what is told of them` {
    private static let granted = BrokerHarness.token("a2", refresh: "r2")

    private static func expired(_ store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        return broker
    }

    // T25
    // T35 K36
    // T36
    // T45
    // T46
    @Test func `a refresh writes the record once, and a read of it writes nothing`() async throws {
        let store = FaultyStore()
        let broker = try await Self.expired(store)
        broker.transport.enqueue(.json(200, Self.granted))
        let before = store.commits
        let renewed = await broker.get()
        // One commit that says that it begins, and one with the record and all else that is told.
        #expect(store.commits == before + 2)
        for _ in 0..<3 { #expect(await broker.get().tag == renewed.tag) }
        #expect(store.commits == before + 2)
        #expect(broker.transport.seen.count == 1)
        let events = try await broker.events().dropFirst()
        #expect(
            events.map(\.kind) == [
                .refreshStarted, .refreshRefreshingAccessToken, .refreshRefreshedAccessToken, .refreshSavingTokens,
                .credentialsUpdated, .refreshSucceeded,
            ])
        #expect(Set(events.compactMap { $0.data["refresh_id"]?.text }).count == 1)
        let updated = try #require(events.first { $0.kind == .credentialsUpdated })
        #expect(updated.data["version"] == .integer(renewed.version))
    }

    // T44
    @Test func `a client with a secret refreshes its user's token rather than ask for its own`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(200, Self.granted))
        let answer = await broker.get()
        #expect((answer.level, answer.token) == ("user", "a2"))
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token"])
    }

    // T51
    // T65
    // T66
    @Test func `a login and a logout are told, and the tenant serves on`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        await broker.logIn()
        await broker.logOut()
        #expect(try await broker.causes() == ["login", "logout"])
        #expect(await broker.get("policy=local").code == "missing_token_container")
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        #expect(try await broker.causes() == ["login", "logout", "client"])
        // A logout without a logged-in user is an event of the client credentials, and then of none.
        for _ in 0..<3 { await broker.logOut() }
        #expect(try await broker.causes() == ["login", "logout", "client", "logout"])
    }

    @Test func `nothing is told of a change that the store does not take`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.expired(store)
        let told = try await broker.events().count
        store.disturb([.refuse, .refuse]) { $0.replaces(.credentials) }
        #expect(await broker.logOut().status == 503)
        let body = #"{"credentials": {"level": "user", "client_id": "c1", "token": "b1"}}"#
        #expect(await broker.call(.put, "/credentials", tenant: "t1", body: body).status == 503)
        #expect(try await broker.events().count == told)
        #expect(await broker.status().isLoggedIn == true)
    }

    // MARK: The store, before the provider is asked

    @Test func `a refresh that cannot be written down is not begun, and its token not spent`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.expired(store)
        store.disturb([.refuse, .loseAnswer]) { if case .append = $0 { true } else { false } }
        for _ in 0..<2 {
            let answer = await broker.get()
            #expect((answer.status, answer.code) == (503, "storage_unavailable"))
            #expect((answer.retryAfter ?? 0) >= 1)
        }
        #expect(broker.transport.seen.isEmpty)
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1"])
    }

    @Test func `a provider that wants to be left alone is told of once`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "60"]))
        #expect(await broker.get().retryAfter == 60)
        let told = try await broker.events().map(\.kind)
        #expect(told == [.credentialsUpdated, .refreshStarted, .refreshRefreshingAccessToken, .refreshFailed])
        for _ in 0..<3 { #expect(await broker.get().retryAfter == 60) }
        #expect(try await broker.events().count == told.count)
        #expect(broker.transport.seen.count == 1)
    }

    // MARK: The store, after the provider has answered

    @Test func `a commit whose answer was lost is told once`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.expired(store)
        store.disturb([.loseAnswer, .refuse]) { $0.replaces(.credentials) }
        broker.transport.enqueue(.json(200, Self.granted))
        #expect(await broker.get().token == "a2")
        #expect(store.remainingFaults == 0)
        #expect(try await broker.causes() == ["set", "refresh"])
        #expect(try await broker.events().count { $0.kind == .refreshSucceeded } == 1)
        #expect(try await broker.events().count { $0.kind == .refreshFailed } == 0)
    }

    @Test func `what was granted outlasts a store that fails after a conflict`() async throws {
        let leaseClock = ManualTime()
        let base = MemoryRecordStore { leaseClock.monotonic }
        let store = FaultyStore(base)
        let broker = try await Self.expired(store)
        let sibling = try await BrokerHarness(store: base, time: broker.time)
        let gate = Gate()
        store.onCommit(of: .credentials, .hold(gate))
        broker.transport.enqueue(.json(200, Self.granted))
        async let granted = broker.get()
        await gate.arrivals()
        // A slower replica, which has waited for the lease to run out, takes the session for ended.
        leaseClock.advance(by: .seconds(60))
        sibling.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await sibling.get().level == "basic")
        broker.time.holdSleeps()
        let read = Gate()
        store.holdNextRead(of: .credentials, read)
        gate.open()
        await read.arrivals()
        store.setDown(true)
        read.open()
        await broker.time.sleepers(of: .milliseconds(200))
        store.setDown(false)
        broker.time.advance(by: .milliseconds(200))
        #expect(await granted.token == "a2")
        #expect(await broker.status().isLoggedIn == true)
    }

    @Test func `a renewal that waits for the store ends when the broker is stopped`() async throws {
        let store = FaultyStore()
        let broker = try await Self.expired(store)
        broker.time.holdSleeps()
        store.onCommit(of: .credentials, .refuse(.unavailable))
        broker.transport.enqueue(.json(200, Self.granted))
        async let renewed = broker.get()
        await broker.time.sleepers(of: .milliseconds(200))
        async let finished: Void = broker.broker.core.finish(within: .seconds(10))
        await broker.time.sleepers(of: .milliseconds(200), .seconds(10))
        store.setDown(true)
        broker.time.advance(by: .seconds(10))
        await finished
        #expect(await renewed.code == "storage_unavailable")
    }

    // MARK: Logouts in the middle

    // T68
    // T69
    @Test(arguments: [false, true])
    func `a logout in the middle of a refresh's write holds`(isWritten: Bool) async throws {
        let store = FaultyStore()
        let broker = try await Self.expired(store)
        let gate = Gate()
        store.onCommit(of: .credentials, isWritten ? .holdAnswer(gate) : .hold(gate))
        broker.transport.enqueue(.json(200, Self.granted))
        async let refreshed = broker.get()
        await gate.arrivals()
        #expect(await broker.logOut().status == 204)
        gate.open()
        _ = await refreshed
        #expect(await broker.get().level == "basic")
        let other = try await BrokerHarness(store: store, time: broker.time)
        #expect(await other.get("policy=local").code == "missing_token_container")
        #expect(try await broker.causes() == (isWritten ? ["set", "refresh", "logout"] : ["set", "logout"]))
        // What began is told to be over.
        let ends = try await broker.events().filter { [.refreshSucceeded, .refreshFailed].contains($0.kind) }
        #expect(ends.map(\.kind) == [isWritten ? .refreshSucceeded : .refreshFailed])
    }

    // T53
    @Test func `of credentials set during a refresh and the refresh the former are stored, and both are told`()
        async throws
    {
        let broker = try await Self.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.granted)))
        async let refreshed = broker.get()
        await gate.arrivals()
        let tag = await broker.set("b1", refresh: "b-r1")
        gate.open()
        #expect(await refreshed.tag == tag)
        #expect(try await broker.causes() == ["set", "set"])
        #expect(try await broker.events().last?.kind == .refreshFailed)
    }
}
