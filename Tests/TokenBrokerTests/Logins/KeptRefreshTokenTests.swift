import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Logins that a provider answers without a refresh token, as some do after the first consent.
@Suite struct `Refresh tokens that a login keeps` {
    private static let ada = 42

    private static func answer(_ access: String, refresh: String? = nil, of user: Int? = ada) -> String {
        BrokerHarness.token(access, refresh: refresh, userID: user)
    }

    /// A broker whose user has the token `a1` and the refresh token `r1`.
    private static func loggedIn(
        store: (any RecordStore)? = nil, time: ManualTime = ManualTime(), tenant: String = #"{"client_id": "c1"}"#
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant("t1", tenant)
        await broker.logIn(token: answer("a1", refresh: "r1"))
        return broker
    }

    /// The refresh token that is presented once the access token has expired; nil where none is.
    private static func presented(_ broker: BrokerHarness) async -> String? {
        broker.time.advance(by: .seconds(3600))
        let earlier = broker.transport.seen.count
        broker.transport.enqueue(.json(200, answer("renewed")))
        let token = await broker.get().token
        guard broker.transport.seen.count > earlier else { return nil }
        #expect(token == "renewed")
        return broker.transport.seen.last?.form["refresh_token"]
    }

    private static func isRefreshable(_ broker: BrokerHarness) async -> Bool? {
        await broker.status().json["refreshable"]?.bool
    }

    // MARK: What is kept

    // H077
    @Test func `a second login of the same user without a refresh token keeps the stored one`() async throws {
        let broker = try await Self.loggedIn()
        for access in ["a2", "a3"] {
            await broker.logIn(token: Self.answer(access))
            #expect(await broker.get().token == access)
            #expect(await Self.isRefreshable(broker) == true)
        }
        #expect(await Self.presented(broker) == "r1")
    }

    @Test func `a login that brings a refresh token replaces the stored one`() async throws {
        let broker = try await Self.loggedIn()
        await broker.logIn(token: Self.answer("a2", refresh: "r2"))
        #expect(await Self.presented(broker) == "r2")
    }

    @Test func `a device login keeps it`() async throws {
        let (broker, script) = try await BrokerHarness.devices(time: ManualTime())
        for answer in [Self.answer("a1", refresh: "r1"), Self.answer("a2")] {
            script.enqueue(.json(200, answer))
            let handle = await broker.beginDevice()
            while await broker.deviceProgress(handle).text.contains("pending") { await Task.yield() }
            #expect(await broker.deviceProgress(handle).text.contains("completed"))
        }
        #expect(await broker.get().token == "a2")
        #expect(await Self.isRefreshable(broker) == true)
    }

    @Test func `a login whose commit arrived without an answer keeps it`() async throws {
        let store = FaultyStore()
        let broker = try await Self.loggedIn(store: store)
        store.onCommit(of: .credentials, .loseAnswer)
        await broker.logIn(token: Self.answer("a2"))
        #expect(await broker.get().token == "a2")
        #expect(await Self.presented(broker) == "r1")
    }

