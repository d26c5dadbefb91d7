import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// Refresh tokens that an import has had exchanged, and that belong to another user than their lines say.
@Suite struct `What an import puts aside` {
    private static func broker(_ adjust: (inout Broker.Settings) -> Void = { _ in }) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(adjust)
        await broker.makeTenant("t1", #"{"client_id": "c1"}"#)
        return broker
    }

    private static func line(_ key: String, _ refresh: String, user: String) -> String {
        #"{"storage_key": "\#(key)", "refresh_token": "\#(refresh)", "credentials": {"user_id": "\#(user)"}}"#
    }

    /// Imports a line that says user 7, while the provider says user 8.
    private static func importMisnamed(
        _ broker: BrokerHarness, _ key: String = "alice", _ refresh: String = "r1", successor: String = "r2"
    ) async {
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-8", refresh: successor, userID: 8)))
        let answer = await broker.importing(line(key, refresh, user: "7"), query: "verify=true")
        #expect(answer.outcomes == ["1 \(key) token_response_error"])
        #expect(answer.values[0]["detail"]?.text?.hasSuffix("correct the line and import it again.") == true)
    }

    /// Imports the corrected line.
    private static func importCorrected(_ broker: BrokerHarness) async {
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-9", refresh: "r9", userID: 8)))
        let answer = await broker.importing(line("alice", "r1", user: "8"), query: "replace=true&verify=true")
        #expect(answer.outcomes == ["1 alice imported"])
        #expect(await broker.get("storage_key=alice").token == "a-9")
    }

    /// The refresh token that the provider saw last.
    private static func presented(_ broker: BrokerHarness) -> String? {
        broker.transport.seen.last?.form["refresh_token"]
    }

    @Test(arguments: [#""ended_since": "2026-11-21T08:00:00Z", "cause": "revoked""#, #""storage_keys": ["alice"]"#])
    func `is no session that ended, and no restore brings another user's token`(selection: String) async throws {
        let broker = try await Self.broker()
        await Self.importMisnamed(broker)
        #expect(try await broker.count(.aside) == 1)
        #expect(try await broker.count(.quarantine) == 0)
        let answer = await broker.call(.post, "/credentials/restore", tenant: "t1", body: "{\(selection)}")
        #expect(answer.status == 200)
        #expect((answer.json["outcomes"]?.array ?? []).allSatisfy { $0["code"]?.text == "not_found" }, "\(answer.text)")
        #expect(await broker.restore(storageKey: "alice").code == "not_found")
        #expect(await broker.status(storageKey: "alice").isLoggedIn == false)
        #expect(await broker.get("storage_key=alice&policy=local").code == "missing_token_container")
        #expect(try await broker.count(.aside) == 1)
    }

    @Test func `leaves a quarantined session to be restored, and is taken up all the same`() async throws {
        let broker = try await Self.broker()
        await broker.set("a1", refresh: "r-alice", lifetime: .zero, storageKey: "alice")
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("storage_key=alice&level=user").status == 424)
        await Self.importMisnamed(broker)
        let kept = try #require(try await broker.quarantined(storageKey: "alice"))
        #expect(kept.credentials.refreshToken?.revealedText == "r-alice")
        #expect(kept.session?.cause == .revoked)
        #expect(await broker.restore(storageKey: "alice").status == 200)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get("storage_key=alice").token == "a3")
        #expect(Self.presented(broker) == "r-alice")
        await Self.importCorrected(broker)
        #expect(Self.presented(broker) == "r2")
        #expect(try await broker.count(.aside) == 0)
    }

    @Test(arguments: [(86_399, "r2"), (86_400, "r1")])
    func `is kept for a day where nothing is quarantined`(seconds: Int64, presented: String) async throws {
        let broker = try await Self.broker { $0.core.quarantine = .zero }
        await Self.importMisnamed(broker)
        broker.time.advance(by: .seconds(seconds))
        await Self.importCorrected(broker)
        #expect(Self.presented(broker) == presented)
    }

    @Test func `is of one line each, and goes with a logout of the storage key`() async throws {
        let broker = try await Self.broker()
        await Self.importMisnamed(broker, "alice", "r1", successor: "r2")
        await Self.importMisnamed(broker, "alice", "s1", successor: "s2")
        await Self.importMisnamed(broker, "bob", "t1", successor: "t2")
        #expect(try await Set(broker.asides().compactMap(\.refreshToken?.revealedText)) == ["r2", "s2", "t2"])
        #expect(await broker.logOut(storageKey: "alice").status < 300)
        #expect(try await broker.asides().map(\.refreshToken?.revealedText) == ["t2"])
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        #expect(try await broker.count(.aside) == 0)
    }
}
