import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Imports whose refresh tokens are presented, at a provider whose tokens are verified.
@Suite struct `Imported sets that are verified` {
    static let provider = SigningProvider()
    static let members = #"""
        {"client_id": "c1", "scopes": ["read"], \#(SigningProvider.members), "token_verification": {"access_token": {"audience": "api"}}}
        """#

    static func access(_ name: String, of subject: String, at now: Timestamp, audience: String = "api") -> String {
        provider.signed("read", audience: audience, of: subject, at: now, name: name)
    }

    static func publishKeys(_ broker: BrokerHarness) {
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keySet))
    }

    /// A broker that gets its provider's keys.
    static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        publishKeys(broker)
        await broker.makeTenant("t1", members)
        return broker
    }

    /// A broker that does not get its provider's keys, where `ada` is logged in with the token that is returned and with the refresh
    /// token `r-ada`.
    static func withoutKeys() async throws -> (broker: BrokerHarness, ada: String) {
        let first = try await broker()
        let ada = access("1", of: "ada", at: first.time.now)
        await first.logIn(token: BrokerHarness.token(ada, refresh: "r-ada"))
        first.transport.standing(at: SigningProvider.keysAddress, .failure(.connectFailed))
        return (try await BrokerHarness(store: first.store, transport: first.transport, time: first.time), ada)
    }

    /// Lets the job run that verifies what waits.
    static func verifyWaiting(_ broker: BrokerHarness) async {
        publishKeys(broker)
        broker.time.advance(by: .seconds(40))
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
    }

    static func line(_ refresh: String, user: String? = nil, storageKey: String = "default") -> String {
        let user = user.map { #", "credentials": {"user_id": "\#($0)"}"# } ?? ""
        return #"{"storage_key": "\#(storageKey)", "refresh_token": "\#(refresh)"\#(user)}"#
    }

    // MARK: While the keys are away

    @Test func `take the place of another user's session once the keys are there`() async throws {
        let (broker, ada) = try await Self.withoutKeys()
        let bob = Self.access("2", of: "bob", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(bob, refresh: "r-bob-2")))
        let answer = await broker.importing(Self.line("r-bob", user: "bob"), query: "replace=true&verify=true")
        #expect(answer.outcomes == ["1 default imported"])
        #expect(await broker.get().token == ada)
        await Self.verifyWaiting(broker)
        let read = await broker.get()
        #expect((read.token, read.json["user_id"]?.text) == (bob, "bob"))
        #expect(await broker.subjectChanges(provider: "oidc") == 0)
        #expect(try await broker.asides().isEmpty)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token(Self.access("3", of: "bob", at: broker.time.now), refresh: "r-bob-3")))
        #expect(await broker.get("policy=local_force_refresh").status == 200)
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r-bob-2")
    }

    @Test(arguments: [false, true])
    func `that fail leave another user's session and its refresh token, and are put aside`(
        isOtherUser: Bool
    ) async throws {
        let (broker, ada) = try await Self.withoutKeys()
        let bob = Self.access("2", of: "bob", at: broker.time.now, audience: isOtherUser ? "api" : "web")
        broker.transport.enqueue(.json(200, BrokerHarness.token(bob, refresh: "r-bob-2", userID: 8)))
        let line = Self.line("r-bob", user: isOtherUser ? "7" : "8")
        #expect(
            await broker.importing(line, query: "replace=true&verify=true").outcomes == ["1 default imported"])
        await Self.verifyWaiting(broker)
        #expect(await broker.get().token == ada)
        let asides = try await broker.asides()
        #expect(asides.map(\.refreshToken?.revealedText) == ["r-bob-2"])
        #expect(asides.map(\.accessToken.isEmpty) == [true])
        #expect(try await broker.quarantined() == nil)
        let next = Self.access("3", of: "ada", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(next, refresh: "r-ada-2")))
        #expect(await broker.get("policy=local_force_refresh").token == next)
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r-ada")
    }

    @Test func `that are refused where no user is logged in keep the refresh token that came last`() async throws {
        let (broker, _) = try await Self.withoutKeys()
        let key = "storage_key=bob"
        broker.transport.enqueue(
            .json(
                200,
                BrokerHarness.token(
                    Self.access("2", of: "bob", at: broker.time.now, audience: "web"), refresh: "r-bob-2")))
        let line = Self.line("r-bob", user: "bob", storageKey: "bob")
        #expect(await broker.importing(line, query: "verify=true").outcomes == ["1 bob imported"])
        await Self.verifyWaiting(broker)
        #expect(await broker.get(key + "&policy=local").code == "missing_token_container")
        let bob = Self.access("3", of: "bob", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(bob, refresh: "r-bob-3")))
        #expect(await broker.get(key).token == bob)
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r-bob-2")
    }

    @Test func `of another user leave nothing to serve where no user is logged in`() async throws {
        let (broker, _) = try await Self.withoutKeys()
        broker.transport.enqueue(
            .json(
                200,
                BrokerHarness.token(
                    Self.access("2", of: "bob", at: broker.time.now), refresh: "r-bob-2", userID: 8)))
        let line = Self.line("r-bob", user: "7", storageKey: "bob")
        #expect(await broker.importing(line, query: "verify=true").outcomes == ["1 bob imported"])
        await Self.verifyWaiting(broker)
        #expect(await broker.status(storageKey: "bob").isLoggedIn == false)
        #expect(try await broker.asides().map(\.refreshToken?.revealedText) == ["r-bob-2"])
        #expect(await broker.restore(storageKey: "bob").code == "not_found")
        #expect(await broker.subjectChanges(provider: "oidc") == 1)
    }

    @Test func `are imported although another replica verifies them before their commit is sent again`() async throws {
        let store = BrokerFaultyStore(revalidateAfter: .zero)
        let (one, two) = (try await BrokerHarness(store: store), try await BrokerHarness(store: store))
        one.transport.standing(at: SigningProvider.keysAddress, .failure(.connectFailed))
        await one.makeTenant("t1", Self.members)
        let bob = Self.access("2", of: "bob", at: one.time.now)
        one.time.holdSleeps()
        one.transport.enqueue(.json(200, BrokerHarness.token(bob, refresh: "r-bob-2")))
        store.disturb([.loseAnswer]) { $0.writes(.credentials) }
        async let answer = one.importing(Self.line("r-bob", user: "bob"), query: "verify=true")
        await one.time.sleepers(of: .milliseconds(200))
        await Self.verifyWaiting(two)
        #expect(await two.get("policy=local").token == bob)
        one.time.advance(by: .milliseconds(200))
        #expect(await answer.outcomes == ["1 default imported"])
    }

    // MARK: While the keys are there

    @Test func `that are refused keep the refresh token that came last, and nothing of them is served`() async throws {
        let broker = try await Self.broker()
        let refused = Self.access("1", of: "bob", at: broker.time.now, audience: "web")
        broker.transport.enqueue(.json(200, BrokerHarness.token(refused, refresh: "r2")))
        let line = Self.line("r1", user: "bob")
        let answer = await broker.importing(line, query: "verify=true")
        #expect(answer.outcomes == ["1 default token_response_error"])
        #expect(answer.values[0]["detail"]?.text?.contains("is kept") == true)
        #expect(await broker.get("policy=local").code == "missing_token_container")
        #expect(await broker.importing(line, query: "verify=true").outcomes == ["1 default unchanged"])
        let good = Self.access("2", of: "bob", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(good, refresh: "r3")))
        let read = await broker.get()
        #expect((read.token, read.json["user_id"]?.text) == (good, "bob"))
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1", "r2"])
    }

    @Test func `that are refused leave the session that they were to replace, and are taken up later`() async throws {
        let broker = try await Self.broker()
        let ada = Self.access("1", of: "ada", at: broker.time.now)
        await broker.logIn(token: BrokerHarness.token(ada, refresh: "r-ada"))
        let (line, query) = (Self.line("r1", user: "bob"), "replace=true&verify=true")
        let refused = Self.access("2", of: "bob", at: broker.time.now, audience: "web")
        broker.transport.enqueue(.json(200, BrokerHarness.token(refused, refresh: "r2")))
        let answer = await broker.importing(line, query: query)
        #expect(answer.outcomes == ["1 default token_response_error"])
        #expect(answer.values[0]["detail"]?.text?.contains("is put aside") == true)
        #expect(await broker.get().token == ada)
        let bob = Self.access("3", of: "bob", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(bob, refresh: "r3")))
        #expect(await broker.importing(line, query: query).outcomes == ["1 default imported"])
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r2")
        #expect(await broker.get().token == bob)
        #expect(try await broker.asides().isEmpty)
    }

    @Test(arguments: [("bob", "imported"), ("8", "imported"), ("7", "token_response_error")])
    func `are the user's whom the line names by either identifier`(user: String, outcome: String) async throws {
        let broker = try await Self.broker()
        let token = Self.access("1", of: "bob", at: broker.time.now)
        broker.transport.enqueue(.json(200, BrokerHarness.token(token, refresh: "r2", userID: 8)))
        let answer = await broker.importing(Self.line("r1", user: user), query: "verify=true")
        #expect(answer.outcomes == ["1 default \(outcome)"])
        if outcome == "imported" { #expect(await broker.get().json["user_id"]?.text == "8") }
        #expect(await broker.status().isLoggedIn == (outcome == "imported"))
    }
}