    // H077
    @Test func `a login whose set waits for the provider's keys keeps it once it is verified`() async throws {
        let provider = SigningProvider()
        let first = try await BrokerHarness()
        first.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        await first.makeTenant(
            "t1", #"{"client_id": "c1", "scopes": ["openid"], \#(SigningProvider.members)}"#)
        func answer(_ access: String, refresh: String? = nil, _ login: BrokerHarness.Login) -> String {
            let nonce = BrokerHarness.parameters(of: login.uri)["nonce"]
            let token = provider.idToken(of: "ada", at: first.time.now, nonce: nonce)
            return BrokerHarness.token(access, refresh: refresh).dropLast() + #","id_token":"\#(token)"}"#
        }
        let login = await first.beginLogin()
        first.transport.enqueue(.json(200, answer("a1", refresh: "r1", login)))
        #expect(await first.callback("code=c&state=\(login.state)", accept: "application/json").status == 200)

        let broker = try await BrokerHarness(store: first.store, transport: first.transport, time: first.time)
        first.transport.standing(at: SigningProvider.keysAddress, .failure(.connectFailed))
        let second = await broker.beginLogin()
        broker.transport.enqueue(.json(200, answer("a2", second)))
        #expect(await broker.callback("code=c&state=\(second.state)", accept: "application/json").status != 200)
        first.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
        broker.time.advance(by: .seconds(31))
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
        #expect(await broker.get().token == "a2")
        #expect(await Self.isRefreshable(broker) == true)
        #expect(await Self.presented(broker) == "r1")
    }

    // MARK: What is not

    struct Other: Sendable, CustomTestStringConvertible {
        let testDescription: String
        var user: Int? = ada
        var tenant: String?

        static let all = [
            Other(testDescription: "another user has logged in", user: 43),
            Other(testDescription: "the provider does not say that the user is the same", user: nil),
            Other(testDescription: "another client_id had obtained it", tenant: #"{"client_id": "c2"}"#),
            Other(
                testDescription: "another provider had granted it",
                tenant: #"""
                    {"client_id": "c1", "endpoints": {"authorization": "https://other.example/a",
                     "token": "https://other.example/t"}}
                    """#),
        ]
    }

    @Test(arguments: Other.all)
    func `nothing is kept of what is not known to be the same, and the log says so`(other: Other) async throws {
        let broker = try await Self.loggedIn(
            tenant: #"""
                {"client_id": "c1", "endpoints": {"authorization": "https://one.example/a",
                 "token": "https://one.example/t"}}
                """#)
        if let tenant = other.tenant { await broker.makeTenant("t1", tenant) }
        await broker.logIn(token: Self.answer("a2", of: other.user))
        #expect(await Self.isRefreshable(broker) == false)
        #expect(
            broker.log.count { $0.contains("refresh_token_not_kept") && $0.contains(other.testDescription) } == 1)
    }

    @Test func `a caller that sets credentials without a refresh token has none stored`() async throws {
        let broker = try await Self.loggedIn()
        await broker.set("a2", members: #""level": "user", "user_id": "42", "#)
        #expect(await Self.isRefreshable(broker) == false)
        #expect(broker.log.contains { $0.contains("refresh_token_not_kept") && $0.contains("a caller has set") })
    }

    @Test func `the refresh token of a session that the provider has ended stays in quarantine`() async throws {
        let broker = try await Self.loggedIn()
        broker.transport.enqueue(.json(401, #"{"error": "invalid_grant"}"#))
        _ = await broker.get("policy=local_force_refresh")
        #expect(try await broker.quarantined() != nil)
        await broker.logIn(token: Self.answer("a2"))
        #expect(await Self.isRefreshable(broker) == false)
    }

    // MARK: A refresh that is under way

    // H077
    @Test func `a refresh that is under way gives its refresh token to the login that comes before its end`()
        async throws
    {
        let broker = try await Self.loggedIn()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.answer("late", refresh: "r2"))))
        async let refreshed = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        await broker.logIn(token: Self.answer("a2"))
        let tag = await broker.get().tag
        gate.open()
        #expect(await refreshed.token == "a2")
        let answer = await broker.get()
        #expect((answer.token, answer.tag) == ("a2", tag))
        #expect(await Self.presented(broker) == "r2")
    }

    @Test func `a login waits for a refresh that is under way, and keeps its refresh token`() async throws {
        let time = ManualTime()
        let broker = try await Self.loggedIn(time: time)
        time.holdSleeps()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.answer("late", refresh: "r2"))))
        async let refreshed = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        async let login: Void = broker.logIn(token: Self.answer("a2"))
        await time.sleepers(of: .seconds(1))
        gate.open()
        #expect(await refreshed.token == "late")
        await login
        #expect(await broker.get().token == "a2")
        #expect(await Self.presented(broker) == "r2")
    }

    /// A replica that cannot reach the store may have the successor of the refresh token.
    @Test(arguments: [nil, "r2"])
    func `a login leaves the lease of a replica that is away where it keeps the refresh token`(brought: String?)
        async throws
    {
        // Such a holder is waited for for 30 s where a refresh token is spent by its use.
        let broker = try await Self.loggedIn(tenant: #"{"client_id": "c1", "rotation": "always"}"#)
        let row = RecordID(.credentials, TenantName("t1")!, key: "default")
        let version = try #require(try await broker.vault.read(row)).version
        try await broker.vault.commit([
            .claim(row, version: version, LeaseClaim(holder: "away", for: .seconds(3), marksUse: true))
        ])
        // Within the grace, the login's replica would present the token itself.
        broker.time.advance(by: .seconds(12))
        await broker.logIn(token: Self.answer("a2", refresh: brought))
        #expect(await broker.get().token == "a2")
        let stored = try #require(try await broker.vault.read(row))
        #expect(stored.version > version)
        // The broker's own attempt may have taken it over meanwhile: it stays a lease under which the token may be spent.
        #expect((stored.lease.map { !$0.isSettled } ?? false) == (brought == nil))
        #expect((stored.lease?.sinceFirstUse != nil) == (brought == nil))
    }

    @Test func `a refresh that is under way at a logout gives nothing to the login after it`() async throws {
        let broker = try await Self.loggedIn()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, Self.answer("late", refresh: "r2"))))
        async let refreshed = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        await broker.logOut()
        broker.time.advance(by: .seconds(1))
        await broker.logIn(token: Self.answer("a2"))
        gate.open()
        #expect(await refreshed.token == "a2")
        #expect(await Self.isRefreshable(broker) == false)
    }
}
