import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

/// A thousand refreshes at a provider that rotates refresh tokens, in the middle of which its keys do not answer.
@Suite struct `An outage of the provider's keys` {
    /// Each refresh token is good once: another one ends the session.
    private final class RotatingProvider: Sendable {
        private struct State {
            var refreshTokens: [String: Int] = [:]
            var granted: Set<String> = []
            var count = 0
        }

        let keys = SigningProvider()
        private let state = Mutex(State())
        private let time: ManualTime

        init(_ time: ManualTime) {
            self.time = time
        }

        var granted: Set<String> { state.withLock { $0.granted } }
        var count: Int { state.withLock { $0.count } }

        /// The answer to the login of a user.
        func login(_ user: Int) -> String { grant(user) }

        /// For `ScriptedTransport.always`.
        var step: ScriptedTransport.Step {
            .decide { seen in
                let user = self.state.withLock { state in
                    seen.form["refresh_token"].flatMap { state.refreshTokens.removeValue(forKey: $0) }
                }
                guard let user else { return .json(400, #"{"error": "invalid_grant"}"#) }
                return .json(200, self.grant(user))
            }
        }

        private func grant(_ user: Int) -> String {
            let name = state.withLock { state in
                state.count += 1
                return "\(user)-\(state.count)"
            }
            let access = keys.signed("read", audience: "api", of: "user-\(user)", at: time.now, name: name)
            state.withLock { state in
                state.refreshTokens["r-" + name] = user
                state.granted.insert(access)
            }
            return BrokerHarness.token(access, refresh: "r-" + name)
        }
    }

    @Test func `loses no session, and nothing unverified is served`() async throws {
        let users = 100
        let first = try await BrokerHarness()
        let provider = RotatingProvider(first.time)
        first.transport.standing(at: SigningProvider.keysAddress, .json(200, provider.keys.keySet))
        let tenant = #"""
            {"client_id": "c1", \#(SigningProvider.members), "token_verification": {"access_token": {"audience": "api"}}}
            """#
        await first.makeTenant("t1", tenant)
        for user in 0..<users { await first.logIn(storageKey: "u\(user)", token: provider.login(user)) }
        first.transport.always(provider.step)

        var waiting = 0
        for round in 0..<10 {
            first.time.advance(by: .seconds(3600))
            let isOutage = (3..<6).contains(round)
            first.transport.standing(
                at: SigningProvider.keysAddress,
                isOutage ? .json(503, "") : .json(200, provider.keys.keySet))
            // Started anew, a replica knows no keys.
            let replica = try await BrokerHarness(store: first.store, transport: first.transport, time: first.time)
            let answers = await withTaskGroup(of: BrokerHarness.Answer.self) { group in
                for user in 0..<users {
                    group.addTask { await replica.call(.get, "/credentials?storage_key=u\(user)", tenant: "t1") }
                }
                return await group.reduce(into: []) { $0.append($1) }
            }
            for answer in answers {
                if let token = answer.token {
                    #expect(provider.granted.contains(token))
                    #expect(answer.json["user_id"]?.text?.hasPrefix("user-") == true)
                    #expect(!isOutage)
                } else {
                    #expect((answer.status, answer.code) == (503, "network_error"))
                    waiting += 1
                }
            }
        }
        // While keys were away, each session was refreshed once, and no more.
        #expect(waiting == 3 * users)
        #expect(provider.count == users * (1 + 3 + 1 + 4))
        for user in 0..<users {
            let status = await first.call(.get, "/credentials/status?storage_key=u\(user)", tenant: "t1")
            #expect(status.json["logged_in"]?.bool == true)
        }
    }
}

/// A provider that signs with a key which it does not publish.
@Suite struct `A key that is never published` {
    private static let tenant = #"""
        {"client_id": "c1", \#(SigningProvider.members), "token_verification": {"access_token": {"audience": "api"}}}
        """#

    @Test func `costs each forced refresh one grant and one error, and the session goes on`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        let (published, own) = (SigningProvider(), SigningProvider(keys: ["k1", "k2"]))
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, published.keySet))
        await broker.makeTenant("t1", Self.tenant)
        func token(_ name: String, _ provider: SigningProvider, key: Int) -> String {
            BrokerHarness.token(
                provider.signed("read", audience: "api", at: broker.time.now, name: name, key: key),
                refresh: "r-\(name)")
        }
        await broker.logIn(token: token("1", published, key: 0))
        let stored = await broker.get("policy=local").token
        broker.time.advance(by: .seconds(30))
        for (round, wait) in [0, 1, 27, 2, 30, 3].enumerated() {
            broker.time.advance(by: .seconds(wait))
            broker.transport.enqueue(.json(200, token("\(round + 2)", own, key: 1)))
            let answer = await broker.get("policy=local_force_refresh")
            #expect((answer.status, answer.code) == (502, "token_response_error"), "\(round)")
            #expect(
                broker.transport.seen.last { $0.form["grant_type"] == "refresh_token" }?.form["refresh_token"]
                    == "r-\(round + 1)")
        }
        // The token of before lives, and the keys were asked for no more often than every 30 seconds.
        #expect(await broker.get("min_ttl=0").token == stored)
        let asked = broker.transport.standingSeen.count { $0.url == SigningProvider.keysAddress }
        #expect(asked <= 4, "\(asked)")
    }

    @Test func `is waited for by no second grant`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        let (published, own) = (SigningProvider(), SigningProvider(keys: ["k1", "k2"]))
        broker.transport.standing(at: SigningProvider.keysAddress, .json(200, published.keySet))
        await broker.makeTenant("t1", Self.tenant)
        await broker.logIn(
            token: BrokerHarness.token(
                published.signed("read", audience: "api", at: broker.time.now), refresh: "r-1"))
        // Its keys were asked for a moment ago.
        broker.transport.enqueue(
            .json(
                200,
                BrokerHarness.token(
                    own.signed("read", audience: "api", at: broker.time.now, name: "2", key: 1), refresh: "r-2")))
        let grants = { broker.transport.seen.count { $0.form["grant_type"] == "refresh_token" } }
        for _ in 0..<3 { #expect(await broker.get("policy=local_force_refresh").status == 503) }
        #expect(grants() == 1)
        broker.time.advance(by: .seconds(30))
        #expect(await broker.get("policy=local_force_refresh").status == 502)
        #expect(grants() == 1)
    }
}
